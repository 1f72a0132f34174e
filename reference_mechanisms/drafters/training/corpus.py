"""What drafters are trained on: token ids of prompts with the target's own text behind them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save_file

from reference_mechanisms.errors import DrafterError

VERSION = "1"
_ARRAYS = ("token_ids", "lengths", "prompt_lengths", "sources", "temperatures")


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what the target wrote behind it."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    source: str
    temperature: float


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Examples end to end."""

    token_ids: NDArray[np.int32]  # of prompt and text of each example in turn
    lengths: NDArray[np.int32]  # of both together, one of each example
    prompt_lengths: NDArray[np.int32]
    sources: NDArray[np.int32]  # indices into `names`
    temperatures: NDArray[np.float32]
    names: tuple[str, ...]

    def __len__(self) -> int:
        """How many examples."""
        return len(self.lengths)

    @property
    def written(self) -> int:
        """Tokens that the target wrote."""
        return int((self.lengths - self.prompt_lengths).sum())

    def starts(self) -> NDArray[np.int64]:
        """Where each example begins in `token_ids`."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def only(self, chosen: Sequence[int]) -> Corpus:
        """These examples, in this order."""
        starts, lengths = self.starts(), self.lengths
        rows = np.asarray(chosen, dtype=np.int64)
        pieces = [self.token_ids[starts[n] : starts[n] + lengths[n]] for n in rows]
        return Corpus(
            np.concatenate(pieces) if pieces else self.token_ids[:0],
            lengths[rows],
            self.prompt_lengths[rows],
            self.sources[rows],
            self.temperatures[rows],
            self.names,
        )


def gather(examples: Sequence[Example]) -> Corpus:
    """A corpus of these examples."""
    names = tuple(sorted({example.source for example in examples}))
    number = {name: index for index, name in enumerate(names)}
    return Corpus(
        np.array([t for one in examples for t in (*one.prompt, *one.text)], dtype=np.int32),
        np.array([len(one.prompt) + len(one.text) for one in examples], dtype=np.int32),
        np.array([len(one.prompt) for one in examples], dtype=np.int32),
        np.array([number[one.source] for one in examples], dtype=np.int32),
        np.array([one.temperature for one in examples], dtype=np.float32),
        names,
    )


def save(corpus: Corpus, path: Path) -> None:
    """Write to a safetensors file; ids below 65,536 take two bytes each."""
    arrays = {name: getattr(corpus, name) for name in _ARRAYS}
    if not len(corpus.token_ids) or corpus.token_ids.max() < 1 << 16:
        arrays["token_ids"] = corpus.token_ids.astype(np.uint16)
    save_file(arrays, path, {"specpilot_corpus": VERSION, "names": json.dumps(corpus.names)})


def load(path: Path) -> Corpus:
    """Read what `save` wrote.

    Raises:
        DrafterError: no corpus, or one whose arrays contradict each other.
    """
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DrafterError(f"cannot read the corpus {path}: {error}; write it anew") from None


def parse(data: bytes, where: str) -> Corpus:
    """A corpus from the bytes of its file.

    Raises:
        DrafterError: no corpus, or one whose arrays contradict each other; named by `where`.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        if metadata.get("specpilot_corpus") != VERSION:
            raise DrafterError(f"{where} is no corpus of version {VERSION}; write it with `drafters data`")
        arrays = load_arrays(data)
        found = {name: arrays[name] for name in _ARRAYS}
        names = tuple(json.loads(metadata["names"]))
    except (SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise DrafterError(f"cannot read the corpus {where}: {error}; write it anew") from None
    found["token_ids"] = found["token_ids"].astype(np.int32)
    corpus = Corpus(names=names, **found)
    sizes = {len(found[name]) for name in _ARRAYS[1:]}
    fits = len(sizes) == 1 and int(corpus.lengths.sum()) == len(corpus.token_ids)
    if not fits or bool((corpus.prompt_lengths > corpus.lengths).any()):
        raise DrafterError(f"{where}: lengths and token ids do not fit together; write the corpus anew")
    return corpus
