"""The default target and one pair of vLLM servers for the whole session: each takes a minute to start."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from harness.backends.vllm_server import command, running
from harness.models import resolve_model
from harness.plan import load_job

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
FLAGS = ("--enforce-eager", "--max-model-len", "1024", "--dtype", "float32", "--max-num-seqs", "8")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Left alone, both engines bind their threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
}


@pytest.fixture(scope="session")
def model() -> Path:
    return resolve_model(load_job("reproduce-cpu").deployment.target).path


@pytest.fixture(scope="session")
def servers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of the plain one and of the one that speculates; both start at once."""

    def start(name: str, extra: Sequence[str]) -> contextlib.AbstractContextManager[str]:
        log = tmp_path_factory.mktemp(name) / "server.log"
        return running(lambda port: command(model, port, (*FLAGS, *extra)), log, ENVIRONMENT)

    pair = (start("stock", ()), start("candidate", ("--speculative-config", json.dumps(NGRAM))))
    with contextlib.ExitStack() as ending, ThreadPoolExecutor(len(pair)) as pool:
        entering = [pool.submit(server.__enter__) for server in pair]
        wait(entering)
        for server, entered in zip(pair, entering, strict=True):
            if entered.exception() is None:
                ending.push(server)
        stock, candidate = (entered.result() for entered in entering)
        yield stock, candidate


@pytest.fixture(scope="session")
def stock(servers: tuple[str, str]) -> str:
    return servers[0]


@pytest.fixture(scope="session")
def candidate(servers: tuple[str, str]) -> str:
    return servers[1]
