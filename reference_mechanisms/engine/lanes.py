"""Single requests on static steps: all lanes of one target, and the cache that they share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import PlantingDrafter, StaticDrafter
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs, free_bytes, hold_fit
from reference_mechanisms.engine.lane import ChainLane, Opening, TreeLane
from reference_mechanisms.engine.prompt_step import PIECE, PromptStep
from reference_mechanisms.engine.static_hybrid import HybridChainRows, HybridLaneCache, HybridTreeRows
from reference_mechanisms.engine.static_rows import ChainRows, StaticRows
from reference_mechanisms.engine.static_step import VerifyStep
from reference_mechanisms.engine.static_tree import DenseTreeRows, TreeRows, TreeStep
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import RequestError, TargetError
from reference_mechanisms.kernels.step.choice import kernels_for
from reference_mechanisms.kernels.step.delta import WORD
from reference_mechanisms.kernels.step.tree_choice import delta_kernels_for, tree_kernels_for
from reference_mechanisms.kernels.step.twin import WAYS, Ways
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget

ROW_STEP = 8  # rows of a step are a multiple of this where arms need not have the same
DEEPEST = 32  # levels of a tree of the host, at most


class Static(NamedTuple):
    """How single requests are stepped."""

    rows: int  # of every verify step
    graphs: Graphs
    ahead: int | None = None  # steps started before one is read, at most 1; None: 1 on CUDA, else 0
    ways: Ways = WAYS  # of the kernels


def positions_of(capacity: int, rows: int) -> int:
    """Positions of the cache for requests of so many, in steps of so many rows.

    A step may begin at the last position, and the next one's padding behind its end, or a prompt's.
    """
    return capacity + max(2 * rows, PIECE)


class Lanes:
    """The lanes of one target; they share a cache, and decode one request at a time."""

    def __init__(self, target: Target, capacity: int, static: Static) -> None:
        """Allocate the cache.

        Args:
            target: the model.
            capacity: most positions of a request.
            static: how to step.

        Raises:
            TargetError: the cache does not fit the device, or the target is not one for fixed shapes.
        """
        if not isinstance(target, LlamaTarget | HybridTarget):
            raise TargetError("steps of fixed shape know dense and hybrid targets only")
        self._target, self._static = target, static
        self.rows, self.vocabulary = static.rows, target.config.vocab_size
        self._positions = positions_of(capacity, static.rows)
        config = target.config
        kinds = getattr(config, "kinds", None)
        layers = config.layers if kinds is None else kinds.count("full_attention")
        numbers = layers * 2 * config.kv_heads * self._positions * config.head_dim
        hold_fit(numbers * target.dtype.itemsize, target.device, "keys and values of one request")
        ahead = target.behind_attention() if isinstance(target, LlamaTarget) else ()
        self.kernels = kernels_for(target.device, target.dtype, config.head_dim, static.ways, ahead)
        # Where the host commits; and the part of it whose length moves on where the device has kept the rest.
        self.cache: KVCache | HybridLaneCache
        if isinstance(target, LlamaTarget):
            self.cache = self.moved = target.new_cache(1, self._positions)
        else:
            self._states = HybridLaneCache(
                target, self._positions, delta_kernels_for(target.device, target.dtype)
            )
            self.cache, self.moved = self._states, self._states.kv
        self._lanes: dict[Hashable, ChainLane] = {}
        self._trees: dict[Hashable, TreeLane] = {}
        self._prompts: dict[Hashable, PromptStep] = {}
        self._holder = _Holder()
        self._dense = False

    @property
    def about(self) -> str:
        """One line for the report."""
        how = "CUDA graphs" if self._static.graphs.records else "no graphs"
        form = ", recurrent layers in the WY form" if self._dense else ""
        return f"single requests in {self.rows} rows, {how}, {self.kernels.name} kernels{form}"

    def take(self, holder: object) -> None:
        """A request begins; the one before it is over, whether it had ended or not."""
        self._holder.one = holder

    def hold(self, holder: object) -> None:
        """Refuse to go on with a request that another one has replaced.

        Raises:
            RequestError: it was replaced.
        """
        if holder is not self._holder.one:
            raise RequestError("another request took the place of this one before it had ended")

    def narrowed(self, rows: int) -> Lanes:
        """These lanes, cache and all, for steps of fewer rows, where those of others need not be the same.

        Args:
            rows: that are needed.
        """
        if not self._target.rows_round_alike:
            return self
        found = copy.copy(self)
        found.rows = min(self.rows, -(-rows // ROW_STEP) * ROW_STEP)
        return found

    def dense(self) -> Lanes:
        """These lanes, cache and all, with recurrent layers in the WY form: not bit-exact.

        Raises:
            TargetError: the target has none, or steps have more rows than the form takes.
        """
        if not isinstance(self._target, HybridTarget):
            raise TargetError("the WY form is for recurrent layers, and the target has none")
        if self.rows > WORD:
            raise TargetError(
                f"steps of {self.rows} rows: the WY form takes {WORD}; give a `tree` of at most {WORD - 1}"
            )
        found = copy.copy(self)
        found._dense = True
        return found

    def checking(self, taps: Sequence[int]) -> ChainLane:
        """The lane for drafts of the host, which need these layers.

        Raises:
            TargetError: it does not fit the device.
        """
        return self._chain(tuple(taps), None, None, decides=False)

    def driving(self, taps: Sequence[int], drafter: StaticDrafter | None) -> ChainLane:
        """The lane that makes its own drafts; without a drafter it decodes autoregressively.

        Raises:
            TargetError: it does not fit the device.
        """
        return self._chain(tuple(taps), None if drafter is None else drafter.key, drafter, decides=True)

    def checking_trees(self, taps: Sequence[int]) -> TreeLane:
        """As `checking`, for trees."""
        return self._tree(tuple(taps), None, None)

    def planting(self, taps: Sequence[int], drafter: PlantingDrafter) -> TreeLane:
        """The lane that plants its own trees.

        Raises:
            TargetError: it does not fit the device.
        """
        return self._tree(tuple(taps), drafter.key, drafter)

    def prefill(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cache a prompt; see `PromptStep`.

        Raises:
            TargetError: the program does not fit the device.
        """
        key = (tuple(taps), self._dense)
        if key not in self._prompts:
            with self._fitting():
                forward = self._chain_rows(PIECE, tuple(taps))
                self._prompts[key] = PromptStep(self._target, self.cache, forward, self._static.graphs)
        return self._prompts[key](prompt)

    def _chain(
        self, taps: tuple[int, ...], key: Hashable, drafter: StaticDrafter | None, *, decides: bool
    ) -> ChainLane:
        """A lane; where the device has nothing to keep, it is all one who decides."""
        decides = decides or isinstance(self._target, LlamaTarget)
        where = (self.rows, taps, key, decides, self._dense)
        if where not in self._lanes:
            with self._fitting():
                self._lanes[where] = self._made(taps, drafter, decides=decides)
        return self._lanes[where]

    def _tree(self, taps: tuple[int, ...], key: Hashable, drafter: PlantingDrafter | None) -> TreeLane:
        where = (self.rows, taps, key, self._dense)
        if where not in self._trees:
            with self._fitting():
                self._trees[where] = self._planted(taps, drafter)
        return self._trees[where]

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            device = self._target.device
            raise TargetError(
                f"the device has too little memory for the steps of a single request: "
                f"{free_bytes(device)} bytes are free; lower the deployment's context_length or give "
                f"the arm graphs = false"
            ) from None

    @property
    def _opening(self) -> Opening:
        """Of a lane that is made now, in the midst of a request where the host drafts."""
        return Opening(self._static.ahead, self.cache.length(0))

    def _chain_rows(self, rows: int, taps: Sequence[int]) -> ChainRows:
        if isinstance(self._target, LlamaTarget):
            return StaticRows(self._target, self.moved, rows, taps, self.kernels)
        return HybridChainRows(self._target, self._states, rows, taps, self.kernels, dense=self._dense)

    def _tree_rows(self, taps: Sequence[int]) -> TreeRows:
        if isinstance(self._target, LlamaTarget):
            return DenseTreeRows(self._target, self.moved, taps, tree_kernels_for(self.kernels))
        return HybridTreeRows(self._target, self._states, self.rows, taps, self.kernels, dense=self._dense)

    def _made(self, taps: tuple[int, ...], drafter: StaticDrafter | None, *, decides: bool) -> ChainLane:
        draft = None if drafter is None else drafter.program(self._positions)
        step = VerifyStep(
            self._target,
            self._chain_rows(self.rows, taps),
            rows=self.rows,
            drafts=0 if draft is None else draft.drafts,
            taps=taps,
            kernels=self.kernels,
            decides=decides,
        )
        return ChainLane(step, draft, self._static.graphs, self._opening)

    def _planted(self, taps: tuple[int, ...], drafter: PlantingDrafter | None) -> TreeLane:
        draft = None if drafter is None else drafter.planter(self._positions)
        step = TreeStep(
            self._target,
            self._tree_rows(taps),
            rows=self.rows,
            levels=min(self.rows - 1, DEEPEST) if draft is None else draft.drafts,
            taps=taps,
            kernels=tree_kernels_for(self.kernels),
            decides=draft is not None,
        )
        return TreeLane(step, draft, self._static.graphs, self._opening)


@dataclass(slots=True)
class _Holder:
    """The request that runs."""

    one: object = None
