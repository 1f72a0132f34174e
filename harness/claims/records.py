"""Claims as data: what is claimed, on what, by whom. One TOML file a source, package data beside this.

What a source does not say stays None and is never guessed.

History: claims/1 (0.1.0) first version.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from harness.codec import Record, from_toml
from harness.errors import UsageError
from harness.plan import Division

Read = Literal["source", "second-hand"]
Engine = Literal["transformers", "sglang", "vllm", "reference", "tensorrt-llm"]
Verdict = Literal["confirmed", "refuted", "not comparable", "inconclusive"]
FIELDS = ("target", "drafter", "drafts", "engine", "gpu", "concurrency", "dtype", "temperature", "max_tokens")
NEEDED = ("target", "drafter", "temperature")  # without these nothing can be said
NEEDED_FOR_SPEED = ("target", "drafter", "gpu", "concurrency", "temperature")
Value = str | int | float


class Figure(Record, frozen=True):
    """One number, or the pair it is made of."""

    sets: tuple[str, ...] = ()  # names of the catalogue, pooled; empty: the source does not say
    speedup: float | None = None  # over `over`
    ar: float | None = None  # tokens/s of the baseline
    spec: float | None = None  # tokens/s with speculation
    acceptance_length: float | None = None  # bonus token included

    def __post_init__(self) -> None:
        """Refuse a figure that says nothing, or nothing possible."""
        values = {name: getattr(self, name) for name in ("speedup", "ar", "spec", "acceptance_length")}
        if all(value is None for value in values.values()):
            raise ValueError("a figure needs `speedup`, `ar` and `spec`, or `acceptance_length`")
        wrong = [name for name, value in values.items() if value is not None and value <= 0.0]
        if wrong:
            raise ValueError(f"`{wrong[0]}` must be above 0")
        if (self.ar is None) != (self.spec is None):
            raise ValueError("`ar` and `spec` come together: tokens/s without and with speculation")


class Claim(Record, frozen=True):
    """Figures of one target and drafter under one regime."""

    name: str
    figures: tuple[Figure, ...]
    target: str | None = None  # owner/name, or the bare name
    drafter: str | None = None  # dflash, dflash2, dspark, eagle3, mtp, ngram, ...
    drafts: int | None = None  # draft tokens a verify step
    engine: Engine | None = None
    gpu: str | None = None  # the model name, e.g. "H200"; "cpu" for none
    concurrency: int | None = None  # requests in flight; 1 is one at a time
    dtype: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    over: Literal["ar", "stock"] = "ar"  # what a speedup is over
    division: Division = "exact-greedy"
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a claim of nothing."""
        if not self.figures:
            raise ValueError("`figures` is empty")


class ClaimFile(Record, frozen=True):
    """All that one source claims."""

    schema: Literal["claims/1"]
    who: str
    source: str  # where it stands
    read: Read  # whether the source itself was read
    claims: tuple[Claim, ...]
    margin: float = 0.02  # relative; larger differences are material
    note: str = ""

    def __post_init__(self) -> None:
        """Hold that names are unique and the margin is one."""
        names = [claim.name for claim in self.claims]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"`claims` needs names, each once, got {names}")
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"`margin` must lie between 0 and 1, got {self.margin}")


class Sourced(Record, frozen=True):
    """A claim with who makes it."""

    claim: Claim
    who: str
    source: str
    read: Read
    margin: float
    assumed: tuple[str, ...] = ()  # fields the source does not say, filled in by the reader


def built_in() -> tuple[str, ...]:
    """Names of the claim files that ship with the package."""
    found = resources.files("harness.claims").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in found if f.name.endswith(".toml")))


def load_file(name_or_path: str) -> ClaimFile:
    """A claim file by name, or from a path.

    Raises:
        UsageError: no such file, or a field that does not fit, by name.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            return from_toml(path.read_text(encoding="utf-8"), ClaimFile, str(path))
        except (OSError, ValueError) as error:
            raise UsageError(f"claims {name_or_path}: cannot be read: {error}") from None
    if name_or_path not in built_in():
        raise UsageError(
            f"no claims named {name_or_path!r}; there are {', '.join(built_in())}; or give a .toml file"
        )
    text = (resources.files("harness.claims") / f"{name_or_path}.toml").read_text(encoding="utf-8")
    return from_toml(text, ClaimFile, name_or_path)


def load_claim(reference: str) -> Sourced:
    """One claim: `SOURCE/NAME`, `FILE.toml#NAME`, or a source or file that holds only one.

    Raises:
        UsageError: no such claim; the message lists those there are.
    """
    file, _, name = reference.partition("#")
    if not file.endswith(".toml") and not name:
        file, _, name = reference.partition("/")
    loaded = load_file(file)
    names = [claim.name for claim in loaded.claims]
    if not name and len(names) == 1:
        name = names[0]
    found = next((claim for claim in loaded.claims if claim.name == name), None)
    if found is None:
        separator = "#" if file.endswith(".toml") else "/"
        listed = ", ".join(f"{file}{separator}{one}" for one in names)
        raise UsageError(f"no claim {reference!r}; there are {listed}")
    return Sourced(claim=found, who=loaded.who, source=loaded.source, read=loaded.read, margin=loaded.margin)


def assume(sourced: Sourced, words: dict[str, str]) -> Sourced:
    """Fill in what a claim does not say, on the reader's word; `sets` is a list with commas.

    Raises:
        UsageError: the field is unknown, or the claim says it already.
    """
    claim, names = sourced.claim, []
    for field, text in words.items():
        if field == "sets":
            if all(figure.sets for figure in claim.figures):
                raise UsageError(f"--assume sets: claim {claim.name} names its sets")
            wanted = tuple(text.split(","))
            figures = tuple(f if f.sets else msgspec.structs.replace(f, sets=wanted) for f in claim.figures)
            claim = msgspec.structs.replace(claim, figures=figures)
        elif field not in FIELDS:
            raise UsageError(f"--assume {field}: no such field; there are sets, {', '.join(FIELDS)}")
        elif getattr(claim, field) is not None:
            raise UsageError(
                f"--assume {field}: claim {claim.name} says {getattr(claim, field)!r}; only what it leaves "
                "out can be assumed"
            )
        else:
            claim = _with(claim, field, text)
        names.append(f"{field}={text}")
    return msgspec.structs.replace(sourced, claim=claim, assumed=(*sourced.assumed, *names))


def _with(claim: Claim, field: str, text: str) -> Claim:
    plain = {**msgspec.to_builtins(claim), field: text}
    try:
        return msgspec.convert(plain, Claim, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--assume {field}: {error}") from None
