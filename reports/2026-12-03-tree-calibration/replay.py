"""Acceptance lengths of raw and calibrated trees, replayed from recorded drafts; see README.md beside it.

``gather`` lets the target write texts and keeps the 64 best candidates of the drafter at every position.
``compare`` replays greedy decoding with trees over these: what a tree accepts hangs on the text alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from harness.models import resolve_model
from harness.plan import SetSpec, load_deployment
from harness.tokenize import PromptTokenizer
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.shipped import ROOT
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.verification.calibrating import MISSED, Judged, calibrate
from sealed_evals.load import load_set

SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")
BUDGETS, LEVELS, BATCH, LONGEST = (7, 15, 31, 63), 7, 16, 400
CUT = -2  # rank of a position behind the end of the text
Worth = Callable[
    [Any], tuple[Any, Any]
]  # log-probabilities -> worth on and off the spine, [levels][children]


def prompts_of(options: argparse.Namespace) -> list[tuple[str, Any]]:
    """Names of sets and prompts: of the five sets, or of a file of training prompts."""
    if options.training is None:
        sets = [
            load_set(SetSpec(name=name, count=options.count), evals_dir=options.evals_dir, seed=1)
            for name in SETS
        ]
        return [(name, one) for name, found in zip(SETS, sets, strict=True) for one in found.prompts]
    pattern = load_set(SetSpec(name="embedded", count=1), evals_dir=None, seed=0).prompts[0]
    sources: dict[str, list[str]] = {}
    for line in options.training.read_bytes().split(b"\n"):
        if line:
            sources.setdefault(json.loads(line)["source"], []).append(json.loads(line)["prompt"])
    draw = random.Random(7)  # noqa: S311 - a sample
    return [
        (source, msgspec.structs.replace(pattern, turns=(text,)))
        for source, texts in sorted(sources.items())
        for text in draw.sample(texts, options.count)
    ]


@torch.inference_mode()
def gather(options: argparse.Namespace) -> None:
    """Write texts, positions and the candidates at each."""
    deployment = load_deployment("smollm2-135m-cpu")
    model = resolve_model(deployment.target)
    target = load_target(model.path, torch.bfloat16, torch.device("cpu"))
    bound = bind(
        load_drafter(ROOT / "SmolLM2-135M-Instruct/dflash", target.dtype, target.device), target, "dflash"
    )
    drafter, tokenizer = bound.new_drafter(Drafting(drafts=LEVELS)), PromptTokenizer(model.path)
    asked = [(name, tuple(tokenizer.encode(one))) for name, one in prompts_of(options)]
    asked = sorted((one for one in asked if len(one[1]) < LONGEST), key=lambda one: len(one[1]))
    decoder = Decoder(target, model.eos_token_ids, lambda _ids: "", LONGEST + options.tokens + 8)
    texts: list[list[int]] = [[] for _ in asked]
    where, ids, scores = [], [], []
    for first in range(0, len(asked), BATCH):
        part = range(first, min(first + BATCH, len(asked)))
        sampling = Sampling(max_tokens=options.tokens)
        batch = [Request(name=str(n), prompt=asked[n][1], sampling=sampling) for n in part]
        for event in decoder.stream(batch, NoDrafter()):
            texts[part[event.slot]] += event.token_ids
        taps = []
        for slot, n in enumerate(part):
            whole = (*asked[n][1], *texts[n])
            rows = Rows(whole, range(len(whole)), (Segment(0, 0, len(whole)),))
            taps.append(
                torch.cat(target.forward(rows, target.new_cache(1, len(whole)), drafter.taps).taps, -1)
            )
            drafter.begin(slot, batch[slot])
            drafter.extend(slot, taps[slot][: len(asked[n][1])])
        for place in range(options.tokens - 1):
            live = [slot for slot, n in enumerate(part) if place < len(texts[n]) - 1]
            if not live:
                break
            for slot in live if place else ():
                at = len(asked[part[slot]][1]) + place
                drafter.extend(slot, taps[slot][at - 1 : at])
            wanted = [Wanted(slot, tuple(texts[part[slot]][: place + 1]), LEVELS) for slot in live]
            drafter._absorb(wanted)
            best = drafter._branching(wanted, 64)._best  # type: ignore[attr-defined]
            where += [(part[slot], place) for slot in live]
            ids.append(best.token_ids.to(torch.int32))
            scores.append(best.log_probabilities)
        print(f"{part[-1] + 1} of {len(asked)} prompts", flush=True)
    names = [name for name, _ in asked]
    found = {"names": names, "texts": texts, "where": where, "ids": torch.cat(ids), "lp": torch.cat(scores)}
    torch.save(found, options.out)


class Recorded:
    """What `gather` wrote, with the rank of the target's token at every place."""

    def __init__(self, path: Path) -> None:
        found = torch.load(path)
        self.names, self.texts, self.where = found["names"], found["texts"], found["where"]
        self.scores = found["lp"].numpy().astype(np.float64)
        self.index = {place: n for n, place in enumerate(self.where)}
        ids = found["ids"].numpy()
        self.ranks = np.full((len(self.where), LEVELS), MISSED)
        for n, (text, place) in enumerate(self.where):
            truth = self.texts[text][place + 1 : place + 1 + LEVELS]
            self.ranks[n, len(truth) :] = CUT
            for level, token in enumerate(truth):
                hits = np.nonzero(ids[n, level] == token)[0]
                if len(hits):
                    self.ranks[n, level] = hits[0]

    def walk(self, accepted: Callable[[int, int], int]) -> tuple[dict[str, list[tuple[int, int]]], list[int]]:
        """Tokens and steps of each prompt by set, and the places of the steps."""
        told: dict[str, list[tuple[int, int]]] = {}
        places = []
        for text, name in enumerate(self.names):
            at, length, steps = 0, len(self.texts[text]), 0
            while at < length - 1:
                n = self.index[text, at]
                places.append(n)
                steps += 1
                at += accepted(n, length - 2 - at) + 1
            if steps:
                told.setdefault(name, []).append((length - 1, steps))
        return told, places

    def chain(self, n: int, most: int) -> int:
        """Accepted drafts of a chain."""
        best = self.ranks[n] == 0
        return min(most, LEVELS if best.all() else int(best.argmin()))

    def traces(self, places: Sequence[int]) -> list[list[Judged]]:
        """As `calibrate` takes them."""
        found = []
        for n in places:
            trace = []
            for level, rank in enumerate(self.ranks[n].tolist()):
                if rank == CUT:
                    break
                trace.append(Judged(torch.tensor(self.scores[n, level]).float(), rank))
                if rank == MISSED:
                    break
            if trace:
                found.append(trace)
        return found


def orders(on: Any, off: Any, ranks: Sequence[int]) -> list[float]:
    """Size that a tree must have to hold the target's tokens up to each level."""
    found, levels = [math.inf] * LEVELS, sum(rank != CUT for rank in ranks)
    heap, count = [(-on[0][0], 0, 0, 0, 0.0, True, True)], 0
    while heap and count < BUDGETS[-1]:
        worth, level, parent, rank, above, spine, true = heappop(heap)
        count += 1
        right = true and ranks[level] == rank
        if right:
            found[level] = count
        if rank + 1 < len(on[0]):
            sibling = above + (on if spine else off)[level][rank + 1]
            heappush(heap, (-sibling, level, parent, rank + 1, above, spine, true))
        if level + 1 < levels:
            best = spine and rank == 0
            child = (on if best else off)[level + 1][0]
            heappush(heap, (worth - child, level + 1, count, 0, -worth, best, right))
    return found


def replayed(test: Recorded, worth: Worth) -> dict[int, dict[str, list[tuple[int, int]]]]:
    """Tokens and steps of each prompt by budget and set."""
    sizes = np.array([orders(*worth(test.scores[n]), test.ranks[n].tolist()) for n in range(len(test.where))])

    def held(budget: int) -> Callable[[int, int], int]:
        return lambda n, most: min(most, int((sizes[n] <= budget).sum()))

    return {budget: test.walk(held(budget))[0] for budget in BUDGETS}


def macro(told: Mapping[str, Sequence[tuple[int, int]]]) -> float:
    """Mean over the sets of tokens a step."""
    return float(np.mean([sum(t for t, _ in one) / sum(s for _, s in one) for one in told.values()]))


def interval(mine: Mapping[str, Any], raw: Mapping[str, Any]) -> list[float]:
    """95 % of the gain in percent, by a paired bootstrap over the prompts of each set."""
    rng, gains = np.random.default_rng(0), []
    for _ in range(2000):
        lengths = []
        draws = {name: rng.integers(0, len(one), len(one)) for name, one in raw.items()}
        for told in (mine, raw):
            picked = [np.array(told[name])[draw].sum(0) for name, draw in draws.items()]
            lengths.append(np.mean([tokens / steps for tokens, steps in picked]))
        gains.append(100 * (lengths[0] / lengths[1] - 1))
    return [round(float(one), 2) for one in np.percentile(gains, [2.5, 97.5])]


def table_of(train: Recorded, places: Sequence[int], ranks: int) -> tuple[np.ndarray, float]:
    """Hit rates by depth and rank, and the off-spine multiplier: what calibration was before."""
    counts, seen, off = np.zeros((LEVELS, 64)), np.zeros(LEVELS), []
    for n in places:
        spine = True
        for level, rank in enumerate(train.ranks[n].tolist()):
            if rank == CUT:
                break
            if not spine:
                off.append((level, 0 <= rank < ranks))
            else:
                seen[level] += 1
                if 0 <= rank < ranks:
                    counts[level, rank] += 1
            if not 0 <= rank < ranks:
                break
            spine = spine and rank == 0
    shares = counts / np.maximum(seen, 1)[:, None]
    return shares, min(1.0, sum(hit for _, hit in off) / sum(shares[level].sum() for level, _ in off))


def compare(options: argparse.Namespace) -> None:
    """Fit on one file, replay the other."""
    train, test = Recorded(options.fit), Recorded(options.test)
    places = train.walk(train.chain)[1]
    few = random.Random(1).sample(places, 518)  # noqa: S311 - a sample

    def table(chosen: Sequence[int], ranks: int) -> Worth:
        shares, off = table_of(train, chosen, ranks)
        with np.errstate(divide="ignore"):
            on = np.log(shares)
        return lambda _scores: (on.tolist(), (on + math.log(off)).tolist())

    def mapped(chosen: Sequence[int]) -> Worth:
        made = calibrate(train.traces(chosen), depths=LEVELS)
        print(len(chosen), made)
        numbers = made.numbers(LEVELS, torch.device("cpu"))

        def worth(scores: Any) -> tuple[Any, Any]:
            on = numbers.worth(torch.tensor(scores), slice(None)).double()
            return on.tolist(), (on + numbers.off_spine).tolist()

        return worth

    ways: dict[str, Worth] = {
        "raw": lambda scores: (scores.tolist(), scores.tolist()),
        "table of 8 ranks, 518 drafts (before)": table(few, 8),
        "table of 8 ranks, all drafts": table(places, 8),
        "maps, 200 drafts": mapped(random.Random(2).sample(places, 200)),  # noqa: S311 - a sample
        "maps, 518 drafts": mapped(few),
        "maps, all drafts": mapped(places),
    }
    found = {name: replayed(test, worth) for name, worth in ways.items()}
    told = {
        name: {
            str(budget): {
                "length": round(macro(one), 3),
                "gain_percent": round(100 * (macro(one) / macro(found["raw"][budget]) - 1), 2),
                "interval_percent": interval(one, found["raw"][budget]),
            }
            for budget, one in budgets.items()
        }
        for name, budgets in found.items()
    }
    told_test = {name: test.names.count(name) for name in sorted(set(test.names))}
    content = {
        "drafts_to_fit": len(places),
        "prompts_to_fit": len(train.texts),
        "prompts": told_test,
        "chain": round(macro(test.walk(test.chain)[0]), 3),
        "trees": told,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Of the command line."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("gather")
    one.add_argument("--evals-dir", type=Path)
    one.add_argument("--training", type=Path, help="JSON lines of `source` and `prompt`; else the sets")
    one.add_argument("--count", type=int, required=True, help="prompts of each set or source")
    one.add_argument("--tokens", type=int, default=128)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(run=gather)
    two = commands.add_parser("compare")
    two.add_argument("--fit", type=Path, required=True)
    two.add_argument("--test", type=Path, required=True)
    two.add_argument("--out", type=Path, required=True)
    two.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
