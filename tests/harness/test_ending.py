"""A command that is told to end ends what it started, however often it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.ending import POLITE, ending_on_signals

PATIENCE_S = 60.0
SERVER = """
import http.server, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(0)))  # it takes its time
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
open(sys.argv[2], "w").write(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""
# A worker whose launch is one server, up until the worker ends.
WORKER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one of nohup this
from harness.backends.vllm_server import running
from harness.measure import worker
folder, server = Path(sys.argv[1]), sys.argv[2]
def launch(_spec, _tell):
    with running(lambda port: [sys.executable, "-c", server, str(port), str(folder / "pid")], folder / "log"):
        (folder / "up").touch()
        time.sleep(600)
worker._run, worker.from_json = launch, lambda *_: None
(folder / "spec").touch()
worker.main([str(folder / "spec")])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_worker_told_twice_to_end_ends_its_servers(tmp_path: Path, number: signal.Signals) -> None:
    """`timeout` signals the group, then the parent its worker: the second must not cut the ending short."""
    words = [sys.executable, "-c", WORKER, str(tmp_path), SERVER]
    worker = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while not (tmp_path / "up").exists():
            assert worker.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)
        worker.send_signal(number)
        time.sleep(0.2)  # the server takes a second to end
        worker.send_signal(number)
        worker.wait(PATIENCE_S)
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    finally:
        worker.kill()
        worker.wait()


def test_the_first_signal_interrupts_and_the_rest_are_ignored() -> None:
    ended = []

    def told_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE_S)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            ended.append(True)

    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        before = [signal.getsignal(number) for number in POLITE]
        with pytest.raises(KeyboardInterrupt), ending_on_signals():
            told_twice()
        assert ended == [True]
        assert [signal.getsignal(number) for number in POLITE] == before
    finally:
        signal.signal(signal.SIGHUP, hung_up)


def test_what_is_ignored_already_stays_ignored() -> None:
    """As SIGHUP under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
