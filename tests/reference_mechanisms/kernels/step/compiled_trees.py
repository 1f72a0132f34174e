"""The kernels of trees and of recurrent layers, for `compiled.py`."""

from __future__ import annotations

from typing import Any

from reference_mechanisms.kernels.step import (
    fused_candidates,
    fused_delta,
    fused_dense_delta,
    fused_tree_attention,
    fused_trees,
)

BF16, WIDE, DOUBLE, WHOLE = "*bf16", "*fp32", "*fp64", "*i64"
DELTA = {"KERNEL": 4, "REPEATS": 3, "HEADS": 48, "KEY": 128, "VALUE": 128, "KEYS": 128, "VALUES": 128}
TREE_KERNELS: tuple[tuple[Any, dict[str, str], dict[str, Any], int], ...] = (
    (
        fused_tree_attention._attend_tree,
        dict.fromkeys(("qkv", "gains", "table", "place"), BF16)
        | dict.fromkeys(("start_at", "depths", "paths"), WHOLE)
        | {"parts": WIDE},
        {"GROUPED": 4, "TOGETHER": 4, "CELLS": 16, "SPAN": 64, "HALF": 64, "KV": 8, "LEVELS": 8, "ENDS": 2}
        | {"NORMS": True},
        4,
    ),
    (
        fused_trees._lay,
        dict.fromkeys(("parents", "depths", "paths"), WHOLE),
        {"SPAN": 8, "RANGE": 64},
        1,
    ),
    (
        fused_trees._settle_tree,
        {"tops": WIDE, "places": "*i32"}
        | dict.fromkeys(("state", "choices", "before", "accepted", "path", "report"), WHOLE),
        {"SPAN": 8, "RANGE": 64, "PARTS": 32},
        8,
    ),
    (
        fused_trees._move,
        {"first": BF16, "before": WHOLE, "path": WHOLE},
        {"SPAN": 8, "RANGE": 8, "DIM": 64},
        1,
    ),
    (
        fused_trees._plant,
        {"ids": WHOLE, "worth": WIDE, "off_spine": DOUBLE, "state": WHOLE},
        {"NODES": 63, "RANGE": 64},
        1,
    ),
    (
        fused_candidates._best_of_part,
        {"logits": BF16, "keys": WHOLE, "tops": WIDE, "sums": WIDE},
        {"COUNT": 64, "PART": 2048},
        8,
    ),
    (
        fused_candidates._best_of_row,
        {"keys": WHOLE, "tops": WIDE, "sums": WIDE, "ids": WHOLE, "worth": WIDE},
        {"COUNT": 64, "KEYS": 2048, "PARTS": 32},
        8,
    ),
    (
        fused_delta._recur,
        dict.fromkeys(("raw", "z", "b", "a", "bias", "gains", "window", "out", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("weights", "rate", "memory", "states", "log_key", "log_beta", "log_decay"), WIDE)
        | {"above": WHOLE, "windows": WHOLE},
        DELTA | {"ROWS": 16},
        8,
    ),
    (
        fused_dense_delta._solve,
        dict.fromkeys(("raw", "z", "b", "a", "bias", "gains", "window", "out", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("weights", "rate", "memory", "log_key", "log_beta", "log_decay"), WIDE)
        | {"seen": WHOLE, "windows": WHOLE},
        DELTA | {"ROWS": 64, "SIDE": 64, "PART": 16},
        8,
    ),
    (
        fused_delta._replay_rows,
        dict.fromkeys(("windows", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("memories", "log_key", "log_beta", "log_decay"), WIDE)
        | {"path": WHOLE, "kept_at": WHOLE},
        DELTA | {"ROWS": 16, "SPAN": 8, "RANGE": 4},
        8,
    ),
)
