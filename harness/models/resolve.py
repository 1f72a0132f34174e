"""From a model's specification to a folder that can be loaded, whichever way it came."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

from harness.errors import ModelError
from harness.models.folder import ModelFolder, read_folder
from harness.models.inside import folder_inside
from harness.models.packaged import converted
from harness.plan import ModelSpec

SMALL_FILES = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
HUB_FILES = (*SMALL_FILES, "*.safetensors")  # never pickled weights


def resolve_model(spec: ModelSpec, *, progress: Callable[[str], None] | None = None) -> ModelFolder:
    """Find the model, fetch or convert it once if needed, and check its weights.

    Args:
        spec: where it comes from, and the digest of its weights if it is pinned.
        progress: is told one line before anything that takes long.

    Raises:
        ModelError: naming the file, field or package, and the mend.
    """
    say = progress if progress is not None else _silent
    if spec.path is not None:
        model = read_folder(Path(spec.path).expanduser(), f"folder {spec.path}", remote=spec.remote)
        mend = "give the folder the plan was pinned for, or change `target.sha256`"
    elif spec.package is not None:
        carried = ":" in spec.package
        found = (folder_inside(spec.package), f"package {spec.package}") if carried else None
        path, source = found or converted(spec.package, say)
        model = read_folder(path, source, remote=spec.remote)
        mend = "install the package again" if carried else f"remove {path} and run again"
        mend += ", or change `target.sha256`"
    else:
        model = read_folder(_from_hub(spec, say), f"hub {spec.hub}@{spec.revision}", remote=spec.remote)
        mend = f"remove {model.path} and run again, or change `target.sha256`"
    if spec.sha256 is not None and model.sha256 != spec.sha256:
        raise ModelError(
            f"`target.sha256` is {spec.sha256} but the weights in {model.path} have {model.sha256}; {mend}"
        )
    return model


def _from_hub(spec: ModelSpec, say: Callable[[str], None]) -> Path:
    """The pinned snapshot: from the local hub cache if it is there, else downloaded once."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only this source needs it
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    revision = spec.revision or ""
    if len(revision) != 40 or set(revision) - set(string.hexdigits):
        raise ModelError(
            f"`target.revision` must be a full commit hash (a branch or tag can move), got {revision!r}"
        )
    wanted = list(SMALL_FILES if spec.remote else HUB_FILES)
    try:
        return Path(
            snapshot_download(str(spec.hub), revision=revision, allow_patterns=wanted, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        say(f"downloading {spec.hub} at {revision[:12]} into the hub cache")
    try:
        return Path(snapshot_download(str(spec.hub), revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"cannot download {spec.hub}@{revision[:12]}: {str(error).splitlines()[0]}; check `target.hub`, "
            "the network and HF_TOKEN, or give `target.path`"
        ) from None


def _silent(text: str) -> None:
    del text
