from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealed_evals.merkle import InclusionProof, merkle_root, prove_inclusion, verify_inclusion
from tests.sealed_evals import samples

# The leaves that implementations of RFC 6962 test with, and their roots for 1 to 8 leaves.
LEAVES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)

HASHES = st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=40)


@pytest.mark.parametrize("count", range(1, 9))
def test_roots_are_those_of_rfc_6962(count: int) -> None:
    assert merkle_root(LEAVES[:count]) == ROOTS[count - 1]


def test_the_root_of_no_rows_is_the_hash_of_nothing() -> None:
    assert merkle_root([]) == hashlib.sha256(b"").hexdigest()


@samples.patient
@given(HASHES)
def test_every_row_proves_its_place(hashes: list[str]) -> None:
    root = merkle_root(hashes)

    for index, row_hash in enumerate(hashes):
        proof = prove_inclusion(hashes, index)
        assert verify_inclusion(row_hash, proof, root)
        assert len(proof.path) <= (len(hashes) - 1).bit_length()


@samples.patient
@given(HASHES, st.data())
def test_a_changed_row_changes_the_root_and_fails_its_proof(hashes: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(hashes) - 1))
    changed = bytearray.fromhex(hashes[index])
    changed[data.draw(st.integers(0, 31))] ^= 1 << data.draw(st.integers(0, 7))
    others = [*hashes[:index], changed.hex(), *hashes[index + 1 :]]

    assert merkle_root(others) != merkle_root(hashes)
    assert not verify_inclusion(changed.hex(), prove_inclusion(hashes, index), merkle_root(hashes))


@samples.patient
@given(st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=2, max_size=20, unique=True))
def test_a_proof_fails_at_every_other_place(hashes: list[str]) -> None:
    root = merkle_root(hashes)
    proof = prove_inclusion(hashes, 0)

    for index in range(-1, len(hashes) + 1):
        moved = msgspec.structs.replace(proof, index=index)
        assert verify_inclusion(hashes[0], moved, root) == (index == 0)


@samples.patient
@given(HASHES, st.data())
def test_a_damaged_path_fails(hashes: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(hashes) - 1))
    proof = prove_inclusion(hashes, index)
    root = merkle_root(hashes)

    longer = msgspec.structs.replace(proof, path=(*proof.path, "00" * 32))
    assert not verify_inclusion(hashes[index], longer, root)
    if proof.path:
        shorter = msgspec.structs.replace(proof, path=proof.path[:-1])
        assert not verify_inclusion(hashes[index], shorter, root)
        no_hex = msgspec.structs.replace(proof, path=("zz", *proof.path[1:]))
        assert not verify_inclusion(hashes[index], no_hex, root)


def test_an_inner_node_cannot_be_passed_off_as_a_row() -> None:
    hashes = ["aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32]
    left, right = merkle_root(hashes[:2]), merkle_root(hashes[2:])

    assert merkle_root([left, right]) != merkle_root(hashes)
    forged = InclusionProof(index=0, count=2, path=(right,))
    assert not verify_inclusion(left, forged, merkle_root(hashes))


@pytest.mark.parametrize("index", [-1, 3])
def test_there_is_no_proof_for_a_row_that_is_not_there(index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of a tree of 3 rows"):
        prove_inclusion(["00", "01", "02"], index)
