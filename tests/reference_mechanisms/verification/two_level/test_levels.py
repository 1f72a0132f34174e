"""First levels: 4-bit weights, early exit, a window of the cache; and how often they agree."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.engine.cache import Window
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import TargetError
from reference_mechanisms.verification.figures_file import FiguresError
from reference_mechanisms.verification.two_level.figures import (
    Setup,
    read_figures,
    write_figures,
)
from reference_mechanisms.verification.two_level.four_bit import FourBitLinear, has_kernel, rounded
from reference_mechanisms.verification.two_level.level_one import LevelOne, level_one_of
from reference_mechanisms.verification.two_level.measuring import (
    Measuring,
    Text,
    agreement,
    measure,
    written,
)
from tests.reference_mechanisms.verification.two_level.first_levels import LyingLevel

IDS = tuple(97 + n * n % 23 for n in range(30))
CPU = torch.device("cpu")
WIDE, NARROW = Window(4, 64), Window(2, 5)
SETUP = Setup(target_sha256="ab", dtype="float32", device="cpu", level_one="x", drafter="ngram", drafts=4)


def logits(target: Target, ids: tuple[int, ...], pieces: int = 30) -> torch.Tensor:
    cache = target.new_cache(1, 64)
    found = []
    for start in range(0, len(ids), pieces):
        piece = ids[start : start + pieces]
        rows = Rows(piece, range(start, start + len(piece)), (Segment(0, start, len(piece)),))
        found.append(target.logits(target.forward(rows, cache).hidden))
        cache.commit(0, len(piece))
    return torch.cat(found)


@pytest.mark.parametrize("columns", [128, 96, 40], ids=["groups of 64", "groups of 32", "whole rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_rounded_matrix(columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(48, columns, dtype=dtype), torch.randn(5, columns, dtype=dtype)
    bias = torch.randn(48, dtype=dtype)
    found = rounded(weight)
    product = FourBitLinear(weight, bias)(x)
    wanted = x.double() @ found.restored(torch.float64).T + bias.double()
    assert product.dtype == dtype
    worst = float((product.double() - wanted).abs().max() / wanted.abs().max())
    assert worst < (0.02 if dtype == torch.bfloat16 else 1e-5)
    assert has_kernel(48, columns, found.group, dtype, CPU) == (dtype == torch.bfloat16 and columns != 40)
    assert set(found.integers.flatten().tolist()) <= set(range(1, 16))
    error = (found.restored(torch.float64) - weight.double()).norm() / weight.double().norm()
    assert 0.05 < float(error) < 0.15


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_of_a_gpu_multiplies_the_same_integers() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(256, 128), torch.randn(5, 128)
    gpu = weight.to("cuda", torch.bfloat16)
    found = rounded(gpu)
    assert has_kernel(256, 128, found.group, gpu.dtype, gpu.device)
    wanted = x.bfloat16().double() @ found.restored(torch.float64).T.cpu()
    product = FourBitLinear(gpu)(x.to("cuda", torch.bfloat16)).double().cpu()
    assert float((product - wanted).abs().max() / wanted.abs().max()) < 0.02


def test_an_early_exit_is_a_target_of_its_first_layers(folders: dict[str, Path], dense: Target) -> None:
    cut = level_one_of(LevelOne("early-exit", layers=1), dense, folders["dense"])
    assert cut.config.layers == 1
    assert dense.config.layers == 2
    rows = Rows(IDS, range(30), (Segment(0, 0, 30),))
    whole = dense.forward(rows, dense.new_cache(1, 64), (0,)).taps[0]
    assert torch.equal(cut.forward(rows, cut.new_cache(1, 64), (0,)).taps[0], whole)
    with pytest.raises(TargetError, match="behind 2 layers: the target has 2; give 1 to 1"):
        level_one_of(LevelOne("early-exit", layers=2), dense, folders["dense"])


@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_a_window_sees_first_and_last_positions_alone(name: str, request: pytest.FixtureRequest) -> None:
    target = request.getfixturevalue(name)
    plain = logits(target, IDS)
    wide = level_one_of(LevelOne("window", window=WIDE), target, None)
    assert torch.allclose(logits(wide, IDS, 7), plain, atol=2e-4)
    narrow = level_one_of(LevelOne("window", window=NARROW), target, None)
    found = logits(narrow, IDS, 4)
    assert torch.allclose(found, logits(narrow, IDS, 1), atol=2e-4)
    assert not torch.allclose(found, plain, atol=2e-2)
    if name == "dense":  # two layers hand on what lies up to twice as far back
        changed = (*IDS[:12], 200, *IDS[13:])
        assert torch.equal(logits(narrow, changed, 4)[21:], found[21:])
        assert not torch.equal(logits(narrow, changed, 4)[16], found[16])
        first = (IDS[0], 200, *IDS[2:])
        assert not torch.equal(logits(narrow, first, 4)[29], found[29])


def test_rows_of_a_tree_see_their_ancestors_in_a_window(dense: Target) -> None:
    level = dense.windowed(NARROW)  # type: ignore[attr-defined]
    cache = level.new_cache(1, 64)
    level.forward(Rows(IDS[:9], range(9), (Segment(0, 0, 9),)), cache)
    cache.commit(0, 9)
    parents, ids = (-1, 0, 0, 1, 2, 4), (97, 98, 99, 100, 101, 102)
    rows = Rows(ids, (9, 10, 10, 11, 11, 12), (Segment(0, 9, 6),), parents)
    found = level.logits(level.forward(rows, cache).hidden)
    chain = logits(level, (*IDS[:9], 97, 99, 101, 102), 1)
    assert torch.allclose(found[[0, 2, 4, 5]], chain[9:], atol=2e-4)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (LevelOne("four-bit"), "made from plain weights"),
        (LevelOne("early-exit"), "says neither layers nor a window"),
    ],
)
def test_levels_that_cannot_be_made_are_refused(dense: Target, level: LevelOne, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        level_one_of(level, dense, None)


def test_agreement_is_the_share_of_the_targets_tokens(dense: Target, folders: dict[str, Path]) -> None:
    prompts = [(256, 97, 98, 99), tuple(IDS[:5])]
    texts = written(dense, prompts, 20)
    assert [(len(text.token_ids), text.prompt) for text in texts] == [(24, 4), (25, 5)]
    same = agreement(dense, texts)
    assert (same.beta, same.places) == (1.0, 40)
    assert same.runs == (*range(20, 0, -1), *range(20, 0, -1))
    assert agreement(LyingLevel(dense, 1.0), texts).beta < 0.1
    wrong = [Text((*text.token_ids[:10], 0, *text.token_ids[11:]), text.prompt) for text in texts]
    assert agreement(dense, wrong).beta < 1.0
    four = level_one_of(LevelOne("four-bit"), dense, folders["dense"])
    assert 0.0 < agreement(four, texts).beta <= 1.0
    with pytest.raises(ValueError, match="no token that the target said"):
        agreement(dense, [Text((1, 2), 2)])


def test_figures_are_measured_written_and_read_for_their_setup_alone(dense: Target, tmp_path: Path) -> None:
    ticks = itertools.count()
    what = Measuring(
        target=dense,
        level_one=dense,
        new_drafter=NoDrafter,
        prompts=[(256, 97)],
        tokens=8,
        drafts=0,
        widths=(4, 9),
        clock=lambda: float(next(ticks)),
    )
    found = measure(what)
    assert (found.beta, found.tokens, found.level_one_tokens, found.rows) == (1.0, 1.0, 1.0, 1)
    assert found.verify_seconds == {1: 1.0, 4: 1.0, 9: 1.0}
    assert (found.draft_seconds, found.level_one_seconds) == (1.0, 1.0)
    path = tmp_path / "figures.json"
    write_figures(path, SETUP, found)
    assert read_figures(path, SETUP) == found
    with pytest.raises(FiguresError, match="measured with `drafts` 4, here it is 5; measure again"):
        read_figures(
            path, Setup(**{**{f: getattr(SETUP, f) for f in Setup.__dataclass_fields__}, "drafts": 5})
        )
    path.write_text(json.dumps({"schema": "else"}))
    with pytest.raises(FiguresError, match="`schema` is 'else'"):
        read_figures(path, SETUP)
