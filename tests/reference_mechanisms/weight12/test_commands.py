"""`specpilot-harness weight12` as a user meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli import main
from reference_mechanisms.targets.checkpoint import SINGLE
from reference_mechanisms.weight12.destination import MARKER
from reference_mechanisms.weight12.folder_manifest import MANIFEST
from tests.reference_mechanisms.weight12.models import contents, write_model

ROOT = Path(__file__).resolve().parents[3]
OK, FAILED, INVALID, USAGE = 0, 1, 2, 3


def weight12(*words: object) -> int:
    return main(["weight12", *map(str, words)])


def start(*words: object, file_limit: int | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own; `file_limit` stands for a disk that fills up."""

    def limit() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background has it ignored
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    return subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "weight12", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,  # noqa: PLW1509 - the child is single-threaded
    )


def test_a_folder_goes_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, packed, again = write_model(tmp_path / "source", 2), tmp_path / "packed", tmp_path / "again"
    (source / "notes.bin").write_text("x")
    assert weight12("pack", source, packed) == OK
    out = capsys.readouterr()
    assert "left out: notes.bin" in out.out
    assert "packed: 2 tensors, 12." in out.out
    assert "2 raw rows" in out.out
    assert "kept: 2 tensors: fewer than two dimensions" in out.out
    assert "model-00002-of-00002.safetensors" in out.err
    assert weight12("verify", packed) == OK
    assert "every byte as written, every weight the source's" in capsys.readouterr().out
    assert weight12("verify", "--quick", packed) == OK
    assert weight12("inspect", packed, "--tensors") == OK
    assert "layers.1.up.weight" in capsys.readouterr().out
    assert weight12("unpack", packed, again) == OK
    (source / "notes.bin").unlink()
    assert contents(again) == contents(source)


def test_verify_fails_with_1_and_names_tensor_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "packed"
    assert weight12("pack", write_model(tmp_path / "source"), packed) == OK
    data = bytearray((packed / SINGLE).read_bytes())
    data[-4000] ^= 0x10
    (packed / SINGLE).write_bytes(data)
    for words in (("verify",), ("verify", "--quick")):
        assert weight12(*words, packed) == FAILED
        out = capsys.readouterr().out
        assert "tensor layers.0.up.weight: the stored bytes do not have their sha256" in out
        assert "FAILED" in out
    assert weight12("unpack", packed, tmp_path / "again") == INVALID
    assert "tensor layers.0.up.weight" in capsys.readouterr().err
    (packed / MANIFEST).write_text("{}")
    assert weight12("verify", packed) == FAILED
    assert weight12("inspect", packed) == INVALID


@pytest.mark.parametrize("action", ["pack", "unpack", "verify", "inspect"])
@pytest.mark.parametrize("given", ["nothing", "a file", "an empty folder"])
def test_what_cannot_be_read_ends_with_2(
    tmp_path: Path, action: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    if given == "a file":
        source.write_text("x")
    elif given == "an empty folder":
        source.mkdir()
    target = [tmp_path / "target"] if action in {"pack", "unpack"} else []
    assert weight12(action, source, *target) == INVALID
    err = capsys.readouterr().err
    assert str(source) in err
    assert "give a" in err
    assert not (tmp_path / "target").exists()


def test_a_wrong_call_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "source")
    assert weight12("pack", source, source) == USAGE
    assert "is not empty" in capsys.readouterr().err
    assert weight12("pack", source, source / SINGLE) == USAGE
    for words in ([], ["pack"], ["pack", str(source)], ["shrink"], ["verify", str(source), "--quik"]):
        with pytest.raises(SystemExit) as caught:
            weight12(*words)
        assert caught.value.code == USAGE


def test_packing_twice_is_refused_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, packed = write_model(tmp_path / "source"), tmp_path / "packed"
    assert weight12("pack", source, packed) == OK
    before = contents(packed)
    assert weight12("pack", source, packed) == USAGE
    assert weight12("pack", packed, tmp_path / "twice") == INVALID
    assert "is packed already" in capsys.readouterr().err
    assert contents(packed) == before


def test_a_full_disk_ends_with_2_and_the_same_command_continues(tmp_path: Path) -> None:
    source, packed = write_model(tmp_path / "source", 2), tmp_path / "packed"
    (source / "vocabulary.txt").write_bytes(b"x" * 300_000)  # larger than any packed shard
    full = start("pack", source, packed, file_limit=200_000)
    _, err = full.communicate(timeout=60)
    assert full.returncode == INVALID
    assert "cannot write" in err
    assert "run the same command again: finished files are kept" in err
    assert "Traceback" not in err
    left = contents(packed)
    assert set(left) == {
        MARKER,
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "tokenizer.json",
    }
    assert weight12("pack", source, packed) == OK
    assert weight12("verify", packed) == OK
    assert all(contents(packed)[name] == data for name, data in left.items() if name != MARKER)


def test_an_interrupt_ends_with_2_and_the_same_command_continues(tmp_path: Path) -> None:
    source, packed = write_model(tmp_path / "source", 60), tmp_path / "packed"
    run = start("pack", source, packed)
    give_up = time.monotonic() + 60
    while not (packed / "model-00002-of-00060.safetensors").exists():
        assert run.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.001)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == INVALID
    assert "interrupted" in err
    assert "Traceback" not in err
    assert (packed / MARKER).exists()
    assert not (packed / MANIFEST).exists()
    assert weight12("verify", packed) == INVALID
    assert weight12("pack", source, packed) == OK
    assert weight12("verify", packed) == OK
    assert not (packed / MARKER).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "Qwen3-9B"), "--model Qwen3-9B: not one of Qwen3-8B, Llama-3.1-8B"),
        (("--tokens", "65"), "--tokens are 1 to 64"),
        (("--rounds", "0"), "--rounds at least 1"),
        (("--variants", "fast"), "--variants fast: not one of plain, bulk"),
    ],
    ids=["model", "tokens", "rounds", "variants"],
)
def test_a_wrong_bench_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weight12("bench", "--out", tmp_path / "report", *words) == USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_load_times_are_told_with_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, packed = write_model(tmp_path / "source"), tmp_path / "packed"
    assert weight12("pack", source, packed) == OK
    capsys.readouterr()
    assert weight12("load-times", packed) == OK
    told = json.loads(capsys.readouterr().out)
    assert told["tensors"] == 1
    assert told["bf16_bytes"] == 2 * 256 * 320
    assert 0 < told["packed_bytes"] < told["bf16_bytes"]
    assert min(told["read_s"], told["check_s"], told["decode_s"]) >= 0
    assert told["machine"]
    assert weight12("load-times", source) == INVALID
