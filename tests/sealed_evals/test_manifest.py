from __future__ import annotations

import msgspec
import pytest

from harness.errors import DataError
from sealed_evals.load import pinned_set
from sealed_evals.manifest import foreign, load_manifest, make_manifest
from tests.sealed_evals import samples

HERE = ("humaneval", "embedded")


@pytest.mark.parametrize("name", [*samples.PUBLIC_SETS, "embedded"])
def test_every_pinned_set_has_a_manifest_of_all_its_rows_and_none_of_its_text(name: str) -> None:
    manifest = load_manifest(samples.entry(name))

    assert len(manifest.keys) == len(set(manifest.keys)) == samples.entry(name).rows
    hashes = (*manifest.row_sha256, *manifest.turns_sha256)
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in hashes)


@pytest.mark.parametrize("name", HERE)
def test_the_manifest_is_that_of_the_set_that_is_here(name: str) -> None:
    whole = pinned_set(samples.entry(name), None, hub=False)
    assert load_manifest(samples.entry(name)) == make_manifest(whole)


@samples.needs_original_files
@pytest.mark.parametrize("name", samples.PUBLIC_SETS)
def test_the_manifest_is_that_of_the_original_file(name: str) -> None:
    whole = pinned_set(samples.entry(name), samples.originals(), hub=False)
    assert load_manifest(samples.entry(name)) == make_manifest(whole)


def test_a_prompt_that_is_not_a_row_is_named() -> None:
    manifest = load_manifest(samples.entry("embedded"))
    prompts = pinned_set(samples.entry("embedded"), None, hub=False).prompts[:5]
    assert foreign(manifest, prompts, rows_too=True) == []

    changed = msgspec.structs.replace(prompts[2], turns=("Something else?",))
    renamed = msgspec.structs.replace(prompts[3], prompt_id="embedded/none")
    other_bytes = msgspec.structs.replace(prompts[4], row_sha256="0" * 64)
    mixed = [*prompts[:2], changed, renamed, other_bytes]

    ids = [prompts[2].prompt_id, "embedded/none", prompts[4].prompt_id]
    assert foreign(manifest, mixed, rows_too=True) == ids
    assert foreign(manifest, mixed, rows_too=False) == ids[:2]


def test_a_manifest_of_another_pin_is_refused() -> None:
    entry = msgspec.structs.replace(samples.entry("mbpp"), prompts_sha256="0" * 64)
    with pytest.raises(DataError, match=r"manifests/mbpp\.json is not the manifest of the pinned set"):
        load_manifest(entry)
    with pytest.raises(DataError, match=r"manifests/none\.json is missing"):
        load_manifest(msgspec.structs.replace(entry, name="none"))
