"""Other lossless formats: what they published, and products with those that are installed.

``python -m reference_mechanisms.kernels.weight12.peers`` prints the published figures.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Literal

import msgspec
from tabulate import tabulate
from torch import Tensor

Product = Callable[[Tensor], Tensor]


class Project(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project, its licence, and whether its wheel installs beside torch for CUDA 13."""

    name: str
    licence: str
    wheel: str
    products: str


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published figure, as its source words it; not measured here."""

    project: str
    device: str
    case: str
    value: str
    kind: Literal["authors", "projected", "user"]
    source: str


class Peers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of peers.toml."""

    project: tuple[Project, ...]
    figure: tuple[Figure, ...]


def published() -> Peers:
    """What peers.toml holds."""
    return msgspec.toml.decode(resources.files(__package__).joinpath("peers.toml").read_bytes(), type=Peers)


def table(peers: Peers) -> str:
    """The published figures for a report, in Markdown."""
    rows = [(one.project, one.device, one.case, one.value, one.kind, one.source) for one in peers.figure]
    headers = ("project", "device", "case", "published (not measured here)", "by", "source")
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def installed() -> Mapping[str, Callable[[Tensor], Product]]:
    """Makers of products with a bf16 matrix [N, K] on a CUDA device, of the peers that are installed.

    A product takes x of one token, [1, K] bf16: the only case that NWC decodes in place.
    """
    found: dict[str, Callable[[Tensor], Product]] = {}
    if importlib.util.find_spec("nwc") is not None:
        found["NWC"] = _nwc
    return found


def _nwc(weight: Tensor) -> Product:
    packed = importlib.import_module("nwc").NWCWeight(weight)

    def product(x: Tensor) -> Tensor:
        out: Tensor = packed.linear_bf16(x.reshape(-1), None)
        return out[None]

    return product


if __name__ == "__main__":
    print(table(published()))
