"""What of stock is tuned, and in which order: draft length, then CUDA graphs, then attention backend.

One after another, each at the best found so far. Modes of graphs and names of backends are those of vLLM
(`--compilation-config`, `--attention-backend`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from harness.grid.records import GridDrafter

TUNE_DRAFTS = (1, 2, 3, 5, 7, 10, 15)
GRAPHS = ("FULL_DECODE_ONLY", "PIECEWISE")  # beside vLLM's default
ATTENTION = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")  # one of them is its choice already


class Setting(NamedTuple):
    """How a server drafts and runs; None leaves it to vLLM."""

    drafts: int
    graphs: str | None = None
    attention: str | None = None

    @property
    def name(self) -> str:
        """Short, for a folder: "k5", "k5-piecewise"."""
        return "-".join(
            [f"k{self.drafts}", *(part.lower() for part in (self.graphs, self.attention) if part)]
        )

    @property
    def words(self) -> str:
        """For people."""
        graphs, attention = self.graphs or "by default", self.attention or "by default"
        return f"{self.drafts} drafts, graphs {graphs}, attention {attention}"

    @property
    def arguments(self) -> str:
        """Of the server, but for its drafts: plain decoding takes them too, so that both run alike."""
        graphs = "" if self.graphs is None else f" --compilation-config '{_json(cudagraph_mode=self.graphs)}'"
        return graphs + ("" if self.attention is None else f" --attention-backend {self.attention}")

    @property
    def plain(self) -> bool:
        """Whether graphs and attention are vLLM's own choice."""
        return self.graphs is None and self.attention is None


def draft_lengths(drafter: GridDrafter) -> tuple[Setting, ...]:
    """As released, and shorter."""
    return tuple(
        Setting(k) for k in sorted({*(k for k in TUNE_DRAFTS if k < drafter.drafts), drafter.drafts})
    )


def graph_modes(best: Setting) -> tuple[Setting, ...]:
    """The best so far with other graphs."""
    return tuple(best._replace(graphs=mode) for mode in GRAPHS)


def attention_backends(best: Setting) -> tuple[Setting, ...]:
    """The best so far with each attention backend."""
    return tuple(best._replace(attention=name) for name in ATTENTION)


def tune(
    drafter: GridDrafter, measure: Callable[[Setting], float | None]
) -> tuple[Setting | None, Mapping[Setting, float | None]]:
    """Search one coordinate after another.

    Args:
        drafter: of stock.
        measure: tokens per second of stock under a setting; None where it gives no valid run.

    Returns:
        The fastest setting, None where no draft length gave a valid run, and all that was tried.
    """
    tried: dict[Setting, float | None] = {setting: measure(setting) for setting in draft_lengths(drafter)}
    best = _best(tried)
    for others in (graph_modes, attention_backends):
        if best is not None:
            tried |= {setting: measure(setting) for setting in others(best)}
            best = _best(tried)
    return best, tried


def _best(tried: Mapping[Setting, float | None]) -> Setting | None:
    known = {setting: speed for setting, speed in tried.items() if speed is not None}
    return max(known, key=lambda setting: known[setting]) if known else None


def _json(**fields: str) -> str:
    return json.dumps(fields)
