"""Whether a first level pays: tokens a second with it over tokens a second without, from measured figures.

Level one agrees with the target on a token, everything before it agreed, with probability beta. Of K tokens
that it holds the target keeps a run of agreed ones and adds its own:

    tokens = (1 - beta^(K + 1)) / (1 - beta)        K = rounds x tokens of a round of level one
    seconds = rounds x (draft + level one's pass) + the target's pass of K + 1 rows

Agreement comes in stretches, so where the lengths of agreed runs were measured their mean, cut at K, takes
the place of the formula. Nothing is a default here: without measured prices there is no gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_GAIN = 1.05  # below it a first level is not worth its memory and its second set of kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one target, level one, drafter, device and batch size."""

    beta: float  # level one's token is the target's, behind the target's own text
    runs: tuple[int, ...] = ()  # agreed tokens from each place of the text on; empty: beta is all there is
    level_one_tokens: float  # of a round of level one with the drafter, its own token among them
    tokens: float  # of a step of the target with the drafter, its own token among them
    draft_seconds: float
    level_one_seconds: float  # of its pass over a draft
    verify_seconds: Mapping[int, float]  # of the target's pass, by rows, the anchor among them
    rows: int  # of the target's step without level one

    def __post_init__(self) -> None:
        """Hold that figures are figures.

        Raises:
            ValueError: naming the field.
        """
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"`beta` is {self.beta}; it is a probability")
        if min(self.level_one_tokens, self.tokens) < 1.0:
            raise ValueError("`level_one_tokens` and `tokens` count the token of the pass itself: at least 1")
        if self.draft_seconds < 0.0 or self.level_one_seconds <= 0.0:
            raise ValueError("`draft_seconds` is at least 0, `level_one_seconds` above 0")
        if (
            not self.verify_seconds
            or min(self.verify_seconds.values()) <= 0.0
            or min(self.verify_seconds) < 1
        ):
            raise ValueError("`verify_seconds` needs rows from 1 and seconds above 0")
        if self.rows > max(self.verify_seconds):
            raise ValueError(f"`rows` is {self.rows}; `verify_seconds` ends at {max(self.verify_seconds)}")

    def verify(self, rows: int) -> float | None:
        """Seconds of a pass of the target over so many rows: of the next larger one that was measured."""
        return next((self.verify_seconds[size] for size in sorted(self.verify_seconds) if size >= rows), None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model advises."""

    rounds: int  # of level one; 0: none, decode without it
    gain: float  # of the best number of rounds, below `LEAST_GAIN` too


def kept_tokens(measured: Measured, held: float) -> float:
    """Expected tokens of the target's pass over so many held ones, its own among them."""
    if measured.runs:
        return 1.0 + sum(min(run, held) for run in measured.runs) / len(measured.runs)
    if measured.beta == 1.0:
        return 1.0 + held
    return (1.0 - math.pow(measured.beta, held + 1.0)) / (1.0 - measured.beta)


def gain(measured: Measured, rounds: int) -> float | None:
    """Speed with so many rounds over speed without level one; None if a pass that wide was not measured."""
    held = rounds * measured.level_one_tokens
    wide, plain = measured.verify(math.ceil(held) + 1), measured.verify(measured.rows)
    if wide is None or plain is None:
        return None
    seconds = rounds * (measured.draft_seconds + measured.level_one_seconds) + wide
    without = measured.tokens / (measured.draft_seconds + plain)
    return kept_tokens(measured, held) / seconds / without


def best_rounds(measured: Measured, most: int) -> Choice:
    """The number of rounds with the largest gain, fewest of equals; 0 where that is below `LEAST_GAIN`.

    Args:
        measured: figures.
        most: rounds to consider.

    Raises:
        ValueError: no number of rounds was measured.
    """
    found = {rounds: gain(measured, rounds) for rounds in range(1, most + 1)}
    known = {rounds: one for rounds, one in found.items() if one is not None}
    if not known:
        raise ValueError("`verify_seconds` has no pass that is wide enough for one round of level one")
    rounds = max(known, key=lambda one: (known[one], -one))
    return Choice(rounds if known[rounds] >= LEAST_GAIN else 0, known[rounds])


def staged_gain(survival: Sequence[float], first: int, draft: float, verify: Mapping[int, float]) -> float:
    """Speed of verifying `first` tokens and the rest only behind them, over verifying all at once.

    Args:
        survival: s_j, probability that the first j drafts are right, from j = 1; not rising.
        first: tokens of the first pass, fewer than there are.
        draft: seconds of a draft.
        verify: seconds of a pass, by rows.

    Raises:
        ValueError: there is no rest.
    """
    if not 1 <= first < len(survival):
        raise ValueError(f"`first` is {first}; of {len(survival)} drafts a rest must remain")
    again, drafts = survival[first], len(survival)  # the step's own token leads into the rest
    # Of either way a draft gives the same tokens: 1 + the sum of the survivals.
    staged = draft + verify[first + 1] + again * verify[drafts - first]
    return (draft + verify[drafts + 1]) / staged


def agreed_runs(agreed: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Agreed tokens from each place of some texts on, the place itself included; texts end a run."""
    found: list[int] = []
    for text in agreed:
        runs = itertools.accumulate(reversed(text), lambda run, same: run + 1 if same else 0, initial=0)
        found += [*runs][:0:-1]
    return tuple(found)
