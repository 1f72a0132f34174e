from __future__ import annotations

import ast
import re
from collections import Counter
from random import Random

import pytest

from harness.errors import InvalidRun
from sealed_evals.catalogue import load_catalogue
from sealed_evals.generator import make
from sealed_evals.generator.code import function_task
from sealed_evals.generator.make import KINDS, Drafted, generate
from sealed_evals.generator.rewording import LONG, Known, grams, known, masked
from sealed_evals.load import pinned_set
from tests.sealed_evals import samples

pytest.importorskip("cryptography", reason="not installed: pip install -e '.[campaign]'")

SEED = b"seed of thirty-two secret bytes."
NOTHING = known(())
NOT_POSITIVE = re.compile(r"(?<![\w$])-\d|\b0 (?:of|boxes|minutes|helpers)")
UNFILLED = re.compile(r"\{(?!pmatrix)[a-z_]{2,}\}|<function|<lambda|Random|\(rng|goods\.")


@pytest.fixture(scope="module")
def rows() -> list[Drafted]:
    return generate(SEED, 2000, NOTHING)


def test_two_thousand_prompts_are_distinct(rows: list[Drafted]) -> None:
    assert len(rows) == 2000
    assert len({" ".join(" ".join(row.turns).casefold().split()) for row in rows}) == 2000


def test_every_kind_has_its_share_and_stands_beside_a_public_set(rows: list[Drafted]) -> None:
    counts = Counter(row.kind for row in rows)
    assert {kind.name: counts[kind.name] for kind in KINDS} == {k.name: 100 * k.share for k in KINDS}
    assert {kind.like for kind in KINDS} == set(samples.PUBLIC_SETS)


def test_the_same_seed_gives_the_same_prompts_and_another_one_hardly_any(rows: list[Drafted]) -> None:
    assert generate(SEED, 60, NOTHING) == rows[:60]
    other = {row.turns for row in generate(b"another one of 32 secret bytes..", 200, NOTHING)}
    assert len(other & {row.turns for row in rows}) <= 2


def test_conversations_have_two_turns_and_tasks_one(rows: list[Drafted]) -> None:
    two = {"rewriting", "extraction", "summary", "chat"}
    assert all(len(row.turns) == (2 if row.kind in two else 1) for row in rows)


def test_no_prompt_is_empty_or_unfinished(rows: list[Drafted]) -> None:
    for row in rows:
        for turn in row.turns:
            assert 12 <= len(turn) <= 4000
            assert turn == turn.lstrip()
            assert not UNFILLED.search(turn), turn


def test_numbers_on_the_way_stay_positive(rows: list[Drafted]) -> None:
    for row in rows:
        if row.kind == "word-problem":
            assert not NOT_POSITIVE.search(row.turns[0]), row.turns[0]


def test_the_examples_of_a_code_task_are_true_of_one_function(rows: list[Drafted]) -> None:
    """Each stub parses, and equal inputs have equal outputs; the outputs were really computed."""
    seen = 0
    for row in rows:
        if row.kind != "function":
            continue
        stub = row.turns[0].partition("```python\n")[2].rpartition("\n```")[0]
        (function,) = ast.parse(stub + "    pass\n").body
        assert isinstance(function, ast.FunctionDef)
        text = ast.get_docstring(function) or ""
        examples = re.findall(r">>> (\w+)\((.*)\)\n\s*(.+)", text)
        assert examples
        for name, given, result in examples:
            assert name == function.name
            assert isinstance(ast.literal_eval(given), list)
            ast.literal_eval(result)
            seen += 1
    assert seen > 300


def test_an_example_is_what_a_solution_written_by_hand_gives() -> None:
    found = 0
    for seed in range(1500):
        task = function_task(Random(seed))  # noqa: S311 - a fixed draw
        match = re.search(r"that are multiples of (\d+).*multiply each by\s+(\d+)", task, re.S)
        if "def sum_multiple_scaled" in task and match is not None:
            n, k = map(int, match.groups())
            for given, result in re.findall(r">>> \w+\((.*)\)\n\s*(.+)", task):
                assert sum(k * value for value in ast.literal_eval(given) if value % n == 0) == int(result)
                found += 1
    assert found


def test_a_generator_that_runs_dry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = make.Kind("dull", "gsm8k", 1, lambda rng: (f"question {rng.randint(1, 3)}",))
    monkeypatch.setattr(make, "_ORDER", (kind,))

    assert len(generate(SEED, 3, NOTHING)) == 3
    with pytest.raises(InvalidRun, match="no distinct prompt of kind dull after 200 tries, 3 drawn"):
        generate(SEED, 4, NOTHING)


def test_what_rewords_a_public_row_is_never_drawn(rows: list[Drafted]) -> None:
    target = rows[5]
    public = Known(("public",), frozenset(_eight(target)), {})
    again = generate(SEED, 60, public)
    assert target not in again
    assert len(again) == 60


def _eight(row: Drafted) -> list[tuple[str, ...]]:
    return [gram for turn in row.turns for gram in grams(masked(turn), LONG)]


@samples.needs_original_files
def test_none_of_two_thousand_rewords_a_row_of_the_five_sets(rows: list[Drafted]) -> None:
    entries = [entry for entry in load_catalogue().sets if entry.name in samples.PUBLIC_SETS]
    public = known(pinned_set(entry, samples.originals(), hub=False) for entry in entries)

    kept = generate(SEED, 2000, public)

    assert public.names == samples.PUBLIC_SETS
    assert not any(public.reworded(row.turns) for row in kept)
    assert len({row.turns for row in kept}) == 2000


@samples.needs_original_files
@pytest.mark.parametrize("name", samples.PUBLIC_SETS)
def test_lengths_are_close_to_those_of_the_set_a_kind_stands_beside(rows: list[Drafted], name: str) -> None:
    """Median first turn within a factor of two, and most rows within the set's own range."""
    public = sorted(
        len(p.turns[0]) for p in pinned_set(samples.entry(name), samples.originals(), hub=False).prompts
    )
    kinds = {kind.name for kind in KINDS if kind.like == name}
    ours = sorted(len(row.turns[0]) for row in rows if row.kind in kinds)

    assert 0.5 <= ours[len(ours) // 2] / public[len(public) // 2] <= 2.2
    assert sum(public[0] <= length <= public[-1] for length in ours) / len(ours) > 0.98
