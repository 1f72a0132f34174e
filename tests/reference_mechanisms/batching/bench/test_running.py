"""Ours alone: every variant at every load, on the CPU, in recorded shapes; and its worker."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from pathlib import Path

import msgspec
import pytest
import torch

from reference_mechanisms.batching.bench import commands, own, own_worker, results, running, shapes, stock
from reference_mechanisms.batching.bench.lines import Served, Wanted
from reference_mechanisms.batching.bench.replaying import Known, ReplayedSlots
from reference_mechanisms.batching.bench.resident import AUTOREGRESSIVE, Parts, Resident
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import (
    TRACES,
    acceptance_length,
    acceptance_rates,
    steps_of,
)
from reference_mechanisms.drafters.fused_block import FusedBlock, Weights, take_weights
from reference_mechanisms.engine.fitting import hybrid_weights
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.kernels.weight12.models import MODELS
from reference_mechanisms.request import Request
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.hybrid_config import HybridConfig
from reference_mechanisms.targets.matrices import PlainMatrices
from reference_mechanisms.weight12.plugin.step_times.engine import Facts
from tests.reference_mechanisms.batching.bench import small
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.engine.bench import small as tiny
from tests.reference_mechanisms.weight12 import step_times_worker


def drafter_weights(target: Target) -> Weights:
    source = DummyCheckpoint("small drafter", 4, target.device)
    matrices = PlainMatrices(source, target.dtype, target.device)
    with torch.inference_mode():
        return take_weights(tiny.drafter_config(), source, matrices, target.dtype, target.device)


def recorded_parts() -> Parts:
    """As on a GPU: steps of fixed shape, not recorded on a CPU."""
    target = tiny.target(torch.device("cpu"), torch.float32)
    sized = own.Sized(small.SLOTS, small.PROMPT + small.TOKENS, small.DRAFTS)
    costs = staircase(small.SLOTS, small.DRAFTS, row=0.3)
    return own.recorded_parts(target, drafter_weights(target), sized, costs)


def test_bits_are_compared_and_every_variant_is_timed(tmp_path: Path) -> None:
    recording, traces = small.traces()
    engine = Resident(recorded_parts(), recording, traces)
    plan = running.Plan(
        requests={2: 4, small.SLOTS: small.REQUESTS},
        full={load: small.settings(load) for load in (2, small.SLOTS)},
        variants=("everything", "nothing", "driven", "autoregressive"),
        repeats=1,
        exact=4,
    )
    words: list[str] = []
    found = running.run(engine, plan, lambda ran, said: words.append(said))
    assert found.exact == (4 * small.TOKENS, 0)  # led by the host, and by the device
    # The warm up goes in the reverse order and is not told.
    assert [(one.concurrency, one.variant) for one in found.timed] == [
        (load, name)
        for load in (2, small.SLOTS)
        for name in ("everything", "nothing", "driven", "autoregressive")
    ]
    assert len(words) == 1 + 2 * 2
    path = tmp_path / "traces.json"
    TRACES.write(path, recording, traces)
    about = results.About("the command", "qwen3-8b", "weight12", path, recording, 0)
    text = results.write_mechanisms(tmp_path, about, "a machine", found.timed, found.exact)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exact_tokens"], summary["logit_mismatches"]) == (4 * small.TOKENS, 0)
    raw = json.loads((tmp_path / "mechanisms.json").read_text())
    everything = next(one for one in raw["table"] if one["variant"] == "everything")
    assert everything["of_everything"] == 1.0
    assert "autoregressive" in text
    assert "system" in (tmp_path / "mechanisms.md").read_text()


def test_where_the_device_leads_traces_say_what_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time no step is cut to another's budget: each accepts what its place in the trace says."""
    recording, traces = small.traces()
    engine = Resident(recorded_parts(), recording, traces)
    plain = BatchSettings(slots=1, prefill_rows=4, buckets=True)
    assert "driven" in engine.variants(plain)
    found = engine.serve("driven", plain, small.REQUESTS)
    assert found.tokens == small.REQUESTS * small.TOKENS
    assert found.steps == sum(len(list(steps_of(one, small.DRAFTS))) for one in traces)
    assert found.acceptance_length == pytest.approx(acceptance_length(traces, small.DRAFTS), rel=0.15)
    inner, joined = ReplayedSlots.begin, []

    def wrong(self: ReplayedSlots, slot: int, request: Request, known: Known) -> None:
        joined.append(slot)
        inner(self, slot, request, known._replace(continuation=known.continuation[1:]))

    monkeypatch.setattr(ReplayedSlots, "begin", wrong)
    missed = engine.serve("driven", plain, small.REQUESTS)  # drafts of another place are mostly wrong
    assert joined == [0] * small.REQUESTS
    assert missed.steps is not None
    assert missed.steps > found.steps


def test_an_engine_without_recorded_steps_is_led_by_the_host() -> None:
    engine = Resident(small.parts(), *small.traces())
    assert "driven" not in engine.variants(small.settings())
    with pytest.raises(MechanismError, match="no variant 'driven'"):
        engine.serve("driven", small.settings(), 1)


def test_a_drafter_that_drafts_less_than_the_traces_is_refused() -> None:
    with pytest.raises(MechanismError, match="traces are of 9 drafts; the drafter makes 5"):
        own.hold_drafts(tiny.drafter_config(), own.Sized(2, 30, 9))


def test_the_hybrid_is_the_one_whose_products_are_timed_elsewhere() -> None:
    """Sizes as in the bench of the weight12 kernels: qkvz, b and a; query, gate, key and value."""
    shape = shapes.shape_of("hybrid-27b")
    step = MODELS["hybrid-27B"].step
    config = shape.target
    assert isinstance(config, HybridConfig)
    embedding = config.vocab_size * config.hidden_size
    assert hybrid_weights(config) == sum(rows * columns for rows, columns in step) + embedding
    assert (config.layers, config.kinds.count("full_attention")) == (64, 16)
    assert shape.block.taps == (1, 16, 31, 46, 61)
    assert shape.block.drafts == stock.RELEASED
    # One fp32 state of 48 heads for each of 48 layers and 16 rows.
    states = 48 * 16 * 48 * 128 * 128 * 4
    assert shape.cache_bytes(0, 15) == states
    needs = own.target_needs(shape, "weight12", own.Sized(1, 528, 15))
    assert needs.weights == pytest.approx(hybrid_weights(config) * 12.125 / 8, rel=1e-6)


def test_batches_of_a_hybrid_go_in_recorded_steps(short_pieces: None) -> None:
    """The engine of the hybrid, small: recurrent states, a drafter, a batch of two, led by either."""
    recording, traces = small.traces()
    target = small.hybrid()
    sized = own.Sized(2, small.PROMPT + small.TOKENS, small.DRAFTS)
    engine = Resident(own.recorded_parts(target, drafter_weights(target), sized, None), recording, traces)
    full = own.everything(2, None)
    for variant in ("everything", "driven"):
        served = engine.serve(variant, full, 4)
        assert served.tokens == 4 * small.TOKENS
        assert served.acceptance_length is not None
        assert served.acceptance_length > 2
        assert engine.hold_exact(variant, full, 3) == (3 * small.TOKENS, 0)


@pytest.fixture(scope="module")
def alone(short_pieces: None) -> Resident:
    """The engine of the hybrid as a GPU has it, one request at a time."""
    target = small.hybrid()
    weights = drafter_weights(target)
    sized = own.Sized(1, small.PROMPT + small.TOKENS, small.DRAFTS)
    parts = own.recorded_parts(target, weights, sized, None)
    singly = own.recorded_single(target, weights, sized)
    return Resident(parts._replace(singly=singly), *small.traces())


def test_one_request_of_a_hybrid_at_a_time_goes_in_recorded_steps(
    alone: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step drafts whole and accepts what the trace says, and the bits are those without drafts."""
    drafted = 0
    inner = FusedBlock.draft

    def counted(self: FusedBlock, anchor: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        nonlocal drafted
        drafted += 1
        return inner(self, anchor, start)

    monkeypatch.setattr(FusedBlock, "draft", counted)
    full = own.everything(1, None)
    assert alone.hold_exact("everything", full, 2) == (2 * small.TOKENS, 0)
    drafted = 0
    found = alone.serve("everything", full, small.REQUESTS)
    traces = small.traces()[1]
    assert found.tokens == small.REQUESTS * small.TOKENS
    assert found.steps == found.verifications == sum(len(list(steps_of(one, small.DRAFTS))) for one in traces)
    assert drafted >= found.steps
    assert found.acceptance_length == pytest.approx(acceptance_length(traces, small.DRAFTS), rel=0.15)
    plain = alone.serve(AUTOREGRESSIVE, full, small.REQUESTS)
    assert plain.steps == small.REQUESTS * (small.TOKENS - 1)


def test_a_variant_that_is_none_is_refused_alone_too(alone: Resident) -> None:
    with pytest.raises(MechanismError, match="no variant 'other'"):
        alone.serve("other", own.everything(1, None), 1)


def test_what_needs_a_table_is_off_without(tmp_path: Path) -> None:
    plain, full = own.everything(8, None), own.everything(8, tmp_path / "costs.json")
    assert plain.on == ("ragged", "chunked_prefill", "buckets")
    assert set(full.on) - set(plain.on) == {"budget", "adaptive", "cohorts"}


FACTS = msgspec.convert(step_times_worker.FACTS, Facts)


def test_the_worker_answers_each_line_and_tells_its_failure() -> None:
    def serve(wanted: Wanted) -> Served:
        if wanted.requests > 9:
            raise MechanismError("too many")
        return Served(
            concurrency=wanted.concurrency,
            requests=wanted.requests,
            tokens=5,
            wall_s=0.5,
            full_tokens=4,
            full_s=0.4,
        )

    lines = b"".join(
        msgspec.json.encode(Wanted(concurrency=2, requests=count)) + b"\n" for count in (4, 99, 1)
    )
    out = io.BytesIO()
    asked = own.Asked(shape="qwen3-8b", weights="bf16", traces="x", slots=2)
    with contextlib.suppress(MechanismError):
        own_worker.main(asked, lambda asked: (FACTS, serve), io.BytesIO(lines), out)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert told[0]["device"] == "a device"
    assert (told[1]["requests"], told[1]["tokens"]) == (4, 5)
    assert told[2] == {"error": "MechanismError: too many"}
    assert len(told) == 3


def test_stock_has_the_acceptance_of_the_traces_and_its_best_settings() -> None:
    traces = small.traces()[1]
    tuned = stock.stock_arguments(shapes.shape_of("qwen3-8b"), traces, (8, 32), 3)
    assert tuned["speculative_config"]["synthetic_acceptance_rates"] == list(acceptance_rates(traces, 3))
    assert tuned["speculative_config"]["num_speculative_tokens"] == 3
    sizes = tuned["compilation_config"]["cudagraph_capture_sizes"]
    assert {4 * 8, 4 * 32} <= set(sizes)
    assert max(sizes) == 4 * 32
    assert tuned["async_scheduling"] is True
    assert tuned["max_num_seqs"] == 32
    assert tuned["max_model_len"] > small.PROMPT + small.TOKENS + 3
    released = stock.stock_arguments(shapes.shape_of("qwen3-8b"), traces, (8, 32), 5, released=True)
    assert "compilation_config" not in released
    plain = stock.stock_arguments(shapes.shape_of("qwen3-8b"), traces, (8, 32), 0)
    assert "speculative_config" not in plain
    # 36 layers, and 5 of the drafter; 8 heads of 128 numbers, keys and values, two bytes each.
    per_position = 2 * 2 * 8 * 128
    assert plain["kv_cache_memory_bytes"] == int(1.25 * 32 * (22 + 32) * 36 * per_position)
    assert tuned["kv_cache_memory_bytes"] == int(1.25 * 32 * (25 + 32) * 41 * per_position)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers(), lambda run: run)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--per-slot", "50"], "make more, or give a smaller --per-slot"),
        (["--concurrency", "0"], "at least 1"),
        (["--shape", "other"], "known are qwen3-8b, hybrid-27b"),
        (["--drafts", "9"], "the traces are of 5"),
        (["--tuned", "32"], "write LOAD=K"),
        (["--tuned", "7=3"], "a load of --concurrency"),
        (["--rounds", "0"], "at least 1"),
        ([], "needs a CUDA device"),
    ],
)
def test_a_wrong_call_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    TRACES.write(tmp_path / "traces.json", *small.traces())
    fixed = ["--concurrency", "2", "--per-slot", "2", "--drafts", "0", "5", "--out", str(tmp_path)]
    options = parse(["bench-vllm", str(tmp_path / "traces.json"), *fixed, *words])
    with pytest.raises(MechanismError, match=message):
        options.run(options)


def test_short_outputs_are_shorter_than_the_whole(tmp_path: Path) -> None:
    TRACES.write(tmp_path / "traces.json", *small.traces())
    words = ["bench-steps", str(tmp_path / "traces.json"), "--concurrency", "1", "--out", str(tmp_path)]
    options = parse([*words, "--short", str(small.TOKENS)])
    with pytest.raises(MechanismError, match=f"give 2 to {small.TOKENS - 1}"):
        options.run(options)


def test_ours_alone_needs_a_gpu_too(tmp_path: Path) -> None:
    TRACES.write(tmp_path / "traces.json", *small.traces())
    fixed = ["--concurrency", "2", "--per-slot", "2", "--out", str(tmp_path)]
    options = parse(["bench", str(tmp_path / "traces.json"), *fixed])
    with pytest.raises(MechanismError, match="needs a CUDA device"):
        options.run(options)


def test_each_engine_has_its_command(tmp_path: Path) -> None:
    TRACES.write(tmp_path / "traces.json", *small.traces())
    path = str(tmp_path / "traces.json")
    options = parse(["bench-vllm", path, "--concurrency", "8", "32", "--out", str(tmp_path)])
    command = commands._commands(options, small.traces()[1])
    mine = msgspec.json.decode(command("own")[-1], type=own.Asked)
    assert mine.variant == "everything"
    assert (mine.slots, mine.weights, mine.traces) == (32, "weight12", path)
    assert command("own")[3] == commands.OWN_WORKER
    released = json.loads(command("stock-released")[-1])
    assert released["arguments"]["speculative_config"]["num_speculative_tokens"] == stock.RELEASED
    assert released["held"] is True
    assert "speculative_config" not in json.loads(command("stock-k0")[-1])["arguments"]
