from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.loading import Network, load_drafter
from reference_mechanisms.errors import DrafterError
from tests.reference_mechanisms.drafters.configs import SMALL
from tests.reference_mechanisms.drafters.folders import reference, tensors_of, write

CPU = torch.device("cpu")
HEAD = "lm_head.weight"


def load(folder: Path) -> Network:
    return load_drafter(folder, torch.float64, CPU)


def same(found: Network, expected: Network) -> bool:
    theirs, mine = found.state_dict(), expected.state_dict()
    return theirs.keys() == mine.keys() and all(torch.equal(theirs[name], mine[name]) for name in mine)


@pytest.mark.parametrize("name", SMALL)
def test_every_layout_loads_every_tensor(tmp_path: Path, name: str) -> None:
    network = reference(SMALL[name], HEAD)
    found = load(write(tmp_path, SMALL[name], tensors_of(network)))
    assert type(found) is type(network)
    assert found.config == network.config
    assert same(found, network)
    assert not any(tensor.requires_grad for tensor in found.parameters())


@pytest.mark.parametrize("name", ["z-lab dflash", "deepspec eagle3"])
def test_an_embedding_and_a_head_of_its_own_are_used(tmp_path: Path, name: str) -> None:
    network = reference(SMALL[name], HEAD, "embed_tokens.weight")
    found = load(write(tmp_path, SMALL[name], tensors_of(network)))
    assert found.embed_tokens is not None
    assert found.lm_head is not None
    assert same(found, network)
    bare = load(write(tmp_path / "bare", SMALL["z-lab dflash"], tensors_of(reference(SMALL["z-lab dflash"]))))
    assert bare.embed_tokens is None
    assert bare.lm_head is None


def fused(tensors: dict[str, Tensor], layer: str) -> dict[str, Tensor]:
    found = dict(tensors)
    for together, parts in (
        ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
    ):
        found[f"{layer}.{together}.weight"] = torch.cat([found.pop(f"{layer}.{p}.weight") for p in parts])
    return found


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    assert any(name.startswith(old) for name in tensors)
    return {new + name.removeprefix(old) if name.startswith(old) else name: t for name, t in tensors.items()}


SPELLINGS: dict[str, tuple[str, Any]] = {
    "fused projections": ("z-lab dflash", lambda t: fused(t, "layers.1")),
    "fused projections of eagle3": ("safeai eagle3", lambda t: fused(t, "layers.0")),
    "midlayer": ("safeai eagle3", lambda t: renamed(t, "layers.0.", "midlayer.")),
    "encoder": (
        "z-lab dflash",
        lambda t: renamed(renamed(t, "fc.", "encoder.fc."), "hidden_norm.", "encoder.output_norm_enc."),
    ),
    "logit_head": ("specforge dspark", lambda t: renamed(t, "markov_head.", "logit_head.markov_head.")),
    "recomputed rotation": ("z-lab dflash", lambda t: t | {"rotary_emb.inv_freq": torch.ones(4)}),
}


@pytest.mark.parametrize(("name", "spell"), SPELLINGS.values(), ids=SPELLINGS)
def test_other_spellings_are_the_same_checkpoint(tmp_path: Path, name: str, spell: Any) -> None:
    network = reference(SMALL[name], HEAD)
    assert same(load(write(tmp_path, SMALL[name], spell(tensors_of(network)))), network)


def changed(name: str, **tensors: Tensor | None) -> dict[str, Tensor]:
    merged: dict[str, Tensor | None] = {**tensors_of(reference(SMALL[name], HEAD)), **tensors}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


EAGLE = "safeai eagle3"


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        pytest.param(
            "z-lab dflash",
            changed("z-lab dflash", **{"mask_embedding": torch.ones(16)}),
            r"tensor mask_embedding \(1 in all\) has no place",
            id="mask embedding",
        ),
        pytest.param(
            "z-lab dflash",
            changed("z-lab dflash", **{"candidate_selector.hidden_projection.weight": torch.ones(3, 16)}),
            "tensor candidate_selector.hidden_projection.weight",
            id="dflash2 named dflash",
        ),
        pytest.param(
            "z-lab dflash2",
            changed("z-lab dflash2", **{"layers.0.mlp_conv.base_kernel": None}),
            "tensor layers.0.mlp_conv.base_kernel is missing",
            id="missing",
        ),
        pytest.param(
            "z-lab dflash",
            changed("z-lab dflash", **{"fc.weight": torch.ones(16, 48)}),
            r"tensor fc.weight has shape \(16, 48\), config.json asks for \(16, 32\)",
            id="three taps stored, two named",
        ),
        pytest.param(
            EAGLE,
            changed(EAGLE, **{"midlayer.hidden_norm.weight": torch.ones(16)}),
            "are the same tensor",
            id="stored twice",
        ),
        pytest.param(
            EAGLE,
            changed(EAGLE, d2t=torch.zeros(10, dtype=torch.int32)),
            "d2t is stored as I32",
            id="d2t type",
        ),
        pytest.param(
            EAGLE,
            changed(EAGLE, d2t=torch.arange(10) * 9),
            "tensor d2t does not map 10 draft ids to as many of 40",
            id="d2t outside",
        ),
        pytest.param(
            EAGLE, changed(EAGLE, d2t=-torch.arange(10)), "tensor d2t does not map", id="d2t twice the same"
        ),
        pytest.param(
            EAGLE,
            changed(EAGLE, t2d=torch.arange(40) < 10),
            "tensors d2t and t2d name different draft vocabularies",
            id="t2d of another map",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, name: str, tensors: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(DrafterError, match=message):
        load(write(tmp_path, SMALL[name], tensors))


def test_a_folder_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="has no weights"):
        load(tmp_path)
