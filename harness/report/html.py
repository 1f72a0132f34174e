"""The report as one self-contained HTML page: no outside asset, no script, light and dark."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.report import (
    differences,
    drafting,
    lossless_tables,
    run_tables,
    sampled,
    speed_tables,
    tables,
)
from harness.report.glance import cards
from harness.report.picture import Plot
from harness.report.plots import plots
from harness.report.text import plain
from harness.results import Report

TEMPLATE = "report.html.j2"


def render_html(report: Report) -> str:
    """The whole report. Equal reports give equal bytes."""
    found = report.losslessness
    template = environment().get_template(TEMPLATE)
    return template.render(
        report=report,
        tables=tables,
        speed_tables=speed_tables,
        lossless_tables=lossless_tables,
        run_tables=run_tables,
        differences=differences,
        cards=cards(report),
        sampled=sampled,
        drafting=drafting,
        name=tables.title(report),
        valid=tables.valid(report),
        verdict="not-judged" if found is None else found.stock_verdict,
        found=found,
        drawn=[(plot, _trusted(plot)) for plot in plots(report)],
        reasons=[plain(reason) for reason in report.reasons],
        warnings=[plain(warning) for warning in report.warnings],
        created_at=plain(report.created_at),
        plan_hash=plain(report.plan.hash),
    )


def environment() -> Environment:
    """Of every page: everything is escaped, whatever the template's name; a misspelt name is an error."""
    return Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _trusted(plot: Plot) -> Markup | None:
    """The SVG as it is: it was drawn here, and its text is already escaped."""
    return None if plot.svg is None else Markup(plot.svg)  # noqa: S704
