"""Prompts to token ids and back, by the target's own tokenizer and chat template.

Every arm of a run is sent the same ids; no engine applies a template of its own.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import ModelError
from harness.records import Prompt


class PromptTokenizer:
    """The tokenizer of a target folder."""

    def __init__(self, folder: Path) -> None:
        """Load from the folder alone; nothing is downloaded.

        Raises:
            ModelError: the tokenizer files cannot be used.
        """
        from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import, and only some commands tokenise

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{folder}: the tokenizer cannot be loaded ({str(error).splitlines()[0]}); "
                "copy the target's tokenizer files into the folder"
            ) from None
        template = self._tokenizer.chat_template
        self._template: str | None = template.get("default") if isinstance(template, dict) else template

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the report should know about how prompts became ids."""
        if self._template is None:
            return ("the target has no chat template: prompts are sent as raw text",)
        return ()

    def describe(self) -> dict[str, Any]:
        """Facts for the report; the hashes are over content, wherever it is stored."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        content = (
            backend.to_str() if backend is not None else repr(sorted(self._tokenizer.get_vocab().items()))
        )
        return {
            "tokenizer_sha256": hashlib.sha256(content.encode()).hexdigest(),
            "chat_template_sha256": None
            if self._template is None
            else hashlib.sha256(self._template.encode()).hexdigest(),
            "class": type(self._tokenizer).__name__,
            "thinking": "off" if self._knows_thinking else "not known to the template",
        }

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of the first turn, with the chat template applied once.

        The template writes every special token itself, so the tokenizer adds none. Without a
        template the raw text is sent, with the special tokens that the tokenizer puts around it.

        Raises:
            ModelError: the chat template refuses the prompt.
        """
        from jinja2 import TemplateError  # noqa: PLC0415

        text = prompt.turns[0]
        if self._template is None:
            return tuple(self._tokenizer(text, add_special_tokens=True)["input_ids"])
        options = {"enable_thinking": False} if self._knows_thinking else {}
        try:
            rendered = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False, **options
            )
        except TemplateError as error:
            raise ModelError(
                f"the target's chat template refuses prompt {prompt.prompt_id}: {error}; mend the template"
            ) from None
        return tuple(self._tokenizer(rendered, add_special_tokens=False)["input_ids"])

    @property
    def inner(self) -> Any:
        """The tokenizer as transformers knows it, for engines that ask for one."""
        return self._tokenizer

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of text as it stands: no template, nothing added; special tokens are recognised."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_with_starts(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of text as `encode_text` gives them, and the character each token begins at."""
        if not self._tokenizer.is_fast:
            ids = self.encode_text(text)
            lengths = [0, *(len(self.token_text(token)) for token in ids)]
            return ids, tuple(itertools.accumulate(lengths[: len(ids)]))
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return tuple(found["input_ids"]), tuple(start for start, _ in found["offset_mapping"])

    @property
    def eos_token_id(self) -> int | None:
        """What the tokenizer itself calls the end of an output."""
        found: int | None = self._tokenizer.eos_token_id
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        """Visible text of emitted tokens: special tokens left out, white space as it is."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def token_text(self, token_id: int) -> str:
        """One token for people; special tokens are shown, unknown ids are named."""
        if not 0 <= token_id < len(self._tokenizer):
            return f"<no token {token_id}>"
        text: str = self._tokenizer.decode(
            [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def _knows_thinking(self) -> bool:
        return self._template is not None and "enable_thinking" in self._template
