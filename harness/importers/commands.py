"""``specpilot-harness import``: results of other tools, and what their averages hide."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from harness.importers.headlines import Headlines
    from harness.importers.records import Imported

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `import`."""
    command = commands.add_parser(
        "import",
        help="read results of vLLM bench, SGLang bench, guidellm, AIPerf or Spec-Bench",
        description="With --baseline: the same data, four headlines.",
    )
    add = command.add_argument
    add("file", type=Path, metavar="FILE", help="results with speculation")
    add("--baseline", type=Path, metavar="FILE", help="results of autoregressive decoding, same prompts")
    add("--tokenizer", type=Path, metavar="FOLDER", help="show what re-tokenising the baseline alone does")
    add("--claim", type=Path, metavar="FILE.toml", help="write a claim of what the file says")
    add("--who", default="unknown", help="of the claim (default: %(default)s)")
    add(
        "--report",
        type=Path,
        metavar="DIR",
        help="with --baseline: write headlines.md, .html and .json there",
    )
    add("--note", default="", help="of the report, in words of your own")
    add("--json", action="store_true", help="print as JSON, without the requests")
    command.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from harness.importers.claim import claim_toml  # noqa: PLC0415 - commands load what they need
    from harness.importers.detect import read_result  # noqa: PLC0415
    from harness.importers.headlines import headlines  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    method = read_result(options.file)
    baseline = None if options.baseline is None else read_result(options.baseline)
    if options.claim is not None:
        write_atomic(options.claim, claim_toml(method, baseline, options.who))
        print(f"wrote {options.claim}")
        return EXIT_OK
    recount = None if options.tokenizer is None else _recount(options.tokenizer)
    found = None if baseline is None else headlines(baseline, method, recount)
    read = [method] if baseline is None else [baseline, method]
    if options.report is not None:
        if baseline is None or found is None:
            raise UsageError("--report needs --baseline: one file alone has no headlines")
        _write(options.report, baseline, method, found, options.note)
        return EXIT_OK
    if options.json:
        print(json.dumps(_plain(read, found), indent=2))
        return EXIT_OK
    print("\n\n".join([*map(_described, read), *([] if found is None else [_told(found)])]))
    return EXIT_OK


def _write(folder: Path, baseline: Imported, method: Imported, found: Headlines, note: str) -> None:
    from harness.importers.page import render_markdown, render_page  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    write_atomic(folder / "headlines.md", render_markdown(baseline, method, found, note))
    write_atomic(folder / "headlines.html", render_page(baseline, method, found, note))
    plain = json.dumps(_plain([baseline, method], found), indent=2)
    write_atomic(folder / "headlines.json", plain + "\n")
    print(f"wrote headlines.md, headlines.html and headlines.json to {folder}")


def _recount(folder: Path) -> Callable[[str], int]:
    """Tokens of a text as Spec-Bench counts them: by the tokenizer's own call, special tokens included."""
    from harness.tokenize import PromptTokenizer  # noqa: PLC0415

    tokenizer = PromptTokenizer(folder).inner
    return lambda text: len(tokenizer(text)["input_ids"])


def _described(found: Imported) -> str:
    from harness.importers.records import MAYBE_UNKNOWN  # noqa: PLC0415
    from harness.report.text import plain, told  # noqa: PLC0415

    known = [f"{name} {told(getattr(found, name))}" for name in MAYBE_UNKNOWN if name not in found.unknown]
    lines = [f"{found.tool}: {plain(found.source)}", f"  says: {', '.join(known)}"]
    if found.acceptance_is is not None:
        lines.append(f"  its acceptance length: {found.acceptance_is}")
    lines.append(f"  does not say: {', '.join(found.unknown) or 'nothing of interest is missing'}")
    lines += [f"  caution: {text}" for text in found.cautions]
    return "\n".join(lines)


def _told(found: Headlines) -> str:
    from tabulate import tabulate  # noqa: PLC0415

    from harness.importers.words import headline_rows  # noqa: PLC0415

    rows = headline_rows(found)
    lines = [
        f"The same data, {len(found.found)} headlines "
        f"({found.requests} requests in both, {found.left_out} left out):",
        tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True),
    ]
    if found.token_difference:
        lines.append(
            f"The method emitted {found.token_difference:+d} tokens against the baseline; lossless greedy, "
            "it would be 0, so ratios are of time per token."
        )
    if found.lengths is not None:
        lines.append(
            f"Acceptance length: {found.lengths.steps_alike:.3f} over all verify steps, "
            f"{found.lengths.requests_alike:.3f} as the mean of the requests' means."
        )
    return "\n".join(lines)


def _plain(read: list[Imported], found: Headlines | None) -> dict[str, object]:
    import msgspec  # noqa: PLC0415

    shown = [
        {**msgspec.to_builtins(one), "requests": len(one.requests), "unknown": one.unknown} for one in read
    ]
    plain: dict[str, object] = {"read": shown}
    if found is not None:
        plain["headlines"] = [one._asdict() for one in found.found]
        plain["requests"], plain["left_out"] = found.requests, found.left_out
        plain["token_difference"] = found.token_difference
        plain["without_first"] = found.without_first
        plain["acceptance_length"] = None if found.lengths is None else found.lengths._asdict()
    return plain
