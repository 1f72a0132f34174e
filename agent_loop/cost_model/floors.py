"""What a response takes at least on a machine, whoever computes it. Pure.

Two facts bound it: the prompt's tokens need two operations a weight each, and every verify step reads
all weights once. Steps are at least as many as the largest block allows. A response that came faster
did not compute what it says: it is quarantined, never celebrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.codec import Record
from harness.records import Response

LARGEST_BLOCK = 65  # tokens of one verify step, over every mechanism known here
LOGIT_BYTES = 4
SLACK = 0.5  # of the measured peaks: they are measured, not guaranteed


class Machine(Record, frozen=True):
    """Peaks of this machine, measured."""

    bytes_per_s: float  # reading memory
    flops_per_s: float  # matrix product in the deployment's number format
    launch_s: float  # starting one operation
    how: str


class ModelSize(Record, frozen=True):
    """What a step of the target must do."""

    parameters: int  # in matrix products
    weight_bytes: int  # read by a step
    kv_bytes: int = 0  # that attention reads for a position; 0: not known
    vocabulary: int = 0  # logits of a row; 0: not known


def prefill_floor_s(machine: Machine, model: ModelSize, prompt_tokens: int) -> float:
    """Least seconds to process a prompt: one step with a row for each of its tokens."""
    return step_floor_s(machine, model, prompt_tokens)


def step_floor_s(machine: Machine, model: ModelSize, rows: int) -> float:
    """Least seconds of a verify step of so many rows.

    >>> machine = Machine(bytes_per_s=4e12, flops_per_s=8e14, launch_s=0.0, how="an example")
    >>> step_floor_s(machine, ModelSize(parameters=8_000_000_000, weight_bytes=16_000_000_000), rows=1)
    0.004
    """
    compute = 2.0 * model.parameters * rows / machine.flops_per_s
    return max(compute, model.weight_bytes / machine.bytes_per_s)


def attention_floor_s(machine: Machine, model: ModelSize, positions: int) -> float:
    """Least seconds of a step's attention: keys and values of every position are read once."""
    return positions * model.kv_bytes / machine.bytes_per_s


def sampling_floor_s(machine: Machine, model: ModelSize, rows: int) -> float:
    """Least seconds of choosing tokens: the logits of every row are read once."""
    return rows * model.vocabulary * LOGIT_BYTES / machine.bytes_per_s


def response_floor(machine: Machine, model: ModelSize) -> Callable[[Response], float]:
    """Least seconds of a response, by half of the measured peaks and the largest block there is."""

    def floor(response: Response) -> float:
        steps = math.ceil(max(0, len(response.token_ids) - 1) / LARGEST_BLOCK)
        least = prefill_floor_s(machine, model, response.prompt_tokens)
        return SLACK * (least + steps * step_floor_s(machine, model, 1))

    return floor
