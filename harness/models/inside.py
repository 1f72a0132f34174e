"""Targets that lie ready to be loaded inside an installed package: named `module:folder`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from harness.errors import ModelError


def folder_inside(name: str) -> Path:
    """The folder that `module:folder` names, without importing the module.

    Args:
        name: an import name of a top-level package, and a folder inside it.

    Raises:
        ModelError: the package is not installed, the folder leads out of it, or no model lies there.
    """
    module, _, inside = name.partition(":")
    found = importlib.util.find_spec(module) if module.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise ModelError(
            f"`target.package` = {name!r}: no package {module!r} is installed; install it, or give "
            "`target.path`"
        )
    roots = [Path(root).resolve() for root in found.submodule_search_locations]
    wanted = Path(inside)
    if not inside or wanted.is_absolute() or ".." in wanted.parts:
        raise ModelError(f"`target.package` = {name!r}: {inside!r} is no folder inside {module}")
    for root in roots:
        if (root / wanted / "config.json").is_file():
            return root / wanted
    beside = sorted(
        path.parent.name for root in roots for path in (root / wanted).parent.glob("*/config.json")
    )
    there = f"there lie {', '.join(beside)}" if beside else "this release carries none there"
    raise ModelError(
        f"`target.package` = {name!r}: no model lies in {roots[0] / wanted}; {there}; give `target.path`, "
        "the folder of one"
    )
