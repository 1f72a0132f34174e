"""Who may import whom, how large a module may grow, what must not be written down.

Reads the source with `ast`; imports nothing of the house.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

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
    {"errors", "codec", "ending"},
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


@functools.cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Imported module names, with whether the import is at the top level of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.append((module, id(node) in top))
            found += ((f"{module}.{alias.name}", id(node) in top) for alias in node.names)
    return tuple(found)


def test_packages_meet_only_where_the_architecture_says() -> None:
    assert [fault for path in MODULES for fault in strangers(path)] == []


def strangers(path: Path) -> Iterator[str]:
    """What a module imports of the other packages, and may not."""
    own, where = relative(path).split("/", 1)[0], relative(path)
    for name, at_top in imports(path):
        other = name.split(".", 1)[0]
        if not other:
            yield f"{where}: relative import"
        if other not in PACKAGES or other == own:
            continue
        if where in COMPOSITION_ROOT:
            if at_top:
                yield f"{where} imports {name} outside the command that needs it"
        elif other != "harness":
            yield f"{where}: {own} imports {name}"
        elif where not in MAY_IMPORT_HARNESS.get(own, {where}):
            yield f"{where} imports {name}"


def test_heavy_packages_stay_behind_their_door() -> None:
    faults = [
        f"{relative(path)} imports {name}; only {sorted(doors)} may"
        for path in MODULES
        for name, _ in imports(path)
        for doors in (DOORS.get(name.split(".", 1)[0]),)
        if doors is not None and not any(relative(path).startswith(door) for door in doors)
    ]
    assert faults == []


def test_a_module_of_harness_imports_lower_storeys_only() -> None:
    modules = [path for path in MODULES if path.is_relative_to(ROOT / "harness")]
    assert [fault for path in modules for fault in reaches_up(path)] == []


def reaches_up(path: Path) -> Iterator[str]:
    """What a module imports from higher storeys."""
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
        if storey(pieces[1]) > mine:
            yield f"{relative(path)} reaches up to {name}"


def storey(part: str) -> int:
    found = [level for level, names in enumerate(STOREYS) if part in names]
    assert found, f"harness.{part} has no storey; give it one in STOREYS"
    return found[0]


def test_a_module_says_what_it_is_and_stays_small() -> None:
    faults = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if not ast.get_docstring(ast.parse(text)):
            faults.append(f"{relative(path)} has no docstring")
        if len(text.splitlines()) > 450:
            faults.append(f"{relative(path)} has {len(text.splitlines())} lines: is it still one thing?")
    assert faults == []


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
