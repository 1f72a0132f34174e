"""A table of costs measured on small models, in the steps that the loop runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE
from reference_mechanisms.batching.bucket_running import BucketRunner
from reference_mechanisms.batching.costs import bucket_shapes, read_costs
from reference_mechanisms.batching.measuring import hosting, subjects
from reference_mechanisms.batching.measuring.steps import Load, Steps, Subject
from reference_mechanisms.drafters.slot_fused import FusedSlotBlocks
from reference_mechanisms.drafters.slot_programs import SlotDraftProgram
from reference_mechanisms.engine import slot_hybrid
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.slot_step import Shape
from reference_mechanisms.kernels.slots import delta
from reference_mechanisms.kernels.slots.delta import TORCH_SLOT_DELTA, KeptRows, SlotStates
from reference_mechanisms.kernels.step.delta import DeltaLog
from tests.harness.tiny import write_llama
from tests.reference_mechanisms.batching.bench.small import hybrid
from tests.reference_mechanisms.engine.bench import small

CPU = torch.device("cpu")
SLOTS, DRAFTS, CONTEXT = 2, 3, 40


def dummy(*_: object) -> Subject:
    target = small.target(CPU, torch.float32)
    made = small.drafter(target, DRAFTS)

    def program(slots: int, positions: int) -> SlotDraftProgram:
        return FusedSlotBlocks(made._weights, target.embed, target.logits, DRAFTS, slots, positions)

    return Subject(target, program, small.TAPS, DRAFTS)


class Clock:
    """Every look at it costs a microsecond."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def test_every_bucket_is_run_full_and_in_its_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Shape, int, int, int]] = []
    inner = BucketRunner.run_in

    def run_in(self: BucketRunner, shape: Shape, rows: Rows, taps: tuple[int, ...]) -> object:
        starts = {one.start for one in rows.segments}
        assert starts == {CONTEXT}
        seen.append((shape, len(rows.segments), len(rows.token_ids), max(one.rows for one in rows.segments)))
        return inner(self, shape, rows, taps)

    monkeypatch.setattr(BucketRunner, "run_in", run_in)
    steps = Steps(dummy(), Load(SLOTS, CONTEXT, 1), Clock())
    for _, work in steps.jobs():
        work()
    expected = {Shape(*one) for one in bucket_shapes(SLOTS, DRAFTS)}
    assert expected < {shape for shape, *_ in seen}  # and the unpadded ones
    for shape, requests, rows, most in seen:
        assert requests == shape.seats
        assert rows == min(shape.rows, requests * (DRAFTS + 1))
        assert most <= DRAFTS + 1


def test_a_step_of_a_hybrid_is_timed_with_what_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor and half of each draft, slot by slot; nothing is longer for it."""
    replayed: list[list[int]] = []

    def replay(states: SlotStates, log: DeltaLog, kept: KeptRows) -> None:
        replayed.append(kept.counts.tolist())
        delta.replay(states, log, kept)

    kernels = TORCH_SLOT_DELTA._replace(replay=replay)
    monkeypatch.setattr(slot_hybrid, "slot_delta_kernels_for", lambda device, dtype: kernels)
    steps = Steps(Subject(hybrid(), None, (), DRAFTS), Load(SLOTS, CONTEXT, 1), Clock())
    verifying = [job for job in steps.jobs() if job.piece.kind == "verify"]
    for job in verifying:
        replayed.clear()
        for _ in range(2):
            job.work()
        requests, rows = job.piece.shape
        kept = [one for one in replayed if any(one)]
        assert len(kept) == 2
        assert requests <= sum(kept[0]) <= rows
        assert sum(one > 0 for one in kept[0]) == requests
    assert [steps._runner.cache.length(slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_the_host_is_timed_without_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(hosting, "wait_for", lambda device: setattr(clock, "now", clock.now + 5_000_000))
    steps = Steps(dummy(), Load(SLOTS, CONTEXT, 1), clock)
    found = hosting.host_times(steps._runner, steps._capacity, DRAFTS, 4, clock)
    assert len(found) == 4
    assert all(0 < one < 1_000_000 for one in found)


def test_a_deployment_is_measured_simulated_and_scheduled_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_llama(tmp_path / "target")
    file = tmp_path / "tiny.toml"
    file.write_text(
        'schema = "deployment/1"\nname = "tiny"\ndevice = "cpu"\ncontext_length = 128\nthreads = 1\n'
        f'[target]\npath = "{folder}"\ndtype = "float32"\n'
    )
    out = tmp_path / "costs.json"
    arguments = ["batching", "measure", str(file), "--mechanism", "ngram", "k=3", "--slots", "2"]
    assert main([*arguments, "--context", "24", "--rounds", "3", "--out", str(out)]) == EXIT_OK
    assert "verify      2 requests     8 rows" in capsys.readouterr().out
    setup, costs = read_costs(out)
    assert (setup.context, setup.repeats, setup.graphs, setup.drafter) == (24, 3, False, "ngram")
    assert {(one.requests, one.rows) for one in costs.verify} == set(bucket_shapes(2, 3))
    assert all(one.quartiles_ms and one.quartiles_ms[0] <= one.milliseconds for one in costs.verify)
    assert costs.step_ms > 0
    assert not costs.draft


def test_a_shape_is_measured_with_its_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "dummy_subject", dummy)
    out = tmp_path / "costs.json"
    arguments = ["batching", "measure", "--shape", "small", "--device", "cpu", "--slots", "2"]
    assert main([*arguments, "--rounds", "2", "--drafts", "3", "--out", str(out)]) == EXIT_OK
    setup, costs = read_costs(out)
    assert setup.target_sha256 == "dummy weights of seed 0"
    assert {(one.requests, one.drafts) for one in costs.draft} == {(n, k) for n in (1, 2) for k in (1, 2, 3)}
    assert costs.catch_up_ms > 0
    assert costs.prefill


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the two"),
        (("a", "--shape", "b"), "one of the two"),
        (("--shape", "b", "--mechanism", "none"), "--mechanism"),
        (("--shape", "b", "--slots", "0"), "--slots"),
        (("--shape", "b", "--context", "0"), "--context"),
        (("--shape", "b", "--rounds", "0"), "--rounds"),
        (("--shape", "b", "--drafts", "-1"), "--drafts"),
        (("tiny", "--mechanism", "ngram", "4"), "FIELD=VALUE"),
        (("nowhere.toml",), "nowhere.toml"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs.json"
    assert main(["batching", "measure", *arguments, "--out", str(out)]) == EXIT_USAGE
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_an_unknown_shape_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "batching",
        "measure",
        "--shape",
        "b",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "costs.json"),
    ]
    assert main(arguments) != EXIT_OK
    assert "no shape 'b' is known" in capsys.readouterr().err
