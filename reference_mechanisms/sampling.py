"""From raw logits to the distribution a token is drawn from, and the draw itself.

Order, as OpenAI-compatible servers apply it: repetition penalty (prompt and output; divides positive
logits, multiplies negative ones), frequency and presence penalties (output only; subtract), stop
tokens forbidden before `min_tokens`, temperature, top-k, top-p.

Random numbers are a function of (seed, prompt, position of the token in the output, purpose): they
do not depend on how tokens were grouped into steps, so a speculative run that compares its drafts
with draws of the target emits exactly the tokens that autoregressive decoding would.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from reference_mechanisms.request import Sampling

Purpose = Literal["draw", "accept", "residual", "draft"]
_PURPOSES: tuple[Purpose, ...] = ("draw", "accept", "residual", "draft")


def adjusted(
    row: Tensor, prompt: Collection[int], emitted: Sequence[int], sampling: Sampling, stop_ids: frozenset[int]
) -> Tensor:
    """Logits a token is chosen from.

    Args:
        row: raw logits [vocabulary].
        prompt: ids of the prompt.
        emitted: every token that precedes this position in the output, accepted drafts of the same
            step included.
        sampling: the request's parameters.
        stop_ids: ids that end the output.

    Returns:
        [vocabulary], float32; the given row is left as it is.
    """
    result = row.to(torch.float32, copy=True)
    counts = Counter(emitted)
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*prompt, *counts}), device=row.device)
        values = result[seen]
        penalty = sampling.repetition_penalty
        result[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts and (sampling.frequency_penalty or sampling.presence_penalty):
        seen = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=row.device)
        result[seen] -= sampling.frequency_penalty * times
        result[seen] -= sampling.presence_penalty
    if len(emitted) < sampling.min_tokens and stop_ids:
        result[torch.tensor(sorted(stop_ids), device=row.device)] = -torch.inf
    return result


def distribution(rows: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities after temperature, top-k and top-p.

    Args:
        rows: adjusted logits [rows, vocabulary].
        sampling: temperature above 0.

    Returns:
        [rows, vocabulary], float64, each row summing to 1.
    """
    scaled = rows.double() / sampling.temperature
    vocabulary = scaled.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        lowest = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < lowest, -torch.inf)
    probabilities = scaled.softmax(-1)
    if sampling.top_p < 1.0:
        ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        ordered = ordered.masked_fill(outside, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter_(-1, ids, ordered)
        probabilities /= probabilities.sum(-1, keepdim=True)
    return probabilities


def draw(probabilities: Tensor, uniform: float) -> int:
    """The token at a point of the cumulative distribution, in order of ids.

    Args:
        probabilities: [vocabulary], need not sum to 1 exactly.
        uniform: in [0, 1).
    """
    cumulative = probabilities.double().cumsum(-1)
    total = float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, uniform * total, right=True))
    if index >= len(cumulative):  # rounding at the very end
        return int(torch.nonzero(probabilities)[-1])
    return index


def request_key(seed: int, prompt: Sequence[int]) -> int:
    """Key of a request's random numbers: the same prompt with the same seed repeats itself."""
    content = np.asarray([seed, *prompt], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")


def uniform(key: int, position: int, purpose: Purpose) -> float:
    """A number in [0, 1), a function of its arguments (Philox4x64-10)."""
    counter = [position, _PURPOSES.index(purpose), 0, 0]
    raw = np.random.Philox(key=key, counter=counter).random_raw()
    return float(int(raw) >> 11) * 2.0**-53
