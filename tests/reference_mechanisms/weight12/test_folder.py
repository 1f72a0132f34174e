"""Whole folders: there and back, again after a break, and never over something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from reference_mechanisms.errors import MechanismError, TargetError
from reference_mechanisms.targets.checkpoint import INDEX, SINGLE
from reference_mechanisms.targets.config import read_config
from reference_mechanisms.weight12.container import open_packed
from reference_mechanisms.weight12.destination import MARKER
from reference_mechanisms.weight12.digests import sealed
from reference_mechanisms.weight12.errors import CallError, CorruptError, WeightError
from reference_mechanisms.weight12.folder import pack_folder, unpack_folder
from reference_mechanisms.weight12.folder_manifest import (
    MANIFEST,
    Progress,
    folder_faults,
    read_manifest,
    write_manifest,
)
from reference_mechanisms.weight12.manifest import KEY_MANIFEST
from reference_mechanisms.weight12.survey import survey
from reference_mechanisms.weight12.tensorfile import METADATA
from tests.reference_mechanisms.weight12.models import Header, contents, resealed, write_model


def ignore(_progress: Progress) -> None:
    """Hear nothing."""


def faults(folder: Path) -> list[str]:
    return list(folder_faults(folder, ignore))


class Stop(Exception):
    """What breaks a run off in these tests."""


def stop_at(tensor: str) -> Callable[[Progress], None]:
    def heard(progress: Progress) -> None:
        if progress.tensor == tensor:
            raise Stop

    return heard


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_comes_back_byte_for_byte(tmp_path: Path, shards: int) -> None:
    source = write_model(tmp_path / "source", shards)
    pack_folder(source, tmp_path / "packed", ignore)
    assert not faults(tmp_path / "packed")
    unpack_folder(tmp_path / "packed", tmp_path / "again", ignore)
    assert contents(tmp_path / "again") == contents(source)


def test_the_packed_folder_is_smaller_and_marked_for_loaders(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", 2)
    pack_folder(source, tmp_path / "packed", ignore)
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "weight12",
        "version": 1,
        "kept": ["small.weight"],
    }
    with pytest.raises(TargetError, match="quantization_config"):
        read_config(tmp_path / "packed")
    index = json.loads((tmp_path / "packed" / INDEX).read_text())
    assert index["weight_map"]["layers.1.up.weight_lo"] == "model-00002-of-00002.safetensors"
    assert "layers.1.up.weight" not in index["weight_map"]
    lines = {line.name: line for line in survey(tmp_path / "packed")}
    assert lines["layers.0.up.weight"].bits == pytest.approx(12.125 + 8 * 16 / 65536, abs=0.1)
    assert lines["layers.0.up.weight"].raw_rows == 1
    assert lines["small.weight"].stored == "fewer than 65536 weights"
    total = sum(line.stored_bytes for line in lines.values())
    assert index["metadata"]["total_size"] == total < 0.8 * sum(line.source_bytes for line in lines.values())


def test_progress_names_every_tensor_and_ends_at_the_whole(tmp_path: Path) -> None:
    source, heard = write_model(tmp_path / "source", 2), list[Progress]()
    pack_folder(source, tmp_path / "packed", heard.append)
    assert {one.tensor for one in heard} == {line.name for line in survey(tmp_path / "packed")}
    assert [one.done_bytes for one in heard] == sorted(one.done_bytes for one in heard)
    tensors = sum(line.source_bytes for line in survey(tmp_path / "packed"))
    assert heard[-1].done_bytes == tensors <= heard[-1].total_bytes


def test_other_files_are_left_out_by_name(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (source / "original").mkdir()
    for name in ("pytorch_model.bin", ".gitattributes", "extra.safetensors"):
        (source / name).write_text("x")
    manifest = pack_folder(source, tmp_path / "packed", ignore)
    assert manifest.left_out == (".gitattributes", "extra.safetensors", "original", "pytorch_model.bin")
    assert set(contents(tmp_path / "packed")) == {SINGLE, "config.json", "tokenizer.json", MANIFEST}


def test_a_folder_of_links_is_packed_like_one_of_files(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (tmp_path / "links").mkdir()
    for path in source.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    pack_folder(tmp_path / "links", tmp_path / "packed", ignore)
    unpack_folder(tmp_path / "packed", tmp_path / "again", ignore)
    assert contents(tmp_path / "again") == contents(source)
    assert not any(path.is_symlink() for path in (tmp_path / "again").iterdir())


# runs that broke off


@pytest.mark.parametrize("work", [pack_folder, unpack_folder], ids=["pack", "unpack"])
def test_a_run_that_broke_off_is_continued_and_finished_shards_stay(
    tmp_path: Path, work: Callable[[Path, Path, Callable[[Progress], None]], object]
) -> None:
    source = write_model(tmp_path / "source", 3)
    if work is unpack_folder:
        pack_folder(source, tmp_path / "packed", ignore)
        source = tmp_path / "packed"
    work(source, tmp_path / "whole", ignore)
    with pytest.raises(Stop):
        work(source, tmp_path / "target", stop_at("layers.2.up.weight"))
    shards = [path for path in (tmp_path / "target").iterdir() if path.name.endswith("-of-00003.safetensors")]
    assert len(shards) == 2
    assert (tmp_path / "target" / MARKER).exists()
    before = {path: path.stat().st_ino for path in shards}
    heard = list[Progress]()
    work(source, tmp_path / "target", heard.append)
    assert {path: path.stat().st_ino for path in shards} == before
    assert {one.tensor for one in heard if one.tensor} == {"layers.2.up.weight", "layers.2.norm.weight"}
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


@pytest.mark.parametrize("spoil", ["cut", "flipped", "source changed"])
def test_a_shard_that_is_no_longer_right_is_done_again(tmp_path: Path, spoil: str) -> None:
    source = write_model(tmp_path / "source", 2)
    with pytest.raises(Stop):
        pack_folder(source, tmp_path / "packed", stop_at("layers.1.up.weight"))
    first = "model-00001-of-00002.safetensors"
    data = bytearray((tmp_path / "packed" / first).read_bytes())
    if spoil == "cut":
        (tmp_path / "packed" / first).write_bytes(data[:-1])
    elif spoil == "flipped":
        data[-1] ^= 1
        (tmp_path / "packed" / first).write_bytes(data)
    else:
        other = bytearray((source / first).read_bytes())
        other[-1] ^= 1
        (source / first).write_bytes(other)
    pack_folder(source, tmp_path / "packed", ignore)
    assert not faults(tmp_path / "packed")
    unpack_folder(tmp_path / "packed", tmp_path / "again", ignore)
    assert contents(tmp_path / "again") == contents(source)


def test_unfinished_work_of_another_source_or_kind_is_not_mixed_in(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", 2)
    with pytest.raises(Stop):
        pack_folder(source, tmp_path / "packed", stop_at("layers.1.up.weight"))
    other = write_model(tmp_path / "other", 3)
    with pytest.raises(CallError, match="unfinished work on another source"):
        pack_folder(other, tmp_path / "packed", ignore)
    pack_folder(other, tmp_path / "done", ignore)
    with pytest.raises(CallError, match="unfinished work on another source"):
        unpack_folder(tmp_path / "done", tmp_path / "packed", ignore)
    with pytest.raises(WeightError, match="a folder that `pack` finished"):
        unpack_folder(tmp_path / "packed", tmp_path / "new", ignore)


# sources that cannot be packed


def refusal(source: Path, target: Path, kind: type[MechanismError] = MechanismError) -> str:
    with pytest.raises(kind) as caught:
        pack_folder(source, target, ignore)
    assert not target.exists() or MANIFEST not in contents(target)
    return str(caught.value)


def test_a_source_that_is_no_model_folder_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert "is not a folder" in refusal(tmp_path / "none", target, WeightError)
    (tmp_path / "empty").mkdir()
    assert "has no weights" in refusal(tmp_path / "empty", target)
    (tmp_path / "empty" / "pytorch_model.bin").write_text("x")
    assert "has pickled weights only" in refusal(tmp_path / "empty", target)
    assert not target.exists()


def test_a_packed_or_quantised_source_is_refused(tmp_path: Path) -> None:
    source, target = write_model(tmp_path / "source"), tmp_path / "target"
    pack_folder(source, tmp_path / "packed", ignore)
    assert "is packed already" in refusal(tmp_path / "packed", target)
    (tmp_path / "packed" / MANIFEST).unlink()
    assert "quantization_config: already quantised" in refusal(tmp_path / "packed", target)
    (tmp_path / "packed" / "config.json").unlink()
    assert "model.safetensors is packed already" in refusal(tmp_path / "packed", target)


def test_a_source_without_large_bf16_matrices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    save_file({"a": torch.zeros(300, 300)}, tmp_path / "source" / SINGLE)
    wanted = r"nothing to pack: no bf16 matrix of some size \(mostly: F32, not BF16\)"
    assert re.search(wanted, refusal(tmp_path / "source", tmp_path / "target"))


@pytest.mark.parametrize("missing", ["model-00002-of-00002.safetensors", "config.json"])
def test_an_incomplete_source_is_refused_but_a_config_may_be_absent(tmp_path: Path, missing: str) -> None:
    source = write_model(tmp_path / "source", 2)
    (source / missing).unlink()
    if missing == "config.json":
        pack_folder(source, tmp_path / "packed", ignore)
        unpack_folder(tmp_path / "packed", tmp_path / "again", ignore)
        assert contents(tmp_path / "again") == contents(source)
    else:
        assert missing in refusal(source, tmp_path / "target")


def test_a_target_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "thesis.tex").write_text("x")
    assert "is not empty (it has thesis.tex)" in refusal(source, tmp_path / "target", CallError)
    assert "is not empty" in refusal(source, source, CallError)
    pack_folder(source, tmp_path / "packed", ignore)
    with pytest.raises(CallError, match="is not empty"):
        pack_folder(source, tmp_path / "packed", ignore)


# a packed folder that changed


def test_any_changed_or_missing_file_is_found_and_not_unpacked(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", 2)
    pack_folder(source, tmp_path / "packed", ignore)
    for number, (name, data) in enumerate(contents(tmp_path / "packed").items()):
        path = tmp_path / "packed" / name
        for at in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert len(faults(tmp_path / "packed")) == 1
            assert str(path) in faults(tmp_path / "packed")[0]
        with pytest.raises(CorruptError, match=re.escape(str(path))):
            unpack_folder(tmp_path / "packed", tmp_path / f"again{number}", ignore)
        path.unlink()
        if name != MANIFEST:
            assert f"{path} is missing" in faults(tmp_path / "packed")[0]
        path.write_bytes(data)
    assert not faults(tmp_path / "packed")


def test_a_shard_of_another_pack_is_not_taken_for_ours(tmp_path: Path) -> None:
    for number in range(2):
        pack_folder(write_model(tmp_path / f"source{number}", seed=number), tmp_path / f"{number}", ignore)
    (tmp_path / "0" / SINGLE).write_bytes((tmp_path / "1" / SINGLE).read_bytes())
    assert "is not the file that weight12.json names" in faults(tmp_path / "0")[0]


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/b", ".", "", ".."])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    pack_folder(write_model(tmp_path / "source"), tmp_path / "packed", ignore)
    manifest = read_manifest(tmp_path / "packed")
    manifest.files[name] = "0" * 64
    (tmp_path / "packed" / MANIFEST).write_bytes(write_manifest(manifest))
    with pytest.raises(CorruptError, match="no file of the folder; do not use it"):
        unpack_folder(tmp_path / "packed", tmp_path / "again", ignore)
    assert not (tmp_path / "again").exists()


def test_a_file_that_would_not_be_the_source_again_is_not_given_its_name(tmp_path: Path) -> None:
    packed, again = tmp_path / "packed", tmp_path / "again"
    pack_folder(write_model(tmp_path / "source"), packed, ignore)

    def other_header(header: Header) -> None:
        manifest = json.loads(str(header[METADATA][KEY_MANIFEST]))
        manifest["source_header"] += " "
        header[METADATA][KEY_MANIFEST] = json.dumps(manifest)

    resealed((packed / SINGLE).read_bytes(), packed / SINGLE, other_header)
    manifest = read_manifest(packed)
    shard = msgspec.structs.replace(manifest.shards[0], seal=open_packed(packed / SINGLE).seal)
    wrong = msgspec.structs.replace(manifest, shards=(shard,))
    (packed / MANIFEST).write_bytes(write_manifest(wrong))
    with pytest.raises(CorruptError, match="does not give the source file back"):
        unpack_folder(packed, again, ignore)
    assert SINGLE not in contents(again)


def test_another_version_of_the_folder_is_refused(tmp_path: Path) -> None:
    pack_folder(write_model(tmp_path / "source"), tmp_path / "packed", ignore)
    text = (tmp_path / "packed" / MANIFEST).read_bytes()
    newer = json.loads(text) | {"version": 2, "weight12.seal": "0" * 64}
    (tmp_path / "packed" / MANIFEST).write_bytes(sealed(newer))
    assert "weight12 version 2; this program reads version 1" in faults(tmp_path / "packed")[0]
