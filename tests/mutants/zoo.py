"""The known mistakes of speculative engines, each as one changed decision of the reference engine.

B numbers group mistakes that public trackers of several engines report alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference_mechanisms.drafters.protocol import Drafter, Proposal, Wanted
from reference_mechanisms.engine.rules import Rules, block_of
from reference_mechanisms.engine.stops import Cut, Decode, Ending, cut
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.sampling import request_key
from reference_mechanisms.verification.chain import Verified, verify_choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong engine."""

    rules: Rules
    about: str


class FlawedDrafter:
    """Spoils every third token of another drafter: accepted prefixes of all lengths, right tokens behind."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    def begin(self, slot: int, request: Request) -> None:
        self.inner.begin(slot, request)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [
            Proposal(
                tuple(
                    token ^ 1 if (len(one.token_ids) + index) % 3 == 2 else token
                    for index, token in enumerate(proposal.token_ids)
                )
            )
            for one, proposal in zip(wanted, self.inner.propose(wanted), strict=True)
        ]


WRAPS: dict[str, Callable[[Drafter], Drafter]] = {"flawed": FlawedDrafter}


def _eos_only_last(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Looks for a stop token at the end of the block only."""
    if block[-1] in ending.stop_ids or len(before) + len(block) >= ending.max_tokens:
        kept = tuple(block)
        stopped = block[-1] in ending.stop_ids
        return Cut(kept, "stop" if stopped else "length", block[-1] if stopped else None)
    return Cut(tuple(block))


def _length_first(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Asks for the length before it asks for a stop."""
    if len(before) + len(block) >= ending.max_tokens:
        return Cut(tuple(block[: ending.max_tokens - len(before)]), "length")
    return cut(before, block, ending, decode)


def _no_length(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Cuts no block at max_tokens."""
    found = cut(before, block, ending._replace(max_tokens=10**9), decode)
    if found.finish_reason is None and len(before) + len(block) >= ending.max_tokens:
        return found._replace(finish_reason="length")
    return found


def _stop_window(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Looks for stop strings in the text of the newest tokens only."""
    longest = max((len(stop) for stop in ending.stop), default=0) + 1
    window = [*before, *block][-longest:]
    seen = next((stop for stop in ending.stop if stop in decode(window)), None)
    plain = cut(before, block, ending._replace(stop=()), decode)
    if plain.finish_reason is None and seen is not None:
        return Cut(tuple(block), "stop", seen)
    return plain


def _ids_stay(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Cuts the text at a stop string, but not the ids."""
    found = cut(before, block, ending, decode)
    if found.finish_reason == "stop" and isinstance(found.stop_reason, str):
        return found._replace(token_ids=tuple(block))
    return found


def _reason_is_length(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Ends in the right place and gives the wrong reason."""
    found = cut(before, block, ending, decode)
    if found.finish_reason == "stop":
        return found._replace(finish_reason="length", stop_reason=None)
    return found


def _first_unverified(draft: Sequence[int], choices: Sequence[int]) -> Verified:
    """Takes the first draft token unseen."""
    if not draft:
        return verify_choices(draft, choices)
    rest = verify_choices(draft[1:], choices[1:])
    return Verified(1 + rest.accepted, rest.next_token)


def _all_unverified(draft: Sequence[int], choices: Sequence[int]) -> Verified:
    """Takes the whole draft unseen."""
    return Verified(len(draft), choices[-1])


def _sum_of_mask(draft: Sequence[int], choices: Sequence[int]) -> Verified:
    """Counts matches wherever they are."""
    accepted = sum(a == b for a, b in zip(draft, choices, strict=False))
    return Verified(accepted, choices[accepted])


def _bonus_repeats(draft: Sequence[int], verified: Verified) -> tuple[int, ...]:
    """Emits the last accepted token again where the target's own belongs."""
    if not verified.accepted:
        return block_of(draft, verified)
    kept = tuple(draft[: verified.accepted])
    return (*kept, kept[-1])


def _bonus_twice(draft: Sequence[int], verified: Verified) -> tuple[int, ...]:
    """Emits the bonus token twice."""
    return (*block_of(draft, verified), verified.next_token)


def _stale_history(emitted: Sequence[int], draft_prefix: Sequence[int]) -> tuple[int, ...]:
    """Forgets the accepted tokens of the running step."""
    return tuple(emitted)


def _steps_as_tokens(emitted: Sequence[int], draft_prefix: Sequence[int]) -> tuple[int, ...]:
    """Counts steps of eight tokens where tokens are meant."""
    return tuple(emitted[: len(emitted) // 8])


def _no_min_tokens(emitted: Sequence[int], draft_prefix: Sequence[int]) -> tuple[int, ...]:
    """Thinks that min_tokens is long reached."""
    return (*emitted, *draft_prefix, *[0] * 1000)


def _key_by_slot(sampling: Sampling, prompt: Sequence[int], slot: int) -> int:
    """Random numbers of the place in the batch."""
    return request_key(sampling.seed + slot, ())


ZOO: dict[str, Mutant] = {
    "eos_in_block_ignored": Mutant(
        rules=Rules(cut=_eos_only_last), about="B01: a stop token inside an accepted block is passed over"
    ),
    "stop_string_window": Mutant(
        rules=Rules(cut=_stop_window), about="B02: a stop string early in a long block is missed"
    ),
    "ids_stay_behind_the_stop_string": Mutant(
        rules=Rules(cut=_ids_stay), about="B03: the text is cut at the stop string, the ids are not"
    ),
    "length_before_stop": Mutant(
        rules=Rules(cut=_length_first), about="B05: max_tokens is looked at before the stop"
    ),
    "over_the_budget": Mutant(
        rules=Rules(cut=_no_length, limit=lambda emitted, max_tokens: 32),
        about="B06: a block that crosses max_tokens is emitted whole",
    ),
    "first_draft_unverified": Mutant(
        rules=Rules(verify=_first_unverified), about="B08: the first draft token is committed unverified"
    ),
    "all_drafts_unverified": Mutant(
        rules=Rules(verify=_all_unverified), about="B08: the draft is committed unverified"
    ),
    "bonus_repeats_the_last_draft": Mutant(
        rules=Rules(block=_bonus_repeats), about="B09: a token is doubled at the bonus position"
    ),
    "bonus_emitted_twice": Mutant(
        rules=Rules(block=_bonus_twice), about="B09: the bonus token is emitted twice"
    ),
    "cache_not_cropped": Mutant(
        rules=Rules(keep=lambda drafted, verified: 1 + drafted),
        about="B11: rejected rows stay in the cache",
    ),
    "cache_cropped_too_far": Mutant(
        rules=Rules(keep=lambda drafted, verified: max(1, verified.accepted)),
        about="B11: the last accepted row is lost from the cache",
    ),
    "penalties_per_step": Mutant(
        rules=Rules(history=_stale_history), about="B15: penalties count the last token of a step only"
    ),
    "min_tokens_counts_steps": Mutant(
        rules=Rules(history=_steps_as_tokens), about="B15: min_tokens counts steps"
    ),
    "min_tokens_ignored": Mutant(rules=Rules(history=_no_min_tokens), about="B15: min_tokens is ignored"),
    "seed_of_the_slot": Mutant(
        rules=Rules(key=_key_by_slot), about="B19: neighbours in the batch change a seeded output"
    ),
    "sum_of_mask": Mutant(
        rules=Rules(verify=_sum_of_mask), about="B20: accepted counts matches behind a mismatch"
    ),
    "argmax_above_zero": Mutant(
        rules=Rules(draw=lambda probabilities, point: int(probabilities.argmax())),
        about="B21: the output at temperature above 0 is greedy",
    ),
    "counts_before_the_cut": Mutant(
        rules=Rules(accepted=lambda verified, kept: verified.accepted),
        about="B22: accepted tokens behind the stop are counted",
    ),
    "wrong_finish_reason": Mutant(
        rules=Rules(cut=_reason_is_length), about="the finish reason is not the one that ended the output"
    ),
}

CLEAN: dict[str, Mutant] = {
    "clean": Mutant(rules=Rules(), about="the engine itself"),
    "clean_uncapped": Mutant(
        rules=Rules(limit=lambda emitted, max_tokens: 32),
        about="the engine with drafts that cross max_tokens, as engines with fixed shapes make them",
    ),
}
