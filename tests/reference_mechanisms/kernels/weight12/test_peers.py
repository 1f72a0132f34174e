from __future__ import annotations

import pytest
import torch

from reference_mechanisms.kernels.weight12.peers import installed, published, table


def test_every_figure_has_a_project_and_a_source() -> None:
    found = published()
    names = {one.name for one in found.project}
    assert {one.project for one in found.figure} == names
    assert all(one.source.startswith("https://") for one in found.figure)
    assert all(one.licence == "Apache-2.0" for one in found.project)


def test_the_table_says_that_nothing_was_measured_here() -> None:
    found = published()
    lines = table(found).splitlines()
    assert "published (not measured here)" in lines[0]
    assert len(lines) == 2 + len(found.figure)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or not installed(), reason="needs a CUDA device and a peer")
@pytest.mark.parametrize("name", list(installed()))
def test_an_installed_peer_multiplies_as_torch_does(name: str) -> None:
    weight = (torch.randn(4096, 4096, device="cuda") / 64).bfloat16()
    x = torch.randn(1, 4096, device="cuda").bfloat16()
    expected = x.double() @ weight.double().t()
    error = (installed()[name](weight)(x).double() - expected).abs()
    assert bool((error <= expected.abs() * 2**-7 + 0.02).all())
