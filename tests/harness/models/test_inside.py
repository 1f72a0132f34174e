from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.errors import ModelError
from harness.models import resolve_model
from harness.models.inside import folder_inside
from harness.plan import ModelSpec
from tests.harness.tiny import write_llama


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that carries a model; importing it would fail."""
    root = tmp_path / "carrier"
    write_llama(root / "targets" / "shipped" / "small")
    (root / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return root


def test_a_folder_inside_a_package_is_a_model_like_any_other(package: Path) -> None:
    spec = ModelSpec(package="carrier:targets/shipped/small", dtype="float32")
    model = resolve_model(spec)
    assert model.path == (package / "targets" / "shipped" / "small").resolve()
    same = resolve_model(ModelSpec(path=str(model.path), dtype="float32"))
    assert model.sha256 == same.sha256
    assert "carrier" not in sys.modules
    pinned = ModelSpec(package="carrier:targets/shipped/small", dtype="float32", sha256="0" * 64)
    with pytest.raises(ModelError, match=r"`target\.sha256` is 0000"):
        resolve_model(pinned)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("carrier:targets/shipped/large", r"no model lies in .*large; there lie small; give `target\.path`"),
        ("carrier:nowhere/large", "this release carries none there"),
        ("carrier:../carrier/targets", r"'\.\./carrier/targets' is no folder inside carrier"),
        ("carrier:/etc", "'/etc' is no folder inside carrier"),
        ("carrier:", "'' is no folder inside carrier"),
        ("nobody_has_this:x", "no package 'nobody_has_this' is installed"),
        ("json.tool:x", r"no package 'json\.tool' is installed"),
    ],
)
def test_what_is_not_there_is_named(package: Path, name: str, told: str) -> None:
    del package
    with pytest.raises(ModelError, match=told):
        folder_inside(name)
