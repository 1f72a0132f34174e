"""What a report tells of the machine and the code, and what it keeps to itself."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from harness.codec import canonical_json
from harness.environment import TORCH_SETTINGS, collect_environment, collect_harness, sources_digest

GIT = shutil.which("git")
MARK = "zq7markzq7"
VARIABLES = (
    "HOME",
    "USER",
    "LOGNAME",
    "HOSTNAME",
    "HF_TOKEN",
    "HF_HOME",
    "ANTHROPIC_API_KEY",
    "HTTPS_PROXY",
    "CUDA_VISIBLE_DEVICES",
    "MKL_CBWR",
    "PYTORCH_CUDA_ALLOC_CONF",
    "KUBERNETES_SERVICE_HOST",
    "XDG_CACHE_HOME",
    "PYTHONPATH",
)

needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def test_no_variable_user_host_or_folder_goes_into_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"/home/{MARK}")
    for text in texts([collect_environment(), collect_harness()]):
        assert MARK not in text
        assert not re.search(r"(^|[\s=:\"'])[/~]\w", text), f"a path: {text}"
        assert text not in (socket.gethostname(), getpass.getuser())
        assert str(Path.cwd()) not in text


def test_the_machine_and_the_packages_are_told() -> None:
    told = collect_environment()
    assert canonical_json(told)
    assert told["cpu"]["cores_logical"] == psutil.cpu_count()
    assert told["cpu"]["architecture"] == os.uname().machine
    assert told["memory_bytes"] == psutil.virtual_memory().total
    assert told["system"]["kernel"] == os.uname().release
    assert told["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "transformers", "numpy"} <= set(told["packages"])
    assert told["packages_installed"] > len(told["packages"])


def test_the_threads_and_the_build_of_torch_are_told() -> None:
    told = collect_environment()["torch"]
    assert told["threads"] == torch.get_num_threads()
    assert set(told["build"]) <= set(TORCH_SETTINGS)
    assert told["build"]["BUILD_TYPE"] in ("Release", "RelWithDebInfo", "Debug")
    assert told["build"]["USE_CUDA"] in ("0", "1", "OFF", "ON")


def test_a_machine_without_torch_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = collect_environment()
    assert told["torch"] is None
    assert told["cpu"]["cores_logical"]


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("body", "gpus"),
    [
        (
            "echo 'NVIDIA X, 580.1, 700.00, 1980, 2000, 3201, [N/A]'",
            [
                {
                    "name": "NVIDIA X",
                    "driver": "580.1",
                    "power_limit_w": 700,
                    "sm_mhz": 1980,
                    "sm_mhz_max": 2000,
                    "memory_mhz": 3201,
                    "memory_mhz_max": None,
                }
            ],
        ),
        ("echo 'Failed to initialise'; exit 9", None),
        ("echo 'a line that is no row'", []),
        (None, None),
    ],
    ids=["answers", "fails", "says-something-else", "is-missing"],
)
def test_without_the_binding_the_drivers_own_program_is_asked(
    body: str | None, gpus: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    if body is not None:
        program(tmp_path, "nvidia-smi", body)
    assert collect_environment()["gpus"] == gpus


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a package of ours and no git."""
    root = tmp_path / "tree"
    (root / "harness").mkdir(parents=True)
    (root / "harness" / "a.py").write_text("A = 1\n")
    return root


def git(root: Path, *arguments: str) -> str:
    assert GIT is not None
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run([GIT, "-C", str(root), *identity, *arguments], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tree: Path) -> Path:
    """The same as a clean checkout of one commit."""
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "First")
    return tree


@needs_git
def test_a_clean_checkout_is_its_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # what a hook of another repository may leave behind
    told = collect_harness(checkout)
    monkeypatch.delenv("GIT_DIR")
    assert told["git_commit"] == git(checkout, "rev-parse", "HEAD")
    assert (told["git_dirty"], told["git_changed_files"]) == (False, 0)
    assert told["installed_from"] == "source tree"


@needs_git
def test_an_edit_and_a_new_file_make_it_dirty_and_a_note_beside_does_not(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("not code")
    assert collect_harness(checkout)["git_dirty"] is False
    (checkout / "harness" / "a.py").write_text("A = 2\n")
    (checkout / "harness" / "b.py").write_text("")
    told = collect_harness(checkout)
    assert (told["git_dirty"], told["git_changed_files"]) == (True, 2)


@needs_git
def test_a_tree_inside_the_checkout_of_something_else_is_not_that_commit(checkout: Path) -> None:
    inner = checkout / "site"
    (inner / "harness").mkdir(parents=True)
    told = collect_harness(inner)
    assert (told["git_commit"], told["git_dirty"]) == (None, None)
    assert told["installed_from"] == "unversioned tree"


@needs_git
def test_a_checkout_of_another_owner_is_asked_all_the_same(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "git", f'export GIT_TEST_ASSUME_DIFFERENT_OWNER=1\nexec {GIT} "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    refused = subprocess.run(["git", "-C", str(checkout), "status"], capture_output=True, check=False)
    assert b"dubious ownership" in refused.stderr
    told = collect_harness(checkout)
    assert told["git_commit"] == git(checkout, "rev-parse", "HEAD")
    assert told["git_dirty"] is False


@needs_git
@pytest.mark.parametrize("body", ["exit 128", None], ids=["git-refuses", "no-git"])
@pytest.mark.parametrize("state", ["branch", "packed", "detached", "work-tree"])
def test_the_commit_is_read_without_git_and_dirtiness_is_then_unknown(
    state: str, body: str | None, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    root = checkout
    if state == "packed":
        git(checkout, "pack-refs", "--all")
    elif state == "detached":
        git(checkout, "checkout", "-q", "--detach")
    elif state == "work-tree":
        root = tmp_path / "linked"
        git(checkout, "worktree", "add", "-q", "-b", "other", str(root))
    folder = tmp_path / "bin"
    folder.mkdir()
    if body is not None:
        program(folder, "git", body)
    monkeypatch.setenv("PATH", str(folder))
    told = collect_harness(root)
    assert (told["git_commit"], told["git_dirty"]) == (commit, None)
    assert told["installed_from"] == "source tree"


@pytest.mark.parametrize(
    "head", [None, "ref: refs/heads/unborn\n", "nonsense\n"], ids=["empty-folder", "unborn", "nonsense"]
)
def test_a_git_folder_without_a_commit_names_none(head: str | None, tree: Path) -> None:
    (tree / ".git").mkdir()
    if head is not None:
        (tree / ".git" / "HEAD").write_text(head)
    told = collect_harness(tree)
    assert told["git_commit"] is None
    assert told["installed_from"] == "unversioned tree"


def test_the_digest_of_the_sources_is_of_names_and_bytes_of_code_only(tree: Path) -> None:
    first = sources_digest(tree)
    (tree / "harness" / "__pycache__").mkdir()
    (tree / "harness" / "__pycache__" / "a.pyc").write_bytes(b"0")
    (tree / "harness" / "README.md").write_text("words")
    (tree / "elsewhere.py").write_text("B = 1\n")
    assert sources_digest(tree) == first == collect_harness(tree)["sources_sha256"]
    (tree / "harness" / "a.py").rename(tree / "harness" / "b.py")
    renamed = sources_digest(tree)
    (tree / "harness" / "b.py").write_text("A = 2\n")
    edited = sources_digest(tree)
    (tree / "harness" / "k.cu").write_text("kernel")
    assert len({first, renamed, edited, sources_digest(tree)}) == 4


def test_a_wheel_is_known_by_its_record_and_an_edit_in_it_is_seen(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (tree / "harness" / "a.py").read_bytes()
    spelled = urlsafe_b64encode(hashlib.sha256(code).digest()).rstrip(b"=").decode()
    info = tree / "specpilot_harness-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specpilot-harness\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"harness/a.py,sha256={spelled},{len(code)}\nother/b.py,sha256=x,1\n")
    monkeypatch.syspath_prepend(tree)
    told = collect_harness(tree)
    assert (told["version"], told["installed_from"]) == ("9.9", "installed wheel")
    assert told["record_mismatches"] == 0
    assert told["record_sha256"] == hashlib.sha256(f"harness/a.py,{spelled}".encode()).hexdigest()
    (tree / "harness" / "a.py").write_text("A = 2\n")
    assert collect_harness(tree)["record_mismatches"] == 1
    (tree / "harness" / "a.py").unlink()
    assert collect_harness(tree)["record_mismatches"] == 1
