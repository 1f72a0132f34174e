"""Report folders of strangers: what is stored, compressed, shown and checked again."""

from __future__ import annotations

import json
import lzma
import tracemalloc
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness.codec import canonical_json, from_json
from harness.completeness import incomplete
from harness.errors import DataError
from harness.oracle.stored import load_run
from harness.packed import stored_bytes
from harness.render_commands import told_by_responses
from harness.report.html import render_html
from harness.report.index import read_entries, render_index
from harness.report.markdown import render_markdown
from harness.results import Report
from tests.exhaustive import slow_but
from tests.fuzz.hammering import hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import NESTED, broken, hostile_json, json_text
from tests.harness.report import build

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "reports" / "2026-12-02-reproduce-cpu"
PARTS = ("report.json", "job.json", "prompts.jsonl", "responses.jsonl")  # in the order they are read
LINES = 3  # of the files with many, enough to be broken


def small_run() -> dict[str, Any]:
    """A committed run, cut to a few lines: one document a file."""
    found: dict[str, Any] = {}
    for name in PARTS:
        data = stored_bytes(RUN / name)
        if name == "responses.jsonl":
            found[name] = [json.loads(line) for line in data.split(b"\n")[:LINES]]
        elif name == "prompts.jsonl":
            found[name] = [json.loads(line) for line in data.splitlines()]
        else:
            found[name] = json.loads(data)
    return found


SMALL = small_run()


def write(folder: Path, documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        lines = document if name.endswith(".jsonl") and isinstance(document, list) else [document]
        (folder / name).write_text("\n".join(map(json_text, lines)) + "\n", encoding="utf-8")


def use(folder: Path) -> None:
    """What the commands `render` and `check` read before they ask a target."""
    run = load_run(folder)
    list(incomplete(folder, run.report))
    report = told_by_responses(run)
    render_html(report)
    render_markdown(report)


def test_the_cut_run_is_read_and_rendered(tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    use(tmp_path)


@quick_and_deep
@pytest.mark.parametrize("name", PARTS)
def test_a_broken_file_of_a_run_is_refused_by_name(name: str, deep: bool, tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    document = SMALL[name][0] if name.endswith(".jsonl") else SMALL[name]

    def check(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        refuses_or_reads(lambda: load_run(tmp_path), name)

    hammer(check, hostile_json(document), deep=deep, quick=30)


@quick_and_deep
def test_a_report_with_wrong_values_is_refused_or_rendered(deep: bool, tmp_path: Path) -> None:
    write(tmp_path, SMALL)

    def check(document: Any) -> None:
        write(tmp_path, {"report.json": document})
        refuses_or_reads(lambda: use(tmp_path))

    hammer(check, broken(SMALL["report.json"], most=1), deep=deep, quick=6)


@quick_and_deep
def test_the_index_names_what_it_cannot_read_and_shows_the_rest(deep: bool, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    (tmp_path / "good" / "report.json").write_bytes(canonical_json(build.report()))

    def check(document: Any) -> None:
        (tmp_path / "bad" / "report.json").write_text(json_text(document))
        entries, faults = read_entries(tmp_path)
        assert len(entries) + len(faults) == 2
        assert all("bad" in fault for fault in faults)
        assert 'href="good/report.html"' in render_index(entries, faults)

    hammer(check, broken(SMALL["report.json"], most=2), deep=deep, quick=20)


def test_a_compressed_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """A quarter of a gigabyte of zeros in a hundredth of a megabyte, where a sixteenth is allowed."""
    compressor, block = lzma.LZMACompressor(preset=0), bytes(1 << 24)
    parts = [compressor.compress(block) for _ in range(16)]
    (tmp_path / "responses.jsonl.xz").write_bytes(b"".join([*parts, compressor.flush()]))
    assert (tmp_path / "responses.jsonl.xz").stat().st_size < 125_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"holds more than 16777216 bytes"):
            stored_bytes(tmp_path / "responses.jsonl", most=1 << 24)
        assert tracemalloc.get_traced_memory()[1] < 5 << 24
    finally:
        tracemalloc.stop()


@quick_and_deep
def test_a_damaged_compressed_file_is_refused(deep: bool, tmp_path: Path) -> None:
    packed = lzma.compress(stored_bytes(RUN / "responses.jsonl")[:3000], preset=1)
    from tests.fuzz.mutating import scrambled  # noqa: PLC0415

    def check(data: bytes) -> None:
        (tmp_path / "responses.jsonl.xz").write_bytes(data)
        refuses_or_reads(lambda: stored_bytes(tmp_path / "responses.jsonl"), "responses.jsonl.xz")

    hammer(check, scrambled(packed), deep=deep)


@pytest.mark.parametrize("data", NESTED, ids=range(len(NESTED)))
def test_nesting_beyond_any_use_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(DataError, match="where"):
        from_json(b'{"environment":{"a":' + data + b"}}", Report, "where")


# --- pages: no element and no attribute comes from what somebody else wrote ---

CANARY = "zq7canary"
ATTACKS = (
    f"<script>{CANARY}</script>",
    f'"><img src=x onerror={CANARY}>',
    f"' onmouseover='{CANARY}",
    f"</style><{CANARY}>",
    f"</title></pre></svg><a href=javascript:{CANARY}>x</a>",
    f"{{{{ 7*7 }}}}{{% {CANARY} %}}",
    f"&lt;{CANARY}&gt; <!-- {CANARY} --> <![CDATA[{CANARY}",
    f"$\\frac{{{CANARY}}}$ <svg onload={CANARY}>",
    f"\x00\u202e<{CANARY}\u2028>",
)
SPOKEN = ("aria-label", "title", "href")  # attributes whose value is text for people, or the name of a folder


class Seen(HTMLParser):
    """Names of elements and attributes, and every value of an attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [(name, value or "") for name, value in attrs]

    handle_startendtag = handle_starttag

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_decl(self, decl: str) -> None:
        assert decl.lower() == "doctype html"

    def unknown_decl(self, data: str) -> None:
        self.comments.append(data)


def hold(page: str, calm: Seen) -> None:
    """Nothing of an attack is markup."""
    seen = Seen(page)
    assert seen.tags <= calm.tags, f"elements {seen.tags - calm.tags} came from input"
    assert seen.attributes <= calm.attributes, f"attributes {seen.attributes - calm.attributes} from input"
    assert not any(CANARY in comment for comment in seen.comments)
    for name, value in seen.values:
        assert CANARY not in value or name in SPOKEN, f"{name}={value!r} came from input"
        if name in ("href", "src", "xlink:href"):
            assert not value.lower().lstrip().startswith(("javascript:", "data:")), value


def texts(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every text, names of fields that are data included."""
    if isinstance(document, str):
        return [at]
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [way for key, value in inner for way in texts(value, (*at, key))]


def replaced(document: Any, way: tuple[Any, ...], text: str) -> Any:
    if not way:
        return text
    found = document.copy()
    found[way[0]] = replaced(document[way[0]], way[1:], text)
    return found


def converts(document: Any) -> Report | None:
    try:
        return msgspec.convert(document, Report)
    except msgspec.ValidationError:
        return None


def everywhere(make: Callable[[], Report]) -> Callable[[str], Report]:
    """The report with a text in place of each of its own texts that may be any."""
    plain = json.loads(canonical_json(make()))
    free = [way for way in texts(plain) if converts(replaced(plain, way, ATTACKS[0])) is not None]
    assert len(free) > 30

    def with_text(text: str) -> Report:
        found = plain
        for number, way in enumerate(free):
            one = replaced(found, way, f"{text}{number}" if "name" in way or "arm" in way else text)
            found = one if converts(one) is not None else found
        report = converts(found)
        assert report is not None
        return report

    return with_text


MAKERS = (build.report, build.invalid, build.violated, build.distribution)


@pytest.mark.parametrize("make", slow_but([build.report, build.violated], MAKERS))
def test_no_element_or_attribute_of_a_page_comes_from_a_report(make: Callable[[], Report]) -> None:
    calm, with_text = Seen(render_html(make())), everywhere(make)
    calm.tags |= {"svg", "g", "path", "defs", "use", "style", "text", "rect", "clippath"}
    attacks = ATTACKS if make is build.report else ATTACKS[:1]
    for attack in attacks[::2]:
        report = with_text(attack)
        page = render_html(report)
        assert CANARY in page
        hold(page, calm)


@pytest.mark.parametrize("attack", [*ATTACKS, f"javascript:{CANARY}"])
def test_no_element_or_attribute_of_the_index_comes_from_a_report(attack: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "report.json").write_bytes(canonical_json(build.report()))
    calm = Seen(render_index(read_entries(tmp_path)[0], ["a fault"]))
    attacked = everywhere(build.report)(attack.replace("\x00", ""))
    (folder / "report.json").write_bytes(canonical_json(attacked))
    worse = tmp_path / attack.replace("/", "").replace("\x00", "")[:80]
    worse.mkdir()
    (worse / "report.json").write_bytes(canonical_json(attacked))
    entries, faults = read_entries(tmp_path)
    page = render_index(entries, [*faults, attack])
    assert CANARY in page
    hold(page, calm)


@quick_and_deep
def test_no_text_of_a_report_becomes_markup(deep: bool) -> None:
    calm, with_text = Seen(render_html(build.report())), everywhere(build.report)

    def check(pieces: list[str]) -> None:
        hold(render_html(with_text("".join(pieces))), calm)

    piece = st.sampled_from(
        ("<", ">", '"', "'", "&", "/", "<!--", "-->", "]]>", "<b>", " onx=", "{{", "$", CANARY)
    )
    hammer(check, st.lists(piece | st.text(max_size=3), max_size=8), deep=deep, quick=2)
