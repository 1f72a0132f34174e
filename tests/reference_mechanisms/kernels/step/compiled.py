"""Compile the kernels of a step for an architecture given as 90 or 120; needs no GPU, and no interpreter.

All of them, or those whose names follow.

Prints one JSON object: kernel -> bytes of the machine code and which waits and products it has.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Collection
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reference_mechanisms.kernels.step import fused, fused_attention, fused_layer_attention, fused_settling
from tests.reference_mechanisms.kernels.step.compiled_trees import TREE_KERNELS

BF16, WIDE, WHOLE = "*bf16", "*fp32", "*i64"
CHUNKS = {"GROUPED": 4, "TOGETHER": 4, "CELLS": 16, "SPAN": 64}
SEEN = {"seen_low": WHOLE, "seen_high": WHOLE}
LAYER = dict.fromkeys(("qkv", "gains", "table", "place", "out"), BF16)
LAYER |= {"positions": WHOLE, "parts": WIDE, "tickets": "*i32", "ahead": "*u8", **SEEN}
LAYER_WAYS = ("JOINS", "EARLY", "FETCHES")
LAYERED = CHUNKS | {"HALF": 64, "KV": 8, "NORMS": True, "BATCH": 8}
# Kernel, types of its pointers, its constants, warps. Whatever is left are whole numbers, but for these.
FRACTIONS = ("eps", "scale", "unit_eps")
# Launched with `following.unfused`: what one of them sums, another sums again.
UNFUSED = {"_recur", "_replay_rows", "_recur_seats", "_recur_trees", "_replay_seats"}
KERNELS: tuple[tuple[Any, dict[str, str], dict[str, Any], int], ...] = (
    (
        fused._add_norm,
        dict.fromkeys(("hidden", "delta", "weight", "summed", "normed"), BF16),
        {"ADDS": True, "BLOCK": 4096},
        8,
    ),
    (
        fused._rotate_write,
        {"rows": BF16, "gains": BF16, "table": BF16, "positions": WHOLE, "place": BF16},
        {"HEADS": 0, "KV": 8, "HALF": 64, "NORMS": True},
        1,
    ),
    (fused._gate, {"gate_up": BF16, "out": BF16}, {"BLOCK": 512}, 4),
    (
        fused_attention._attend_chunk,
        {"queries": BF16, "place": BF16, "parts": WIDE, **SEEN},
        CHUNKS | {"DIM": 128},
        4,
    ),
    *(
        (
            fused_attention._join_chunks,
            {"parts": WIDE, "out": BF16, **SEEN},
            {"DIM": 128, "SPAN": 64, "BATCH": 8, "CHUNKS": chunks, "EARLY": early},
            4,
        )
        for chunks, early in ((0, False), (0, True), (9, False), (16, True))
    ),
    *(
        (
            fused_layer_attention._attend_layer,
            LAYER,
            LAYERED | {"JOINS": joins, "EARLY": early, "FETCHES": fetches},
            4,
        )
        for joins, early, fetches in itertools.product((False, True), repeat=3)
    ),
    (fused_settling._best, {"logits": BF16, "tops": WIDE, "places": "*i32"}, {"PART": 2048}, 4),
    (
        fused_settling._settle,
        {"tops": WIDE, "places": "*i32"}
        | dict.fromkeys(("state", "choices", "before", "accepted", "report"), WHOLE),
        {"ROWS": 16, "RANGE": 16, "PARTS": 128},
        8,
    ),
    (fused_settling._join_best, {"tops": WIDE, "places": "*i32", "out": WHOLE}, {"PARTS": 128}, 1),
    (
        fused_settling._replay,
        dict.fromkeys(("start", "tokens", "counts", "turn", "out"), WHOLE),
        {"RANGE": 16},
        1,
    ),
    *TREE_KERNELS,
)


def compiled(capability: int, names: Collection[str] = ()) -> dict[str, Any]:
    """Kernels for one compute capability: every one, or those of these names."""
    found = {}
    for kernel, pointers, constants, warps in KERNELS:
        if names and kernel.__name__ not in names:
            continue
        values = constants | {"PDL": True}
        types = {}
        for name in kernel.arg_names:
            number = "fp32" if name in FRACTIONS else "i32"
            types[name] = "constexpr" if name in values else pointers.get(name, number)
        places = {name: (kernel.arg_names.index(name),) for name in types}
        aligned = {places[name]: [["tt.divisibility", 16]] for name in pointers if pointers[name] != WHOLE}
        source = ASTSource(
            fn=kernel,
            signature=types,
            constexprs={places[name]: value for name, value in values.items()},
            attrs=aligned,
        )
        target, options = GPUTarget("cuda", capability, 32), {"num_warps": warps, "launch_pdl": True}
        if kernel.__name__ in UNFUSED:
            options["enable_fp_fusion"] = False
        made = triton.compile(source, target=target, options=options)
        text = made.asm["ptx"]
        ways = [name.lower() for name in LAYER_WAYS if values.get(name)]
        ways += [f"{values['CHUNKS']} chunks"] if values.get("CHUNKS") else []
        found[" ".join((kernel.__name__, *ways))] = {
            "bytes": len(made.asm["cubin"]),
            "shared": made.metadata.shared,
            "waits": text.count("griddepcontrol.wait"),
            "lets": text.count("griddepcontrol.launch_dependents"),
            "first_wait": text.find("griddepcontrol.wait"),
            "first_store": text.find("st.global"),
            "first_load": text.find("ld.global"),
            "tickets": text.count("atom."),
            "fetches": text.count("cp.async.bulk.prefetch.L2.global"),
            # How a product lies over the warps decides in which order its rows are summed.
            "layouts": sorted(set(re.findall(r"#ttg\.nvidia_mma<[^\n]*", made.asm["ttgir"]))),
            "products": "mma.sync" in text,
            "group_products": "wgmma" in text,
            "fused_sums": text.count("fma.rn.f32"),
            "sums": sums_over_keys(made.asm["ttgir"]),
        }
    return found


def sums_over_keys(text: str) -> list[str]:
    """How matrices lie over threads and warps where their columns are summed: it decides the order."""
    known = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", text, re.MULTILINE))
    found = re.findall(r"axis = 0 : i32.*?\(tensor<(\d+x\d+xf32), (#\w+)>\) -> tensor<", text, re.DOTALL)
    return sorted({f"{shape} {known.get(name, name)}" for shape, name in found})


if __name__ == "__main__":
    print(json.dumps(compiled(int(sys.argv[1]), sys.argv[2:])))
