from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_mechanisms.drafters.loading import Network, load_drafter
from reference_mechanisms.drafters.publishing import published
from reference_mechanisms.drafters.storing import export, largest_difference, published_tensors, store
from reference_mechanisms.errors import DrafterError
from tests.reference_mechanisms.drafters.networks import dflash, dflash2, dspark, eagle3

CPU = torch.device("cpu")
MAKERS: dict[str, Callable[[], Network]] = {
    "dflash": lambda: dflash(vocab=2048),
    "dflash2": lambda: dflash2(vocab=2048),
    "dspark": lambda: dspark(vocab=4096),
    "eagle3": lambda: eagle3(vocab=2048, own=False),
    "eagle3 with a map": lambda: eagle3(vocab=2048, draft_vocab=1024),
}
ALL_BYTES = {"*_proj.weight": 8, "fc.weight": 8}


def written(folder: Path, network: Network, bits: dict[str, int] | None = None) -> Path:
    store(network, published(network.config, 512), folder, bits)
    return folder


def distance(network: Network, folder: Path) -> float:
    mine, theirs = published_tensors(network), published_tensors(load_drafter(folder, torch.float64, CPU))
    return max(float((theirs[name].double() - mine[name].double()).abs().max()) for name in mine)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_floats_of_32_bits_come_back(tmp_path: Path, make: Callable[[], Network]) -> None:
    network = make()
    folder = written(tmp_path, network, {"*": 32})
    assert load_drafter(folder, torch.float32, CPU).config == network.config
    assert distance(network, folder) < 1e-6
    assert "specpilot_storage" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_integers_come_back_within_what_was_told(tmp_path: Path, make: Callable[[], Network]) -> None:
    network = make()
    told = store(network, published(network.config, 512), tmp_path, ALL_BYTES)
    name, largest = largest_difference(network, tmp_path)
    worst = max(told, key=lambda one: one.largest)
    assert (worst.name, worst.bits) == (name, 8)
    assert largest == pytest.approx(worst.largest)
    assert 1e-3 < largest < 0.02
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["fc.weight"].dtype == torch.int8
    assert stored["norm.weight"].dtype == torch.float32


def test_a_pattern_chooses_the_bits_and_the_first_counts(tmp_path: Path) -> None:
    network = dflash2(vocab=2048)
    bits = {"fc.weight": 16, "*_codebook": 8, "layers.*.mlp.*_proj.weight": 8, "candidate_selector.*": 16}
    told = {one.name: one for one in store(network, published(network.config, 512), tmp_path, bits)}
    assert told["fc.weight"].bits == 16
    assert told["candidate_selector.predecessor_codebook"].bits == 8
    assert told["candidate_selector.predecessor_codebook"].stored_bytes == 2048 * (6 + 2)
    assert told["candidate_selector.hidden_projection.weight"].bits == 16
    assert told["layers.0.self_attn.q_proj.weight"].bits == 32  # too small to be worth it
    assert told["norm.weight"].bits == 32


def test_large_matrices_get_8_bits_unless_told() -> None:
    network = dspark(vocab=4096)
    matrix = network.state_dict()["markov_head.markov_w1.weight"]
    assert matrix.numel() >= 1 << 14


def test_half_the_bytes_of_a_matrix_are_saved_by_4_bits(tmp_path: Path) -> None:
    network = dflash(vocab=2048, hidden=32)  # fc is [16, 64]
    told = {n: store(network, published(network.config, 512), tmp_path, {"fc.weight": n})[0] for n in (4, 8)}
    assert (told[4].name, told[8].name) == ("fc.weight", "fc.weight")
    assert told[4].stored_bytes == 16 * 32 + 16 * 2
    assert told[8].stored_bytes == 16 * 64 + 16 * 2
    assert told[8].share < 0.01 < told[4].share < 0.12
    store(network, published(network.config, 512), tmp_path, {"fc.weight": 4})
    assert load_file(tmp_path / "model.safetensors")["fc.weight"].dtype == torch.uint8
    name, largest = largest_difference(network, tmp_path)
    assert name == "fc.weight"
    assert largest == pytest.approx(told[4].largest)


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for attempt in ("first", "second"):
        folder = written(tmp_path / attempt, dflash2(vocab=2048), ALL_BYTES)
        digests.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())))
    assert len(digests) == 1


def changed(folder: Path, **tensors: Tensor | None) -> Path:
    merged: dict[str, Tensor | None] = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({n: t for n, t in merged.items() if t is not None}, folder / "model.safetensors")
    return folder


def declared(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["specpilot_storage"] = raw["specpilot_storage"] | fields
    path.write_text(json.dumps(raw))
    return folder


def undeclared(folder: Path) -> Path:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    del raw["specpilot_storage"]
    path.write_text(json.dumps(raw))
    return folder


SCALE = "fc.weight_scale"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "format": (lambda at: declared(at, format="gguf"), "`specpilot_storage`: `format` must be one of scaled"),
    "version": (lambda at: declared(at, version=2), "`version` must be 1, the only one"),
    "unknown field": (lambda at: declared(at, group=64), "`group` is unknown"),
    "no scale": (lambda at: changed(at, **{SCALE: None}), "tensor fc.weight_scale is missing"),
    "scale of another shape": (
        lambda at: changed(at, **{SCALE: torch.ones(17)}),
        r"tensor fc.weight_scale has shape \(17,\)",
    ),
    "no number": (
        lambda at: changed(at, **{SCALE: torch.full((16,), torch.nan)}),
        "tensor fc.weight_scale holds a scale that is no number",
    ),
    "endless": (
        lambda at: changed(at, **{SCALE: torch.full((16,), torch.inf)}),
        "tensor fc.weight_scale holds a scale",
    ),
    "negative": (
        lambda at: changed(at, **{SCALE: torch.full((16,), -1.0)}),
        "tensor fc.weight_scale holds a scale",
    ),
    "integers of another shape": (
        lambda at: changed(at, **{"fc.weight": torch.zeros(16, 23, dtype=torch.int8)}),
        r"tensor fc.weight has shape \(16, 23\)",
    ),
    "a vector": (
        lambda at: changed(
            at, **{"norm.weight": torch.zeros(16, dtype=torch.int8), "norm.weight_scale": torch.ones(1)}
        ),
        "tensor norm.weight is no matrix",
    ),
    "a scale of floats": (
        lambda at: changed(at, **{"norm.weight_scale": torch.ones(1)}),
        "tensor norm.weight_scale",
    ),
    "not declared": (undeclared, "tensor fc.weight is stored as I8"),
}


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Path], Path], message: str
) -> None:
    folder = written(tmp_path, dflash(vocab=2048), ALL_BYTES)  # fc is [16, 24]
    load_drafter(folder, torch.float32, CPU)
    with pytest.raises(DrafterError, match=message):
        load_drafter(spoil(folder), torch.float32, CPU)


def test_nibbles_without_whole_groups_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, dflash(vocab=2048, hidden=48), {"fc.weight": 8})
    changed(folder, **{"fc.weight": torch.zeros(16, 48, dtype=torch.uint8)})
    with pytest.raises(DrafterError, match=r"tensor fc\.weight has 96 columns, no whole groups"):
        load_drafter(folder, torch.float32, CPU)


def test_wrong_orders_are_refused(tmp_path: Path) -> None:
    network = dflash(vocab=2048, hidden=48)
    raw = published(network.config, 512)
    for bits, message in (
        ({"fc.weigth": 8}, "`fc.weigth` matches no tensor"),
        ({"fc.weight": 5}, "5 bits; choose 4, 8, 16, 32"),
        ({"norm.weight": 8}, "tensor norm.weight is no matrix"),
        ({"fc.weight": 4}, "fc.weight has 96 columns"),
    ):
        with pytest.raises(DrafterError, match=message):
            store(network, raw, tmp_path, bits)
    with pytest.raises(DrafterError, match="it describes"):
        store(
            network,
            raw | {"block_size": 5, "dflash_config": raw["dflash_config"] | {"block_size": 5}},
            tmp_path,
        )
    network.fc.weight[0, 0] = torch.nan
    with pytest.raises(DrafterError, match=r"fc\.weight holds a weight that is no number"):
        store(network, raw, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_export_is_plain_and_drafts_with_the_stored_weights(
    tmp_path: Path, make: Callable[[], Network], dtype: torch.dtype
) -> None:
    folder = written(tmp_path / "stored", make(), ALL_BYTES)
    export(folder, tmp_path / "plain", dtype)
    found = load_file(tmp_path / "plain" / "model.safetensors")
    assert not any(name.endswith("_scale") for name in found)
    assert {tensor.dtype for tensor in found.values()} <= {dtype, torch.int64, torch.bool}
    raw = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "specpilot_storage" not in raw
    mine = published_tensors(load_drafter(folder, dtype, CPU))
    theirs = published_tensors(load_drafter(tmp_path / "plain", dtype, CPU))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_an_export_keeps_what_config_json_says_of_the_target(tmp_path: Path) -> None:
    network = dflash()
    raw = published(network.config, 4096) | {"specpilot_target": {"name": "tiny", "sha256": "00"}}
    store(network, raw, tmp_path / "stored")
    export(tmp_path / "stored", tmp_path / "plain")
    found = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert found == raw | {"dtype": "bfloat16"}
    with pytest.raises(DrafterError, match="holds a model already"):
        export(tmp_path / "stored", tmp_path / "plain")
