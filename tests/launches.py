"""Launches in a thread of this process: one of its own takes four seconds to load torch and transformers."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from harness.codec import from_json
from harness.measure import supervise, worker
from harness.measure.worker import Message


class Told(io.RawIOBase):
    """The channel of a worker: each line that is written is heard in the other thread."""

    def __init__(self) -> None:
        self.lines = queue.SimpleQueue[bytes | None]()

    def writable(self) -> bool:
        return True

    def write(self, line: bytes) -> int:  # type: ignore[override]
        self.lines.put(line)
        return len(line)


def messages_of_a_thread(spec_file: Path, log: Path, launch: int) -> Iterator[Message]:
    """What `supervise` hears of a launch that runs here; see the fixture `launches_here`."""
    told, raised = Told(), list[BaseException]()
    log.touch()

    def work() -> None:
        try:
            with mock.patch.object(worker, "_private_stdout", return_value=told):
                worker.main([str(spec_file)])
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            raised.append(error)
        finally:
            told.lines.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (line := told.lines.get()) is not None:
            message = from_json(line, Message, "worker")
            if message.event == "error":
                raise supervise._as_error(message, launch)
            yield message
    finally:
        thread.join()
    if raised:
        raise raised[0]
