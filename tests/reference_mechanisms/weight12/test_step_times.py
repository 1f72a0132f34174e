"""Times of a step in vLLM: the statistics, the rounds with workers that are none, the files, the command."""

from __future__ import annotations

import functools
import importlib.machinery
import json
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from harness.cli import main
from reference_mechanisms.weight12.plugin.step_times import report, rounds
from reference_mechanisms.weight12.plugin.step_times.engine import last_error
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import (
    DRAFTER,
    DRAFTS,
    MODEL,
    engine_arguments,
)
from reference_mechanisms.weight12.plugin.step_times.rounds import EngineError, Found, Plan, measure
from reference_mechanisms.weight12.plugin.step_times.steps import (
    AR,
    DFLASH,
    PACKED,
    PLAIN,
    Call,
    Sample,
    sample,
    step_ms,
    table,
)

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name("step_times_worker.py")
BOTH = ((PLAIN, AR), (PACKED, AR))
OK, INVALID, USAGE = 0, 2, 3


def call(output: int, wall_s: float, drafts: float | None = None, batch: int = 2) -> Call:
    return Call(batch=batch, output=output, tokens=batch * output, wall_s=wall_s, drafts=drafts)


def timed(kind: str, number: int, ms: float, batch: int = 1) -> Sample:
    return Sample(
        kind=kind,
        mode=AR,
        round=number,
        batch=batch,
        step_ms=ms,
        ms_per_token=ms,
        tokens_per_step=1,
        long_s=1,
        short_s=1,
    )


def workers(**behaviours: str) -> rounds.Command:
    """bf16 takes 2 ms a step, weight12 1 ms, times B + 1."""

    def command(kind: str, mode: str, _batches: Sequence[int]) -> list[str]:
        words = behaviours.get(kind, "good").split("|")
        rest = ["6.5" if mode == DFLASH else "-", *words[1:]]
        return [sys.executable, str(WORKER), words[0], "2" if kind == PLAIN else "1", *rest]

    return command


def plan(engines: tuple[rounds.Name, ...] = BOTH, limit_s: float = 60, count: int = 2) -> Plan:
    return Plan(engines=engines, batches=(1,), rounds=count, limit_s=limit_s)


def deaf(_: Found) -> None:
    pass


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pid: int) -> None:
    give_up = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < give_up, "a child outlived the run"
        time.sleep(0.02)


def test_a_step_is_the_difference_of_two_calls() -> None:
    one = sample(PLAIN, AR, 3, call(400, 2.0), call(16, 0.08))
    assert (one.round, one.batch, one.tokens_per_step) == (3, 2, 1)
    assert one.step_ms == pytest.approx(5.0)  # 1.92 s for 384 steps
    assert one.ms_per_token == one.step_ms


def test_with_a_drafter_the_steps_are_the_counted_ones() -> None:
    one = sample(PACKED, DFLASH, 0, call(400, 1.0, drafts=132), call(16, 0.04, drafts=4))
    assert one.step_ms == pytest.approx(15.0)  # 0.96 s for 128 / 2 verify steps of each prompt
    assert one.ms_per_token == pytest.approx(2.5)
    assert one.tokens_per_step == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("mode", "long", "short", "message"),
    [
        (AR, call(400, 1.0), call(16, 1.0), "400 tokens took no longer than 16"),
        (AR, Call(batch=2, output=400, tokens=799, wall_s=2), call(16, 1.0), "799 tokens came, 2 x 400"),
        (AR, call(400, 2.0), Call(batch=2, output=16, tokens=31, wall_s=1), "31 tokens came, 2 x 16"),
        (DFLASH, call(400, 2.0), call(16, 1.0), "vLLM counted no drafts"),
        (DFLASH, call(400, 2.0, 4), call(16, 1.0, 4), "vLLM counted no drafts"),
    ],
    ids=["no longer", "long ended early", "short ended early", "no counter", "counter stands"],
)
def test_what_is_no_measurement_gives_no_step(mode: str, long: Call, short: Call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(PLAIN, mode, 0, long, short)


def test_ratios_are_taken_within_rounds() -> None:
    samples = [timed(PLAIN, n, ms) for n, ms in enumerate((4.0, 6.0, 30.0))]
    samples += [timed(PACKED, n, ms) for n, ms in ((0, 2.0), (1, 4.0), (2, 10.0), (3, 1.0))]
    (row,) = table(samples)
    assert row[PLAIN]["step_ms"] == {"median": 6.0, "min": 4.0, "max": 30.0, "rounds": 3}
    assert row[PACKED]["step_ms"]["median"] == 3.0
    assert row["speedup"] == {"median": 2.0, "min": 1.5, "max": 3.0, "rounds": 3}


def test_a_kind_that_was_not_timed_is_not_told_of() -> None:
    (row,) = table([timed(PACKED, 0, 2.0)])
    assert PLAIN not in row
    assert "speedup" not in row
    (row,) = table([timed(PACKED, 0, 2.0), timed(PLAIN, 1, 2.0)])
    assert "speedup" not in row  # no round has both
    assert step_ms(table([timed(PACKED, 0, 2.0), timed(PACKED, 0, 3.0, batch=8)])) == {
        PACKED: {"1": 2.0, "8": 3.0}
    }


@pytest.mark.parametrize("kind", [PLAIN, PACKED])
@pytest.mark.parametrize("mode", [AR, DFLASH])
def test_engines_differ_in_nothing_but_the_weights_and_the_drafter(kind: str, mode: str) -> None:
    found = engine_arguments(kind, mode, (1, 8, 32))
    assert found.pop("quantization", None) == (PACKED if kind == PACKED else None)
    assert found == engine_arguments(PLAIN, mode, (1, 8, 32))
    speculative = found.get("speculative_config")
    assert (speculative is not None) == (mode == DFLASH)
    tokens = 1 + DRAFTS if speculative else 1
    assert found["compilation_config"]["cudagraph_capture_sizes"] == [
        tokens * n for n in (1, 2, 4, 8, 16, 24, 32)
    ]
    assert found["max_num_seqs"] == 32
    room = found["kv_cache_memory_bytes"] // (2 * 2 * 8 * 128 * (36 + 5))
    assert room > 64 * (rounds.PROMPT + rounds.LONG + 2 * 16)


def test_the_shapes_are_those_of_the_kernel_bench() -> None:
    model, drafter = (json.loads((folder / "config.json").read_text()) for folder in (MODEL, DRAFTER))
    assert (model["hidden_size"], model["intermediate_size"], model["vocab_size"]) == (4096, 12288, 151936)
    assert drafter["block_size"] == DRAFTS + 1
    assert drafter["num_target_layers"] == model["num_hidden_layers"] == 36
    assert drafter["hidden_size"] == model["hidden_size"]


def test_the_last_error_of_a_log_is_the_one_that_counts() -> None:
    log = "INFO: up\nValueError: a\n  KeyError: b\nRuntimeError: See root cause above.\nbye"
    assert last_error(log) == "KeyError: b"
    assert last_error("INFO: up\n") == ""


def test_engines_are_timed_in_turn(tmp_path: Path) -> None:
    engines = (*BOTH, (PLAIN, DFLASH), (PACKED, DFLASH))
    told: list[int] = []
    found = measure(
        Plan(engines=engines, batches=(1, 8), rounds=3, limit_s=60),
        tmp_path,
        lambda so_far: told.append(len(so_far.samples)),
        workers(),
    )
    assert told == [8, 16, 24]  # the round that warms up is in none
    assert [one.kind for one in found.samples if one.mode == AR and one.batch == 1] == [
        *(PLAIN, PACKED),
        *(PACKED, PLAIN),
        *(PLAIN, PACKED),
    ]
    rows = table(found.samples)
    assert step_ms(rows) == {"stock": {"1": 4.0, "8": 18.0}, PACKED: {"1": 2.0, "8": 9.0}}
    assert step_ms(rows, DFLASH) == step_ms(rows)
    drafted = next(row for row in rows if row["mode"] == DFLASH)
    assert drafted[PLAIN]["tokens_per_step"] == pytest.approx(6.5)
    assert drafted["speedup"]["median"] == pytest.approx(2.0)
    assert not found.faults


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dies", "did not come up: ended with code 7; ValueError: Free memory is too little"),
        ("silent", "did not come up: no answer in 2 s"),
        ("unpacked", "did not come up: no layer computes from packed weights on a device"),
        ("babbles", "did not come up: its answer b'Loading ...' is not understood"),
        ("stops early", "round 0, batch 1: 399 tokens came, 1 x 400 were asked"),
        ("answers something else", "round -1, batch 1: told of 1 x 17 tokens, not 1 x 16"),
    ],
)
def test_an_engine_that_cannot_be_timed_is_left_out_with_its_reason(
    tmp_path: Path, behaviour: str, message: str
) -> None:
    limit_s = 4 if behaviour == "silent" else 60
    found = measure(plan(limit_s=limit_s, count=1), tmp_path, deaf, workers(weight12=behaviour))
    assert [one.kind for one in found.samples] == [PLAIN]
    assert list(found.faults) == [PACKED]
    assert message in found.faults[PACKED]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("dies later", "MemoryError: no room"), ("falls silent", "no answer in 1 s")],
)
def test_what_an_engine_gave_before_it_ended_stays(
    tmp_path: Path, behaviour: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "ANSWER_S", 1.0)
    found = measure(plan(), tmp_path, deaf, workers(weight12=behaviour))
    assert [(one.kind, one.round) for one in found.samples] == [(PLAIN, 0), (PACKED, 0), (PLAIN, 1)]
    assert f"round 1, batch 1: {message}" in found.faults[PACKED]


def test_a_first_call_that_takes_longest_is_no_fault(tmp_path: Path) -> None:
    found = measure(plan(), tmp_path, deaf, workers(weight12="compiles first"))
    assert not found.faults
    assert [one.round for one in found.samples if one.kind == PACKED] == [0, 1]


def test_without_any_engine_there_is_an_error_that_names_each(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"bf16: did not come up: .*; weight12: did not come up: .* packed"):
        measure(plan(), tmp_path, deaf, workers(bf16="dies", weight12="unpacked"))


def test_the_limit_ends_the_rounds_and_is_no_fault_of_an_engine(tmp_path: Path) -> None:
    began = time.monotonic()
    command = workers(bf16="never answers")
    with pytest.raises(EngineError, match="4 s were over before a round was: raise --seconds"):
        measure(plan(((PLAIN, AR),), limit_s=4), tmp_path, deaf, command)
    assert 3.9 < time.monotonic() - began < 20


@pytest.mark.parametrize("behaviour", ["good", "dies", "silent"])
def test_what_an_engine_started_dies_with_it(tmp_path: Path, behaviour: str) -> None:
    pids = tmp_path / "pids"

    def heard(_: Found) -> None:
        if behaviour == "silent":  # left out, so its memory is free for the others
            wait_until_dead(int(pids.read_text()))

    measure(plan(limit_s=4, count=1), tmp_path, heard, workers(weight12=f"{behaviour}|{pids}"))
    wait_until_dead(int(pids.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_engines(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    words = [sys.executable, str(WORKER), "silent", "1", "-", str(pids)]
    script = (
        "import signal\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "from harness.ending import ending_on_signals\n"
        "from reference_mechanisms.weight12.plugin.step_times.rounds import Plan, measure\n"
        "plan = Plan(engines=(('bf16', 'ar'),), batches=(1,), rounds=1, limit_s=600)\n"
        "with ending_on_signals():\n"
        f"    measure(plan, Path({str(tmp_path)!r}), print, lambda *_: {words!r})"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()):
        assert run.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.02)
    run.send_signal(number)
    assert run.wait(timeout=30) != 0
    wait_until_dead(int(pids.read_text()))


def found_of(kinds: Sequence[str], folder: Path) -> Found:
    return measure(plan(tuple((kind, AR) for kind in kinds), count=1), folder, deaf, workers())


def test_the_summary_is_extended_and_left_whole(tmp_path: Path) -> None:
    committed = (ROOT / "reports" / "h200-weight12" / "summary.json").read_text()
    summary = tmp_path / report.SUMMARY
    summary.write_text(committed)
    found = found_of((PLAIN, PACKED), tmp_path / "logs")
    report.write(tmp_path, found, "a command")
    report.write(tmp_path, found, "a command")
    expected = {"stock": {"1": 4.0}, PACKED: {"1": 2.0}}
    now = json.loads(summary.read_text())
    assert now.pop(report.KEY) == expected
    before = json.loads(committed)
    before.pop(report.KEY, None)
    assert list(now.items()) == list(before.items())
    told = json.loads((tmp_path / report.RESULT).read_text())
    assert told[report.KEY] == expected
    assert told["machine"] == "a device, torch 4.5.6, vLLM 1.2.3"
    assert told["command"] == "a command"
    assert len(told["samples"]) == 2
    assert told["engines"][PACKED]["packed_layers"] == 3
    assert "drafter" not in told
    assert not list(tmp_path.glob(".*"))


def test_without_a_summary_none_is_made(tmp_path: Path) -> None:
    report.write(tmp_path / "new", found_of((PACKED,), tmp_path), "a command")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [report.RESULT]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_of((PACKED,), tmp_path / "logs")
    report.write(tmp_path, found, "the first")
    before = (tmp_path / report.RESULT).read_bytes()

    def full(self: Path, data: str) -> int:
        self.write_bytes(data[:100].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        report.write(tmp_path, found, "the second")
    assert (tmp_path / report.RESULT).read_bytes() == before


@pytest.fixture
def equipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have vLLM and a GPU."""
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def bench_vllm(*words: object) -> int:
    return main(["weight12", "bench-vllm", *map(str, words)])


@pytest.mark.usefixtures("equipped")
def test_the_command_writes_the_times_and_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "measure", functools.partial(measure, command=workers()))
    (tmp_path / report.SUMMARY).write_text('{"model": "Qwen3-8B"}')
    words = ("--out", tmp_path, "--dflash", "--batches", 1, 32, "--rounds", 2, "--seconds", 60)
    assert bench_vllm(*words) == OK
    out = capsys.readouterr().out
    assert "| dflash |      32 |    66.000 |        33.000 |     2.000 |" in out
    summary = json.loads((tmp_path / report.SUMMARY).read_text())
    expected = {"stock": {"1": 4.0, "32": 66.0}, PACKED: {"1": 2.0, "32": 33.0}}
    assert summary == {"model": "Qwen3-8B", report.KEY: expected}
    told = json.loads((tmp_path / report.RESULT).read_text())
    assert told["command"] == "specpilot-harness weight12 bench-vllm --out " + str(tmp_path) + (
        " --engines bf16 weight12 --dflash --batches 1 32 --rounds 2 --seconds 60"
    )
    assert told["drafter"] == {
        "model": "the shape of a DFlash drafter of Qwen3-8B, dummy weights",
        "drafts": 15,
        "synthetic_acceptance_length": 6.5,
    }
    assert sorted(path.name for path in (tmp_path / "vllm-step-logs").iterdir()) == [
        "bf16-dflash.log",
        "bf16.log",
        "weight12-dflash.log",
        "weight12.log",
    ]


@pytest.mark.usefixtures("equipped")
def test_the_command_ends_with_2_if_no_engine_comes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = workers(bf16="dies", weight12="dies")
    monkeypatch.setattr(rounds, "measure", functools.partial(measure, command=command))
    (tmp_path / report.SUMMARY).write_text('{"model": "Qwen3-8B"}')
    assert bench_vllm("--out", tmp_path) == INVALID
    err = capsys.readouterr().err
    assert "no engine could be timed; bf16: did not come up: ended with code 7; ValueError: Free" in err
    assert not (tmp_path / report.RESULT).exists()
    assert (tmp_path / report.SUMMARY).read_text() == '{"model": "Qwen3-8B"}'


@pytest.mark.usefixtures("equipped")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engines", "fp8"), "--engines fp8: not one of bf16, weight12"),
        (("--batches", "65"), "--batches are 1 to 64"),
        (("--batches", "0"), "--batches are 1 to 64"),
        (("--rounds", "0"), "--rounds are at least 1"),
        (("--seconds", "0"), "--seconds more than 0"),
        (("--seconds", "nan"), "--seconds more than 0"),
    ],
)
def test_a_wrong_call_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_vllm("--out", tmp_path / "new", *words) == USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("equipped")
@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_summary_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / report.SUMMARY).write_text(text)
    assert bench_vllm("--out", tmp_path) == USAGE
    assert "summary.json" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [report.SUMMARY]


@pytest.mark.parametrize("missing", ["vLLM", "GPU"])
def test_what_the_machine_lacks_is_told(
    missing: str,
    equipped: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if missing == "vLLM":
        monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_vllm("--out", tmp_path / "new") == USAGE
    err = capsys.readouterr().err
    assert ("pip install vllm" in err) == (missing == "vLLM")
    assert ("a CUDA device" in err) == (missing == "GPU")
    assert not (tmp_path / "new").exists()
