"""The Hugging Face hub: commits, sizes, access. The one place that asks it for a grid."""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

from harness.errors import ModelError
from harness.grid.preflight import HubRepo
from harness.models.resolve import HUB_FILES


class HuggingFaceHub:
    """See `harness.grid.preflight.Hub`. Credentials are those of the user's own hub client."""

    def look(self, repo: str, revision: str | None) -> HubRepo:
        """See `Hub.look`."""
        from huggingface_hub import HfApi  # noqa: PLC0415 - only a run of the grid asks the hub
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        failures: tuple[type[Exception], ...] = (HfHubHTTPError, OSError, *_network_errors())
        try:
            api = HfApi()
            api.auth_check(repo)
            told = api.model_info(repo, revision=revision, files_metadata=True, timeout=20)
        except failures as error:
            raise ModelError(
                f"cannot read {repo}: {str(error).strip().splitlines()[0]}; accept its licence on the "
                "hub, log in with `hf auth login`, or check the network"
            ) from None
        if told.sha is None:
            raise ModelError(f"the hub tells no commit of {repo}; try again")
        sizes = [
            file.size or 0
            for file in told.siblings or ()
            if any(fnmatch.fnmatch(file.rfilename, pattern) for pattern in HUB_FILES)
        ]
        return HubRepo(told.sha, 0 if self._here(repo, told.sha) else sum(sizes))

    def fetch(self, repo: str, sha: str) -> Path:
        """See `Hub.fetch`."""
        from huggingface_hub import snapshot_download  # noqa: PLC0415
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

        try:
            return Path(snapshot_download(repo, revision=sha, allow_patterns=list(HUB_FILES)))
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise ModelError(f"cannot download {repo}@{sha[:12]}: {str(error).splitlines()[0]}") from None

    def _here(self, repo: str, sha: str) -> bool:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
        from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

        try:
            snapshot_download(repo, revision=sha, allow_patterns=list(HUB_FILES), local_files_only=True)
        except LocalEntryNotFoundError:
            return False
        return True


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises where nothing answers: the errors of the HTTP library it has loaded."""
    loaded = [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]
    return tuple(module.HTTPError for module in loaded)
