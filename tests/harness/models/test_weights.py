from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.errors import ModelError
from harness.models import weights_digest

TENSORS = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "model.norm.weight": torch.ones(3, dtype=torch.bfloat16),
}


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors or TENSORS, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def digest(folder: Path, *, tied: bool = False) -> str:
    return weights_digest(folder, tied_head=tied)


def test_the_digest_is_the_same_however_the_tensors_are_split_over_files(tmp_path: Path) -> None:
    whole, split = write(tmp_path / "whole"), tmp_path / "split"
    split.mkdir()
    names = {name: f"model-{n}.safetensors" for n, name in enumerate(TENSORS)}
    for name, file in names.items():
        save_file({name: TENSORS[name]}, split / file)
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert digest(whole) == digest(split)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {**t, "model.norm.weight": torch.tensor([1.0, 1.0, 1.0078125], dtype=torch.bfloat16)},
        lambda t: {**t, "model.norm.weight": torch.ones(3, dtype=torch.float16)},
        lambda t: {**t, "model.norm.weight": t["model.norm.weight"].view(torch.float16)},
        lambda t: {**t, "model.embed_tokens.weight": t["model.embed_tokens.weight"].reshape(3, 4)},
        lambda t: {
            "model.embed_tokens.weight": t["model.embed_tokens.weight"],
            "other": t["model.norm.weight"],
        },
        lambda t: {**t, "extra": torch.zeros(1)},
    ],
    ids=["one bit", "type", "type of the same bytes", "shape", "name", "one more"],
)
def test_any_change_of_a_tensor_changes_the_digest(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    assert digest(write(tmp_path / "a")) != digest(write(tmp_path / "b", change(TENSORS)))


def test_a_tied_head_that_is_stored_again_counts_once(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain")
    twice = write(
        tmp_path / "twice", {**TENSORS, "lm_head.weight": TENSORS["model.embed_tokens.weight"].clone()}
    )
    assert digest(plain, tied=True) == digest(twice, tied=True)
    assert digest(plain, tied=False) != digest(twice, tied=False)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    "size", [0, 4, 40, 300], ids=["empty", "no header", "half a header", "half a tensor"]
)
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    folder = write(tmp_path / "m", {"a": torch.zeros(100)})
    cut(folder / "model.safetensors", size)
    with pytest.raises(ModelError, match=r"model\.safetensors .*download"):
        digest(folder)


def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04" + b"\xff" * 100)
    with pytest.raises(ModelError, match="not a safetensors file"):
        digest(tmp_path)


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="pickled weights"):
        digest(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        digest(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    with pytest.raises(ModelError, match=r"has no model-2\.safetensors"):
        digest(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "model-2.safetensors")
    with pytest.raises(ModelError, match="two weight files"):
        digest(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match="not a weight index"):
        digest(tmp_path)
