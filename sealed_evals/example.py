"""A seal from a notebook: hashes of every row, which row was changed, and a proof that one row belongs.

python -m sealed_evals.example
"""

from __future__ import annotations

from sealed_evals.catalogue import own_layout
from sealed_evals.merkle import prove_inclusion, verify_inclusion
from sealed_evals.reader import read_rows
from sealed_evals.seal import check_seal, make_seal

PROMPTS = b'{"prompt": "Add two and two."}\n{"prompt": "Name a colour."}\n{"prompt": "Write a loop in C."}\n'


def main() -> None:
    """Seal three prompts, change one, and show that another belongs to the set."""
    layout, where = own_layout("prompt"), "mine.jsonl"
    seal = make_seal("mine", PROMPTS, layout, where)
    print(f"{seal.count} rows sealed, root {seal.merkle_root}")

    changed = PROMPTS.replace(b"a colour", b"a color")
    for difference in check_seal(seal, changed, where):
        where_it_is = "" if difference.row is None else f", row {difference.row}"
        print(f"after a change: {difference.kind}{where_it_is}")

    hashes = [row.sha256 for row in read_rows(PROMPTS, where)]
    proof = prove_inclusion(hashes, 2)
    held = verify_inclusion(hashes[2], proof, seal.merkle_root)
    print(f"row 3 belongs to the set: {held}, shown with {len(proof.path)} hashes and no other row")


if __name__ == "__main__":
    main()
