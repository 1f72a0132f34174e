from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.layouts import Config, parse_layout
from reference_mechanisms.drafters.publishing import published
from reference_mechanisms.drafters.rotation import Rope, Yarn
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.rope import RopeScaling
from tests.reference_mechanisms.drafters.configs import SMALL
from tests.reference_mechanisms.drafters.networks import dflash, dflash2, dspark, eagle3

HEAD = "lm_head.weight"


def again(config: Config, *stored: str) -> Config:
    return parse_layout(published(config, 512), "config.json", stored)


@pytest.mark.parametrize("name", SMALL)
def test_every_layout_is_told_again_in_one_that_reads_the_same(name: str) -> None:
    config = parse_layout(SMALL[name], "config.json", [HEAD])
    assert again(config, HEAD) == config


@pytest.mark.parametrize("make", [dflash, dflash2, dspark, eagle3])
def test_a_head_that_is_not_stored_is_the_targets(make: Any) -> None:
    found = again(dataclasses.replace(make().config, own_head=False, own_embedding=False))
    assert not found.own_head
    assert again(found, HEAD).own_head


ROPES = {
    "plain": Rope(RopeScaling(10000.0)),
    "linear": Rope(RopeScaling(500.0, "linear", factor=2.0)),
    "llama3": Rope(RopeScaling(500000.0, "llama3", 8.0, 1.0, 4.0, 4096)),
    "yarn": Rope(RopeScaling(10000.0), Yarn(4.0, 1024, attention_factor=1.1)),
    "yarn, its own factor": Rope(RopeScaling(10000.0), Yarn(4.0, 1024)),
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rotation_is_told(rope: Rope) -> None:
    config = dataclasses.replace(dflash().config, rope=rope)
    assert again(config) == config


REACHES = {
    "all see all": (Reach(), Reach()),
    "all causal": (Reach(causal=True), Reach(causal=True)),
    "windows both ways": (Reach(window=5), Reach(window=5)),
    "windows causal": (Reach(causal=True, window=5), Reach()),
}


@pytest.mark.parametrize("make", [dflash, dflash2, dspark])
@pytest.mark.parametrize("reaches", REACHES.values(), ids=REACHES)
def test_what_a_layer_sees_is_told(make: Any, reaches: tuple[Reach, ...]) -> None:
    config = dataclasses.replace(make().config, reaches=reaches)
    assert again(config) == config


@pytest.mark.parametrize(
    "reaches",
    [(Reach(window=5), Reach(window=6)), (Reach(causal=True), Reach())],
    ids=["two windows", "one causal"],
)
def test_what_no_file_can_say_is_refused(reaches: tuple[Reach, ...]) -> None:
    with pytest.raises(DrafterError, match=r"config\.json"):
        published(dataclasses.replace(dflash().config, reaches=reaches), 512)


def test_a_dspark_names_its_taps_where_vllm_counts_them() -> None:
    config = dspark().config
    assert published(config, 512)["eagle_config"] == {"target_layer_ids": list(config.taps)}


def test_a_dspark_with_an_idle_anchor_row_is_refused() -> None:
    with pytest.raises(DrafterError, match="anchor row"):
        published(dspark(anchor_row=False).config, 512)


def test_the_switches_that_readers_disagree_about_are_stated() -> None:
    block = published(dflash().config, 512)
    assert block["dflash_config"]["causal"] is block["is_causal"] is False
    eagle = published(eagle3().config, 512)
    assert eagle["norm_before_residual"] is False
    assert eagle["transformer_layer_config"]["num_aux_hidden_states"] == 2
    assert eagle["eagle_aux_hidden_state_layer_ids"] == [1, 2]  # outputs 0 and 1, named by their input
    assert isinstance(dflash().config, BlockConfig)
