"""`compare` over two of our own servers, through the public command line: exact, and speculation seen."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli import main
from harness.codec import from_json
from harness.errors import EXIT_OK
from harness.plan import Deployment
from harness.results import Report
from tests.reference_mechanisms.serving.running import serving

TEXTS = ("tell me", "count", "say red", "why", "list", "what", "name", "spell", "add", "sing")


def test_our_servers_are_measured_from_outside(deployment: Deployment, tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"question": text}) + "\n" for text in TEXTS))
    out = tmp_path / "out"
    with (
        serving(deployment, {"drafter": "none"}) as stock,
        serving(deployment, {"drafter": "ngram", "drafts": 3}, lanes=4) as candidate,
    ):
        code = main(
            [
                *("compare", "--stock", stock.url, "--candidate", candidate.url, "--prompts", str(prompts)),
                *("--field", "question", "--count", "4", "--max-tokens", "24", "--blocks", "2"),
                *("--force", "transformers", "--dtype", "float32", "--concurrency", "4"),
                *("--calibration-set", "own", "--out", str(out)),
            ]
        )
    report = from_json((out / "report.json").read_bytes(), Report, "report")
    assert code == EXIT_OK
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict == "exact"
    audits = {audit.name: audit for audit in report.audits}
    for arm in ("stock", "candidate"):
        assert audits[f"usage is what was sent: {arm}"].passed is True
        assert audits[f"ids from the server: {arm}"].passed is True
        assert audits[f"sampled as asked: {arm}"].passed is True
        assert audits[f"no answer from a prefix cache: {arm}"].passed is True
        assert audits[f"accepted at once: {arm}"].passed is True
    assert audits["speculation on: candidate"].passed is True
    assert "acceptance length" in audits["speculation on: candidate"].detail
    assert audits["drafts are verified: candidate"].passed is True
    found = next(arm for arm in report.arms if arm.name == "candidate")
    assert found.speedup is not None
    assert found.load is not None
    assert found.load.failed == 0
