"""What a campaign of the loop is: one TOML file, read strictly.

History: loop/1 (0.1.0) first version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agent_loop.protocols import Knob, Space
from agent_loop.records import Budget
from harness.codec import Record, digest, from_toml
from harness.errors import UsageError
from harness.plan import ArmSpec, Job, Param, load_job
from harness.stats.sign_flip import least_launches

LEAST_DELAY = 0.5  # of a control: what a few public rows surely show
ExplorerKind = Literal["offline", "claude", "claude-code"]


class ExplorerSpec(Record, frozen=True):
    """One explorer of a campaign."""

    name: str
    kind: ExplorerKind
    seed: int = 0
    budget: Budget = Budget()  # trials, submissions and seconds of one round; money and tokens of all
    model: str | None = None  # of a language model; never guessed
    batch: int = 4  # candidates that share the launches of a trial


class Rules(Record, frozen=True):
    """When a candidate is dropped, and what an accepted one has shown."""

    alpha: float = 0.05  # chance that any candidate of the campaign that is no faster is accepted
    confirm_slots: int = 20  # candidates that may meet unseen rows; each at alpha / confirm_slots
    launch_blocks: int = 12  # fresh launches of a confirmation
    gain: float = 0.0  # an accepted candidate is faster than stock by more than this share
    ttft_margin: float = 0.15  # the median time to the first token may grow by this share
    tail_margin: float = 0.15  # and so may the 90 % quantile of the whole request

    def __post_init__(self) -> None:
        """Hold that something can be accepted at all."""
        if not 0.0 < self.alpha < 0.5:
            raise ValueError(f"`alpha` must lie between 0 and 0.5, got {self.alpha}")
        if self.confirm_slots < 1:
            raise ValueError(f"`confirm_slots` must be at least 1, got {self.confirm_slots}")
        needed = least_launches(self.level)
        if self.launch_blocks < needed:
            raise ValueError(
                f"`launch_blocks` = {self.launch_blocks} can confirm nothing at level alpha / confirm_slots "
                f"= {self.level:g}; it takes {needed}"
            )

    @property
    def level(self) -> float:
        """Of one confirmation: Bonferroni over the slots."""
        return self.alpha / self.confirm_slots


class Shape(Record, frozen=True):
    """How much a stage of the cascade measures, on public rows."""

    prompts: int
    launches: int = 1
    blocks: int = 1

    def __post_init__(self) -> None:
        """Refuse counts that measure nothing."""
        if min(self.prompts, self.launches, self.blocks) < 1:
            raise ValueError("`prompts`, `launches` and `blocks` must be at least 1")


class Survey(Record, frozen=True):
    """How stock is looked at before the search, for the gaps that effects are shares of."""

    prompts: int = 2  # of the embedded set; 0: not at all
    tokens: int = 48  # of an answer
    trees: bool = True  # with arms of trees, for the acceptance ceiling
    trace: bool = True  # with a trace of stock's steps; else stages are fitted from the arms

    def __post_init__(self) -> None:
        """Refuse counts that measure nothing."""
        if self.prompts < 0 or self.tokens < 1:
            raise ValueError("`prompts` must be 0 or more, and `tokens` at least 1")


class Tuning(Record, frozen=True):
    """Stock is tuned before anything is searched, so that gains are told over tuned stock, too."""

    trials: int = 0  # values of stock's own knobs that are tried; 0: stock stays as released
    knobs: tuple[Knob, ...] = ()  # of stock's arm; its other parameters stay
    batch: int = 4  # trials that share their launches

    def __post_init__(self) -> None:
        """Refuse a search without anything to turn."""
        if self.trials < 0 or self.batch < 1:
            raise ValueError("`trials` must be 0 or more, and `batch` at least 1")
        if self.trials and not self.knobs:
            raise ValueError("`trials` is above 0, but there are no `knobs` to tune")


class Unseen(Record, frozen=True):
    """The sealed rows that a campaign is started with."""

    public_rows: int = 200
    shard_rows: int = 24


class Controls(Record, frozen=True):
    """Arms with a known answer, measured beside the candidates and told to no explorer."""

    same: bool = True  # stock under another name must not gain
    handicap: dict[str, Param] = {}  # parameters of stock's backend that are surely slower; {}: delayed stock
    delay: float = 1.0  # share of its time that stock is delayed by then, with weights of its own; 0: not

    def __post_init__(self) -> None:
        """Refuse a delay that hurries, and one that nobody could tell from noise."""
        if self.delay and self.delay < LEAST_DELAY:
            raise ValueError(f"`delay` must be 0, or at least {LEAST_DELAY}, got {self.delay}")


class LoopPlan(Record, frozen=True):
    """A campaign, completely."""

    schema: Literal["loop/1"]
    name: str
    plan: str  # harness plan whose stock arm is improved: a built-in name, or a path beside this file
    explorers: tuple[ExplorerSpec, ...]
    spaces: tuple[Space, ...] = ()
    survey: Survey = Survey()
    tune: Tuning = Tuning()
    rules: Rules = Rules()
    screen: Shape = Shape(prompts=8)
    measure: Shape = Shape(prompts=24, launches=6)
    ablate: Shape | None = None  # of accepted candidates; None: not
    unseen: Unseen = Unseen()
    controls: Controls = Controls()
    budget: Budget = Budget()  # of the whole campaign, all rounds and explorers together
    rounds: int = 1  # explore, then confirm; so often
    submissions: int = 2  # of a round, at most, that are measured
    seed: int = 0

    def __post_init__(self) -> None:
        """Hold what the rest relies on."""
        names = [one.name for one in self.explorers]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"`explorers` needs names, each once; got {names}")
        if self.rounds < 1 or self.submissions < 1:
            raise ValueError("`rounds` and `submissions` must be at least 1")


class Loop(NamedTuple):
    """A campaign with the job it improves."""

    plan: LoopPlan
    job: Job  # its arms hold stock

    @property
    def stock(self) -> ArmSpec:
        """The arm that is improved."""
        return next(arm for arm in self.job.plan.arms if arm.kind == "stock")

    @property
    def tuning_space(self) -> Space:
        """What tuning may turn: stock's own arm, and nothing else."""
        stock = self.stock
        return Space(mechanism="stock", backend=stock.backend, fixed=stock.params, knobs=self.plan.tune.knobs)

    @property
    def hash(self) -> str:
        """sha256 of plan and job together."""
        return digest({"loop": digest(self.plan), "job": self.job.hash})

    @property
    def trusted(self) -> frozenset[str]:
        """Backends whose arms run in our own processes: those of stock and of the spaces."""
        return frozenset({self.stock.backend, *(space.backend for space in self.plan.spaces)})

    @property
    def packages(self) -> frozenset[str]:
        """Of the engine's modules, of which patches may bring changed copies."""
        edited = (edit.module for space in self.plan.spaces for edit in space.edits)
        return frozenset(name.partition(":")[0].partition(".")[0] for name in (*self.trusted, *edited))


def built_in_campaigns() -> dict[str, Path]:
    """Files of the campaigns that ship with the package, by name."""
    files = sorted((Path(__file__).parent / "campaigns").glob("*.toml"))
    return {file.stem: file for file in files if not file.stem.endswith(".plan")}


def load_loop(path: Path) -> Loop:
    """A campaign file, or a built-in campaign by name, and the plan it names.

    Raises:
        UsageError: a file cannot be read, a field does not fit, or the plan has no stock arm.
    """
    if path.suffix != ".toml" and not path.is_file():
        known = built_in_campaigns()
        if str(path) not in known:
            raise UsageError(
                f"no campaign named {str(path)!r}; built in: {', '.join(known)}; "
                "or give a path to a .toml file"
            )
        path = known[str(path)]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"campaign {path}: cannot be read: {error}") from None
    plan = from_toml(text, LoopPlan, str(path))
    beside = path.parent / plan.plan
    job = load_job(str(beside) if beside.is_file() else plan.plan)
    return Loop(plan, _stock_only(job))


def _stock_only(job: Job) -> Job:
    """The job with its stock arm alone, the baseline of every speedup here."""
    stock = [arm for arm in job.plan.arms if arm.kind == "stock"]
    if not stock:
        raise UsageError(f"plan {job.plan.name}: has no arm of kind 'stock'; the loop improves one")
    if job.plan.effective_division not in ("exact-greedy", "distribution"):
        raise UsageError(f"plan {job.plan.name}: its division knows no lossless speedup")
    arms = (msgspec.structs.replace(stock[0], name="stock"),)
    return msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, arms=arms))
