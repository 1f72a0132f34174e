from __future__ import annotations

import numpy as np

from harness.oracle.adjust import FORBIDDEN, Adjuster
from harness.records import Sampling

ROW = np.array([2.0, -1.0, 0.5, 3.0], dtype=np.float32)


def after(sampling: Sampling, emitted: list[int], prompt: list[int] | None = None) -> list[float]:
    adjuster = Adjuster(sampling, prompt or [], [3])
    for token in emitted:
        adjuster.emit(token)
    return [float(value) for value in adjuster.adjusted(ROW)]


def test_without_parameters_the_logits_stay_as_they_are() -> None:
    assert after(Sampling(max_tokens=4), [0, 1, 1]) == ROW.tolist()


def test_the_given_row_is_not_changed() -> None:
    before = ROW.copy()
    after(Sampling(max_tokens=4, frequency_penalty=1.0, min_tokens=4), [0])
    assert (before == ROW).all()


def test_frequency_penalty_counts_every_token_not_every_step() -> None:
    # B15: an engine that counts the last token of each accepted block would subtract 1.0 once.
    assert after(Sampling(max_tokens=4, frequency_penalty=0.5), [1, 1, 1, 0]) == [1.5, -2.5, 0.5, 3.0]


def test_presence_penalty_counts_a_token_once() -> None:
    assert after(Sampling(max_tokens=4, presence_penalty=0.5), [1, 1, 1]) == [2.0, -1.5, 0.5, 3.0]


def test_repetition_penalty_covers_the_prompt_and_divides_positive_logits() -> None:
    found = after(Sampling(max_tokens=4, repetition_penalty=2.0), emitted=[1], prompt=[0, 0])
    assert found == [1.0, -2.0, 0.5, 3.0]


def test_frequency_and_presence_penalties_do_not_cover_the_prompt() -> None:
    sampling = Sampling(max_tokens=4, frequency_penalty=1.0, presence_penalty=1.0)
    assert after(sampling, emitted=[], prompt=[0, 0]) == ROW.tolist()


def test_repetition_comes_before_the_subtracting_penalties() -> None:
    sampling = Sampling(max_tokens=4, repetition_penalty=2.0, presence_penalty=1.0)
    assert after(sampling, [0])[0] == 2.0 / 2.0 - 1.0


def test_stop_tokens_are_forbidden_before_min_tokens_and_free_after() -> None:
    sampling = Sampling(max_tokens=4, min_tokens=2)
    assert after(sampling, [0])[3] == FORBIDDEN
    assert after(sampling, [0, 0])[3] == 3.0
