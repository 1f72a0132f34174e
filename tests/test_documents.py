"""What is written for people: links lead somewhere, commands parse, examples run, schemas are current."""

from __future__ import annotations

import argparse
import ast
import contextlib
import doctest
import functools
import importlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import build_parser
from harness.plan import built_in
from harness.schemas.kinds import KINDS, schema_text
from tests.harness.tiny import write_llama

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "reference_mechanisms", "sealed_evals", "agent_loop")


def files() -> list[Path]:
    """What the project holds: all that git tracks; without git, all that is not made or installed."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return [path for one in done.stdout.split("\0") if one and (path := ROOT / one).is_file()]
    apart = {".git", ".nox", ".venv", "build", "node_modules"}
    return [
        path for path in ROOT.rglob("*") if path.is_file() and not apart & set(path.relative_to(ROOT).parts)
    ]


FILES = files()
DOCUMENTS = sorted(path for path in FILES if path.suffix == ".md")
READMES = [path for path in DOCUMENTS if path.name in ("README.md", "CONTRIBUTING.md")]
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
# Words of a synopsis that stand for what a command checks at once.
STANDS_FOR = {
    "PLAN": "reproduce-cpu",
    "URL": "http://a",
    "N": "1",
    "GPU": "h100",
    "PROMPT": "embedded/math-01",
    "DEPLOYMENT": "smollm2-135m-cpu",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(path: Path) -> set[str]:
    """Headings as GitHub names them."""
    found = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            text = re.sub(r"[`*]", "", line.lstrip("#").strip().lower())
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        assert file.exists(), f"{name(path)} links to {target}"
        assert ROOT in (file, *file.parents), f"{name(path)} links out of the repository: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), (
                f"{name(path)} links to {target}, whose headings are {anchors(file)}"
            )


COMMAND = "specpilot-harness "
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[str]:
    """Every `specpilot-harness ...` of a document: in fenced blocks, indented ones and code spans."""
    text = path.read_text(encoding="utf-8")
    for language, block in FENCE.findall(text):
        if language in ("", "bash", "console", "sh"):
            yield from lines_of(block)
    text = FENCE.sub("", text)
    yield from lines_of("\n".join(re.findall(r"^    (specpilot-harness .*)$", text, re.MULTILINE)))
    for span in re.findall(r"`([^`\n]+)`", text):
        if span.startswith(COMMAND):
            yield without_remarks(span.replace("\\|", "|"))


def lines_of(block: str) -> Iterator[str]:
    for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
        for one in re.split(r"\s&&\s|\s\|\|\s|;\s", line.split(" # ")[0]):
            at = one.find(COMMAND)
            if at >= 0 and not line.startswith("#"):
                yield without_remarks(one[at:])


def without_remarks(command: str) -> str:
    """Cut at a remark, at another column of a table in plain text, and where output goes."""
    return re.split(r"\s#\s|\s\|\s|\s>\s|;\s|\s{2,}", f"{command.strip()} ")[0].strip()


def alternatives(command: str) -> Iterator[list[str]]:
    """What a synopsis stands for: of `a|b` either, `[...]` left out and put in, `...` nothing."""
    words = command.replace("...", "")
    left_out = words
    while re.search(r"\[[^\[\]]*\]", left_out):
        left_out = re.sub(r"\[[^\[\]]*\]", "", left_out)
    for form in dict.fromkeys((left_out, re.sub(r"[\[\]]", "", words))):
        parts = shlex.split(form)[1:]
        choices = [
            part.split("|") if re.fullmatch(r"[\w./-]+(\|[\w./-]+)+", part) else [part] for part in parts
        ]
        longest = max((len(choice) for choice in choices), default=1)
        for number in range(longest):
            yield [STANDS_FOR.get(c := choice[number % len(choice)], c) for choice in choices]


@functools.cache
def command_line() -> argparse.ArgumentParser:
    """Building it costs a tenth of a second, and reading with it changes nothing in it."""
    return build_parser()


def fault(words: list[str]) -> str | None:
    """Why the command line takes no such command; a mention may leave out what must be given."""
    parser: argparse.ArgumentParser | None = command_line()
    if words in ([], ["--version"]):
        return None
    known: set[str] = set()
    rest = list(words)
    while parser is not None:
        known |= {option for action in parser._actions for option in action.option_strings}
        nested = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        if nested and rest and rest[0] not in nested[0].choices:
            return f"there is no `{rest[0]}`; there are {sorted(nested[0].choices)}"
        parser = nested[0].choices[rest.pop(0)] if nested and rest else None
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    if unknown:
        return f"there is no option {unknown}"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command_line().parse_args(words)
    except SystemExit:
        if "are required" not in said.getvalue() and "is required" not in said.getvalue():
            return said.getvalue()
    return None


@pytest.mark.parametrize("path", READMES, ids=name)
def test_every_command_parses(path: Path) -> None:
    faults = {
        command: why
        for command in commands(path)
        for words in alternatives(command)
        if (why := fault(words)) is not None
    }
    assert not faults, f"{name(path)} names commands that do not exist: {faults}"


def test_the_parser_of_commands_sees_what_is_wrong(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(
        "```\nspecpilot-harness run gate-cpu \\\n  --out x  # remark\n"
        "specpilot-harness engine bench --out DIR      time steps (--shape)\n"
        "for d in a b; do specpilot-harness index $d; done && specpilot-harness render x\n```\n"
        "and `specpilot-harness evals lint\\|seal [--json] FILE`, `specpilot-harness index`, `render DIR`\n"
        "    specpilot-harness doctor\n```toml\nspecpilot-harness nonsense\n```\n"
    )
    found = [words for command in commands(document) for words in alternatives(command)]
    assert found == [
        ["run", "gate-cpu", "--out", "x"],
        ["engine", "bench", "--out", "DIR"],
        ["index", "$d"],
        ["render", "x"],
        ["doctor"],
        ["evals", "lint", "FILE"],
        ["evals", "seal", "FILE"],
        ["evals", "lint", "--json", "FILE"],
        ["evals", "seal", "--json", "FILE"],
        ["index"],
    ]
    assert fault(["run", "gate-cpu", "--out", "x"]) is None
    assert fault(["evals", "seal"]) is None  # a mention
    assert fault(["runs"]) is not None
    assert fault(["evals", "lints"]) is not None
    assert fault(["evals", "seal", "--outt", "y"]) is not None
    assert fault(["schema", "plans"]) is not None


def test_sessions_of_nox_that_documents_name_exist() -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = {
        found.replace("_", "-") for found in re.findall(r"^def ([a-z]\w*)\(session", source, re.MULTILINE)
    }
    for path in READMES:
        named = set(re.findall(r"nox -s ([a-z][\w-]*)", path.read_text(encoding="utf-8")))
        assert named <= sessions, f"{name(path)} names {named - sessions}"


# A name, and not the beginning of a path or of a file's name.
NAMED = r"([a-z][\w-]*)(?![\w./-])"


def test_extras_that_documents_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for path in READMES:
        for named in re.findall(
            r"(?:specpilot-harness|['\"]\.)\[([\w,-]+)\]", path.read_text(encoding="utf-8")
        ):
            unknown = set(named.split(",")) - set(project["optional-dependencies"])
            assert not unknown, f"{name(path)} names the extras {unknown}"


@pytest.mark.parametrize("path", READMES, ids=name)
def test_plans_deployments_files_and_modules_that_documents_name_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for plan in re.findall(rf"specpilot-harness run {NAMED}", text):
        assert plan in built_in("plans"), f"{name(path)}: no plan {plan}"
    for one in re.findall(rf"specpilot-harness (?:serve|drafters figures|batching measure) {NAMED}", text):
        assert one in built_in("deployments"), f"{name(path)}: no deployment {one}"
    for file in re.findall(
        r"`((?:harness|reference_mechanisms|sealed_evals|agent_loop|tests|reports)/[\w./-]+)`", text
    ):
        made = any(file.rstrip("/").startswith(one) for one in MADE)
        assert made or (ROOT / file).exists(), f"{name(path)} names {file}"
    for module in re.findall(r"python -m ((?:tests|" + "|".join(PACKAGES) + r")\.[\w.]+)", text):
        assert importlib.util.find_spec(module) is not None, f"{name(path)} names {module}"


# What a command makes, so that a fresh clone has it not.
MADE = ("reports/reproduce-cpu", "reports/loop-", "reports/gate-cpu", "reports/weight12", "reports/scratch")


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "reports"])
def test_every_top_level_folder_has_a_readme_that_names_its_parts(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    inside = [path.relative_to(ROOT / folder) for path in FILES if (ROOT / folder) in path.parents]
    parts = sorted({path.parts[0] for path in inside if len(path.parts) > 1})
    assert parts
    missing = [part for part in parts if not re.search(rf"[`(/]{re.escape(part)}[`)/]", text)]
    assert not missing, f"{folder}/README.md does not name {missing}"


def has_doctests(path: Path) -> bool:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    text = path.read_text(encoding="utf-8")
    return ">>> " in text and any(  # parsing all modules takes seconds, in each process of a run
        ">>> " in (ast.get_docstring(node) or "")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented)
    )


MODULES = sorted(
    name(path).removesuffix(".py").replace("/", ".")
    for path in FILES
    if path.suffix == ".py" and name(path).split("/")[0] in PACKAGES and has_doctests(path)
)


@pytest.mark.parametrize("module", MODULES)
def test_doctests_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_that_of_the_records(kind: str) -> None:
    path = ROOT / "harness" / "schemas" / f"{kind}.json"
    mend = f"specpilot-harness schema {kind} > {name(path)}"
    assert path.read_text(encoding="utf-8") == schema_text(kind) + "\n", (
        f"the records have changed; run: {mend}"
    )


@pytest.mark.parametrize("kind", ["plans", "deployments"])
def test_built_in_files_fit_their_published_schema(kind: str) -> None:
    import jsonschema  # noqa: PLC0415

    schema = json.loads((ROOT / "harness" / "schemas" / f"{kind.removesuffix('s')}.json").read_text())
    for path in sorted((ROOT / "harness" / kind).glob("*.toml")):
        jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), schema)


def run_example(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_harness_derives_a_report_again() -> None:
    said = run_example("harness.example", "reports/2026-12-02-reproduce-cpu")
    report = json.loads((ROOT / "reports" / "2026-12-02-reproduce-cpu" / "report.json").read_bytes())
    for arm in report["arms"]:
        assert f"{arm['acceptance_length']:.3f}" in said


def test_the_example_of_the_engine_gives_the_same_tokens(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "target", seed=3)
    said = run_example("reference_mechanisms.example", str(folder), "abcabcabcabc")
    assert "the same tokens: True" in said


def test_the_example_of_the_sealed_sets_finds_the_change() -> None:
    said = run_example("sealed_evals.example")
    assert "after a change: changed, row 2" in said
    assert "row 3 belongs to the set: True" in said


def test_the_example_of_the_loop_keeps_its_candidate_in() -> None:
    from agent_loop.sandbox.room import MECHANISMS, why_not  # noqa: PLC0415

    if all(why_not(mechanism) is not None for mechanism in MECHANISMS):
        pytest.skip("no sandbox works here")
    said = run_example("agent_loop.example")
    assert "network: " in said
    assert "a file outside: " in said
