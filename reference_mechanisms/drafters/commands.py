"""``specpilot-harness drafters``: what is shipped, its cards, exports for other engines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from reference_mechanisms.errors import DrafterError

EXIT_OK = 0
MEGA = 1_000_000

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]


def register(
    subparsers: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]
) -> argparse._SubParsersAction[Parser]:
    """Add the command `drafters` to a command line; each sub-command sets `run`.

    Args:
        subparsers: of the command line.
        guard: turns the errors of a command into those of the command line.

    Returns:
        The sub-commands, for those that need more than this package.
    """
    drafters = subparsers.add_parser("drafters", help="the trained drafters of this package")
    commands: argparse._SubParsersAction[Parser] = drafters.add_subparsers(metavar="ACTION", required=True)

    listing = commands.add_parser("list", help="the shipped drafters and the targets they are for")
    listing.set_defaults(run=guard(_list))

    showing = commands.add_parser("card", help="print the model card of a drafter")
    showing.add_argument(
        "drafter", metavar="FOLDER|NAME", help="a drafter folder, or TARGET/DRAFTER as listed"
    )
    showing.add_argument("--write", action="store_true", help="write it into the folder as README.md")
    showing.set_defaults(run=guard(_card))

    exporting = commands.add_parser("export", help="write a drafter as plain tensors that vLLM loads")
    exporting.add_argument(
        "folder", metavar="FOLDER|NAME", help="a drafter folder, or TARGET/DRAFTER as listed"
    )
    exporting.add_argument("out", type=Path, metavar="OUT", help="new folder")
    exporting.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    exporting.set_defaults(run=guard(_export))
    return commands


def folder_of(given: str) -> Path:
    """A drafter folder by its path, or by its name among the shipped ones.

    Raises:
        DrafterError: it is neither.
    """
    from reference_mechanisms.drafters.shipped import shipped  # noqa: PLC0415

    if Path(given).is_dir():
        return Path(given)
    names = {f"{one.target.name}/{one.drafter}": one.folder for one in shipped()}
    if given in names:
        return names[given]
    raise DrafterError(f"{given} is no folder and no shipped drafter; shipped: {', '.join(names) or 'none'}")


def _list(options: argparse.Namespace) -> int:
    from reference_mechanisms.drafters.shipped import shipped  # noqa: PLC0415

    del options
    found = shipped()
    for one in found:
        size = sum(path.stat().st_size for path in one.folder.glob("*.safetensors"))
        print(
            f"{one.target.name}/{one.drafter}  {size / MEGA:.1f} MB  target sha256 {one.target.sha256[:12]}"
        )
    if not found:
        print("no drafter comes with this package; give `checkpoint`, the folder of one, in a plan")
    return EXIT_OK


def _card(options: argparse.Namespace) -> int:
    from reference_mechanisms.drafters.card import CARD, read_card, render_card  # noqa: PLC0415

    folder = folder_of(options.drafter)
    text = render_card(read_card(folder))
    if options.write:
        (folder / CARD).write_text(text, encoding="utf-8")
        print(f"wrote {folder / CARD}")
    else:
        print(text, end="")
    return EXIT_OK


def _export(options: argparse.Namespace) -> int:
    from reference_mechanisms.drafters.storing import EXPORTED, export  # noqa: PLC0415 - loads torch

    export(folder_of(options.folder), options.out, EXPORTED[options.dtype])
    print(f"wrote {options.out}: plain {options.dtype} tensors in the published layout")
    return EXIT_OK
