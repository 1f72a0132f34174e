"""The same data, four headlines: as a report of its own, in Markdown and as one self-contained page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from tabulate import tabulate

from harness.importers.headlines import Headlines
from harness.importers.records import Imported
from harness.importers.words import Row, faults, file_rows, headline_rows, title
from harness.report.headline_bars import headline_bars
from harness.report.html import environment
from harness.report.markdown import escape, paragraph
from harness.report.text import plain

TEMPLATE = "headlines.html.j2"


def render_markdown(baseline: Imported, method: Imported, found: Headlines, note: str) -> str:
    """The report as Markdown.

    Args:
        baseline: results of autoregressive decoding.
        method: results with speculation.
        found: their headlines.
        note: of whoever made the files, in words of their own.
    """
    parts = [
        f"# {title(found)}",
        paragraph(note),
        f"{found.requests} requests are in both files, {found.left_out} are left out; the method emitted "
        f"{found.token_difference:+d} tokens against the baseline.",
        _table(headline_rows(found)),
        "\n".join(f"- {paragraph(text)}" for text in faults(found)),
        "## Files",
        _table(file_rows(baseline, method)),
        "\n".join(f"- {paragraph(text)}" for text in dict.fromkeys((*baseline.cautions, *method.cautions))),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_page(baseline: Imported, method: Imported, found: Headlines, note: str) -> str:
    """The report as one page without outside assets. Equal data give equal bytes."""
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=title(found),
            note=plain(note),
            found=found,
            headlines=headline_rows(found),
            files=file_rows(baseline, method),
            faults=faults(found),
            cautions=[plain(text) for text in dict.fromkeys((*baseline.cautions, *method.cautions))],
            picture=Markup(_picture(found)),  # noqa: S704 - drawn here, its text is escaped
        )
    )


def _picture(found: Headlines) -> str:
    return headline_bars(title(found), [(one.name, one.speedup) for one in found.found])


def _table(rows: Sequence[Row]) -> str:
    cells = [{escape(key): escape(value) for key, value in row.items()} for row in rows]
    return tabulate(cells, headers="keys", tablefmt="github", disable_numparse=True)
