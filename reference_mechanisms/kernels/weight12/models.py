"""The linears of decoders whose steps are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, int]  # N, K


@dataclass(frozen=True, slots=True)
class Model:
    """Linears in their order: blocks of layers, each its shapes and how often it repeats, and the head.

    Query, key and value are one matrix, gate and up another.
    """

    blocks: tuple[tuple[tuple[Shape, ...], int], ...]
    head: Shape

    @property
    def step(self) -> tuple[Shape, ...]:
        """Every linear of one step."""
        layers = (shape for shapes, count in self.blocks for shape in shapes * count)
        return (*layers, self.head)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Each shape once."""
        return tuple(dict.fromkeys(self.step))


MODELS: Mapping[str, Model] = {
    "Qwen3-8B": Model(((((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)), 36),), (151936, 4096)),
    "Llama-3.1-8B": Model(
        ((((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)), 32),), (128256, 4096)
    ),
    "Qwen3-4B": Model(((((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)), 36),), (151936, 2560)),
    # A hybrid of 27B shape: three layers of linear attention (in, out), one of gated full attention.
    "hybrid-27B": Model(
        (
            (
                ((16480, 5120), (5120, 6144), (34816, 5120), (5120, 17408)) * 3
                + ((14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408)),
                16,
            ),
        ),
        (248320, 5120),
    ),
}
