"""A packed file: the source's bytes come back, and whatever was changed is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reference_mechanisms.weight12.container import PackedFile, fault, open_packed
from reference_mechanisms.weight12.digests import sha256
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.layout import Packed
from reference_mechanisms.weight12.manifest import KEY_MANIFEST, KEY_VERSION
from reference_mechanisms.weight12.tensorfile import METADATA, open_file
from reference_mechanisms.weight12.writer import pack_file
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.models import Header, resealed
from tests.reference_mechanisms.weight12.samples import Bits


def tensor(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


def sources() -> dict[str, torch.Tensor]:
    return {
        "normal": tensor(samples.normal((256, 256))),
        "experts": tensor(samples.one_spread_row((2, 150, 320))),
        "norm": tensor(samples.normal((300,))),
        "random": tensor(samples.random_bits((256, 256))),
        "mask": torch.arange(7, dtype=torch.int64),
        "none": torch.empty((0, 256), dtype=torch.bfloat16),
    }


def ignore(_tensor: str, _size: int) -> None:
    """Hear nothing."""


def pack(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    source, target = folder / "source.safetensors", folder / "packed.safetensors"
    save_file(tensors, source, {"format": "pt", "by": "a person"})
    target.write_bytes(b"".join(chunk.tobytes() for chunk in pack_file(open_file(source), ignore).chunks()))
    return target


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed"), sources())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small packed file with raw rows and a kept tensor."""
    some = {"layers.0.up": tensor(samples.one_spread_row((256, 256))), "norm": sources()["norm"]}
    return pack(tmp_path_factory.mktemp("small"), some).read_bytes()


def refusal(path: Path) -> str:
    """How the file is refused, at opening or when all is read."""
    try:
        faults = list(open_packed(path).faults(ignore))
    except CorruptError as error:
        return str(error)
    return "\n".join(faults)


def test_every_tensor_gives_the_bytes_of_the_source(packed: Path) -> None:
    found, heard = open_packed(packed), []
    source = open_file(packed.parent / "source.safetensors")
    assert list(found.manifest.tensors) == list(source.slots)
    for name in source.slots:
        data = b"".join(chunk.tobytes() for chunk in found.source_bytes(name))
        assert data == source.read(name).tobytes()
        assert found.source_size(name) == len(data)
    assert not list(found.faults(lambda name, size: heard.append((name, size))))
    assert heard == [(name, source.read(name).size) for name in source.slots]


def test_the_manifest_says_what_is_packed_and_why_the_rest_is_not(packed: Path) -> None:
    tensors = open_packed(packed).manifest.tensors
    assert {name: entry.kept for name, entry in tensors.items() if name != "random"} == {
        "normal": None,
        "experts": None,
        "norm": "fewer than two dimensions",
        "mask": "I64, not BF16",
        "none": "fewer than 65536 weights",
    }
    assert re.fullmatch(
        r"would take 28\.\d\d bits a weight, above 13\.6 \(256 raw rows\)", tensors["random"].kept or ""
    )
    experts = tensors["experts"].codes
    assert experts is not None
    assert experts.raw_rows == 1


def test_the_reference_reader_takes_the_file_and_kept_tensors_keep_their_names(packed: Path) -> None:
    stored = load_file(packed)
    assert torch.equal(stored["norm"], sources()["norm"])
    assert torch.equal(stored["random"].view(torch.int16), sources()["random"].view(torch.int16))
    assert stored["normal_lo"].shape == (256, 256)
    assert stored["experts_rawval"].dtype == torch.bfloat16
    with safe_open(packed, framework="pt") as file:
        assert file.metadata()[KEY_VERSION] == "1"


def test_arrays_start_where_kernels_can_read_them(packed: Path) -> None:
    file = open_packed(packed).file
    assert file.start % 64 == 0
    assert all(file.slots[name].begin % 64 == 0 for name in ("normal_lo", "experts_lo", "normal_code"))


def test_nothing_of_a_packed_tensor_is_given_when_asked_for_as_packed_though_kept(packed: Path) -> None:
    with pytest.raises(CorruptError, match="tensor norm: it is stored as it was"):
        open_packed(packed).packed("norm")


def test_two_tensors_that_want_one_name_are_refused(tmp_path: Path) -> None:
    some = {"a": sources()["normal"], "a_lo": torch.zeros(1)}
    with pytest.raises(WeightError, match="two tensors want the name a_lo"):
        pack(tmp_path, some)


# any flipped byte


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_is_refused_and_the_tensor_named(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("flip") / "f"
    path.write_bytes(small)
    file = open_packed(path).file
    at = data.draw(st.integers(0, len(small) - 1))
    mask = data.draw(st.integers(1, 255))
    path.write_bytes(small[:at] + bytes([small[at] ^ mask]) + small[at + 1 :])
    reason = refusal(path)
    assert str(path) in reason
    for name, slot in file.slots.items():
        if file.start + slot.begin <= at < file.start + slot.end:
            owner = "norm" if name == "norm" else "layers.0.up"
            assert f"tensor {owner}: " in reason
            assert "sha256" in reason


def test_every_byte_of_the_header_counts(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(small)
    start = open_file(path).start
    for at in range(start):
        for mask in (0x01, 0x20):  # 0x20 turns letters into capitals
            path.write_bytes(small[:at] + bytes([small[at] ^ mask]) + small[at + 1 :])
            with pytest.raises(CorruptError):
                open_packed(path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_cut_is_refused(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "f"
    path.write_bytes(small[: data.draw(st.integers(0, len(small) - 1))])
    assert "cut off" in refusal(path)


def test_bytes_after_the_end_are_refused(small: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(small + b"\0")
    assert "1 bytes after the last tensor" in refusal(tmp_path / "f")


def test_quick_looks_at_stored_bytes_only_but_at_all_of_them(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(small)
    file = open_packed(path).file
    for name in file.slots:
        at = file.start + file.slots[name].begin
        path.write_bytes(small[:at] + bytes([small[at] ^ 4]) + small[at + 1 :])
        assert len(list(open_packed(path).faults(ignore, quick=True))) == 1
    path.write_bytes(small)
    assert not list(open_packed(path).faults(ignore, quick=True))


# files that were sealed anew: a wrong writer, not a flipped bit


def without(key: str) -> Callable[[Header], None]:
    def apply(header: Header) -> None:
        del header[METADATA][key]

    return apply


def in_manifest(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[Header], None]:
    def apply(header: Header) -> None:
        manifest = json.loads(str(header[METADATA][KEY_MANIFEST]))
        change(manifest["tensors"])
        header[METADATA][KEY_MANIFEST] = json.dumps(manifest)

    return apply


CHANGES: dict[str, tuple[Callable[[Header], None], str]] = {
    "version": (lambda h: h[METADATA].update({KEY_VERSION: "2"}), "version 2; this program reads version 1"),
    "no version": (without(KEY_VERSION), "not packed with weight12"),
    "no manifest": (without(KEY_MANIFEST), "the manifest is broken"),
    "array renamed": (
        lambda h: h.update({"layers.0.up_low": h.pop("layers.0.up_lo")}),
        "tensor layers.0.up_lo is missing",
    ),
    "tensor renamed": (lambda h: h.update({"narm": h.pop("norm")}), "tensor norm is missing"),
    "tensor not in the manifest": (
        in_manifest(lambda tensors: tensors.pop("norm")),
        "tensor norm is not in the manifest",
    ),
    "other shape": (
        in_manifest(lambda tensors: tensors["norm"].update(shape=[30, 10])),
        "tensor norm is ('BF16', (300,)), the manifest says ('BF16', (30, 10))",
    ),
    "other digest": (
        in_manifest(lambda tensors: tensors["norm"].update(sha256="0" * 64)),
        "tensor norm: it does not give the source's bytes",
    ),
    "other digest of a packed tensor": (
        in_manifest(lambda tensors: tensors["layers.0.up"].update(sha256="0" * 64)),
        "tensor layers.0.up: it does not give the source's bytes",
    ),
    "neither packed nor kept": (
        in_manifest(lambda tensors: tensors["norm"].update(kept=None)),
        "tensor norm must be either packed or kept",
    ),
    "unknown field": (
        in_manifest(lambda tensors: tensors["norm"].update(extra=1)),
        "the manifest is broken",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_writer_is_told_what_is_wrong(small: bytes, tmp_path: Path, change: str) -> None:
    apply, reason = CHANGES[change]
    assert reason in refusal(resealed(small, tmp_path / "f", apply))


def test_resealing_alone_is_no_fault(small: bytes, tmp_path: Path) -> None:
    assert refusal(resealed(small, tmp_path / "f", lambda _: None)) == ""


# arrays that no encoder writes, though their digests fit


def spoil(packed: Packed, suffix: str, at: tuple[int | slice, ...] | int, value: int) -> Packed:
    array = getattr(packed, suffix).copy()
    array[at] = value
    return replace(packed, **{suffix: array})


def odd() -> Packed:
    """Rows of 80 columns, row 5 raw."""
    bits = samples.normal((10, 80))
    bits[5, :64] = samples.random_bits((64,))
    return encode(bits)


SPOILT: dict[str, tuple[Callable[[Packed], Packed], str]] = {
    "palette number": (lambda p: spoil(p, "pidx", (0, 0), len(p.ptab)), "a palette number is beyond"),
    "mark without raw row": (lambda p: spoil(p, "pidx", (0, 0), 255), "its raw rows are not those"),
    "raw row without mark": (lambda p: spoil(p, "pidx", (5, 1), 0), "its raw rows are not those"),
    "raw row number": (lambda p: spoil(p, "rawrow", 0, 10), "its raw rows are not ascending row numbers"),
    "raw rows twice": (
        lambda p: replace(p, rawrow=p.rawrow.repeat(2), rawval=p.rawval.repeat(2, axis=0)),
        "its raw rows are not ascending row numbers",
    ),
    "palettes": (lambda p: spoil(p, "ptab", (0, 0), 127), "its palettes are not sorted"),
    "code of a raw row": (lambda p: spoil(p, "code", (5, 0), 1), "a raw row has codes"),
    "low byte of a raw row": (lambda p: spoil(p, "lo", (5, 0), 1), "a raw row has codes"),
    "low byte of padding": (lambda p: spoil(p, "lo", (0, 100), 1), "its padding is not +0"),
    "sign of padding, first half": (lambda p: spoil(p, "code", (0, 48), 0x08), "its padding is not +0"),
    "index of padding, second half": (lambda p: spoil(p, "code", (0, 63), 0x10), "its padding is not +0"),
    "class of padding": (
        lambda p: spoil(p, "ptab", (slice(None), 0), 1) if p.ptab[0, 1] > 1 else p,
        "its padding is not +0",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_arrays_that_a_kernel_could_not_trust_are_refused(name: str) -> None:
    packed = odd()
    assert fault(packed) is None
    apply, reason = SPOILT[name]
    found = fault(apply(packed))
    assert found is not None
    assert reason in found


def test_a_file_with_such_arrays_is_refused_by_tensor(tmp_path: Path) -> None:
    path = pack(tmp_path, {"w": sources()["normal"]})
    file = open_packed(path)
    spoilt = spoil(file.packed("w"), "pidx", (0, 0), 200)
    entry = file.manifest.tensors["w"]
    assert entry.codes is not None
    digest = sha256(array for _, array in spoilt.arrays())
    codes = msgspec.structs.replace(entry.codes, sha256=digest)
    tensors = {"w": msgspec.structs.replace(entry, codes=codes)}
    wrong = PackedFile(file.file, msgspec.structs.replace(file.manifest, tensors=tensors), file.seal)
    data = bytearray(path.read_bytes())
    data[file.file.start + file.file.slots["w_pidx"].begin] = 200
    path.write_bytes(bytes(data))
    assert list(wrong.faults(ignore)) == [
        f"{path}: tensor w: a palette number is beyond its palettes; get the file again"
    ]
    with pytest.raises(CorruptError, match="a palette number is beyond"):
        wrong.packed("w", check=False)
