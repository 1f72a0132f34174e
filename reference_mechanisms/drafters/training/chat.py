"""The target's chat template, also cut off inside the user turn, where the target goes on by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_mechanisms.errors import TargetError

_MARK = "\N{WHITE SQUARE}turn\N{WHITE SQUARE}"


class TemplateChat:
    """Tokenizer and chat template of a target folder."""

    def __init__(self, folder: Path) -> None:
        """Load from the folder alone.

        Raises:
            TargetError: there is no usable tokenizer, or it has no chat template.
        """
        from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise TargetError(
                f"{folder}: the tokenizer cannot be loaded ({str(error).splitlines()[0]})"
            ) from None
        if self._tokenizer.chat_template is None:
            raise TargetError(f"{folder}: the tokenizer has no chat template; drafters are trained on chats")

    def encode(self, turn: str) -> tuple[int, ...]:
        """A user turn as a whole prompt, up to where the answer begins."""
        return self._ids(self._rendered(turn))

    def opening(self, beginning: str) -> tuple[int, ...]:
        """A prompt that breaks off inside the user turn, behind these words."""
        return self._ids(self._rendered(_MARK).split(_MARK)[0] + beginning)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _rendered(self, turn: str) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True, tokenize=False
        )
        return text

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
