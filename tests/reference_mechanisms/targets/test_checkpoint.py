from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.checkpoint import INDEX, SINGLE, Checkpoint

A, B = torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16)


def write_shards(folder: Path) -> dict[str, str]:
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B}, folder / "two.safetensors")
    return write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"})


def write_index(folder: Path, weight_map: object) -> dict[str, str]:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map if isinstance(weight_map, dict) else {}


def refusal(folder: Path) -> str:
    with pytest.raises(TargetError, match=re.escape(str(folder))) as caught:
        Checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_tensors_are_read_and_converted(tmp_path: Path, sharded: bool) -> None:
    if sharded:
        write_shards(tmp_path)
    else:
        save_file({"a": A, "b": B}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        assert "a" in checkpoint
        assert "c" not in checkpoint
        found = checkpoint.take("a", (2, 3), torch.float64)
        assert found.dtype == torch.float64
        assert torch.equal(found, A.double())
        assert torch.equal(checkpoint.take("b", (4,), torch.bfloat16), B)
        checkpoint.refuse_unused(())


def test_a_whole_file_wins_over_an_index_as_in_stock(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"c": A}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        assert "c" in checkpoint
        assert "a" not in checkpoint


def test_tensors_stay_when_the_files_are_closed(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        found = checkpoint.take("a", (2, 3), torch.float32)
    (tmp_path / SINGLE).unlink()
    assert torch.equal(found, A)


# taking


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn], ids=str)
def test_a_quantised_type_is_named_with_the_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": A.to(dtype)}, tmp_path / SINGLE)
    wanted = "tensor a is stored as .* so give an unquantised checkpoint"
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(TargetError, match=wanted):
        checkpoint.take("a", (2, 6), torch.float32)  # packed tensors have other shapes too


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_plain_type_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": A.to(dtype)}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        assert torch.equal(checkpoint.take("a", (2, 3), torch.float32), A)


def test_a_missing_tensor_is_named_with_the_folder(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(TargetError) as caught:
        checkpoint.take("b", (4,), torch.float32)
    assert str(caught.value) == f"{tmp_path}: tensor b is missing; give the complete checkpoint"


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), ()], ids=str)
def test_another_shape_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    wanted = rf"tensor a has shape \(2, 3\), config.json asks for {re.escape(str(shape))}"
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(TargetError, match=wanted):
        checkpoint.take("a", shape, torch.float32)


def test_an_unused_tensor_is_named_and_counted(tmp_path: Path) -> None:
    save_file({name: A.clone() for name in ("a", "z", "y", "x.rotary")}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.take("a", (2, 3), torch.float32)
        with pytest.raises(TargetError, match=r"tensor y \(2 in all\) has no place"):
            checkpoint.refuse_unused((".rotary",))
        with pytest.raises(TargetError, match=r"tensor x\.rotary \(3 in all\)"):
            checkpoint.refuse_unused(())


def test_a_tensor_that_was_refused_is_not_taken(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        with pytest.raises(TargetError, match="shape"):
            checkpoint.take("a", (1,), torch.float32)
        with pytest.raises(TargetError, match="tensor a "):
            checkpoint.refuse_unused(())


# opening


def test_a_folder_without_weights_says_what_it_needs(tmp_path: Path) -> None:
    assert f"neither {SINGLE} nor {INDEX}" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"])
def test_pickled_weights_are_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n")
    assert f"pickled weights only ({name})" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    path = tmp_path / SINGLE
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is not a safetensors file" in refusal(tmp_path)


def test_a_pointer_to_weights_is_not_weights(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "is not a safetensors file" in refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    assert refusal(tmp_path) == f"{tmp_path / 'two.safetensors'} is missing; give the complete checkpoint"


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    path = tmp_path / "two.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} is not a safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../one.safetensors",
        "/one.safetensors",
        "..",
        ".",
        "",
        "a/one.safetensors",
        "a.bin",
        "\0.safetensors",
    ],
    ids=repr,
)
def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        save_file({"a": A}, place / "one.safetensors")
    write_index(folder, {"a": name})
    assert f"`weight_map` names {name!r}" in refusal(folder)


@pytest.mark.parametrize("weight_map", [None, {}, [], "a", {"a": 1}, {"a": None}], ids=repr)
def test_an_index_without_a_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, weight_map)
    assert f"{tmp_path / INDEX}: `weight_map` must map" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_an_index_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    assert str(tmp_path / INDEX) in refusal(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "tensor"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}, "c"),
        ({"b": "two.safetensors", "d": "one.safetensors"}, "a"),
        ({"a": "two.safetensors", "b": "one.safetensors"}, "a"),
    ],
    ids=["one more", "another name", "swapped"],
)
def test_an_index_that_disagrees_with_the_shards_is_refused(
    tmp_path: Path, weight_map: dict[str, str], tensor: str
) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, weight_map)
    assert f"disagree about tensor {tensor}" in refusal(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"a": A, "b": B}, tmp_path / "two.safetensors")
    assert "two.safetensors: tensor a is stored twice" in refusal(tmp_path)
