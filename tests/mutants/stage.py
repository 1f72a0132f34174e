"""A stage for mutants: a tiny real target, prompts of one's own, plans, and the public command line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.cli import main
from harness.codec import from_json
from harness.plan import SetSpec
from harness.results import ArmResult, Report
from harness.tokenize import PromptTokenizer
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import load_llama
from sealed_evals.load import load_set
from tests.harness.tiny import write_llama

BACKEND = "tests.mutants.backend:open_session"
TEXTS = (
    "tell me a joke",
    "count to nine",
    "say red",
    "why is the sky blue",
    "list three cities",
    "what is water",
    "name a tree",
    "spell cat",
    "add two and two",
)
USED = 6  # the others are for stock's own noise
MAX_TOKENS = 24
BLOCK = 8  # tokens of a fully accepted step with seven drafts


class Stage:
    """Files of a target and prompts, and what the target answers."""

    def __init__(self, root: Path) -> None:
        """Write the target and the prompt file; decode every prompt past its stops."""
        self.root = root
        self.model = write_llama(root / "target")
        self.prompts = root / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
        self.tokenizer = PromptTokenizer(self.model)
        self.outputs = self._outputs()
        (root / "target.toml").write_text(
            f'schema = "deployment/1"\nname = "tiny"\ndevice = "cpu"\ncontext_length = 160\nthreads = 1\n'
            f'[target]\npath = "{self.model}"\ndtype = "float32"\n'
        )

    def run(
        self, name: str, arms: Sequence[Mapping[str, Any]], sampling: str, *, batch: int = 1, blocks: int = 2
    ) -> tuple[int, Path]:
        """Run a plan through the public command line; its exit code and run folder."""
        lines = [
            'schema = "plan/1"',
            f'name = "{name}"',
            'deployment = "target.toml"',
            'label = "smoke"',
            "[[sets]]",
            f'name = "own"\npath = "{self.prompts}"\ncount = {USED}',
            f"[sampling]\nmax_tokens = {MAX_TOKENS}\n{sampling}",
        ]
        for arm in arms:
            params = ", ".join(f"{key} = {json.dumps(value)}" for key, value in arm["params"].items())
            lines.append(
                f'[[arms]]\nname = "{arm["name"]}"\nkind = "{arm["kind"]}"\nbackend = "{BACKEND}"\n'
                f"params = {{ {params} }}"
            )
        lines += [
            f"[measure]\nlaunches = 1\nblocks = {blocks}\nbatch = {batch}\nwarmup_prompts = 0",
            "max_foreign_load = 1.0\ncapture_logits = true",
            '[oracle]\ncalibration_set = "own"\ncalibration_prompts = 3\ncalibration_tokens = 16',
            "[stats]\nresamples = 200",
        ]
        plan = self.root / f"{name}.toml"
        plan.write_text("\n".join(lines) + "\n")
        out = self.root / "runs" / name
        return main(["run", str(plan), "--out", str(out)]), out

    def stops_in_blocks(self) -> tuple[int, ...]:
        """Stop tokens that end some outputs inside an early block and some inside the last one."""
        candidates = sorted({token for output in self.outputs for token in output})
        for pair in itertools.combinations(candidates, 2):
            ends = [_first(output, pair) for output in self.outputs]
            early = sum(
                end is not None and 1 <= end < 2 * BLOCK and end % BLOCK in range(1, 6) for end in ends
            )
            late = sum(end is not None and 2 * BLOCK < end < MAX_TOKENS - 2 for end in ends)
            if early and late:
                return pair
        raise AssertionError("no pair of tokens stops early and late; use another seed for the target")

    def string_in_block(self) -> str:
        """A two-letter stop string that is complete well before the end of a block."""
        for output in self.outputs:
            for index in range(1, MAX_TOKENS - BLOCK):
                text = self.tokenizer.decode(output[index : index + 2])
                inside = index % BLOCK in range(1, 4)  # the block ends at a multiple of its size
                if (
                    inside
                    and len(text) == 2
                    and text.isascii()
                    and text.isprintable()
                    and text not in self._head(output, index)
                ):
                    return text
        raise AssertionError("no printable pair of letters inside a block; use another seed for the target")

    def _head(self, output: Sequence[int], index: int) -> str:
        return self.tokenizer.decode(output[: index + 1])

    def _outputs(self) -> list[tuple[int, ...]]:
        target = load_llama(self.model, torch.float32, torch.device("cpu"))
        decoder = Decoder(target, (), self.tokenizer.decode, 160)
        sampling = Sampling(max_tokens=MAX_TOKENS)
        drawn = load_set(SetSpec(name="own", path=str(self.prompts), count=USED), evals_dir=None, seed=0)
        return decoder.continuation(
            [
                Request(name=prompt.prompt_id, prompt=self.tokenizer.encode(prompt), sampling=sampling)
                for prompt in drawn.prompts
            ]
        )


def arm(name: str, drafter: str, kind: str = "candidate", **params: Any) -> dict[str, Any]:
    """An arm; every drafting one has the same draft length."""
    drafts = {} if drafter == "none" else {"drafts": BLOCK - 1}
    return {"name": name, "kind": kind, "params": {"drafter": drafter, **drafts, **params}}


def mutants(names: Iterable[str], drafter: str, **params: Any) -> list[dict[str, Any]]:
    """One arm for each mutant, named after it."""
    return [arm(name, drafter, mutant=name, **params) for name in names]


def report_of(folder: Path) -> Report:
    """The report of a run."""
    path = folder / "report.json"
    return from_json(path.read_bytes(), Report, str(path))


def arm_of(report: Report, name: str) -> ArmResult:
    """The result of an arm."""
    return next(result for result in report.arms if result.name == name)


def _first(output: Sequence[int], stops: Sequence[int]) -> int | None:
    return next((index for index, token in enumerate(output) if token in stops), None)
