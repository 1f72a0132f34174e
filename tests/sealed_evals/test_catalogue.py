from __future__ import annotations

import re

import msgspec
import pytest

from harness.errors import UsageError
from sealed_evals.catalogue import load_catalogue, own_layout
from tests.sealed_evals import samples


def test_the_catalogue_holds_the_sets_of_the_field_and_our_own() -> None:
    assert load_catalogue().names == (*samples.PUBLIC_SETS, "embedded")


@pytest.mark.parametrize("entry", load_catalogue().sets, ids=lambda entry: entry.name)
def test_every_set_is_pinned_by_both_hashes_and_has_a_licence(entry: object) -> None:
    plain = msgspec.to_builtins(entry)

    assert re.fullmatch(r"[0-9a-f]{64}", plain["raw_sha256"])
    assert re.fullmatch(r"[0-9a-f]{64}", plain["prompts_sha256"])
    assert plain["rows"] > 0
    assert plain["licence"] in {"MIT", "Apache-2.0", "CC BY 4.0"}


@pytest.mark.parametrize("name", samples.PUBLIC_SETS)
def test_every_public_set_has_a_file_and_a_pinned_hub_revision(name: str) -> None:
    entry = samples.entry(name)

    assert entry.file is not None
    assert entry.hub is not None
    assert re.fullmatch(r"[0-9a-f]{40}", entry.hub.revision)
    assert entry.hub.layout.format == entry.layout.format


def test_an_unknown_set_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_catalogue().entry("gsm8")

    assert "no evaluation set named 'gsm8'" in str(caught.value)
    assert "did you mean 'gsm8k'?" in str(caught.value)
    assert "gsm8k, math500, humaneval, mbpp, mt_bench, embedded" in str(caught.value)


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(UsageError) as caught:
        load_catalogue().entry("zzz")

    assert "did you mean" not in str(caught.value)


def test_the_prompt_of_an_own_file_is_never_taken_for_its_answer() -> None:
    assert "answer" in own_layout("prompt").answers
    assert "answer" not in own_layout("answer").answers
