"""PyramidKV: more slots for the lower layers."""

from fractions import Fraction

from reference.rounding import exact, largest_remainder


def pyramid_counts(
    layers: int, free: int, candidates: int, beta: float = 20, compat: str = "exact", window: int = 0
) -> list[int]:
    """Free slots per layer and head: a linear ramp from hi in layer 0 to lo in the last of the L layers.

    With C free slots on average and M candidates hi = 2C - C/beta, at most M; lo = 2C - hi; layer l has hi - l (hi -
    lo) / (L - 1); one layer alone has C. `exact`: that real ramp, rounded by largest remainder to the total L C, cap M.
    `reference`: `_floored`. `kvcache_factory`: the same, but C for every layer where N < 2C. `kvpress`:
    `_with_window`, totals that include the `window`.
    """
    if compat == "kvcache_factory" and candidates + window < 2 * free:
        return [free] * layers
    if compat in ("reference", "kvcache_factory"):
        return _floored(layers, free, candidates, int(beta))
    if compat == "kvpress":
        return _with_window(layers, free + window, candidates + window, beta, window)
    high = min(2 * free - free / exact(beta), Fraction(candidates))
    low = 2 * free - high
    ramp = [high - layer * (high - low) / (layers - 1) if layers > 1 else Fraction(free) for layer in range(layers)]
    return largest_remainder(ramp, layers * free, candidates)


def _floored(layers: int, free: int, candidates: int, beta: int) -> list[int]:
    """Whole numbers throughout: lo = C // beta, hi = 2C - lo; where hi >= M: hi = M, lo = 2C - M.

    step = (hi - lo) // (L - 1), layer l has hi - l step, clamped to 0 .. M. The floored step makes the sum exceed L C.
    """
    low = free // beta
    high = 2 * free - low
    if high >= candidates:
        high, low = candidates, 2 * free - candidates
    step = (high - low) // (layers - 1) if layers > 1 else 0
    counts = [high - layer * step for layer in range(layers)] if layers > 1 else [free]
    return [min(max(count, 0), candidates) for count in counts]


def _with_window(layers: int, budget: int, tokens: int, beta: float, window: int) -> list[int]:
    """Floating point, the budget B includes the window W: lo = B / beta, hi = 2B - lo; where hi >= N - W: hi = N - W.

    lo is then 2B - hi. Layer l keeps round(hi - l (hi - lo) / (L - 1)) tokens, halves to even, window included, if
    N >= hi >= lo >= W. Otherwise, and for one layer alone, every layer keeps max(1, B).
    """
    low = budget / beta
    high = 2 * budget - low
    if high >= tokens - window:
        high = float(tokens - window)
        low = 2 * budget - high
    if layers == 1 or not tokens >= high >= low >= window:
        return [max(1, budget)] * layers
    step = (high - low) / (layers - 1)
    return [round(high - layer * step) for layer in range(layers)]
