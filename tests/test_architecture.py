"""Who may import whom, how large a module may grow, what must not be written down.

Reads the source with `ast`; imports nothing of the house.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "reference_mechanisms", "sealed_evals", "agent_loop")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# Who may import `harness`, and where the composition root is.
MAY_IMPORT_HARNESS = {"reference_mechanisms": {"reference_mechanisms/backend.py"}}
COMPOSITION_ROOT = {
    "harness/cli.py",
    "harness/cli_drafters.py",
    "harness/cli_serving.py",
    "harness/cli_doctor.py",
    "harness/cli_batching.py",
}

# Heavy or optional packages, each behind its own door.
DOORS = {
    "vllm": {
        "harness/backends",
        "reference_mechanisms/weight12/plugin",
        "reference_mechanisms/batching/bench/vllm_worker.py",
    },
    "cryptography": {"sealed_evals/campaign/crypto.py"},
    "datasets": {"sealed_evals/sources.py", "sealed_evals/hub.py"},
    "anthropic": {"agent_loop/explorers"},
    "claude_agent_sdk": {"agent_loop/explorers/claude_code.py"},
    "ray": {"agent_loop/executors/ray_cluster.py"},
    "matplotlib": {"harness/report"},
    "optuna": {"agent_loop/explorers"},
}

# Storeys of `harness`, ground up; a module imports lower storeys and its own only.
STOREYS = (
    {"errors", "codec"},
    {"records", "paths", "progress", "packed"},
    {"plan", "storage"},
    {"models"},
    {"protocols", "results"},
    {"nvml", "process_tree", "telemetry_summary"},
    {"tokenize", "environment", "telemetry", "folder", "stats", "measure", "load"},
    {"audits", "server_audits", "drafter_detectors", "forced_acceptance", "acceptance_audits", "live_audits"},
    {"speculation"},
    {"completeness"},
    {"backends", "oracle", "report"},
    {"assemble", "compare", "crosscheck"},
    {"run"},
    {"claims", "gate", "lossless"},
    {"pytest_plugin", "importers", "audit_commands", "index_commands", "render_commands", "grid", "doctor"},
    {"schemas", "example"},
    {"cli_drafters", "cli_serving", "cli_batching", "cli_doctor"},
    {"cli"},
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Imported module names, with whether the import is at the top level of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: relative import"
            module = node.module or ""
            yield module, id(node) in top
            yield from ((f"{module}.{alias.name}", id(node) in top) for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_packages_meet_only_where_the_architecture_says(path: Path) -> None:
    own = relative(path).split("/", 1)[0]
    for name, at_top in imports(path):
        other = name.split(".", 1)[0]
        if other not in PACKAGES or other == own:
            continue
        if relative(path) in COMPOSITION_ROOT:
            assert not at_top, f"{relative(path)} imports {name} outside the command that needs it"
            continue
        assert own != "harness", f"{relative(path)}: harness imports {name}"
        assert other == "harness", f"{relative(path)}: {own} imports {name}"
        allowed = MAY_IMPORT_HARNESS.get(own)
        assert allowed is None or relative(path) in allowed, f"{relative(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_heavy_packages_stay_behind_their_door(path: Path) -> None:
    for name, _ in imports(path):
        doors = DOORS.get(name.split(".", 1)[0])
        assert doors is None or any(relative(path).startswith(door) for door in doors), (
            f"{relative(path)} imports {name}; only {sorted(doors or ())} may"
        )


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parts[len(ROOT.parts)] == "harness"], ids=relative
)
def test_a_module_of_harness_imports_lower_storeys_only(path: Path) -> None:
    def storey(part: str) -> int:
        found = [level for level, names in enumerate(STOREYS) if part in names]
        assert found, f"harness.{part} has no storey; give it one in STOREYS"
        return found[0]

    parts = path.relative_to(ROOT / "harness").with_suffix("").parts
    if parts[0] == "__init__":
        return
    mine = storey(parts[0])
    for name, _ in imports(path):
        pieces = name.split(".")
        if pieces[0] != "harness" or len(pieces) < 2 or pieces[1] == parts[0]:
            continue
        if (
            not (ROOT / "harness" / pieces[1]).exists()
            and not (ROOT / "harness" / f"{pieces[1]}.py").exists()
        ):
            continue  # a name, not a module: harness.<attribute>
        assert storey(pieces[1]) <= mine, f"{relative(path)} reaches up to {name}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_what_it_is_and_stays_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{relative(path)} has no docstring"
    lines = len(text.splitlines())
    assert lines <= 450, f"{relative(path)} has {lines} lines: is it still one thing?"


def test_no_import_cycle_inside_a_package() -> None:
    graph = {
        relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): {
            name for name, at_top in imports(path) if at_top
        }
        for path in MODULES
    }
    edges = {
        module: {name for name in names if name in graph and name != module}
        for module, names in graph.items()
    }

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        queue = list(edges[start])
        while queue:
            module = queue.pop()
            if module not in seen:
                seen.add(module)
                queue.extend(edges[module])
        return seen

    cycles = sorted(module for module in edges if module in reach(module))
    assert not cycles, f"import cycle through {cycles}"
