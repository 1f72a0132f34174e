"""From a campaign to the explorers that ask a model, and what is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from agent_loop.assembling import Folders, make_explorer, open_doors
from agent_loop.campaign import ExplorerSpec, Loop, LoopPlan
from agent_loop.explorers import claude_code_room
from agent_loop.explorers.claude import ClaudeExplorer
from agent_loop.explorers.claude_code import ClaudeCodeExplorer
from agent_loop.gateway.prices import load_prices, usage_of
from agent_loop.sandbox.room import why_not
from harness.errors import ModelError, UsageError
from harness.plan import load_job


def loop(spec: ExplorerSpec) -> Loop:
    return Loop(
        LoopPlan(schema="loop/1", name="c", plan="reproduce-cpu", explorers=(spec,)),
        load_job("reproduce-cpu"),
    )


def test_a_model_that_has_no_price_is_refused_before_a_key_is_looked_for(tmp_path: Path) -> None:
    spec = ExplorerSpec(name="e", kind="claude", model="claude-unheard-of")
    with (
        pytest.raises(UsageError, match="claude-opus-5-5"),
        open_doors(loop(spec), Folders(tmp_path), None),
    ):
        pass


def test_without_a_key_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    spec = ExplorerSpec(name="e", kind="claude")
    with pytest.raises(UsageError, match="--key-file"), open_doors(loop(spec), Folders(tmp_path), None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_without_a_model_has_no_gateway(tmp_path: Path) -> None:
    spec = ExplorerSpec(name="e", kind="offline")
    with open_doors(loop(spec), Folders(tmp_path), None) as doors:
        assert doors == {}
    assert list(tmp_path.iterdir()) == []


def test_a_door_makes_a_claude_explorer(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-none\n")
    spec = ExplorerSpec(name="e", kind="claude")
    with open_doors(loop(spec), Folders(tmp_path / "run"), key) as doors:
        assert isinstance(make_explorer(spec, 1, (), doors), ClaudeExplorer)
        other = msgspec.structs.replace(spec, name="another")
        with pytest.raises(UsageError, match="another: kind 'claude' needs a gateway"):
            make_explorer(other, 1, (), doors)


def test_claude_code_gets_a_socket_and_is_refused_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-none\n")
    spec = ExplorerSpec(name="e", kind="claude-code")
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "claude_agent_sdk", None)
        with (
            pytest.raises(ModelError, match=r"install specpilot-harness\[claude-code\]"),
            open_doors(loop(spec), Folders(tmp_path / "run"), key),
        ):
            pass
    pytest.importorskip("claude_agent_sdk")
    with monkeypatch.context() as open_plain:
        open_plain.setattr(claude_code_room, "why_not", lambda _: "no program `bwrap`")
        with (
            pytest.raises(UsageError, match="needs bubblewrap: no program `bwrap`"),
            open_doors(loop(spec), Folders(tmp_path / "run"), key),
        ):
            pass
    if why_not("bubblewrap") is not None:
        pytest.skip("no bubblewrap on this machine")
    with open_doors(loop(spec), Folders(tmp_path / "run"), key) as doors:
        assert isinstance(make_explorer(spec, 1, (), doors), ClaudeCodeExplorer)
        assert Path(str(doors["e"].socket)).is_socket()


def test_the_default_model_has_a_price_and_untold_lifetimes_cost_the_dearer_one() -> None:
    price = load_prices().of("claude-opus-5-5")
    usage = usage_of({"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 1_000_000})
    assert usage is not None
    assert price.dollars(usage) == price.cache_write_1h
