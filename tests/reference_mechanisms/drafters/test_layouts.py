from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.dflash2 import DFlash2Config
from reference_mechanisms.drafters.dspark import DSparkConfig
from reference_mechanisms.drafters.eagle3 import Eagle3Config
from reference_mechanisms.drafters.layouts import Config, parse_layout
from reference_mechanisms.drafters.loading import build, name_of
from reference_mechanisms.drafters.rotation import Yarn
from reference_mechanisms.errors import DrafterError
from tests.reference_mechanisms.drafters import configs

ENDS = ("embed_tokens.weight", "lm_head.weight")


def parse(raw: dict[str, Any], *stored: str) -> Config:
    return parse_layout(raw, "config.json", stored)


@pytest.mark.parametrize(
    ("raw", "stored", "tensors", "parameters"),
    [
        pytest.param(configs.ZLAB_8B, (), 58, 1_048_626_432, id="z-lab/Qwen3-8B-DFlash-b16"),
        pytest.param(configs.ZLAB_8B_NESTED, (), 58, 1_048_626_432, id="block size in dflash_config"),
        pytest.param(configs.ZLAB_4B, (), 58, 537_427_200, id="z-lab/Qwen3-4B-DFlash-b16"),
        pytest.param(configs.DFLASH2_27B, (), 81, 1_924_404_480, id="incoai/Qwen3.8-27B-DFlash2"),
        pytest.param(configs.RADIXARK_27B, (), 62, 1_857_358_337, id="RadixArk/Qwen3.8-27B-DSpark v2"),
        pytest.param(configs.DEEPSPEC_8B, (), 62, 1_126_422_017, id="dspark_qwen3_8b_block7, heads only"),
        pytest.param(configs.DEEPSPEC_8B, ENDS, 64, 2_371_081_729, id="dspark_qwen3_8b_block7"),
        pytest.param(configs.DEEPSPEC_DFLASH_8B, (), 58, 1_048_626_432, id="dflash_qwen3_8b_block7"),
    ],
)
def test_networks_have_as_many_parameters_as_the_published_checkpoints(
    raw: dict[str, Any], stored: tuple[str, ...], tensors: int, parameters: int
) -> None:
    network = build(parse(raw, *stored))
    assert all(tensor.is_meta for tensor in network.parameters())
    assert len(list(network.parameters())) == tensors
    assert sum(tensor.numel() for tensor in network.parameters()) == parameters


def test_eagle3_of_llama_has_the_published_shapes() -> None:
    shapes = {
        name: tuple(t.shape)
        for name, t in build(parse(configs.SAFEAI_8B, "lm_head.weight")).state_dict().items()
    }
    assert shapes["fc.weight"] == (4096, 12288)
    assert shapes["layers.0.self_attn.q_proj.weight"] == (4096, 8192)
    assert shapes["layers.0.self_attn.k_proj.weight"] == (1024, 8192)
    assert shapes["lm_head.weight"] == (32000, 4096)
    assert shapes["vocabulary.d2t"] == (32000,)
    assert "layers.0.self_attn.q_norm.weight" not in shapes


@pytest.mark.parametrize(
    ("raw", "name", "taps", "block", "anchor_row", "drafts"),
    [
        pytest.param(configs.ZLAB_8B, "dflash", (1, 9, 17, 25, 33), 16, False, 15, id="z-lab"),
        pytest.param(configs.DFLASH2_27B, "dflash2", (5, 19, 33, 47, 61), 8, False, 7, id="dflash2"),
        pytest.param(configs.DEEPSPEC_8B, "dspark", (1, 9, 17, 25, 33), 7, True, 7, id="deepspec dspark"),
        pytest.param(configs.DEEPSPEC_DFLASH_8B, "dflash", (1, 9, 17, 25, 33), 7, True, 7, id="deepspec"),
        pytest.param(configs.RADIXARK_27B, "dspark", (5, 19, 33, 47, 61), 7, True, 7, id="radixark"),
        pytest.param(configs.SMALL["speculators dflash"], "dflash", (0, 2), 4, False, 3, id="speculators"),
        pytest.param(
            configs.SMALL["speculators dspark"], "dspark", (0, 2), 4, True, 4, id="speculators dspark"
        ),
    ],
)
def test_each_layout_keeps_its_own_conventions(
    raw: dict[str, Any], name: str, taps: tuple[int, ...], block: int, anchor_row: bool, drafts: int
) -> None:
    found = parse(raw, "lm_head.weight")
    assert isinstance(found, BlockConfig)
    assert name_of(found) == name
    assert (found.taps, found.block, found.anchor_row, found.drafts) == (taps, block, anchor_row, drafts)


def test_a_speculators_dspark_without_the_switch_does_not_predict_from_the_anchor_row() -> None:
    raw = {k: v for k, v in configs.SMALL["speculators dspark"].items() if k != "sample_from_anchor"}
    found = parse(raw, "lm_head.weight")
    assert isinstance(found, DSparkConfig)
    assert (found.anchor_row, found.drafts) == (False, 3)


@pytest.mark.parametrize(
    ("change", "reach"),
    [
        pytest.param({}, Reach(True, 6), id="sliding is causal"),
        pytest.param({"is_causal": False}, Reach(False, 6), id="is_causal"),
        pytest.param(
            {"dflash_config": {**configs.BLOCK, "causal": False}}, Reach(False, 6), id="dflash_config.causal"
        ),
    ],
)
def test_causality_inside_a_block(change: dict[str, Any], reach: Reach) -> None:
    found = parse(configs.SMALL["z-lab dflash"] | change)
    assert isinstance(found, BlockConfig)
    assert found.reaches == (Reach(), reach)


def test_is_causal_wins_over_dflash_config_and_holds_for_all_layers() -> None:
    change = {"is_causal": True, "dflash_config": {**configs.BLOCK, "causal": False}}
    found = parse(configs.SMALL["z-lab dflash"] | change)
    assert isinstance(found, BlockConfig)
    assert found.reaches == (Reach(True), Reach(True, 6))


def test_speculators_turn_off_causality_with_a_switch() -> None:
    raw = configs.SMALL["speculators dflash"]
    for switch, causal in ((False, True), (True, False)):
        found = parse(raw | {"sliding_window_non_causal": switch}, "lm_head.weight")
        assert isinstance(found, BlockConfig)
        assert found.reaches == (Reach(), Reach(causal, 6))


def test_radixark_rotates_by_yarn_and_dflash2_reads_its_own_fields() -> None:
    assert parse(configs.RADIXARK_27B).rope.yarn == Yarn(32.0, 8192)
    found = parse(configs.DFLASH2_27B)
    assert isinstance(found, DFlash2Config)
    assert (found.kernel, found.group, found.selector_rank, found.candidates) == (2, 16, 256, 16)
    assert set(found.reaches) == {Reach(False, 2048)}


def test_eagle3_names_layers_in_both_conventions() -> None:
    by_input, by_output = configs.SMALL["speculators eagle3"], configs.SMALL["safeai eagle3"]
    named = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    found = [
        parse(by_input, "lm_head.weight"),
        parse(by_output | named, "lm_head.weight"),
        parse(by_output, "lm_head.weight"),
        parse(configs.SMALL["deepspec eagle3"]),
    ]
    assert all(isinstance(one, Eagle3Config) for one in found)
    assert [one.taps for one in found] == [(0, 1, 2), (1, 2, 3), None, (0, 2)]
    assert [one.features for one in found if isinstance(one, Eagle3Config)] == [3, 3, 3, 2]


def test_eagle3_flags_are_those_of_the_checkpoint() -> None:
    found = parse(configs.SMALL["speculators eagle3"], "lm_head.weight")
    assert isinstance(found, Eagle3Config)
    assert (found.norm_before_residual, found.norm_before_fc, found.norm_output) == (True, True, True)
    assert not found.norm_each_tap
    plain = parse(configs.SMALL["safeai eagle3"] | {"fc_norm": True}, "lm_head.weight")
    assert isinstance(plain, Eagle3Config)
    assert dataclasses.astuple(plain)[-5:] == (True, False, False, False, None)


DFLASH, DSPARK = configs.SMALL["z-lab dflash"], configs.SMALL["specforge dspark"]
EAGLE = configs.SMALL["speculators eagle3"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param({"architectures": ["Gemma4DSparkModel"]}, "`architectures` is", id="gemma"),
        pytest.param({"architectures": ["LlamaForCausalLM"]}, "no known drafter layout", id="a target"),
        pytest.param({}, r"`architectures` is \[\]", id="none"),
        pytest.param(EAGLE | {"speculators_model_type": "medusa"}, "`speculators_model_type`", id="medusa"),
        pytest.param(DFLASH | {"rope_theta": None}, "`rope_theta` must be a positive number", id="no base"),
        pytest.param(DFLASH | {"rope_scaling": {"rope_type": "longrope"}}, "`rope_type`", id="longrope"),
        pytest.param(
            DFLASH | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
            "`rope_scaling`: `mscale` is unknown",
            id="yarn with mscale",
        ),
        pytest.param(
            DFLASH | {"is_neox_style": False}, "`is_neox_style` is False", id="interleaved rotation"
        ),
        pytest.param(DFLASH | {"aux_hidden_norms": True}, "`aux_hidden_norms` is True", id="laguna"),
        pytest.param(DFLASH | {"attention_value_scale": 0.5}, "`attention_value_scale`", id="value scale"),
        pytest.param(DFLASH | {"output_multiplier": 2.0}, "`output_multiplier` is 2.0", id="multiplier"),
        pytest.param(DFLASH | {"quantization_config": {"bits": 4}}, "`quantization_config`", id="quantised"),
        pytest.param(DFLASH | {"sliding_window": None}, "`sliding_window` must be", id="no window"),
        pytest.param(DFLASH | {"layer_types": ["full_attention"]}, "`layer_types` must be", id="layers"),
        pytest.param(
            DFLASH | {"layer_types": None, "use_sliding_window": True}, "`layer_types`", id="layers unknown"
        ),
        pytest.param(DFLASH | {"block_size": None}, "`block_size`", id="no block size"),
        pytest.param(
            DFLASH | {"dflash_config": {**configs.BLOCK, "block_size": 9}},
            "`block_size` must be that of `dflash_config`, 9, got 4",
            id="two block sizes",
        ),
        pytest.param(
            DFLASH | {"dflash_config": {**configs.BLOCK, "markov_rank": 4}},
            "`dflash_config`: `markov_rank` is unknown",
            id="dspark named dflash",
        ),
        pytest.param(
            DFLASH | {"dflash_config": {"mask_token_id": 3}}, "`target_layer_ids` must be", id="no taps"
        ),
        pytest.param(
            DSPARK | {"dflash_config": {**DSPARK["dflash_config"], "projector_type": "domino"}},
            "`projector_type` must be one of dspark",
            id="domino",
        ),
        pytest.param(
            DSPARK | {"dflash_config": {**DSPARK["dflash_config"], "attention_mode": "mla"}},
            "`attention_mode` is 'mla'",
            id="mla",
        ),
        pytest.param(
            DFLASH | {"dflash_config": {**configs.BLOCK, "mask_token_id": 40}},
            "`mask_token_id` is 40",
            id="mask outside",
        ),
        pytest.param(DFLASH | {"draft_vocab_size": 10}, "no lm_head.weight", id="small vocabulary, no head"),
        pytest.param(
            EAGLE | {"norm_before_residual": None}, "`norm_before_residual`", id="unstated residual"
        ),
        pytest.param(EAGLE | {"draft_vocab_size": 41}, "`draft_vocab_size` must be at most", id="too many"),
    ],
)
def test_what_is_not_known_is_refused_by_field(raw: dict[str, Any], message: str) -> None:
    stored = () if "no lm_head" in message else ("lm_head.weight",)
    with pytest.raises(DrafterError, match=message):
        parse(raw, *stored)
