"""What a server tells of its own settings: read back, never guessed. What is not told stays unknown.

vLLM tells its configuration at /server_info in its development mode only (VLLM_SERVER_DEV_MODE=1);
SGLang always, at /server_info (formerly /get_server_info). Both may take sampling defaults from the
model's generation_config.json; a request that names every field leaves them nothing to act on. Any other
server may name itself there: {"engine", "version", "sampling_defaults", "settings"}, the settings under
vLLM's names ("speculative_config.method").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.codec import Record

# Fields of a request that change what is sampled; a server may have its own default for each.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
VLLM = {  # section of vLLM's configuration -> what is of interest there
    "model_config": ("dtype", "quantization", "max_model_len", "max_logprobs", "logprobs_mode", "seed"),
    "cache_config": ("enable_prefix_caching",),
    "parallel_config": ("tensor_parallel_size",),
    "scheduler_config": ("max_num_seqs",),
    "speculative_config": ("method", "model", "num_speculative_tokens", "rejection_sample_method"),
}
SGLANG = (
    *("dtype", "quantization", "context_length", "attention_backend", "tp_size", "disable_radix_cache"),
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps"),
    *("speculative_num_draft_tokens", "speculative_eagle_topk", "random_seed"),
)


class Told(Record, frozen=True):
    """A server's own words."""

    engine: str | None = None  # "vllm", "sglang", or what another server calls itself
    version: str | None = None
    defaults_from: str | None = None  # where its sampling defaults come from
    defaults: dict[str, Any] | None = None  # sampling fields that it would set by itself, without those
    settings: dict[str, Any] = {}


def read_told(info: Any, model_info: Any) -> Told:
    """From what /server_info (JSON) and /model_info gave; None where nothing was answered."""
    if not isinstance(info, Mapping):
        return Told()
    if isinstance(info.get("vllm_config"), Mapping):
        return _vllm(info["vllm_config"])
    if "model_path" in info:
        return _sglang(info, model_info if isinstance(model_info, Mapping) else {})
    if isinstance(info.get("engine"), str):
        return _named(info)
    return Told()


def uncovered(defaults: Mapping[str, Any], sent: Mapping[str, Any]) -> tuple[str, ...]:
    """Sampling fields that a default sets and the request does not name."""
    return tuple(name for name in SAMPLING if defaults.get(name) is not None and name not in sent)


def _vllm(config: Mapping[str, Any]) -> Told:
    model = _section(config, "model_config")
    own = model.get("override_generation_config")
    source = model.get("generation_config")
    # "vllm" means no file; what a file holds is not told.
    known = dict(own) if isinstance(own, Mapping) and source == "vllm" else None
    return Told(
        engine="vllm",
        defaults_from=_text(source),
        defaults=known,
        settings={
            f"{section}.{name}": _plain(_section(config, section)[name])
            for section, names in VLLM.items()
            for name in names
            if name in _section(config, section)
        },
    )


def _sglang(info: Mapping[str, Any], model_info: Mapping[str, Any]) -> Told:
    preferred = model_info.get("preferred_sampling_params", info.get("preferred_sampling_params"))
    source = _text(info.get("sampling_defaults"))
    return Told(
        engine="sglang",
        version=_text(info.get("version")),
        defaults_from=source,
        defaults=dict(preferred)
        if isinstance(preferred, Mapping)
        else {}
        if source not in (None, "model")
        else None,
        settings={name: _plain(info[name]) for name in SGLANG if name in info},
    )


def _named(info: Mapping[str, Any]) -> Told:
    source = _text(info.get("sampling_defaults"))
    return Told(
        engine=info["engine"],
        version=_text(info.get("version")),
        defaults_from=source,
        defaults={} if source == "openai" else None,
        settings={name: _plain(value) for name, value in _section(info, "settings").items()},
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """A scalar as it is, anything else in words."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
