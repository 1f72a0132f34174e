from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from sealed_evals.campaign.canary import canary, pack, search
from sealed_evals.campaign.scan import scan, unseen_rows
from sealed_evals.campaign.vault import open_shard, shard_key
from tests.sealed_evals import samples
from tests.sealed_evals.campaign.build import Place

KEY = b"c" * 32
CANARIES = [canary(KEY, f"000/{place}") for place in range(50)]
CODES = pack(CANARIES)


def test_a_canary_is_sixty_bits_of_the_secret_and_the_place() -> None:
    assert all(re.fullmatch(r"[a-z2-7]{4}-[a-z2-7]{4}-[a-z2-7]{4}", one) for one in CANARIES)
    assert len(set(CANARIES)) == len(set(CODES.tolist())) == 50
    assert canary(b"d" * 32, "000/0") != CANARIES[0]


WAYS: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda text: text.encode(),
    "in upper case": lambda text: text.upper().encode(),
    "without hyphens": lambda text: text.replace("-", "").encode(),
    "over two lines": lambda text: text.replace("-", "-\n").encode(),
    "spaced and quoted": lambda text: " ".join(f"'{letter}'," for letter in text).encode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_canary_is_found_however_it_is_written(way: str) -> None:
    found = search(b"first line\nsome text " + WAYS[way](CANARIES[7]) + b" more text", CODES)
    assert [(one.number, one.line, one.encoding) for one in found] == [(7, 2, "plain")]


def test_a_canary_is_found_inside_encodings() -> None:
    text = f"a log line\nItem {CANARIES[9]}.\nand what follows it".encode()
    wrapped = base64.encodebytes(b"x" * 70 + text)  # lines of 76 characters
    for encoding, data in {
        "hex": b"\n\nid " + text.hex().encode(),
        "base64": b"\n\n" + base64.b64encode(b"head" + text),
        "gzip": b"\n\n" + gzip.compress(text),
    }.items():
        found = search(data, CODES)
        assert [(one.number, one.line, one.encoding) for one in found] == [(9, 3, encoding)], encoding
    assert [one.number for one in search(wrapped, CODES)] == [9]
    for before in (b"x", b"xy", b"xyz"):  # letters that are not part of it
        assert [one.number for one in search(before + base64.b64encode(text), CODES)] == [9]
    assert [one.number for one in search(base64.urlsafe_b64encode(text), CODES)] == [9]
    assert [one.number for one in search(base64.b64encode(gzip.compress(text)), CODES)] == [9]


def test_ordinary_text_holds_no_canary() -> None:
    assert search(samples.human_eval() + samples.embedded(), CODES) == []
    assert search(b"", CODES) == []
    assert search(b"short", CODES) == []
    assert search(CANARIES[0].encode(), CODES[1:]) == []


@samples.patient
@given(st.binary(max_size=60), st.integers(0, 49), st.binary(max_size=60))
def test_no_surroundings_hide_a_canary(before: bytes, index: int, after: bytes) -> None:
    data = before + b"|" + CANARIES[index].encode() + b"|" + after
    assert index in {one.number for one in search(data, CODES)}


def test_every_canary_of_many_is_told() -> None:
    found = search("\n".join(CANARIES).encode(), CODES)
    assert [(one.number, one.line) for one in found] == [(n, n + 1) for n in range(50)]


def test_a_scan_finds_unseen_rows_in_folders_and_tells_no_text(place: Place, tmp_path: Path) -> None:
    data = place.folder.shard("002").read_bytes()
    opening = open_shard(data, shard_key(place.secret, "002"), place.campaign, "002", "shard")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "clean.txt").write_text("nothing")
    (tree / "deep" / "log.txt").write_text(f"started\n{opening.rows[5].line}\n")
    (tree / "deep" / "log.txt.gz").write_bytes(gzip.compress(opening.rows[6].line.encode()))

    leaks, files = scan([tree], place.campaign, place.secret)

    assert files == 3
    assert [(leak.path.name, leak.line, leak.row) for leak in leaks] == [
        ("log.txt", 2, "002/5"),
        ("log.txt.gz", 1, "002/6"),
    ]
    assert leaks[1].text.endswith("log.txt.gz line 1: row 6 of unseen shard 002 (inside gzip)")
    assert scan([place.folder.root], place.campaign, place.secret)[0] == []  # the public rows are no leak
    assert len(unseen_rows(place.campaign)) == 24


def test_a_path_that_is_not_there_is_no_clean_one(place: Place, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing to search at .*nowhere"):
        scan([tmp_path / "nowhere"], place.campaign, place.secret)
