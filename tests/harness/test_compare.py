"""Two servers compared through the public command line; each lie is named, the honest twin passes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli import main
from harness.codec import from_json
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_USAGE, EXIT_VIOLATED
from harness.load.arrivals import poisson_arrivals
from harness.results import ArmResult, Audit, Report
from tests.harness.load.model_server import VLLM, Manner, Target, serving
from tests.harness.load.sglang_server import serving_sglang
from tests.harness.tiny import write_llama

pytestmark = pytest.mark.usefixtures("undrawn", "launches_here")
TEXTS = ("tell me", "count", "say red", "why", "list", "what", "name", "spell", "add", "sing")
SPECULATION = {
    "spec_decode_num_drafts": 5,
    "spec_decode_num_draft_tokens": 20,
    "spec_decode_num_accepted_tokens": 10,
}


class Done(NamedTuple):
    code: int
    report: Report
    folder: Path

    def audit(self, name: str) -> Audit:
        return next(audit for audit in self.report.audits if audit.name == name)

    def arm(self, name: str) -> ArmResult:
        return next(arm for arm in self.report.arms if arm.name == name)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(write_llama(tmp_path_factory.mktemp("served") / "target", seed=3))


def write_prompts(folder: Path) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path)


def arguments(stock: str, candidate: str, prompts: Path, out: Path, *more: str) -> list[str]:
    return [
        *("compare", "--stock", stock, "--candidate", candidate, "--prompts", str(prompts)),
        *("--field", "question", "--count", "4", "--max-tokens", "16", "--blocks", "2"),
        *("--calibration-set", "own", "--out", str(out), *more),
    ]


def compare(target: Target, candidate: Manner, prompts: Path, out: Path, *more: str) -> Done:
    with contextlib.ExitStack() as stack:
        stock_url = stack.enter_context(serving(target, Manner()))
        candidate_url = stack.enter_context(serving(target, candidate))
        code = main(arguments(stock_url, f"{candidate_url}/v1/", prompts, out, *more))
    path = out / "report.json"
    return Done(code, from_json(path.read_bytes(), Report, str(path)), out)


class Honest(NamedTuple):
    """A finished comparison with an honest twin, and every request that the twin saw."""

    done: Done
    bodies: list[dict[str, Any]]


@pytest.fixture(scope="module")
def honest(target: Target, tmp_path_factory: pytest.TempPathFactory, launches_here: None) -> Honest:
    root = tmp_path_factory.mktemp("honest")
    candidate = Manner(seconds_per_token=0.0002, prefill_seconds=0.01, per_chunk=4, counters=SPECULATION)
    return Honest(compare(target, candidate, write_prompts(root), root / "out"), candidate.bodies)


def test_an_honest_twin_passes(honest: Honest) -> None:
    done = honest.done
    assert done.code == EXIT_OK
    assert done.report.losslessness is not None
    assert done.report.losslessness.stock_verdict == "exact"
    assert done.report.losslessness.self_exact is None
    found = done.arm("candidate")
    assert found.speedup is not None
    assert found.speedup.point > 1.0
    assert found.load is not None
    assert found.load.failed == 0
    assert not any("acceptance length" in warning for warning in done.report.warnings)
    assert done.audit("speculation on: candidate").passed is True
    assert "acceptance length 3.000" in done.audit("speculation on: candidate").detail
    assert done.audit("usage is what was sent: candidate").passed is True
    assert done.audit("no answer from a response cache: candidate").passed is True


def test_every_request_is_sent_as_ids_with_a_salt_of_its_own_and_every_sampling_field(
    honest: Honest,
) -> None:
    salts = [body["cache_salt"] for body in honest.bodies]
    assert len(set(salts)) == len(salts) > 16
    for body in honest.bodies:
        assert all(isinstance(token, int) for token in body["prompt"])
        assert (body["temperature"], body["top_p"], body["top_k"]) == (0.0, 1.0, -1)
        assert (body["repetition_penalty"], body["seed"]) == (1.0, 0)


def test_no_measured_prompt_was_sent_before_and_strangers_follow(honest: Honest) -> None:
    sent = [tuple(body["prompt"]) for body in honest.bodies]
    warm, measured, strangers = sent[:-16], sent[-16:-8], sent[-8:]  # four prompts in two blocks
    assert len(set(measured)) == 4
    assert not set(warm) & set(measured)
    assert not set(strangers) & {*warm, *measured}
    assert sorted(map(len, strangers)) == sorted(map(len, measured))
    assert len(set(strangers)) == 8  # two rounds of four


def test_a_server_that_drops_tokens_is_violated_at_the_position(
    target: Target, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = compare(target, Manner(drop_every=50), prompts, tmp_path / "out")
    assert done.code == EXIT_VIOLATED
    found = done.arm("candidate").losslessness
    assert found is not None
    assert found.stock_verdict == "violated"
    stock = done.arm("stock").losslessness
    assert stock is not None
    assert stock.stock_verdict == "exact"
    assert "position" in capsys.readouterr().out


def test_a_server_that_answers_from_a_cache_is_named(target: Target, prompts: Path, tmp_path: Path) -> None:
    candidate = Manner(caches=True, prefill_seconds=0.2)  # far above what a busy machine adds
    done = compare(target, candidate, prompts, tmp_path / "out")
    assert done.code == EXIT_VIOLATED
    assert done.audit("no answer from a response cache: candidate").passed is False


def test_a_server_that_inflates_its_usage_is_named_and_gains_nothing(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    done = compare(target, Manner(usage_factor=1.5), prompts, tmp_path / "out")
    assert done.code == EXIT_VIOLATED
    assert done.audit("usage is what was sent: candidate").passed is False
    assert done.arm("candidate").tokens == done.arm("stock").tokens


def test_a_server_without_ids_is_tokenised_again_and_the_report_says_so(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    fields = tuple(name for name in VLLM if name != "return_token_ids")
    done = compare(target, Manner(give_ids=False, fields=fields), prompts, tmp_path / "out")
    assert done.audit("ids from the server: candidate").passed is None
    assert "re-tokenised" in done.audit("ids from the server: candidate").detail
    assert any("re-tokenised" in warning for warning in done.report.warnings)


def test_failed_requests_make_the_comparison_invalid(target: Target, prompts: Path, tmp_path: Path) -> None:
    done = compare(target, Manner(fail_every=5), prompts, tmp_path / "out")
    assert done.code == EXIT_INVALID
    assert "requests failed" in done.report.reasons[0]
    assert "HTTP 500: engine is dead" in done.report.reasons[0]
    assert done.arm("candidate").load is None


SAMPLED = ("--temperature", "0.8", "--top-k", "12", "--count", "8", "--max-tokens", "40")


def sampled(target: Target, candidate: Manner, prompts: Path, out: Path, *more: str) -> Done:
    return compare(target, candidate, prompts, out, *SAMPLED, "--calibration-prompts", "2", *more)


def test_sampled_output_is_tested_against_what_the_server_tells(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    done = sampled(target, Manner(keeps_seeds=False), prompts, tmp_path / "out")
    assert done.code == EXIT_OK
    assert done.report.division == "distribution"
    found = done.report.losslessness
    assert found is not None
    assert (found.stock_verdict, found.sampled_test) == ("not-judged", "distribution")
    test = done.arm("candidate").losslessness
    assert test is not None
    assert test.distribution_test is not None
    assert test.distribution_test.tokens <= 8 * 40
    assert test.distribution_test.detects
    page = (done.folder / "report.md").read_text()
    assert "Distribution of the sampled tokens" in page
    assert "80 % power" in page


def test_a_sampled_run_can_be_checked_while_stock_answers(
    target: Target, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with serving(target, Manner()) as url:
        more = (*SAMPLED, "--count", "2", "--calibration-prompts", "2")
        assert main(arguments(url, url, prompts, out, *more)) == EXIT_OK
        assert main(["check", str(out)]) == EXIT_OK
        report = json.loads((out / "report.json").read_text())
        report["arms"][1]["losslessness"]["distribution_test"]["z"] += 0.1
        (out / "report.json").write_text(json.dumps(report))
        assert main(["check", str(out)]) == EXIT_VIOLATED
    assert "arm candidate: `losslessness.distribution_test.z`" in capsys.readouterr().out


def test_sampled_output_that_keeps_seeds_is_compared_id_by_id(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    candidate = Manner()
    done = sampled(target, candidate, prompts, tmp_path / "out")
    assert done.code == EXIT_OK
    assert done.report.losslessness is not None
    assert done.report.losslessness.sampled_test == "seeded"
    assert done.audit("repeats its seed: candidate").passed is True
    seeds = {tuple(body["prompt"]): body["seed"] for body in candidate.bodies}
    assert len(set(seeds.values())) == len(seeds)


@pytest.mark.parametrize(
    "factor", [pytest.param(0.4, id="colder"), pytest.param(2.5, id="hotter", marks=pytest.mark.slow)]
)
def test_a_server_that_samples_at_another_temperature_is_violated(
    target: Target, prompts: Path, tmp_path: Path, factor: float
) -> None:
    done = sampled(target, Manner(temperature_factor=factor), prompts, tmp_path / "out")
    assert done.code == EXIT_VIOLATED
    by_arm = {arm.name: arm.losslessness for arm in done.report.arms}
    assert by_arm["candidate"] is not None
    assert by_arm["candidate"].stock_verdict == "violated"
    assert by_arm["stock"] is not None
    assert by_arm["stock"].stock_verdict == "not-judged"


def test_a_dropped_token_is_seen_in_sampled_output(target: Target, prompts: Path, tmp_path: Path) -> None:
    assert sampled(target, Manner(drop_every=10), prompts, tmp_path / "out").code == EXIT_VIOLATED


def test_sglang_servers_are_forced_by_their_native_endpoint(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    bodies: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        stock = stack.enter_context(serving_sglang(target, bodies))
        candidate = stack.enter_context(serving_sglang(target, []))
        out = tmp_path / "out"
        assert main(arguments(stock, candidate, prompts, out)) == EXIT_OK
    report = from_json((out / "report.json").read_bytes(), Report, "report")
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict == "exact"
    assert "by /generate of the 5 best tokens" in report.losslessness.scorer["implementation"]
    (told,) = report.backends.values()
    assert told["arms"]["candidate"]["told"]["engine"] == "sglang"
    assert told["arms"]["candidate"]["version"] == "0.5.9"
    assert all(body["sampling_params"]["repetition_penalty"] == 1.0 for body in bodies)


def test_requests_arrive_at_random_at_the_rate_that_was_asked_for(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    more = (
        "--concurrency",
        "8",
        "--request-rate",
        "20",
        "--count",
        "8",
        "--seed",
        "5",
        "--calibration-prompts",
        "2",
    )
    done = compare(target, Manner(), prompts, tmp_path / "out", *more)
    assert done.code == EXIT_OK
    lines = (done.folder / "responses.jsonl").read_text().splitlines()
    sent: dict[tuple[str, int], list[float]] = {}
    for line in map(json.loads, lines):
        sent.setdefault((line["arm"], line["block"]), []).append(line["sent_ns"] / 1e9)
    for block in range(2):
        wanted = poisson_arrivals(8, 20.0, f"5/{block + 1}")  # the first set was the warm-up
        for arm in ("stock", "candidate"):
            late = [at - due for at, due in zip(sorted(sent[arm, block]), wanted, strict=True)]
            assert all(0.0 <= one < 0.1 for one in late)
    found = done.arm("candidate").load
    assert found is not None
    assert found.wall_seconds > 2 * 8 / 20 * 0.5


@pytest.mark.parametrize("force", ["echo", "transformers"])
def test_tokens_can_be_forced_in_other_ways(
    target: Target, prompts: Path, tmp_path: Path, force: str
) -> None:
    more = ("--force", "transformers", "--dtype", "float32") if force == "transformers" else ()
    fields = tuple(name for name in VLLM if name != "prompt_logprobs")
    with contextlib.ExitStack() as stack:
        stock = stack.enter_context(serving(target, Manner(fields=fields)))
        candidate = stack.enter_context(serving(target, Manner(fields=fields)))
        out = tmp_path / "out"
        assert main(arguments(stock, candidate, prompts, out, *more)) == EXIT_OK
    report = from_json((out / "report.json").read_bytes(), Report, "report")
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict == "exact"
    assert force in report.losslessness.scorer["implementation"]


def test_requests_overlap_as_asked_and_throughput_is_that_of_the_set(
    target: Target, prompts: Path, tmp_path: Path
) -> None:
    candidate = Manner(seconds_per_token=0.02)
    more = ("--concurrency", "3", "--ttft-ms", "10000", "--e2e-ms", "1")
    done = compare(target, candidate, prompts, tmp_path / "out", *more)
    assert candidate.most_in_flight == 3
    found = done.arm("candidate").load
    assert found is not None
    assert found.goodput == 0.0
    assert found.late == 8
    assert found.output_tokens_per_second == pytest.approx(done.arm("candidate").tokens / found.wall_seconds)
    sequential = 1.0 / 0.02
    assert found.output_tokens_per_second > 1.2 * sequential


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param(("--temperature", "0.7"), "needs --top-k", id="T above 0 and no top-k"),
        pytest.param(
            ("--temperature", "0.7", "--top-k", "21"), "--max-logprobs 21", id="a top-k that is not told"
        ),
        pytest.param(("--max-tokens", "0"), "max_tokens", id="no tokens"),
        pytest.param(("--served-model", "other"), "does not serve 'other'", id="another model"),
        pytest.param(("--request-rate", "2"), "--concurrency", id="a rate one at a time"),
        pytest.param(("--model", "nowhere"), "--model: 'nowhere' is no folder", id="no such folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    target: Target,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    words: str,
) -> None:
    with serving(target, Manner()) as url:
        assert main(arguments(url, url, prompts, tmp_path / "out", *more)) == EXIT_USAGE
    assert words in capsys.readouterr().err


def test_a_server_that_is_not_there_is_a_usage_error(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:9"
    assert main(arguments(url, url, prompts, tmp_path / "out")) == EXIT_USAGE
    assert f"no server answers at {url}" in capsys.readouterr().err
