"""A mechanism record: what was changed, where it may help, what it gave where it was tried.

A record is a hypothesis with evidence. It orders the search on another deployment and never skips
the gate there. Text in it is an explorer's and untrusted; every number is the controller's.

History: mechanism/1 (0.1.0) first version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent_loop.records import CLAIM_CHARACTERS, Effect, Outcome
from harness.codec import Record, digest
from harness.plan import Job, Param

Trait = str | int | float | bool | None  # None: not known here
State = Literal["candidate", "confirmed", "confirmed-many", "contested", "retired"]
Op = Literal["eq", "in", "ge", "le"]


class Predicate(Record, frozen=True):
    """One precondition that a machine can check."""

    trait: str
    op: Op
    values: tuple[str | int | float | bool, ...]  # one, but for "in"
    reason: str

    def holds(self, traits: Mapping[str, Trait]) -> bool | None:
        """Whether it holds; None where the deployment does not tell the trait."""
        found = traits.get(self.trait)
        if found is None:
            return None
        if self.op in ("eq", "in"):
            return found in self.values
        bound = self.values[0]
        if isinstance(found, str) or isinstance(bound, str):
            return False
        return found >= bound if self.op == "ge" else found <= bound


class Mechanism(Record, frozen=True):
    """The immutable body of a record."""

    schema: Literal["mechanism/1"]
    name: str
    gap: str  # the component it addresses
    explanation: str
    backend: str
    params: dict[str, Param]
    patch: str | None = None
    preconditions: tuple[Predicate, ...] = ()
    derived_from: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Cap the text."""
        if len(self.explanation) > CLAIM_CHARACTERS or len(self.name) > CLAIM_CHARACTERS:
            raise ValueError(f"`explanation` and `name` hold at most {CLAIM_CHARACTERS} characters")

    @property
    def id(self) -> str:
        """Of what would run."""
        return digest({"backend": self.backend, "params": self.params, "patch": self.patch})[:16]


class Evidence(Record, frozen=True):
    """What a mechanism gave on one deployment."""

    mechanism: str
    campaign: str
    deployment: str  # name
    traits: dict[str, Trait]
    date: str  # ISO 8601, UTC
    outcome: Outcome
    detail: str
    effect: Effect | None  # of the confirmation; public figures are never stored
    closed: float | None  # share of the gap that was closed; above 1 where it closed others, too
    closed_low: float | None
    closed_high: float | None
    gap_share: float | None  # share of stock's time that the gap is, by the cost model
    harness: str  # sha256 of the sources that measured

    @property
    def positive(self) -> bool:
        """Whether it was accepted."""
        return self.outcome == "ACCEPT"


def traits_of(job: Job) -> dict[str, Trait]:
    """What preconditions are evaluated on."""
    deployment, plan = job.deployment, job.plan
    stock = next(arm for arm in plan.arms if arm.kind == "stock")
    target = deployment.target
    return {
        "backend": stock.backend,
        "target": target.sha256 or target.package or target.hub or target.path,
        "dtype": target.dtype,
        "device": deployment.device,
        "gpu": deployment.gpu,
        "weights_format": deployment.weights_format,
        "stock_drafter": _text(stock.params.get("drafter")),
        "batch": plan.measure.batch,
        "max_tokens": plan.sampling.max_tokens,
        "greedy": plan.sampling.greedy,
        "context_length": deployment.context_length,
    }


def preconditions_for(
    backend: Trait, params: Mapping[str, Param], traits: Mapping[str, Trait]
) -> tuple[Predicate, ...]:
    """What a mechanism certainly needs, from where it was found."""
    needed = []
    if backend is not None:
        reason = "its parameters are this backend's"
        needed.append(Predicate(trait="backend", op="eq", values=(backend,), reason=reason))
    target = traits.get("target")
    if "drafter" in params and target is not None:
        needed.append(
            Predicate(
                trait="target", op="eq", values=(target,), reason="its drafter was made for this target"
            )
        )
    batch = traits.get("batch")
    if isinstance(batch, int):
        needed.append(
            Predicate(
                trait="batch", op="le", values=(4 * batch,), reason="verification costs more in large batches"
            )
        )
    return tuple(needed)


def closed_share(effect: Effect, gap_share: float | None) -> tuple[float, float, float] | None:
    """Share of a gap that a speedup closes: (1 - 1 / speedup) / gap, with its interval.

    Args:
        effect: over stock.
        gap_share: closable share of stock's time, 0..1.
    """
    if gap_share is None or gap_share <= 0.0:
        return None
    point, low, high = ((1.0 - 1.0 / one) / gap_share for one in (effect.point, effect.low, effect.high))
    return point, low, high


def _text(value: Param | None) -> str | None:
    return None if value is None else str(value)
