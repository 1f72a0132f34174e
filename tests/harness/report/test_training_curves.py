"""The picture of a training run."""

from __future__ import annotations

from xml.etree import ElementTree

from harness.report.training_curves import training_curves


def picture(first: float = 9.0) -> str:
    return training_curves("mine", (1, 2, 3), (first, 3.0, 2.0), (1.0, 2.0, 3.0))


def test_it_is_a_document_of_its_own_with_both_lines() -> None:
    root = ElementTree.fromstring(picture())  # noqa: S314 - our own picture
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    ids = {one.get("id") for one in root.iter()}
    assert {"training-loss", "training-length"} <= ids
    assert "mine" in str(root.get("aria-label"))
    assert "currentColor" not in picture()  # nothing around it gives a colour


def test_a_first_loss_far_above_the_rest_does_not_flatten_the_curve() -> None:
    def heights(svg: str) -> str:
        return svg[svg.index('id="training-length"') :]

    assert heights(picture(9.0)) == heights(picture(90.0))
    ticks = [text for text in ("80", "90") if f">{text}<" in picture(90.0)]
    assert not ticks
