"""An engine in a process of its own: JSON lines over pipes, a log, a certain end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar, cast

import msgspec

from reference_mechanisms.weight12.plugin.step_times.steps import Call

LOOK_S = 0.5  # between two looks whether a silent process still lives
ENDING_S = 5.0  # from the end of a process's output to its own
CHUNK = 1 << 16
NO_CAUSE = "See root cause above"  # what vLLM says after the error that counts


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine tells of itself once it is ready.

    Attributes:
        packed_layers: layers that compute from packed weights.
        layouts: of the packed weights.
        parameter_gb: gigabytes of all parameters, the drafter's not counted.
        ready_s: from the start of the process's work to here.
    """

    packed_layers: int
    layouts: list[str]
    parameter_gb: float
    device: str
    vllm: str
    torch: str
    cudagraph_mode: str
    async_scheduling: bool
    ready_s: float


class EngineFault(Exception):
    """The engine gives no measurement any more; the message says why."""


Answer = TypeVar("Answer", bound=msgspec.Struct)


class Engine:
    """A worker process; as a context it is killed at the end, with everything it started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it.

        Args:
            command: of the worker (`worker.py` tells what it reads and writes).
            environment: added to this process's own.
            log: gets the worker's standard error.
        """
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        self._rest = b""

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def ready(self, timeout_s: float) -> Facts:
        """Wait until the engine is up.

        Raises:
            EngineFault: it did not come up in time, or failed.
        """
        return self._answer(Facts, timeout_s)

    def call(self, batch: int, prompt: int, output: int, timeout_s: float) -> Call:
        """Generate `output` tokens for each of `batch` prompts of `prompt` tokens.

        Raises:
            EngineFault: there is no answer in time, or it is not one to this call.
        """
        found = self.ask({"batch": batch, "prompt": prompt, "output": output}, Call, timeout_s)
        if (found.batch, found.output) != (batch, output):
            raise EngineFault(f"told of {found.batch} x {found.output} tokens, not {batch} x {output}")
        return found

    def ask(self, what: object, kind: type[Answer], timeout_s: float) -> Answer:
        """Send a line and wait for its answer.

        Raises:
            EngineFault: there is none in time, or it is of another kind.
        """
        with contextlib.suppress(OSError):  # an ended process is told by `_answer`
            self._requests.write(msgspec.json.encode(what) + b"\n")
        return self._answer(kind, timeout_s)

    def end(self) -> None:
        """Kill the process and its group; harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._requests, self._answers):
            pipe.close()

    def _answer(self, kind: type[Answer], timeout_s: float) -> Answer:
        line = self._line(timeout_s)
        try:
            told = msgspec.json.decode(line)
            if isinstance(told, dict) and "error" in told:
                raise EngineFault(self._with_log(str(told["error"])))
            return msgspec.convert(told, kind)
        except msgspec.MsgspecError as error:
            raise EngineFault(f"its answer {line[:80]!r} is not understood: {error}") from None

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise EngineFault(self._with_log(f"no answer in {timeout_s:.0f} s"))
                if waiting.select(min(left, LOOK_S)):
                    data = self._answers.read(CHUNK)
                    if not data:
                        raise EngineFault(self._with_log(self._ending()))
                    self._rest += data
                elif self._process.poll() is not None:  # a child of it still holds the pipe
                    raise EngineFault(self._with_log(self._ending()))
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ending(self) -> str:
        try:
            return f"ended with code {self._process.wait(ENDING_S)}"
        except subprocess.TimeoutExpired:
            return "closed its output"

    def _with_log(self, what: str) -> str:
        line = last_error(self._log.read_text(errors="replace"))
        return f"{what}; {line or 'its log tells no error'} ({self._log})"


def last_error(log: str) -> str:
    """The last line of a log that tells of an error, but for those that only point at another; or ""."""
    lines = [line.strip() for line in log.splitlines()]
    wrong = [line for line in lines if ("Error" in line or "error:" in line) and NO_CAUSE not in line]
    return wrong[-1][:400] if wrong else ""
