"""The weight12 plug-in in a real vLLM: same tokens as the bf16 folder; what does not fit is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.models import resolve_model
from harness.plan import load_job
from reference_mechanisms.weight12.folder import pack_folder
from tests.vllm.greedy import PROMPTS, TOKENS

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; nox -s tests-vllm installs it",
    ),
]
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def plain() -> Path:
    return resolve_model(load_job("reproduce-cpu").deployment.target).path


@pytest.fixture(scope="module")
def packed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weight12") / "packed"
    pack_folder(plain, folder, lambda _: None)
    return folder


def run(arguments: list[str], limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    # One process for both engines: they start three times as fast.
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment = {**os.environ, **own}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def test_a_packed_folder_gives_the_tokens_of_the_bf16_folder(
    plain: Path, packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tokens.json"
    models = [str(plain), f"{packed}=weight12"]
    done = run(["-m", "tests.vllm.greedy", str(out), *models])
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    tokens, reference = found[models[1]], found[models[0]]
    assert tokens == reference
    assert [len(one) for one in tokens] == [TOKENS] * PROMPTS
    assert len({tuple(one) for one in tokens}) == PROMPTS


def test_its_methods_do_on_vllms_layers_what_stock_does() -> None:
    done = run(["-m", "tests.vllm.weight12_checks"], 120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("check_") == 5
