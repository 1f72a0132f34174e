"""An accepted candidate without each of its parts: a changed knob, or a changed place of a copied module.

A patch brings whole files. One that is mostly a module of the engine is taken for a copy of it; lines that
differ and stand together are one place, and what carries the gain is told place by place. A file that is
nobody's copy is no part: without it there is no candidate. Pure, but for `sources_of`.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent_loop.controller.policy import patch_files, patch_of_files
from agent_loop.controller.stacking import changes
from agent_loop.records import Candidate, Effect, Hypothesis, Outcome, Verdict
from harness.plan import ArmSpec, Param

MOST = 8  # places that are tried; nearer ones are tried together until there are no more
APART = 3  # unchanged lines between two places, at least
LIKE = 0.6  # of a file's lines are a module's, or it is no copy
FIGURES: tuple[Outcome, ...] = ("PASSED", "NO_GAIN", "INCONCLUSIVE", "REGRESSION")  # said with its speedup


class Place(NamedTuple):
    """Lines of a copy that differ from the module's: [first, last) of each."""

    old_first: int
    old_last: int
    first: int
    last: int


def sources_of(packages: Collection[str]) -> Mapping[str, str]:
    """Texts of all modules of installed packages, by module; nothing of them is run."""
    found = {}
    for package in sorted(packages):
        spec = importlib.util.find_spec(package)
        for root in map(Path, (spec.submodule_search_locations or ()) if spec is not None else ()):
            for file in sorted(root.rglob("*.py")):
                name = ".".join((package, *file.relative_to(root).with_suffix("").parts))
                found[name.removesuffix(".__init__")] = file.read_text(encoding="utf-8")
    return found


def variants(
    candidate: Candidate, stock: ArmSpec, sources: Mapping[str, str] | None = None
) -> Mapping[str, Candidate]:
    """The candidate with one part given back to stock, by part; none where there are fewer than two.

    Args:
        candidate: accepted.
        stock: the arm that it changes.
        sources: texts of the engine's modules, of which a patch may hold copies.
    """
    files = {} if candidate.patch is None else patch_files(candidate.patch)
    places = _places(files, _originals(files, sources or {}))
    if not places and (candidate.patch is not None or candidate.backend != stock.backend):
        return {}
    found = dict(_knobs(candidate, stock))
    for name, (path, text) in places.items():
        patch = patch_of_files({**files, path: text})
        found[name] = _without(candidate, name, candidate.params, patch)
    return found if len(found) > 1 else {}


def ablated(whole: Verdict, parts: Mapping[str, Verdict]) -> str:
    """One sentence: the speedup of the whole and without each part, with the share of the gain that went.

    Shares of the logarithm; they need not add up, since parts may need each other.
    """
    all_of_it = "" if whole.effect is None else f"all: {whole.effect.point:.3f}x; "
    apart = (
        f"{name} given back: {verdict.effect.point:.3f}x{_share(whole.effect, verdict.effect)}"
        if verdict.effect is not None and verdict.outcome in FIGURES
        else f"{name} given back: {verdict.outcome}"
        for name, verdict in parts.items()
    )
    return f"public rows, {all_of_it}{'; '.join(apart)}"


def _share(whole: Effect | None, part: Effect) -> str:
    if whole is None or whole.point <= 1.0 or part.point <= 0.0:
        return ""
    return f" ({1.0 - math.log(part.point) / math.log(whole.point):.0%} of the gain)"


def _knobs(candidate: Candidate, stock: ArmSpec) -> Iterator[tuple[str, Candidate]]:
    for name in changes(candidate, stock):
        params = dict(candidate.params)
        if name in stock.params:
            params[name] = stock.params[name]
        else:
            params.pop(name, None)
        yield name, _without(candidate, name, params, candidate.patch)


def _without(candidate: Candidate, name: str, params: Mapping[str, Param], patch: str | None) -> Candidate:
    return msgspec.structs.replace(
        candidate,
        name=f"{candidate.name} without {name}"[:80],
        params=dict(params),
        patch=patch,
        hypothesis=Hypothesis(mechanism="ablation"),
        origin="ablation",
        explorer="controller",
        parents=(candidate.id,),
        record=None,
    )


def _originals(files: Mapping[str, str], sources: Mapping[str, str]) -> Mapping[str, str]:
    """Text of the module that each copy is of, by the copy's path."""
    lines = {module: _distinct(text) for module, text in sources.items()}
    found = {}
    for path, text in files.items():
        mine = _distinct(text)
        shared = {module: len(mine & theirs) for module, theirs in lines.items()}
        best = max(sorted(shared), key=lambda module: shared[module], default=None)
        if path.endswith(".py") and best is not None and shared[best] > LIKE * len(mine):
            found[path] = sources[best]
    return found


def _distinct(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _places(files: Mapping[str, str], originals: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    """By name: a copy's path, and its text with this place as the module has it."""
    pairs = {path: (old.splitlines(), files[path].splitlines()) for path, old in originals.items()}
    found = {path: places_of(*pair) for path, pair in pairs.items()}
    while sum(map(len, found.values())) > MOST:
        gaps = [
            (two.old_first - one.old_last, path, at)
            for path, places in found.items()
            for at, (one, two) in enumerate(itertools.pairwise(places))
        ]
        if not gaps:
            break
        _, path, at = min(gaps)
        found[path][at : at + 2] = [_both(*found[path][at : at + 2])]
    named = {}
    for path, places in found.items():
        old, new = pairs[path]
        for place in places:
            lines = [*new[: place.first], *old[place.old_first : place.old_last], *new[place.last :]]
            named[_name(path, place)] = (path, "\n".join(lines) + "\n")
    return dict(list(named.items())[:MOST])


def places_of(old: Sequence[str], new: Sequence[str]) -> list[Place]:
    """Where two texts differ; places with `APART` unchanged lines or fewer between them are one."""
    found: list[Place] = []
    for tag, *ends in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        place = Place(*ends)
        if found and place.old_first - found[-1].old_last <= APART:
            place = _both(found.pop(), place)
        found.append(place)
    return found


def _both(one: Place, two: Place) -> Place:
    """With all between them."""
    return Place(one.old_first, two.old_last, one.first, two.last)


def _name(path: str, place: Place) -> str:
    if place.first == place.last:
        return f"{path}, what was cut behind line {place.first}"
    first, last = place.first + 1, place.last
    return f"{path} line {first}" if first == last else f"{path} lines {first} to {last}"
