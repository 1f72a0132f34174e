"""Prompt lookup: drafts what followed the last earlier occurrence of the newest n-gram.

Source: prompt lookup decoding (Saxena, 2023), the drafter that engines ship as "ngram".
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.request import Request


class NgramDrafter:
    """Looks for n-grams of `longest` down to `shortest` tokens in prompt and output."""

    def __init__(self, drafts: int, shortest: int, longest: int) -> None:
        """Draft at most `drafts` tokens after a match of `shortest` to `longest` tokens."""
        self._drafts = drafts
        self._sizes = range(longest, shortest - 1, -1)
        self._texts: dict[int, _Text] = {}

    def begin(self, slot: int, request: Request) -> None:
        """Index the prompt."""
        text = _Text(self._sizes)
        text.extend(request.prompt)
        self._texts[slot] = text

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What followed the longest match; nothing where nothing matches."""
        return [self._one(self._texts[slot], emitted, limit) for slot, emitted, limit in wanted]

    def mark(self, slot: int) -> None:
        """As in `protocol.RevocableDrafter`."""
        self._texts[slot].mark()

    def rewind(self, slot: int) -> None:
        """As in `protocol.RevocableDrafter`."""
        self._texts[slot].rewind()

    def _one(self, text: _Text, emitted: Sequence[int], limit: int) -> Proposal:
        text.extend(emitted[text.emitted :])
        after = text.after_last_match()
        if after is None:
            return Proposal(())
        return Proposal(tuple(text.ids[after : after + min(self._drafts, limit)]))


class _Text:
    """Tokens of one request with the place behind the last occurrence of every n-gram but the newest."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.ids: list[int] = []
        self._prompt: int | None = None
        self._sizes = sizes
        self._seen: dict[tuple[int, ...], int] = {}
        self._mark: int | None = None  # tokens
        self._before: list[tuple[tuple[int, ...], int | None]] = []  # what the index said, since the mark

    @property
    def emitted(self) -> int:
        """Tokens known beyond the prompt."""
        return len(self.ids) - (self._prompt or 0)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the first call gives the prompt."""
        for token in tokens:
            end = len(self.ids)  # what is about to lie behind the n-grams that end here
            for size in self._sizes:
                if size <= end:
                    gram = tuple(self.ids[end - size : end])
                    if self._mark is not None:
                        self._before.append((gram, self._seen.get(gram)))
                    self._seen[gram] = end
            self.ids.append(token)
        if self._prompt is None:
            self._prompt = len(self.ids)

    def mark(self) -> None:
        """Remember this length and the index of it."""
        self._mark = len(self.ids)
        self._before.clear()

    def rewind(self) -> None:
        """Cut back to the mark."""
        del self.ids[self._mark :]
        for gram, place in reversed(self._before):
            if place is None:
                del self._seen[gram]
            else:
                self._seen[gram] = place
        self._mark = None
        self._before.clear()

    def after_last_match(self) -> int | None:
        """Index of the token that followed the last earlier occurrence of the longest newest n-gram."""
        end = len(self.ids)
        for size in self._sizes:
            found = self._seen.get(tuple(self.ids[end - size :])) if size <= end else None
            if found is not None:
                return found
        return None
