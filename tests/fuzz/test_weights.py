"""Weights of strangers: headers that lie, manifests that lie, pickles; of targets, drafters and weight12."""

from __future__ import annotations

import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from harness.errors import HarnessError
from harness.models.folder import read_folder
from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.targets.checkpoint import INDEX
from reference_mechanisms.weight12.container import open_packed
from reference_mechanisms.weight12.errors import CorruptError
from reference_mechanisms.weight12.folder import pack_folder, unpack_folder
from reference_mechanisms.weight12.folder_manifest import MANIFEST, read_manifest
from reference_mechanisms.weight12.tensorfile import METADATA, PREFIX, open_file
from tests.fuzz.hammering import OURS, hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import broken, hostile_json, json_text, scrambled
from tests.reference_mechanisms.drafters.configs import SMALL
from tests.reference_mechanisms.drafters.folders import reference, tensors_of, write
from tests.reference_mechanisms.weight12.models import contents, resealed, write_model

KIND = "z-lab dflash"
CPU = torch.device("cpu")


def ignore(*_: object) -> None:
    """Hear nothing."""


def header_of(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:PREFIX], "little")
    found: dict[str, Any] = json.loads(data[PREFIX : PREFIX + length])
    return found


def with_header(data: bytes, text: bytes) -> bytes:
    length = int.from_bytes(data[:PREFIX], "little")
    return len(text).to_bytes(PREFIX, "little") + text + data[PREFIX + length :]


def lying(data: bytes) -> st.SearchStrategy[bytes]:
    """The file with another header, or other bytes anywhere in its first part."""
    head = hostile_json(header_of(data)).map(lambda text: with_header(data, text))
    lengths = st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8, "little") + data[8:])
    return head | lengths | scrambled(data)


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    return write(folder, SMALL[KIND], tensors_of(reference(SMALL[KIND], "lm_head.weight")))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weight12")
    pack_folder(write_model(root / "plain", shards=2), root / "packed", ignore)
    return root / "packed"


@quick_and_deep
def test_a_lying_header_of_a_drafter_is_refused(deep: bool, drafter: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((drafter / "config.json").read_bytes())
    path = tmp_path / "model.safetensors"
    before = memory()

    def check(data: bytes) -> None:
        path.write_bytes(data)
        refuses_or_reads(lambda: load_drafter(tmp_path, torch.float32, CPU), str(tmp_path))

    hammer(check, lying((drafter / "model.safetensors").read_bytes()), deep=deep)
    assert memory() - before < 500_000, "a header made the loader take memory that the file does not hold"


@quick_and_deep
def test_a_lying_config_of_a_drafter_is_refused(deep: bool, drafter: Path, tmp_path: Path) -> None:
    """No size in it may take memory before it is held against the tensors."""
    (tmp_path / "model.safetensors").write_bytes((drafter / "model.safetensors").read_bytes())
    before = memory()

    def check(data: bytes) -> None:
        (tmp_path / "config.json").write_bytes(data)
        refuses_or_reads(lambda: load_drafter(tmp_path, torch.float32, CPU))

    hammer(check, hostile_json(SMALL[KIND]), deep=deep)
    assert memory() - before < 500_000


@quick_and_deep
def test_a_lying_model_folder_is_refused(deep: bool, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "eos_token_id": [1, 2],
        "tie_word_embeddings": False,
        "text_config": {"vocab_size": 32, "max_position_embeddings": 64},
    }
    save_file({"a.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{}")
    weights = (tmp_path / "model.safetensors").read_bytes()

    def check(which: str, own: bytes, data: bytes) -> None:
        (tmp_path / "config.json").write_bytes(own if which == "config" else json.dumps(config).encode())
        (tmp_path / "model.safetensors").write_bytes(data if which == "weights" else weights)
        refuses_or_reads(lambda: read_folder(tmp_path, "a folder"), str(tmp_path))

    hammer(check, st.sampled_from(("config", "weights")), hostile_json(config), lying(weights), deep=deep)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/hostname", "a/../b.safetensors", "x\x00"])
def test_an_index_names_no_file_outside_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.zeros(2)}, tmp_path / "secret.safetensors")
    (folder / "config.json").write_text('{"vocab_size": 2, "max_position_embeddings": 4}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(HarnessError, match="no file in the folder"):
        read_folder(folder, "a folder")
    with pytest.raises(MechanismError, match="weight_map"):
        load_drafter(folder, torch.float32, CPU)


class Bomb:
    """Runs code in whoever unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "consolidated.00.pth"])
def test_a_pickle_is_refused_and_runs_nothing(name: str, drafter: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "model", tmp_path / "it-ran"
    folder.mkdir()
    (folder / "config.json").write_bytes((drafter / "config.json").read_bytes())
    (folder / "tokenizer.json").write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    for read in (
        lambda: load_drafter(folder, torch.float32, CPU),
        lambda: read_folder(folder, "a folder"),
        lambda: pack_folder(folder, tmp_path / "packed", ignore),
    ):
        with pytest.raises(OURS):
            read()
    assert not mark.exists()


@quick_and_deep
def test_a_changed_container_is_refused_before_anything_is_decoded(
    deep: bool, packed: Path, tmp_path: Path
) -> None:
    name = read_manifest(packed).shards[0].name
    data, path = (packed / name).read_bytes(), tmp_path / "one.safetensors"
    before = memory()

    def check(changed: bytes) -> None:
        path.write_bytes(changed)
        if changed == data:
            return
        try:
            faults = list(open_packed(path).faults(ignore))
        except OURS as refusal:
            faults = [str(refusal)]
        assert faults, "a changed byte went unseen"
        assert all(str(path) in fault for fault in faults)

    hammer(check, lying(data), deep=deep)
    assert memory() - before < 500_000


@quick_and_deep
def test_a_container_of_a_wrong_writer_is_refused(deep: bool, packed: Path, tmp_path: Path) -> None:
    """Its seal is right, its manifest is not: nothing is decoded out of bounds."""
    name = read_manifest(packed).shards[0].name
    data = (packed / name).read_bytes()
    manifest = json.loads(header_of(data)[METADATA]["weight12.manifest"])

    def check(wrong: Any) -> None:
        def change(header: dict[str, dict[str, object]]) -> None:
            header[METADATA]["weight12.manifest"] = json_text(wrong)

        path = resealed(data, tmp_path / "one.safetensors", change)
        refuses_or_reads(lambda: list(open_packed(path).faults(ignore)), str(path))

    hammer(check, broken(manifest, most=2), deep=deep)


@quick_and_deep
def test_a_changed_manifest_of_a_folder_writes_nothing_outside(
    deep: bool, packed: Path, tmp_path: Path
) -> None:
    good = contents(packed)
    folder, target = tmp_path / "in" / "packed", tmp_path / "out" / "plain"
    folder.mkdir(parents=True)
    for name, data in good.items():
        (folder / name).write_bytes(data)

    def check(data: bytes) -> None:
        (folder / MANIFEST).write_bytes(data)
        refuses_or_reads(lambda: unpack_folder(folder, target, ignore))
        outside = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert all(folder in path.parents or target in path.parents for path in outside)

    from reference_mechanisms.weight12.digests import BLANK, SEAL, sealed  # noqa: PLC0415

    plain = {name: value for name, value in json.loads(good[MANIFEST]).items() if name != SEAL}

    def again(document: Any) -> bytes:
        if not isinstance(document, dict) or SEAL in json_text(document):
            return b"[]"
        try:
            return sealed({SEAL: BLANK, **document})
        except (ValueError, UnicodeEncodeError):
            return b"{}"

    hammer(check, broken(plain, most=2).map(again) | hostile_json(plain), deep=deep, quick=40)


def test_offsets_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}).encode()
    path = tmp_path / "one.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"x")
    with pytest.raises(CorruptError, match="broken header entry"):
        open_file(path)
