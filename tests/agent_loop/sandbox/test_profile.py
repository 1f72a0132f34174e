"""What a profile refuses, and the command lines that are made of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_loop.sandbox import bubblewrap, landlock
from agent_loop.sandbox.limits import cage, rlimit_words
from agent_loop.sandbox.profile import Limits, Profile, gpu_nodes, within
from harness.errors import UsageError


@pytest.mark.parametrize("path", ["here", "/a/../b", "/"])
def test_a_path_that_opens_more_than_it_says_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"absolute path|root folder"):
        Profile(writable=(path,))


@pytest.mark.parametrize("field", ["seconds", "memory_bytes", "processes", "output_bytes"])
def test_a_limit_that_allows_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: 0})


def test_nothing_of_the_network_and_the_environment_is_shared(tmp_path: Path) -> None:
    words = bubblewrap.command(Profile(writable=(str(tmp_path),), environment={"A": "b c"}), ["true"])
    assert "--share-net" not in words
    assert "--unshare-all" in words
    assert words.index("--clearenv") < words.index("--setenv")
    assert words[words.index("--setenv") + 1 :][:2] == ["A", "b c"]
    bound = [words[i + 1] for i, word in enumerate(words) if word == "--bind"]
    assert bound == [str(tmp_path)]


def test_the_root_becomes_read_only_after_everything_is_in_place(tmp_path: Path) -> None:
    words = bubblewrap.command(Profile(readable=(str(tmp_path),)), ["true"])
    last = max(i for i, word in enumerate(words) if word in ("--bind", "--ro-bind", "--tmpfs", "--dir"))
    assert words.index("--remount-ro") > last
    assert words[words.index("--remount-ro") + 1] == "/"


def test_a_folder_that_is_not_there_is_left_out_of_landlock_too(tmp_path: Path) -> None:
    order = landlock.order(Profile(readable=(str(tmp_path / "gone"),)), str(tmp_path))
    assert str(tmp_path / "gone") not in str(order["readable"])
    assert str(tmp_path) in str(order["writable"])
    assert order["cwd"] == str(tmp_path)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="/dev/nvidia77"):
        gpu_nodes((77,))


def test_the_address_space_is_limited_only_where_nothing_else_holds_the_memory() -> None:
    profile = Profile(limits=Limits(memory_bytes=1 << 30))
    assert "--as=1073741824" in rlimit_words(profile, frozenset())
    assert "--as=1073741824" not in rlimit_words(profile, frozenset({"memory"}))
    assert not [word for word in rlimit_words(Profile(gpus=(0,)), frozenset()) if word.startswith("--as")]


def test_a_machine_without_cgroups_is_told_so(tmp_path: Path) -> None:
    with cage(Profile(), tmp_path) as made:
        assert made.held == frozenset()
        assert made.entrance() == ([], {})


def test_a_cgroup_of_either_version_is_given_its_limits_and_removed(tmp_path: Path) -> None:
    unified = tmp_path / "v2"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("memory pids")
    (unified / "cgroup.procs").write_text("")
    with cage(Profile(limits=Limits(memory_bytes=5, processes=7)), unified) as made:
        (folder,) = made.folders
        assert (folder / "memory.max").read_text() == "5"
        assert (folder / "pids.max").read_text() == "7"
        assert made.held == {"memory", "pids"}
        for file in folder.iterdir():
            file.unlink()  # a real cgroup's files go with their folder
    assert not folder.exists()


def test_a_folder_is_within_itself_and_not_within_a_namesake() -> None:
    assert within("/usr/lib", ["/usr"])
    assert within("/usr", ["/usr"])
    assert not within("/usrlocal", ["/usr"])
