"""The nouns of the loop: gaps, candidates, verdicts, budgets. Frozen, and nothing derived is stored twice.

A candidate is an arm of a plan, or an arm together with a patch that brings its backend. What it
claims of itself (hypothesis, mechanism) is text of an explorer: it is stored, shown and quoted, and
decides nothing.

History: candidate and verdict version 1 (0.1.0) first version.
"""

from __future__ import annotations

import math
from typing import Literal

from harness.codec import Record, digest
from harness.plan import Param

Origin = Literal[
    "tuning",  # stock itself with other values of its own knobs
    "search",  # knobs of the deployment, by an optimiser
    "memory",  # a mechanism record, replayed
    "merge",  # of several accepted or screened candidates
    "ablation",  # of one accepted candidate
    "transform",  # a parametrised source transform
    "model",  # a language model's own idea
    "human",
    "null",  # a control that must not be accepted
    "positive",  # a control that must be accepted
]
Stage = Literal["policy", "build", "lossless", "tune", "screen", "measure", "confirm", "ablate", "stack"]
Outcome = Literal[
    "PASSED",  # this stage; the next may say otherwise
    "ACCEPT",
    "NO_GAIN",
    "INCONCLUSIVE",
    "LOSSY",
    "LOSSY_DISTRIBUTION",
    "INCOMPLETE",  # requests failed or were refused
    "REGRESSION",  # of a guardrail
    "POLICY",  # what the patch or arm may not be
    "CHEAT",
    "BELOW_CEILING",  # faster than physics allows: quarantined until a person has looked
    "INVALID",  # the run gives no number
    "UNPROVEN",  # passed, but no confirm slot was left
    "INFRA",  # our own machinery failed
    "NEEDS_HUMAN",
    "REJECTED",  # on unseen rows; all that an explorer is told, whatever the reason
]
CLAIM_CHARACTERS = 2000  # of any text an explorer wrote
PATCH_BYTES = 200_000


class Gap(Record, frozen=True):
    """What one stage of a step costs above its floor; see `agent_loop.cost_model`."""

    component: str  # "weights", "attention", "drafter", "sampling", "host", "launch", "acceptance", ...
    measured_s: float  # seconds a step, or of the whole run where the basis says so
    floor_s: float  # seconds that physics or the best possible drafts leave
    share: float  # of all closable time, 0..1
    confidence: float  # 0..1: how directly it was measured
    basis: str  # one sentence: where both numbers come from

    @property
    def closable_s(self) -> float:
        """Seconds above the floor; 0 where the measurement lies below it, which is a finding of its own."""
        return max(0.0, self.measured_s - self.floor_s)

    @property
    def below_floor(self) -> bool:
        """Whether less was measured than physics allows."""
        return self.measured_s < self.floor_s


class Hypothesis(Record, frozen=True):
    """What an explorer believes, written down before the trial; untrusted text."""

    mechanism: str  # short name, e.g. "shorter drafts"
    gap: str = ""  # the component it addresses
    expected_speedup: float | None = None  # over stock
    explanation: str = ""
    falsifier: str = ""  # what would show it wrong

    def __post_init__(self) -> None:
        """Cap the text, so that nothing large travels into memory or a terminal."""
        for field in ("mechanism", "gap", "explanation", "falsifier"):
            if len(getattr(self, field)) > CLAIM_CHARACTERS:
                raise ValueError(f"`{field}` is longer than {CLAIM_CHARACTERS} characters")
        if self.expected_speedup is not None and not 0.0 < self.expected_speedup < math.inf:
            raise ValueError("`expected_speedup` must be a positive number, or be left out")


class Candidate(Record, frozen=True):
    """One change to stock, complete: an arm, and the patch that makes its backend, if it has one."""

    name: str
    backend: str  # "module:function", as in a plan; of the patch where there is one
    hypothesis: Hypothesis
    origin: Origin
    explorer: str
    params: dict[str, Param] = {}
    patch: str | None = None  # unified diff against an empty worktree of the deployment
    parents: tuple[str, ...] = ()  # ids
    record: str | None = None  # id of the mechanism record that it replays

    def __post_init__(self) -> None:
        """Refuse what no worktree could take."""
        if self.patch is not None and len(self.patch.encode()) > PATCH_BYTES:
            raise ValueError(f"`patch` is larger than {PATCH_BYTES} bytes")

    @property
    def id(self) -> str:
        """Of what would run, whoever proposes it and whatever is said of it."""
        return digest({"backend": self.backend, "params": self.params, "patch": self.patch})[:16]


class Effect(Record, frozen=True):
    """Speedup over stock: total time of stock / total time of the candidate, same prompts."""

    point: float
    low: float
    high: float
    confidence: float
    blocks: int  # launch blocks behind it
    p_value: float | None = None  # one-sided sign-flip test over launch blocks


class Told(Record, frozen=True):
    """All that an explorer learns of its candidate: public figures, and one bit of a confirmation."""

    candidate_id: str
    stage: Stage
    outcome: Outcome
    detail: str  # one sentence; of a confirmation nothing
    effect: Effect | None = None  # on public rows; None once unseen rows were looked at
    acceptance_length: float | None = None  # on public rows

    @property
    def passed(self) -> bool:
        """Whether the candidate is still alive."""
        return self.outcome in ("PASSED", "ACCEPT")


class Verdict(Record, frozen=True):
    """What a stage decided, for the controller; `told` is what leaves it."""

    candidate_id: str
    stage: Stage
    outcome: Outcome
    detail: str
    effect: Effect | None = None  # over stock as released
    over_tuned: Effect | None = None  # over tuned stock in the same launches; always on public rows
    acceptance_length: float | None = None
    tokens: int = 0  # emitted tokens forced through stock
    mismatches: int = 0
    near_ties: int = 0
    alpha: float | None = None  # level spent; of a confirmation only
    evidence: str | None = None  # run folder; of a confirmation in the controller's own folder
    seconds: float = 0.0  # wall time the stage took

    @property
    def told(self) -> Told:
        """What the explorer may know: nothing measured on unseen rows."""
        unseen = self.stage == "confirm" and self.outcome != "UNPROVEN"  # without a slot nobody has looked
        accepted = self.outcome == "ACCEPT"
        return Told(
            candidate_id=self.candidate_id,
            stage=self.stage,
            outcome="REJECTED" if unseen and not accepted else self.outcome,
            detail=("accepted" if accepted else "rejected") if unseen else self.detail,
            effect=None if unseen else self.effect,
            acceptance_length=None if unseen else self.acceptance_length,
        )


class Budget(Record, frozen=True):
    """Limits of a scope (campaign, explorer, request); None sets none. Scopes nest: all must hold."""

    dollars: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None  # wall clock
    trials: int | None = None  # public ones
    submissions: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits below zero."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ValueError(f"`{field}` of a budget must be 0 or more, got {value}")


class Spent(Record, frozen=True):
    """What a scope has used, reservations included."""

    dollars: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    turns: int = 0
    seconds: float = 0.0
    trials: int = 0
    submissions: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        fields = self.__struct_fields__
        return Spent(**{field: getattr(self, field) + getattr(other, field) for field in fields})

    def exceeds(self, budget: Budget) -> str | None:
        """Name of the first limit that this goes beyond; None if all hold."""
        for field in self.__struct_fields__:
            limit = getattr(budget, field)
            if limit is not None and getattr(self, field) > limit:
                return field
        return None
