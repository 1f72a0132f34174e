"""A trace is told by stages, a server's chunks become steps, and trees are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_loop.cost_model.ceiling import ceiling
from agent_loop.cost_model.floors import Machine, ModelSize
from agent_loop.cost_model.profiling import ProfileSpec, Traced
from agent_loop.cost_model.profiling import main as trace_process
from agent_loop.cost_model.serving import disagreement, from_chunks, with_steps
from agent_loop.cost_model.stages import stages_of
from agent_loop.cost_model.trees import best_trees, tree_points
from harness.codec import canonical_json, from_json
from harness.errors import EXIT_USAGE, DataError
from harness.oracle.stored import StoredRun, load_run
from harness.plan import ArmSpec
from harness.records import Chunk, DecodeRequest, Sampling
from tests.agent_loop.test_cost_model import MACHINE, MODEL, STOCK, response, run_of
from tests.harness.tiny import deployment_of, write_llama

REPORTS = Path(__file__).resolve().parents[2] / "reports"
BACKEND = "reference_mechanisms.backend:open_session"
MS = 1e3  # microseconds


def event(name: str, kind: str, start: float, took: float, **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "ts": start,
        "dur": took,
        "pid": 1,
        "tid": 1,
        "args": arguments,
    }


def trace(*events: dict[str, Any]) -> bytes:
    return json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}).encode()


CPU = trace(
    event("engine/drafters/trained.py(8): propose", "python_function", 0.0, 10 * MS),
    event("aten::linear", "cpu_op", 1 * MS, 4 * MS),  # 4 ms of drafting, whatever the operation
    event("engine/targets/attention.py(7): attend_rows", "python_function", 10 * MS, 10 * MS),
    event("aten::linear", "cpu_op", 10 * MS, 2 * MS),  # a projection is read from weights there, too
    event("aten::matmul", "cpu_op", 12 * MS, 3 * MS),
    event("aten::bmm", "cpu_op", 12.5 * MS, 2 * MS),  # called by the one above: counted once
    event("aten::mul", "cpu_op", 15 * MS, 1 * MS),
    event("engine/targets/llama.py(7): layer", "python_function", 20 * MS, 10 * MS),
    event("mkldnn::_linear_pointwise", "cpu_op", 20 * MS, 5 * MS),
    event("aten::argmax", "cpu_op", 26 * MS, 1 * MS),
    event("aten::silu", "cpu_op", 28 * MS, 2 * MS),
)


def test_an_operation_counts_once_and_where_it_belongs() -> None:
    found = stages_of(CPU, 0.0)
    expected = {
        "drafter": 4,
        "weights": 7,
        "attention": 4,
        "sampling": 1,
        "other": 2,
        "launch": 0,
        "host": 11,
    }
    assert found.seconds == pytest.approx({name: value / 1e3 for name, value in expected.items()})
    assert sum(found.seconds.values()) == pytest.approx(0.029)  # from the first operation to the last
    assert found.operations == 7
    assert not found.device


def test_starting_operations_is_taken_out_of_each_and_the_host_is_told_without_a_profiler() -> None:
    found = stages_of(CPU, 0.0005, wall_s=0.020)
    assert found.seconds["launch"] == pytest.approx(7 * 0.0005)
    assert found.seconds["sampling"] == pytest.approx(0.0005)
    assert found.seconds["host"] == pytest.approx(0.002)
    assert sum(found.seconds.values()) == pytest.approx(0.020)


def test_kernels_are_told_by_name_and_a_drafters_by_who_launched_them() -> None:
    found = stages_of(
        trace(
            event("vllm/v1/spec_decode/eagle.py(3): propose", "python_function", 0.0, 5 * MS),
            event("cudaLaunchKernel", "cuda_runtime", 1 * MS, 10.0, correlation=1),
            event("cudaLaunchKernel", "cuda_runtime", 6 * MS, 10.0, correlation=2),
            event("cudaGraphLaunch", "cuda_runtime", 7 * MS, 10.0, correlation=3),
            event("gemm_bf16", "kernel", 2 * MS, 2 * MS, correlation=1),
            event("cutlass_gemm", "kernel", 8 * MS, 4 * MS, correlation=2),
            event("flash_fwd", "kernel", 11 * MS, 2 * MS, correlation=3),  # 1 ms behind the one in front
            event("argmax_kernel", "kernel", 13 * MS, 1 * MS, correlation=3),
        ),
        0.001,
    )
    expected = {"drafter": 2, "weights": 4, "attention": 1, "sampling": 1, "launch": 3, "host": 1}
    assert found.seconds == pytest.approx({name: value / 1e3 for name, value in expected.items()})
    assert found.operations == 3
    assert found.device


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"traceEvents": 3}', b'{"traceEvents": [{"ph": "X", "dur": "x"}]}']
)
def test_what_is_no_trace_is_refused(text: bytes) -> None:
    with pytest.raises(DataError, match="no Chrome trace"):
        stages_of(text, 0.0)
    with pytest.raises(DataError, match="holds no operation"):
        stages_of(trace(), 0.0)


def test_a_trace_of_the_engine_tells_its_stages(tmp_path: Path) -> None:
    spec = ProfileSpec(
        deployment=deployment_of(write_llama(tmp_path / "model")),
        arm=ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafter": "ngram", "drafts": 2}),
        request=DecodeRequest(
            request_id="p", prompt_token_ids=tuple(range(40)), sampling=Sampling(max_tokens=16)
        ),
        trace=str(tmp_path / "trace.json"),
        out=str(tmp_path / "traced.json"),
    )
    (tmp_path / "spec.json").write_bytes(canonical_json(spec))
    assert trace_process([str(tmp_path / "spec.json")]) == 0
    traced = from_json((tmp_path / "traced.json").read_bytes(), Traced, "traced")
    assert 0 < traced.steps <= 6
    found = stages_of((tmp_path / "trace.json").read_bytes(), 1e-6, traced.wall_s)
    assert {"weights", "attention", "sampling", "launch", "host"} <= set(found.seconds)
    assert min(found.seconds[stage] for stage in ("weights", "attention", "sampling")) > 0.0
    short = msgspec.structs.replace(
        spec, request=msgspec.structs.replace(spec.request, sampling=Sampling(max_tokens=1))
    )
    (tmp_path / "spec.json").write_bytes(canonical_json(short))
    assert trace_process([str(tmp_path / "spec.json")]) == EXIT_USAGE


def test_chunks_become_steps_and_what_arrived_together_several() -> None:
    run = run_of(STOCK)
    one = msgspec.structs.replace(
        STOCK,
        steps=(),
        prefill_tokens=0,
        token_ids=tuple(range(9)),
        chunks=(Chunk(1, 100), Chunk(3, 200), Chunk(1, 300), Chunk(4, 500)),
        first_token_ns=100,
        end_ns=500,
    )
    arm = msgspec.structs.replace(run.job.plan.arms[0], params={"drafter": "ngram", "drafts": 2})
    plan = msgspec.structs.replace(run.job.plan, arms=(arm,))
    served = run._replace(job=msgspec.structs.replace(run.job, plan=plan), responses=(one,))
    assert from_chunks(served, "stock")
    (found,) = with_steps(served).responses
    assert found.prefill_tokens == 1
    assert [list(msgspec.to_builtins(step)) for step in found.steps] == [
        [2, 2, 3, 200],
        [2, 0, 1, 300],
        [2, 2, 3, 400],
        [2, 0, 1, 500],
    ]
    assert with_steps(run).responses == run.responses


@pytest.mark.parametrize(
    "name", ["2026-12-02-compare-vllm-h200/managed-float32", "2026-12-02-compare-vllm-cpu"]
)
def test_a_real_vllm_run_has_gaps(name: str) -> None:
    run = load_run(REPORTS / name)
    quick = Machine(bytes_per_s=4e12, flops_per_s=5e13, launch_s=3e-6, how="made: an H200's")
    model = ModelSize(parameters=134_000_000, weight_bytes=536_000_000)
    found = ceiling(run, "stock", quick, model)
    told = {gap.component: gap for gap in found.gaps}
    assert found.acceptance_length > 1.0 or name.endswith("cpu")
    assert found.acceptance_ceiling >= found.acceptance_length
    assert all(gap.confidence <= 0.7 for gap in found.gaps)
    assert "what arrived from the server" in told["weights"].basis
    assert sum(gap.share for gap in found.gaps) == pytest.approx(1.0)
    assert found.speedup > 1.0


def test_what_arrived_is_held_against_what_the_server_counted() -> None:
    run = load_run(REPORTS / "2026-12-02-compare-vllm-h200/managed-float32")
    missed = disagreement(with_steps(run), "stock")
    assert missed is not None
    assert 0.0 < missed < 0.05
    assert disagreement(with_steps(run), "ar") is None  # nothing is speculated there
    good = ceiling(run, "stock", MACHINE, MODEL)
    backend = run.job.plan.arm("stock").backend
    told = json.loads(json.dumps(run.report.backends))
    told[backend]["arms"]["stock"]["counters"]["num_accepted_tokens"] *= 2
    bad = ceiling(
        run._replace(report=msgspec.structs.replace(run.report, backends=told)), "stock", MACHINE, MODEL
    )
    first, second = good.gaps[0], next(gap for gap in bad.gaps if gap.component == good.gaps[0].component)
    assert second.confidence == pytest.approx(first.confidence / 2, abs=0.01)
    assert "51% off its count" in second.basis


def treed() -> StoredRun:
    arms = {
        "tree-7": response("tree-7", 7, [2, 2, 2, 2], 0.05, 0.002),
        "tree-23": response("tree-23", 23, [3, 3, 2, 2], 0.05, 0.004),
    }
    run = run_of(STOCK)
    made = [
        ArmSpec(name=name, kind="candidate", backend=BACKEND, params={"tree": int(name[5:])}) for name in arms
    ]
    plan = msgspec.structs.replace(run.job.plan, arms=(*run.job.plan.arms, *made))
    return run._replace(
        job=msgspec.structs.replace(run.job, plan=plan), responses=(*run.responses, *arms.values())
    )


def test_the_tree_that_accepts_most_is_not_always_the_quickest() -> None:
    points = tree_points(treed())
    assert [(one.nodes, one.acceptance_length) for one in points] == [(7, 3.0), (23, 3.5)]
    assert points[0].token_s == pytest.approx((0.05 + 8 * 0.002) / 3.0)
    trees = best_trees(points)
    assert trees is not None
    assert (trees.longest.nodes, trees.quickest.nodes) == (23, 7)
    assert best_trees(()) is None


def test_a_tree_raises_the_acceptance_ceiling_where_it_accepts_more_than_chains_could() -> None:
    chain = response("stock", 1, [1, 0, 0, 0], 0.05, 0.002)
    run = treed()
    run = run._replace(responses=(chain, *run.responses[1:]))
    found = ceiling(run, "stock", MACHINE, MODEL)
    assert found.survival_ceiling is not None
    assert found.survival_ceiling < 3.5
    assert found.acceptance_ceiling == 3.5
    assert any("in trees of 23 nodes" in gap.basis for gap in found.gaps)
    alone = ceiling(run_of(chain), "stock", MACHINE, MODEL)
    assert alone.floor_s > found.floor_s
    assert alone.trees == ()


def test_stages_have_floors_of_their_own() -> None:
    model = msgspec.structs.replace(MODEL, kv_bytes=1_000_000, vocabulary=1_000_000)
    profile = {"weights": 0.5, "attention": 0.2, "sampling": 0.1, "launch": 0.1, "host": 0.1}
    found = {gap.component: gap for gap in ceiling(run_of(STOCK), "stock", MACHINE, model, profile).gaps}
    steps = len(STOCK.steps)
    assert found["weights"].floor_s == pytest.approx(steps * 0.04)
    before = [1, 4, 6, 7]  # emitted in front of each step
    assert found["attention"].floor_s == pytest.approx(sum(10 + n for n in before) * 1e6 / 1e9)
    assert found["sampling"].floor_s == pytest.approx(steps * 5 * 1e6 * 4 / 1e9)
    assert found["launch"].floor_s == pytest.approx(steps * 1e-6)
    assert found["host"].floor_s == 0.0
    assert found["launch"].confidence < found["weights"].confidence
    whole = STOCK.steps[-1].at_ns / 1e9 - 0.1
    stages = sum(found[name].measured_s for name in profile)
    assert stages == pytest.approx(whole)


def test_a_batch_has_no_step_of_its_own() -> None:
    run = run_of(STOCK)
    measure = msgspec.structs.replace(run.job.plan.measure, batch=2)
    plan = msgspec.structs.replace(run.job.plan, measure=measure)
    with pytest.raises(ValueError, match="share their steps"):
        ceiling(run._replace(job=msgspec.structs.replace(run.job, plan=plan)), "stock", MACHINE, MODEL)
