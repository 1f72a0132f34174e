"""What an arm of the reference engine may say of itself: parameter names, ranges, drafters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.settings import FIELDS as BATCHING
from reference_mechanisms.batching.settings import BatchingError, BatchSettings, parse_batching
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.calibration import NoDrafter, NullDrafter, Recorded, ReplayDrafter
from reference_mechanisms.drafters.dspark import DSparkConfig
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.loading import name_of
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.scheduling import at_least
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.kernels.weight12.schedule import EIGHTS, Eight
from reference_mechanisms.verification.tree_figures import TreeFigures
from reference_mechanisms.verification.two_level.settings import FIELDS as TWO_LEVEL
from reference_mechanisms.verification.two_level.settings import (
    TwoLevelError,
    TwoLevelSettings,
    parse_two_level,
)

DrafterName = Literal["none", "ngram", "null", "replay", "dflash", "dflash2", "dspark", "eagle3"]
RECORDING: tuple[DrafterName, ...] = ("null", "replay")  # need the target's own continuation
TRAINED: tuple[DrafterName, ...] = ("dflash", "dflash2", "dspark", "eagle3")  # have weights
SAMPLE_METHODS = ("greedy", "probabilistic")
DELTA_FORMS = ("recurrence", "wy")
ANY = ("graphs", "delta_form", *TWO_LEVEL, *BATCHING)  # parameters of every arm
MAX_DRAFTS = 32
MAX_NODES = 64  # of a draft tree
TREE_BUDGETS = ("fixed", "measured")
WITH_WEIGHTS = (
    *("checkpoint", "drafts", "tree", "tree_figures", "tree_budget", "draft_sample_method"),
    "drafter_weights",
)
ALLOWED: Mapping[DrafterName, tuple[str, ...]] = {
    "none": (),
    "ngram": ("drafts", "ngram_min", "ngram_max"),
    "dflash": WITH_WEIGHTS,
    "dflash2": WITH_WEIGHTS,
    "dspark": (*WITH_WEIGHTS, "min_confidence"),
    "eagle3": WITH_WEIGHTS,
}


class ParameterError(MechanismError):
    """A parameter of an arm is unknown or out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSettings:
    """A mechanism with its parameters, checked."""

    drafter: DrafterName
    drafts: int  # draft tokens a step, at most; 0 with a checkpoint: as many as it was trained for
    ngram_min: int = 2
    ngram_max: int = 4
    tree: int | None = None  # nodes of a draft tree of up to `drafts` levels; None: chains
    tree_figures: Path | None = None  # file of what children are worth; None: what the drafter says
    tree_measured: bool = False  # as many nodes as pay at the costs of `tree_figures`, up to `tree`
    checkpoint: str | None = None  # folder of a trained drafter; None: the one shipped for the target
    drafter_weights: Eight | None = None  # rounded to eight bits; None: as they are stored
    sampled: bool = False  # drafts are drawn at temperature above 0, not the best tokens
    min_confidence: float = 0.0  # verify up to the first draft below it; 0 verifies all
    two_level: TwoLevelSettings | None = None  # None: the target alone verifies
    batching: BatchSettings | None = None  # of requests that join and leave; None: batches as they come
    dense_trees: bool = False  # recurrent layers in the WY form, fast and not bit-exact
    graphs: bool = True  # on CUDA, single requests run in steps of fixed shape, recorded as graphs

    @property
    def rows(self) -> int:
        """Rows of a verify step, at most: the anchor and the draft."""
        return self.plain_rows if self.two_level is None else self.two_level.rows(self.plain_rows)

    @property
    def plain_rows(self) -> int:
        """Rows of a step that verifies a draft of this arm's drafter whole, at most."""
        return 1 + (self.drafts if self.tree is None else self.tree)

    @property
    def verifies_trees(self) -> bool:
        """Whether the target's own steps have trees; a first level leaves a chain of them."""
        return self.tree is not None and (self.two_level is None or self.two_level.holding is None)

    def rationed(self, bound: Bound | None) -> bool:
        """Whether batching shares what was drafted by the drafter's own word: of nodes, or confidences."""
        if self.batching is None or bound is None:
            return False
        if self.tree is not None:
            return self.batching.tree_budget or self.batching.adaptive
        config = bound.network.config
        return self.batching.budget and isinstance(config, DSparkConfig) and config.confidence

    @property
    def trained(self) -> bool:
        """Whether the drafter has weights."""
        return self.drafter in TRAINED

    @property
    def records(self) -> bool:
        """Whether the arm must be prepared with recordings."""
        return self.drafter in RECORDING

    def fitted(self, bound: Bound) -> ArmSettings:
        """These settings with what the checkpoint says filled in.

        Raises:
            ParameterError: they ask for what the checkpoint is not or cannot do.
        """
        config = bound.network.config
        found = name_of(config)
        if found != self.drafter:
            raise ParameterError(f"`drafter` is {self.drafter!r}, but `checkpoint` holds a {found}")
        if not isinstance(bound.network, Eagle3) and self.drafts > config.drafts:
            raise ParameterError(
                f"`drafts` is {self.drafts}; the blocks of `checkpoint` give at most {config.drafts}"
            )
        if self.min_confidence and not (isinstance(config, DSparkConfig) and config.confidence):
            raise ParameterError("`min_confidence` is given, but `checkpoint` has no confidence head")
        return dataclasses.replace(self, drafts=self.drafts or config.drafts)

    def new_drafter(
        self,
        recorded: Recorded,
        vocab_size: int,
        bound: Bound | None = None,
        figures: TreeFigures | None = None,
        ration: Ration | None = None,
        make: Callable[[Bound, Drafting], Drafter] = Bound.new_drafter,
    ) -> Drafter:
        """A drafter for one batch.

        Args:
            recorded: the target's own continuations.
            vocab_size: of the target.
            bound: the loaded checkpoint, for a drafter that has one.
            figures: of `tree_figures`, where given.
            ration: decides how much of what a step drafted is verified; see `rationed`.
            make: a drafter of a checkpoint.
        """
        if bound is not None:
            lengths = at_least(self.min_confidence) if self.min_confidence else None
            drafting = Drafting(drafts=self.drafts, sampled=self.sampled, lengths=lengths, tree=self.tree)
            if figures is not None:
                costs = figures.costs if self.tree_measured else None
                drafting = dataclasses.replace(drafting, calibration=figures.calibration, costs=costs)
            if ration is not None and self.tree is not None:
                drafting = dataclasses.replace(drafting, nodes=ration.nodes)
            elif ration is not None:
                drafting = dataclasses.replace(drafting, lengths=ration.lengths)
            return make(bound, drafting)
        makers: Mapping[DrafterName, Callable[[], Drafter]] = {
            "none": NoDrafter,
            "ngram": lambda: NgramDrafter(self.drafts, self.ngram_min, self.ngram_max),
            "null": lambda: NullDrafter(self.drafts, recorded, vocab_size),
            "replay": lambda: ReplayDrafter(self.drafts, recorded),
        }
        return makers[self.drafter]()


def parse_settings(params: Mapping[str, object]) -> ArmSettings:
    """Check the parameters of an arm.

    Raises:
        ParameterError: naming the parameter.
    """
    known: tuple[DrafterName, ...] = get_args(DrafterName)
    name = next((one for one in known if one == params.get("drafter")), None)
    if name is None:
        raise ParameterError(f"`drafter` must be one of {', '.join(known)}, got {params.get('drafter')!r}")
    allowed = (*ALLOWED.get(name, ("drafts",)), *ANY)
    unknown = sorted(set(params) - {"drafter", *allowed})
    if unknown:
        takes = ", ".join(f"`{field}`" for field in allowed)
        raise ParameterError(f"`{unknown[0]}` is unknown; drafter {name!r} takes {takes}")
    settings = _settings(name, params)
    try:
        two_level = parse_two_level(params, tree=settings.tree is not None, sampled=settings.sampled)
    except TwoLevelError as error:
        raise ParameterError(str(error)) from None
    if name == "none" and two_level is not None and two_level.policy == "stage":
        raise ParameterError("`two_level` = 'stage' needs drafts to verify in pieces; give another `drafter`")
    form = params.get("delta_form", DELTA_FORMS[0])
    if form not in DELTA_FORMS:
        raise ParameterError(f"`delta_form` must be one of {', '.join(DELTA_FORMS)}, got {form!r}")
    hosted = bool(settings.min_confidence) or settings.tree_measured
    try:
        batching = parse_batching(params, tree=settings.tree is not None, hosted=hosted)
    except BatchingError as error:
        raise ParameterError(str(error)) from None
    if batching is not None and two_level is not None:
        raise ParameterError("`two_level` does not go with parameters of batching; leave one of them out")
    return dataclasses.replace(settings, two_level=two_level, batching=batching, dense_trees=form == "wy")


def _settings(name: DrafterName, params: Mapping[str, object]) -> ArmSettings:
    """What is said of drafter and drafts."""
    if name == "none":
        return ArmSettings(drafter="none", drafts=0, graphs=_switch(params, "graphs"))
    if name in TRAINED:
        return _trained(name, params)
    settings = ArmSettings(
        drafter=name,
        drafts=_count(params, "drafts", 7, MAX_DRAFTS),
        ngram_min=_count(params, "ngram_min", 2, 16),
        ngram_max=_count(params, "ngram_max", 4, 16),
        graphs=_switch(params, "graphs"),
    )
    if settings.ngram_min > settings.ngram_max:
        raise ParameterError(f"`ngram_min` is {settings.ngram_min}, above `ngram_max`, {settings.ngram_max}")
    return settings


def _trained(name: DrafterName, params: Mapping[str, object]) -> ArmSettings:
    folder = params.get("checkpoint")
    if "checkpoint" in params and (not isinstance(folder, str) or not Path(folder).is_dir()):
        raise ParameterError(f"`checkpoint` must be the folder of a {name} drafter, got {folder!r}")
    method = params.get("draft_sample_method", SAMPLE_METHODS[0])
    if method not in SAMPLE_METHODS:
        raise ParameterError(
            f"`draft_sample_method` must be one of {', '.join(SAMPLE_METHODS)}, got {method!r}"
        )
    least = params.get("min_confidence", 0.0)
    if not isinstance(least, int | float) or isinstance(least, bool) or not 0 <= least < 1:
        raise ParameterError(f"`min_confidence` must be a number from 0 to below 1, got {least!r}")
    tree = _count(params, "tree", 1, MAX_NODES) if "tree" in params else None
    if tree is not None and method == "probabilistic":
        raise ParameterError(
            "`tree` does not go with `draft_sample_method` = 'probabilistic': which tokens are verified "
            "would hang on the draws, and the output would no longer be distributed as the target's"
        )
    if tree is not None and least:
        raise ParameterError("`tree` does not go with `min_confidence`: its confidences belong to one chain")
    figures, budget = params.get("tree_figures"), params.get("tree_budget", TREE_BUDGETS[0])
    if tree is None and ("tree_figures" in params or "tree_budget" in params):
        raise ParameterError("`tree_figures` and `tree_budget` are of a `tree`; give its number of nodes")
    if "tree_figures" in params and (not isinstance(figures, str) or not Path(figures).is_file()):
        raise ParameterError(f"`tree_figures` must be the file of measured figures, got {figures!r}")
    if budget not in TREE_BUDGETS:
        raise ParameterError(f"`tree_budget` must be one of {', '.join(TREE_BUDGETS)}, got {budget!r}")
    if budget == "measured" and figures is None:
        raise ParameterError("`tree_budget` = 'measured' needs the costs in `tree_figures`")
    weights = params.get("drafter_weights")
    eight = next((one for one in EIGHTS if one == weights), None)
    if "drafter_weights" in params and eight is None:
        raise ParameterError(f"`drafter_weights` must be one of {', '.join(EIGHTS)}, got {weights!r}")
    return ArmSettings(
        drafter=name,
        drafts=_count(params, "drafts", 0, MAX_DRAFTS) if "drafts" in params else 0,
        drafter_weights=eight,
        tree=tree,
        tree_figures=Path(figures) if isinstance(figures, str) else None,
        tree_measured=budget == "measured",
        checkpoint=folder if isinstance(folder, str) else None,
        sampled=method == "probabilistic",
        min_confidence=float(least),
        graphs=_switch(params, "graphs"),
    )


def _count(params: Mapping[str, object], field: str, default: int, most: int) -> int:
    value = params.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ParameterError(f"`{field}` must be an integer in 1..{most}, got {value!r}")
    return value


def _switch(params: Mapping[str, object], field: str) -> bool:
    value = params.get(field, True)
    if not isinstance(value, bool):
        raise ParameterError(f"`{field}` must be true or false, got {value!r}")
    return value
