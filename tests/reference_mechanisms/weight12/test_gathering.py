from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_mechanisms.weight12.container import open_packed
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.folder import pack_folder
from reference_mechanisms.weight12.layout import Packed
from reference_mechanisms.weight12.planes import Planes
from reference_mechanisms.weight12.plugin.gathering import Gathering, Part, known_tensors
from reference_mechanisms.weight12.plugin.placing import LayerPlace
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.models import write_model
from tests.reference_mechanisms.weight12.plugin_samples import FusedLoader, give, known, packed_and_known
from tests.reference_mechanisms.weight12.samples import Bits

CPU = torch.device("cpu")
QKV: dict[Part, Bits] = {
    "q": samples.one_spread_row((120, 320), 1),
    "k": samples.heavy_tailed((60, 320), 2),
    "v": samples.normal((60, 320), 3),
}


def patterns(found: Planes | Tensor) -> Bits:
    weight = found.decode() if isinstance(found, Planes) else found
    return np.asarray(weight.view(torch.uint16).numpy())


def whole(packed: Packed, *, padded: bool = False, rows: int | None = None) -> Gathering:
    """A layer that is one part."""
    place = LayerPlace(FusedLoader({None: packed.shape[0]}), rows or packed.shape[0], packed.shape[1])
    return Gathering("layer", known(packed), place, padded=padded)


@pytest.mark.parametrize("order", [("q", "k", "v"), ("v", "q", "k")], ids=str)
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)])
def test_fused_parts_are_joined_for_every_rank_in_any_order(
    rank: int, ranks: int, order: tuple[Part, ...]
) -> None:
    packed, found = packed_and_known(QKV)
    loader = FusedLoader({part: len(bits) for part, bits in QKV.items()}, rank, ranks)
    gathering = Gathering("qkv", found, LayerPlace(loader, 240 // ranks, 320), padded=False)
    for part in order:
        give(gathering, packed[part], part)
    shares = [np.split(bits, ranks)[rank] for bits in QKV.values()]
    got = gathering.finish(240 // ranks, 320, CPU)
    assert isinstance(got, Planes)
    assert np.array_equal(patterns(got), np.concatenate(shares))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_columns_are_shared_at_groups(rank: int) -> None:
    bits = samples.one_spread_row((50, 384), 4)
    packed = encode(bits)
    place = LayerPlace(FusedLoader({None: 50}, rank, 3, by_columns=True), 50, 128)
    gathering = Gathering("down", known(packed), place, padded=False)
    give(gathering, packed, None)
    assert np.array_equal(patterns(gathering.finish(50, 128, CPU)), bits[:, 128 * rank : 128 * (rank + 1)])


def test_a_cut_inside_a_group_is_refused_by_name() -> None:
    packed = encode(samples.normal((50, 192), 4))
    place = LayerPlace(FusedLoader({None: 50}, 1, 2, by_columns=True), 50, 96)
    gathering = Gathering("model.down", known(packed), place, padded=False)
    with pytest.raises(WeightError, match=r"model\.down: .* at 96 and 192; .* multiples of 64, so use fewer"):
        give(gathering, packed, None)


def test_arrays_of_parts_may_come_mixed() -> None:
    packed, found = packed_and_known(QKV)
    loader = FusedLoader({part: len(bits) for part, bits in QKV.items()})
    gathering = Gathering("qkv", found, LayerPlace(loader, 240, 320), padded=False)
    for suffix in ("rawval", "lo", "ptab", "pidx", "rawrow", "code"):
        for part in ("k", "q", "v"):
            give(gathering, packed[part], part, suffix)
    assert np.array_equal(patterns(gathering.finish(240, 320, CPU)), np.concatenate(list(QKV.values())))


def test_parts_are_gathered_inside_a_context_of_another_device() -> None:
    packed, found = packed_and_known(QKV)
    loader = FusedLoader({part: len(bits) for part, bits in QKV.items()}, 1, 2)
    with torch.device("meta"):
        gathering = Gathering("qkv", found, LayerPlace(loader, 120, 320), padded=True)
        for part in ("v", "q"):
            give(gathering, packed[part], part)
        got = gathering.finish(120, 320, CPU)
    bits = np.concatenate((QKV["q"][60:], np.zeros((30, 320), np.uint16), QKV["v"][30:]))
    assert np.array_equal(patterns(got), bits)


def test_parts_kept_in_bf16_are_packed_beside_the_others() -> None:
    packed, found = packed_and_known(QKV)
    loader = FusedLoader({part: len(bits) for part, bits in QKV.items()})
    gathering = Gathering("qkv", found, LayerPlace(loader, 240, 320), padded=False)
    give(gathering, packed["q"], "q")
    for part in ("k", "v"):
        gathering.take_plain(torch.from_numpy(QKV[part].copy()).view(torch.bfloat16), part)
    got = gathering.finish(240, 320, CPU)
    assert isinstance(got, Planes)
    assert np.array_equal(patterns(got), np.concatenate(list(QKV.values())))


def test_a_layer_kept_in_bf16_stays_so() -> None:
    bits = samples.random_bits((30, 64), 1)
    gathering = whole(encode(bits))
    gathering.take_plain(torch.from_numpy(bits.copy()).view(torch.bfloat16), None)
    assert gathering.plain
    got = gathering.finish(30, 64, CPU)
    assert isinstance(got, Tensor)
    assert np.array_equal(patterns(got), bits)


def test_more_palettes_than_a_table_holds_are_packed_anew() -> None:
    draw = np.random.default_rng(0)

    def wide(seed: int) -> Bits:
        classes = np.array([draw.permutation(128)[:8] for _ in range(200)])
        return np.asarray(np.repeat(classes, 8, axis=1) << 8 | seed, np.uint16)

    parts: dict[Part, Bits] = {number: wide(number) for number in range(2)}
    packed, found = packed_and_known(parts)
    place = LayerPlace(FusedLoader({0: 200, 1: 200}), 400, 64)
    gathering = Gathering("gate_up", found, place, padded=False)
    for part, one in packed.items():
        give(gathering, one, part)
    assert np.array_equal(patterns(gathering.finish(400, 64, CPU)), np.concatenate(list(parts.values())))


@pytest.mark.parametrize("kind", ["normal", "non_finite", "one_spread_row"])
def test_rows_that_pad_a_vocabulary_are_zero(kind: str) -> None:
    bits = samples.KINDS[kind]((90, 128), 2)
    packed = encode(bits)

    def loader(param: torch.nn.Parameter, loaded: Tensor) -> None:
        if getattr(param, "output_dim", None) == 0:
            param.data[: len(loaded)] = loaded
            param.data[len(loaded) :] = 0

    gathering = Gathering("embed", known(packed), LayerPlace(loader, 128, 128), padded=True)
    give(gathering, packed, None)
    expected = np.concatenate((bits, np.zeros((38, 128), np.uint16)))
    assert np.array_equal(patterns(gathering.finish(128, 128, CPU)), expected)


@pytest.mark.parametrize("suffix", ["lo", "code", "pidx", "ptab", "rawval"])
def test_any_changed_byte_is_refused(suffix: str) -> None:
    packed = encode(samples.one_spread_row((40, 128), 3))
    getattr(packed, suffix).reshape(-1).view(np.uint8)[5] ^= 1
    gathering = whole(encode(samples.one_spread_row((40, 128), 3)))
    with pytest.raises(CorruptError, match="layer: the stored bytes of part None have no sha256"):
        give(gathering, packed, None)


def test_what_no_encoder_writes_is_refused_although_its_digest_is_right() -> None:
    packed = encode(samples.normal((40, 128), 3))
    packed.pidx[3, 1] = 200
    with pytest.raises(CorruptError, match=r"tensor model\.up\.weight: a palette number is beyond"):
        give(whole(packed), packed, None)


def test_missing_arrays_parts_and_layers_are_named() -> None:
    packed, found = packed_and_known(QKV)
    loader = FusedLoader({part: len(bits) for part, bits in QKV.items()})

    def fresh() -> Gathering:
        return Gathering("qkv", found, LayerPlace(loader, 240, 320), padded=False)

    with pytest.raises(WeightError, match="qkv: no weights came; is the folder complete"):
        fresh().finish(240, 320, CPU)
    some = fresh()
    give(some, packed["k"], "k", "lo", "pidx", "ptab", "rawrow", "rawval")
    with pytest.raises(WeightError, match="part 'k' came without code;"):
        some.finish(240, 320, CPU)
    partly = fresh()
    give(partly, packed["q"], "q")
    with pytest.raises(WeightError, match="no weights came for row 120 and 119 more"):
        partly.finish(240, 320, CPU)


def test_nothing_may_come_twice() -> None:
    packed = encode(samples.normal((40, 128), 3))
    weight = torch.zeros((40, 128), dtype=torch.bfloat16)
    gathering = whole(packed)
    give(gathering, packed, None, "lo")
    with pytest.raises(WeightError, match="part None came twice"):
        give(gathering, packed, None, "lo")
    with pytest.raises(WeightError, match="part None came twice"):
        gathering.take_plain(weight, None)
    plain = whole(packed)
    plain.take_plain(weight, None)
    for again in ("lo", "rawval"):
        with pytest.raises(WeightError, match="part None came twice"):
            give(plain, packed, None, again)


def test_other_types_and_dimensions_are_refused() -> None:
    packed = encode(samples.normal((40, 128), 3))
    with pytest.raises(WeightError, match=r"torch\.float16 \[40, 128\], no bf16 matrix"):
        whole(packed).take_plain(torch.zeros((40, 128), dtype=torch.float16), None)
    cube = encode(samples.normal((2, 20, 128), 3))
    place = LayerPlace(FusedLoader({None: 40}), 40, 128)
    with pytest.raises(WeightError, match="has 3 dimensions, not two"):
        give(Gathering("experts", known(cube), place, padded=False), cube, None)


def test_the_packed_tensors_of_a_folder_are_known_by_their_digest(tmp_path: Path) -> None:
    pack_folder(write_model(tmp_path / "plain", shards=2), tmp_path / "packed", lambda _: None)
    found = known_tensors(tmp_path / "packed")
    assert sorted(one.name for one in found.values()) == ["layers.0.up.weight", "layers.1.up.weight"]
    assert {one.shape for one in found.values()} == {(256, 320)}
    shard = open_packed(tmp_path / "packed" / "model-00001-of-00002.safetensors")
    assert known(shard.packed("layers.0.up.weight")).keys() <= found.keys()


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    pack_folder(write_model(tmp_path / "plain"), tmp_path / "packed", lambda _: None)
    with pytest.raises(WeightError, match=r"no weight12\.json"):
        known_tensors(tmp_path / "plain")
    path = tmp_path / "packed" / "weight12.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(CorruptError, match="cannot be trusted"):
        known_tensors(tmp_path / "packed")
