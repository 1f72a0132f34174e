"""What servers tell of themselves, in the shapes of vLLM 0.32's and SGLang's information endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from harness.load.told import Told, read_told, uncovered

VLLM: dict[str, Any] = {
    "vllm_config": {
        "model_config": {
            "model": "/m",
            "dtype": "torch.float32",
            "max_model_len": 1024,
            "max_logprobs": 20,
            "logprobs_mode": "raw_logprobs",
            "quantization": None,
            "generation_config": "auto",
            "override_generation_config": {},
            "hf_token": "secret",
        },
        "cache_config": {"enable_prefix_caching": True},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 5},
    },
    "vllm_env": {},
}
SGLANG: dict[str, Any] = {
    "model_path": "/m",
    "version": "0.5.9",
    "sampling_defaults": "model",
    "preferred_sampling_params": None,
    "dtype": "auto",
    "speculative_algorithm": "EAGLE",
    "api_key": "secret",
}


def test_another_server_may_name_itself() -> None:
    told = read_told(
        {
            "engine": "ours",
            "version": "1",
            "sampling_defaults": "openai",
            "settings": {"speculative_config.method": "ngram", "odd": [1]},
        },
        None,
    )
    assert told == Told(
        engine="ours",
        version="1",
        defaults_from="openai",
        defaults={},
        settings={"speculative_config.method": "ngram", "odd": "[1]"},
    )
    assert read_told({"engine": 3}, None) == Told()
    assert read_told({"engine": "ours"}, None) == Told(engine="ours")


def test_vllm_tells_its_settings_in_development_mode() -> None:
    told = read_told(VLLM, None)
    assert (told.engine, told.defaults_from, told.defaults) == ("vllm", "auto", None)
    assert told.settings["model_config.max_logprobs"] == 20
    assert told.settings["cache_config.enable_prefix_caching"] is True
    assert told.settings["speculative_config.method"] == "ngram"


def test_defaults_given_on_vllms_command_line_are_told() -> None:
    model = VLLM["vllm_config"]["model_config"] | {
        "generation_config": "vllm",
        "override_generation_config": {"top_k": 7},
    }
    told = read_told({"vllm_config": {"model_config": model, "speculative_config": None}}, None)
    assert (told.defaults_from, told.defaults) == ("vllm", {"top_k": 7})


@pytest.mark.parametrize(
    ("info", "model_info", "defaults"),
    [
        pytest.param(SGLANG, None, None, id="the model's own, which are not told"),
        pytest.param(SGLANG, {"preferred_sampling_params": {"top_p": 0.9}}, {"top_p": 0.9}, id="preferred"),
        pytest.param(SGLANG | {"sampling_defaults": "openai"}, {}, {}, id="none"),
    ],
)
def test_sglang_tells_its_settings(info: Any, model_info: Any, defaults: Any) -> None:
    told = read_told(info, model_info)
    assert (told.engine, told.version, told.defaults) == ("sglang", "0.5.9", defaults)
    assert told.settings["speculative_algorithm"] == "EAGLE"


@pytest.mark.parametrize("info", [None, [], {}, {"vllm_config": "a long text"}, {"status": "ok"}])
def test_what_is_not_told_stays_unknown(info: Any) -> None:
    assert read_told(info, None) == Told()


@pytest.mark.parametrize("info", [VLLM, SGLANG], ids=["vLLM", "SGLang"])
def test_no_secret_is_recorded(info: Any) -> None:
    assert "secret" not in str(read_told(info, None))


def test_a_default_acts_where_the_request_does_not_name_it() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "max_tokens": 9, "min_p": None}
    assert uncovered(defaults, {"temperature": 0.0}) == ("top_k",)
    assert uncovered(defaults, {"temperature": 0.0, "top_k": -1}) == ()
