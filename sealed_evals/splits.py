"""The public split: which rows a run draws, fixed by the seed alone. Pure.

A draw grows by its end only: the first n prompts of a larger draw are the draw of n. Categories
are drawn in proportion to their size, so that a small draw looks like its set.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from harness.codec import canonical_json
from harness.records import Prompt


def draw(prompts: Sequence[Prompt], count: int, seed: int) -> tuple[Prompt, ...]:
    """Draw `count` of the prompts.

    The order depends on id and text of each prompt, not on the bytes of its row, so that the same
    set from another source gives the same draw. Within a category prompts stand in the order of
    sha256(seed, prompt); the prompt of rank r in a category of n stands at (r + 1/2) / n.

    Args:
        prompts: the whole set.
        count: how many to draw.
        seed: of the draw; any integer.

    Raises:
        ValueError: there are fewer prompts than `count`, or `count` is negative.
    """
    if not 0 <= count <= len(prompts):
        raise ValueError(f"cannot draw {count} of {len(prompts)} prompts")
    order = sorted((_lot(prompt, seed), prompt) for prompt in prompts)
    sizes = Counter(prompt.category for prompt in prompts)
    ranks: Counter[str] = Counter()
    placed: list[tuple[float, bytes, Prompt]] = []
    for lot, prompt in order:
        placed.append(((ranks[prompt.category] + 0.5) / sizes[prompt.category], lot, prompt))
        ranks[prompt.category] += 1
    placed.sort(key=lambda place: place[:2])
    return tuple(prompt for _, _, prompt in placed[:count])


def _lot(prompt: Prompt, seed: int) -> bytes:
    return hashlib.sha256(canonical_json([seed, prompt.prompt_id, prompt.turns])).digest()
