"""The model card of a trained drafter: the record that training writes, and the README made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from reference_mechanisms.errors import DrafterError

RECORD = "record.json"
CARD = "README.md"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what lies in `record.json`."""


class Source(_Record, frozen=True, kw_only=True):
    """A part of the training data."""

    name: str
    licence: str
    conversations: int
    tokens: int  # of answers, those that carry loss
    sha256: str | None = None  # of the prompts' file


class Data(_Record, frozen=True, kw_only=True):
    """What the drafter was trained on."""

    sources: tuple[Source, ...]
    written_by: str  # what wrote the answers, and how: engine, type, temperatures
    disjoint_from: tuple[str, ...]  # evaluation sets
    overlap_words: int  # a prompt that shares so many words in a row with one of theirs was left out
    left_out: int  # prompts, for that reason
    seed: int


class Training(_Record, frozen=True, kw_only=True):
    """How it was trained."""

    command: str
    commit: str  # of this repository
    machine: str  # device and its name
    date: str  # ISO 8601
    seconds: float
    steps: int
    anchors: int  # a step, over all sequences
    learning_rate: float
    loss: str  # in words
    seed: int
    settings: dict[str, str | int | float | bool] = {}


class Stored(_Record, frozen=True, kw_only=True):
    """How the weights are stored."""

    parameters: int
    bytes: int  # of model.safetensors
    sha256: str  # of model.safetensors
    bits: dict[str, int]  # tensor -> bits of a weight
    largest_error: float  # of any weight
    worst_tensor: str


class OnSet(_Record, frozen=True, kw_only=True):
    """Acceptance on one evaluation set, without outputs that repeat themselves."""

    prompts: int
    degenerate: int  # outputs left out
    tau: float | None
    tau_with_degenerate: float | None
    survival: tuple[float, ...]  # share of verify steps that accepted at least so many drafts
    conditional: tuple[float | None, ...]  # of those that accepted all before


class Measured(_Record, frozen=True, kw_only=True):
    """Acceptance as the harness measured it."""

    report: str  # path of the report in this repository
    plan: str
    plan_hash: str
    machine: str
    date: str
    command: str
    drafts: int
    max_tokens: int
    stock_verdict: str
    self_exact: bool | None
    sets: dict[str, OnSet]
    mean: float | None  # over the public sets, each weighing the same
    embedded: tuple[str, ...] = ("embedded",)  # sets beside the mean
    report_sha256: str | None = None  # of its report.json


class Curve(_Record, frozen=True, kw_only=True):
    """A picture beside the record."""

    file: str  # PNG or SVG
    shows: str


class Card(_Record, frozen=True, kw_only=True):
    """All that is known of a trained drafter."""

    schema: Literal["drafter-card/1"]
    drafter: str
    target: str
    target_sha256: str
    licence: str
    summary: str  # sentences for people: layers, taps, block
    data: Data
    training: Training
    stored: Stored
    curves: tuple[Curve, ...] = ()
    measured: tuple[Measured, ...] = ()
    notes: tuple[str, ...] = ()  # what did not work, what is open


def read_card(folder: Path) -> Card:
    """The record of a drafter folder.

    Raises:
        DrafterError: it is missing or does not fit, by field; or a picture that it names is missing.
    """
    path = folder / RECORD
    try:
        card = msgspec.json.decode(path.read_bytes(), type=Card)
    except OSError as error:
        raise DrafterError(f"cannot read {path}: {error.strerror}; training writes it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DrafterError(f"{path}: {error}") from None
    for curve in card.curves:
        if not (folder / curve.file).is_file():
            raise DrafterError(f"{path}: `curves` names {curve.file}, which is not in the folder")
    return card


def with_measured(card: Card, found: Measured, weights_sha256: str) -> Card:
    """The card with these figures; those of an earlier run of the same plan give way.

    Raises:
        DrafterError: other weights were measured than the card is about.
    """
    if weights_sha256 != card.stored.sha256:
        raise DrafterError(
            f"{card.drafter}: the report measured weights {weights_sha256[:12]}, the card is about "
            f"{card.stored.sha256[:12]} (`stored.sha256`); measure the folder as it is"
        )
    kept = tuple(one for one in card.measured if one.plan != found.plan)
    return msgspec.structs.replace(card, measured=(*kept, found))


def write_card(card: Card, folder: Path) -> None:
    """Write the record and the README made from it."""
    text = msgspec.json.format(msgspec.json.encode(card, order="deterministic"), indent=2)
    (folder / RECORD).write_bytes(text + b"\n")
    (folder / CARD).write_text(render_card(card), encoding="utf-8")


def render_card(card: Card) -> str:
    """The README of a drafter folder. Equal records give equal text."""
    parts = [
        f"# {card.drafter} for {card.target}",
        card.summary,
        _table(
            ("", ""),
            [
                ("target", f"{card.target}, weights sha256 `{card.target_sha256}`"),
                ("parameters", f"{card.stored.parameters:,}"),
                ("stored", f"{card.stored.bytes:,} bytes, {_bits(card.stored.bits)}"),
                ("sha256 of model.safetensors", f"`{card.stored.sha256}`"),
                (
                    "largest rounding of a weight",
                    f"{card.stored.largest_error:.3g} in {card.stored.worst_tensor}",
                ),
                ("licence", card.licence),
            ],
        ),
        "A drafter changes how fast tokens come, never which: every token is the target's own.",
        "## Acceptance",
        *(_measured(one) for one in card.measured),
        *([] if card.measured else ["Not measured yet."]),
        "## Data",
        _data(card.data),
        "## Training",
        _training(card.training),
        *(f"![{curve.shows}]({curve.file})\n\n{curve.shows}" for curve in card.curves),
    ]
    if card.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in card.notes)]
    return "\n\n".join(parts) + "\n"


def _measured(found: Measured) -> str:
    places = max((len(one.survival) for one in found.sets.values()), default=0)
    head = ("set", "prompts", "repetitions", "tau", "tau with them", *(str(n + 1) for n in range(places)))
    rows = []
    for name, one in found.sets.items():
        lengths = (_number(one.tau, 2), _number(one.tau_with_degenerate, 2))
        shares = [_number(share, 2) for share in _padded(one.survival, places)]
        rows.append((name, str(one.prompts), str(one.degenerate), *lengths, *shares))
        given = [_number(share, 2) for share in _padded(one.conditional, places)]
        rows.append(("if all before were", "", "", "", "", *given))
    exact = {True: "; logits bitwise those of `ar`", False: "; logits not bitwise those of `ar`", None: ""}
    beside = " and ".join(name for name in found.embedded if name in found.sets)
    mean = f"**Mean tau {_number(found.mean, 2)}** over the sets" + (f" without {beside}" if beside else "")
    return (
        f"{mean}: greedy, {found.drafts} drafts a step, at most {found.max_tokens} tokens, first turns. A "
        f"number under a place is the share of verify steps that accepted at least so many drafts.\n\n"
        f"{_table(head, rows)}\n\n"
        "tau counts tokens a verify step, the bonus token included; outputs that repeat themselves are left "
        f"out of it. Verdict of the oracle: {found.stock_verdict}{exact[found.self_exact]}. Measured on "
        f"{found.machine}, {found.date}, plan {found.plan} (`{found.plan_hash[:12]}`), report "
        f"`{found.report}`{_digest(found.report_sha256)}:\n\n"
        f"```\n{found.command}\n```"
    )


def _digest(sha256: str | None) -> str:
    return "" if sha256 is None else f" (report.json sha256 `{sha256}`)"


def _data(data: Data) -> str:
    rows = [
        (one.name, one.licence, f"{one.conversations:,}", f"{one.tokens:,}", f"`{one.sha256 or '-'}`")
        for one in data.sources
    ]
    total = sum(one.tokens for one in data.sources)
    head = ("source", "licence", "conversations", "answer tokens", "sha256 of the prompts")
    return (
        f"{total:,} tokens of answers, written by {data.written_by}. Seed {data.seed}.\n\n"
        f"{_table(head, rows)}\n\n"
        f"Disjoint from {', '.join(data.disjoint_from)}: {data.left_out:,} prompts that share "
        f"{data.overlap_words} words in a row with one of theirs were left out."
    )


def _training(made: Training) -> str:
    rows = [
        ("machine", made.machine),
        ("date", made.date),
        ("time", f"{made.seconds:.0f} s"),
        ("commit", f"`{made.commit}`"),
        ("steps", f"{made.steps:,} of {made.anchors:,} anchors"),
        ("learning rate", f"{made.learning_rate:g}"),
        ("loss", made.loss),
        ("seed", str(made.seed)),
        *((name, str(value)) for name, value in sorted(made.settings.items())),
    ]
    return f"```\n{made.command}\n```\n\n{_table(('', ''), rows)}"


def _bits(bits: Mapping[str, int]) -> str:
    counts = {width: sum(one == width for one in bits.values()) for width in sorted(set(bits.values()))}
    return ", ".join(f"{count} tensors of {width} bits" for width, count in counts.items())


def _padded(values: Sequence[float | None], length: int) -> list[float | None]:
    return [*values, *([None] * (length - len(values)))]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
