"""Memory that nobody wrote: the number that a target with guarded pools fills each place with before its first step.

Place p of a pool, a state slot or a KV block, holds (128 + q % 128) * 2 ** (q // 128) with q = p + 4: the four places
before a pool are guards, and place 0 is nobody's. Said here once more, since checks share no code with an engine.
"""

from __future__ import annotations

from math import frexp, isfinite

GUARD = 4


def unwritten(value: float) -> int | None:
    """The place whose first content a number is; ``None`` if it is none. Negative places are guards."""
    if not isfinite(value) or value < 128:
        return None
    mantissa, exponent = frexp(value)  # value = mantissa * 2 ** exponent, 0.5 <= mantissa < 1
    step = mantissa * 256 - 128
    return int(step) + 128 * (exponent - 8) - GUARD if step == int(step) else None
