"""Requests together: continuous batching over the parts of an arm that decodes batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from reference_mechanisms.arms import ArmSettings
from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.costs import read_costs
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.serving.errors import ChoiceError


class Parts(NamedTuple):
    """Of an arm."""

    decoder: Decoder  # its target, and the rules of a request's turn
    drafter: Drafter  # for as many requests as decode at a time
    settings: ArmSettings


class Continuous(Batcher):
    """See `BatchEngine`: requests join and leave between steps, as many rows as a step needs."""

    def __init__(self, parts: Parts, slots: int, capacity: int, close: Callable[[], None]) -> None:
        """Allocate the cache.

        Args:
            parts: of the arm.
            slots: requests that decode at a time.
            capacity: positions of a request, prompt and output.
            close: lets go of what the parts came from.

        Raises:
            ChoiceError: the arm verifies in two levels, or shares nodes of trees.
            FiguresError: its table of costs cannot be read.
            CostError: that holds no usable table.
        """
        settings = parts.settings
        if settings.two_level is not None:
            raise ChoiceError("--lanes above 1 does not go with `two_level`; leave one of them out")
        batching = dataclasses.replace(settings.batching or BatchSettings(), slots=slots)
        if batching.tree_budget:
            raise ChoiceError(
                "--lanes above 1 does not go with `batch_tree_budget` yet; leave one of them out"
            )
        nodes = settings.plain_rows - 1
        super().__init__(
            PackedRunner(parts.decoder.target, slots, capacity + nodes + 1),
            parts.decoder.turns,
            Drafts(parts.drafter, nodes, tree=settings.tree is not None),
            batching,
            None if batching.costs is None else read_costs(batching.costs)[1],
        )
        self._let_go = close

    def close(self) -> None:
        """See `BatchEngine`."""
        super().close()
        self._let_go()
