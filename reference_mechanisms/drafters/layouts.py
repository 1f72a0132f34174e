"""The published layouts of drafter checkpoints: which network a config.json describes.

Known: z-lab DFlash and DFlash 2, DeepSpec DSpark (and its DFlash, which is DSpark without heads),
SpecForge and RadixArk DSpark, EAGLE-3 of SafeAI, SpecForge and DeepSpec, and the speculators exports of
DFlash, DSpark and EAGLE-3. Anything else is refused: a checkpoint that is made to load as its neighbour
drafts badly and never says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.dflash2 import DFlash2Config
from reference_mechanisms.drafters.dspark import DSparkConfig, MarkovKind
from reference_mechanisms.drafters.eagle3 import Eagle3Config
from reference_mechanisms.drafters.fields import Fields, rope_of, sizes_of
from reference_mechanisms.drafters.taps import from_inputs
from reference_mechanisms.errors import DrafterError

Config = BlockConfig | Eagle3Config

DFLASH, DFLASH2, DSPARK = "DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel"
DEEPSPEC_BLOCK, DEEPSPEC_EAGLE = "Qwen3DSparkModel", "Qwen3Eagle3Model"
EAGLES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM")
SPECULATORS = ("dflash", "dspark", "eagle3")
KINDS: tuple[MarkovKind, ...] = ("vanilla", "gated", "rnn")

CONVOLUTION = {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}
HEADS = {"markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"}
# Fields of training, which say nothing about the network.
TRAINING = {
    "num_anchors",
    "training_block_size",
    "ce_loss_alpha",
    "l1_loss_alpha",
    "confidence_head_alpha",
    "loss_decay_gamma",
}
NESTED = {"block_size", "mask_token_id", "target_layer_ids", "causal", "projector_type", "attention_mode"}


def parse_layout(raw: Mapping[str, Any], where: str, stored: Collection[str]) -> Config:
    """The network that a config.json describes.

    Args:
        raw: its content.
        where: its path, for error messages.
        stored: names of the stored tensors: an embedding or head of the drafter's own is used.

    Raises:
        DrafterError: the layout is unknown, or a field is missing or wrong.
    """
    found = _layout(Fields(raw, where), stored)
    if isinstance(found, BlockConfig) and found.mask_token >= found.vocab_size:
        raise DrafterError(
            f"{where}: `mask_token_id` is {found.mask_token}, not in the vocabulary of {found.vocab_size}"
        )
    return found


def _layout(fields: Fields, stored: Collection[str]) -> Config:
    fields.refuse_other_networks()
    if "speculators_model_type" in fields:
        kind = fields.choice("speculators_model_type", SPECULATORS)
        return _speculators_eagle(fields, stored) if kind == "eagle3" else _speculators_block(fields, stored)
    named = fields.texts("architectures") or ()
    architecture = named[0] if len(named) == 1 else None
    if architecture in (DFLASH, DFLASH2, DSPARK):
        return _nested_block(fields, architecture, stored)
    if architecture == DEEPSPEC_BLOCK:
        return _deepspec_block(fields, stored)
    if architecture == DEEPSPEC_EAGLE:
        taps = fields.integers("target_layer_ids")
        return _eagle(fields, fields, stored, taps, qk_norm=True, drafts=fields.count("ttt_length", 7))
    if architecture in EAGLES and "draft_vocab_size" in fields:
        return _plain_eagle(fields, stored)
    known = ", ".join((DFLASH, DFLASH2, DSPARK, DEEPSPEC_BLOCK, DEEPSPEC_EAGLE, *EAGLES))
    raise DrafterError(
        f"{fields.where}: `architectures` is {list(named)!r}, no known drafter layout; known are {known} "
        "(the last with `draft_vocab_size`), and `speculators_model_type`"
    )


def _nested_block(fields: Fields, architecture: str, stored: Collection[str]) -> BlockConfig:
    """Z-lab and SpecForge: the drafter's own fields lie in `dflash_config`."""
    nested = fields.inside("dflash_config")
    own = {DFLASH: set(), DFLASH2: CONVOLUTION, DSPARK: HEADS}[architecture]
    nested.refuse_strangers(NESTED | own | TRAINING)
    nested.refuse_other_networks()
    projectors = ("dspark",) if architecture == DSPARK else ("dflash", "dflash2")
    nested.choice("projector_type", projectors, projectors[0])
    block = (nested if "block_size" in nested else fields).count("block_size", least=2)
    if fields.count("block_size", block) != block:
        raise fields.wrong("block_size", f"that of `dflash_config`, {block}")
    common = _common(fields, fields, stored) | {
        "reaches": _reaches(fields, fields, nested),
        "block": block,
        "mask_token": nested.count("mask_token_id", least=0),
        "taps": nested.integers("target_layer_ids"),
        "anchor_row": architecture == DSPARK,
    }
    if architecture == DFLASH2:
        return _dflash2(nested, common)
    return _dspark(nested, common) if architecture == DSPARK else BlockConfig(**common)


def _deepspec_block(fields: Fields, stored: Collection[str]) -> BlockConfig:
    """DeepSpec: all fields at top level; without Markov rank it is a DFlash whose rows all predict."""
    common = _common(fields, fields, stored) | {
        "reaches": _reaches(fields, fields, fields),
        "block": fields.count("block_size"),
        "mask_token": fields.count("mask_token_id", least=0),
        "taps": fields.integers("target_layer_ids"),
        "anchor_row": True,
    }
    if fields.count("markov_rank", least=0) == 0 and not fields.switch("enable_confidence_head"):
        return BlockConfig(**common)
    return _dspark(fields, common)


def _speculators_block(fields: Fields, stored: Collection[str]) -> BlockConfig:
    """Speculators exports: layer fields are nested, layers are named by their input."""
    inner = fields.inside("transformer_layer_config")
    inner.refuse_other_networks()
    kind = fields.choice("speculators_model_type", SPECULATORS)
    fields.choice("projector_type", (kind,), kind)
    causal = not fields.switch("sliding_window_non_causal")
    common = _common(fields, inner, stored) | {
        "reaches": tuple(
            reach._replace(causal=causal) if reach.window else reach._replace(causal=False)
            for reach in _reaches(inner, inner, inner)
        ),
        "block": fields.count("block_size", least=2),
        "mask_token": fields.count("mask_token_id", least=0),
        "taps": from_inputs(fields.integers("aux_hidden_state_layer_ids")),
        "anchor_row": fields.switch("sample_from_anchor"),
    }
    return _dspark(fields, common) if kind == "dspark" else BlockConfig(**common)


def _dflash2(fields: Fields, common: Mapping[str, Any]) -> DFlash2Config:
    group, hidden = fields.count("conv_group_size"), common["sizes"].hidden
    if hidden % group:
        raise fields.wrong("conv_group_size", f"a divisor of `hidden_size` = {hidden}")
    if common["draft_vocab_size"] is not None:
        raise DrafterError(f"{fields.where}: `draft_vocab_size` is given; DFlash 2 has no smaller vocabulary")
    return DFlash2Config(
        **common,
        kernel=fields.count("conv_kernel_size"),
        group=group,
        selector_rank=fields.count("selector_rank"),
        candidates=fields.count("selector_top_k"),
    )


def _dspark(fields: Fields, common: Mapping[str, Any]) -> DSparkConfig:
    return DSparkConfig(
        **common,
        markov_rank=fields.count("markov_rank"),
        markov_kind=cast(MarkovKind, fields.choice("markov_head_type", KINDS, "vanilla")),
        confidence=fields.switch("enable_confidence_head"),
        confidence_with_markov=fields.switch("confidence_head_with_markov"),
    )


def _plain_eagle(fields: Fields, stored: Collection[str]) -> Eagle3Config:
    """SafeAI and SpecForge; layers in `eagle_config` are named by their output, as SpecForge serves them."""
    nested = fields.inside("eagle_config")
    nested.refuse_other_networks()
    ids = "eagle_aux_hidden_state_layer_ids"
    return _eagle(fields, fields, stored, nested.integers(ids) if ids in nested else None, qk_norm=False)


def _speculators_eagle(fields: Fields, stored: Collection[str]) -> Eagle3Config:
    """Speculators exports: layers are named by their input."""
    inner, ids = fields.inside("transformer_layer_config"), "eagle_aux_hidden_state_layer_ids"
    inner.refuse_other_networks()
    if "norm_before_residual" not in fields:
        raise fields.wrong("norm_before_residual", "stated, because readers disagree about its default")
    taps = from_inputs(fields.integers(ids)) if ids in fields else None
    qk_norm = inner.choice("model_type", ("llama", "qwen3"), "llama") == "qwen3"
    serving = fields.inside("speculators_config").first("proposal_methods")
    drafts = serving.count("speculative_tokens", 7)
    return _eagle(fields, inner, stored, taps, qk_norm=qk_norm, drafts=drafts)


def _eagle(
    fields: Fields,
    inner: Fields,
    stored: Collection[str],
    taps: tuple[int, ...] | None,
    *,
    qk_norm: bool,
    drafts: int = 7,
) -> Eagle3Config:
    sizes = sizes_of(inner, qk_norm=qk_norm)
    return Eagle3Config(
        sizes=sizes,
        layers=inner.count("num_hidden_layers"),
        rope=rope_of(inner),
        target_hidden=fields.count("target_hidden_size", sizes.hidden),
        features=len(taps) if taps else 3,
        taps=taps,
        drafts=drafts,
        norm_each_tap=fields.switch("fc_norm"),
        norm_before_fc=fields.switch("norm_before_fc"),
        norm_before_residual=fields.switch("norm_before_residual"),
        norm_output=fields.switch("norm_output"),
        target_layers=fields.maybe_count("num_target_layers"),
        **_vocabulary(fields, inner, stored),
    )


def _common(fields: Fields, inner: Fields, stored: Collection[str]) -> dict[str, Any]:
    sizes = sizes_of(inner, qk_norm=True)
    return {
        "sizes": sizes,
        "rope": rope_of(inner),
        "target_hidden": fields.count("target_hidden_size", sizes.hidden),
        "target_layers": fields.maybe_count("num_target_layers"),
        **_vocabulary(fields, inner, stored),
    }


def _vocabulary(fields: Fields, inner: Fields, stored: Collection[str]) -> dict[str, Any]:
    vocab = inner.count("vocab_size")
    draft = fields.count("draft_vocab_size", vocab)
    if draft > vocab:
        raise fields.wrong("draft_vocab_size", f"at most `vocab_size` = {vocab}")
    if draft < vocab and "lm_head.weight" not in stored:
        raise DrafterError(f"{fields.where}: `draft_vocab_size` = {draft}, but no lm_head.weight is stored")
    return {
        "vocab_size": vocab,
        "draft_vocab_size": draft if draft < vocab else None,
        "own_embedding": "embed_tokens.weight" in stored,
        "own_head": "lm_head.weight" in stored,
    }


def _reaches(fields: Fields, window: Fields, override: Fields) -> tuple[Reach, ...]:
    """What each layer sees; inside a block sliding layers are causal unless a field says otherwise."""
    layers = fields.count("num_hidden_layers")
    kinds = fields.texts("layer_types")
    if kinds is None:
        if fields.switch("use_sliding_window"):
            raise fields.wrong("layer_types", "given where `use_sliding_window` is true")
        kinds = ("full_attention",) * layers
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise fields.wrong("layer_types", f"{layers} times full_attention or sliding_attention")
    reaches = []
    for kind in kinds:
        sliding = kind == "sliding_attention"
        causal = override.switch("causal", default=sliding)
        causal = fields.switch("is_causal", default=causal)
        reaches.append(Reach(causal, window.count("sliding_window") if sliding else None))
    return tuple(reaches)
