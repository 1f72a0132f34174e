"""As `tests.reference_mechanisms.kernels.step.compiled`, for the kernels of many slots."""

from __future__ import annotations

import json
import sys

from reference_mechanisms.kernels.slots import fused, fused_delta, fused_trees
from tests.reference_mechanisms.kernels.step import compiled
from tests.reference_mechanisms.kernels.step.compiled import BF16, SEEN, WHOLE, WIDE
from tests.reference_mechanisms.kernels.step.compiled_trees import DELTA

compiled.KERNELS = (
    (
        fused._place_rows,
        dict.fromkeys(("rows", "gains", "table", "place"), BF16)
        | dict.fromkeys(("slots", "positions", "cells"), WHOLE),
        {"HEADS": 32, "KV": 8, "HALF": 64, "NORMS": True},
        1,
    ),
    (
        fused._attend_slots,
        {"queries": BF16, "place": BF16, "parts": WIDE, **SEEN}
        | dict.fromkeys(("seat_slots", "firsts", "counts"), WHOLE),
        {"GROUPED": 4, "TOGETHER": 16, "TILES": 1, "DIM": 128, "CELLS": 64, "SPAN": 64, "SPLIT": 256},
        4,
    ),
    (
        fused._join_splits,
        {"parts": WIDE, "out": BF16, "row_seats": WHOLE, **SEEN},
        {"SPLITS": 3, "DIM": 128, "SPLIT": 256},
        2,
    ),
    (
        fused_trees._attend_paths,
        {"queries": BF16, "place": BF16, "parts": WIDE}
        | dict.fromkeys(("row_slots", "row_seats", "starts", "depths", "paths"), WHOLE),
        {"GROUPED": 4, "LEVELS": 8, "DIM": 128, "CELLS": 64, "SPAN": 64, "SPLIT": 256},
        4,
    ),
    (
        fused_trees._move_slots,
        {"first": BF16} | dict.fromkeys(("slots", "starts", "paths"), WHOLE),
        {"LEVELS": 8, "RANGE": 8, "DIM": 128},
        1,
    ),
    (
        fused_delta._recur_seats,
        dict.fromkeys(("raw", "z", "b", "a", "bias", "gains", "window", "out", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("weights", "rate", "memory", "log_key", "log_beta", "log_decay"), WIDE)
        | dict.fromkeys(("slots", "firsts", "counts", "windows"), WHOLE),
        DELTA | {"MOST": 16},
        8,
    ),
    (
        fused_delta._recur_trees,
        dict.fromkeys(("raw", "z", "b", "a", "bias", "gains", "window", "out", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("weights", "rate", "memory", "states", "log_key", "log_beta", "log_decay"), WIDE)
        | dict.fromkeys(("slots", "firsts", "counts", "above", "windows"), WHOLE),
        DELTA | {"MOST": 16},
        8,
    ),
    (
        fused_delta._replay_seats,
        dict.fromkeys(("windows", "log_value", "log_raw"), BF16)
        | dict.fromkeys(("memories", "log_key", "log_beta", "log_decay"), WIDE)
        | dict.fromkeys(("slots", "firsts", "counts", "paths"), WHOLE),
        DELTA | {"MOST": 16, "RANGE": 4},
        8,
    ),
)

if __name__ == "__main__":
    print(json.dumps(compiled.compiled(int(sys.argv[1]))))
