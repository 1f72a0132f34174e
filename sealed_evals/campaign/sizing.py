"""How many prompts a shard needs, so that a candidate worth having is likely to be confirmed. Pure."""

from __future__ import annotations

import math

from scipy import stats as distributions

from harness.errors import UsageError
from sealed_evals.campaign.records import Sizing

LEAST = 16  # prompts; with 8 the interval's lower side errs 3.7 % of the time instead of 2.5 %


def rows_needed(sizing: Sizing, level: float, gain: float = 0.0) -> int:
    """Rows of a shard.

    The log ratio of a candidate that is `sizing.gain` faster, averaged over n prompts of standard
    deviation `sizing.spread`, lies above the limit log(1 + gain) by z(level / 2) standard errors with
    probability `sizing.power` when n = ((z(level / 2) + z(1 - power)) * spread / distance) ** 2; a few
    more for Student's width. Noise between launches is not in it: more launches mend that, rows do not.

    Args:
        sizing: what shall be confirmed.
        level: of a confirmation; its interval errs with half of it on each side.
        gain: what a candidate must exceed.

    Raises:
        UsageError: nothing can be confirmed with these numbers.
    """
    if not 0.0 < level < 0.5:
        raise UsageError(f"--level must lie between 0 and 0.5, got {level}")
    if sizing.gain <= gain:
        raise UsageError(f"--confirm-gain must be more than --gain = {gain}, got {sizing.gain}")
    if not 0.0 < sizing.power < 1.0 or sizing.spread <= 0.0:
        raise UsageError(
            f"--power must lie in (0, 1) and --spread above 0, got {sizing.power} and {sizing.spread}"
        )
    distance = math.log1p(sizing.gain) - math.log1p(gain)
    z = float(distributions.norm.isf(level / 2.0))
    normal = ((z + float(distributions.norm.isf(1.0 - sizing.power))) * sizing.spread / distance) ** 2
    return max(LEAST, math.ceil(normal + z * z / 2.0))  # Guenther's (1981) correction for Student's t
