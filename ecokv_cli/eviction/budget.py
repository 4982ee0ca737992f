"""Budgets: a whole number of tokens, or a share of the prompt's; what they come to, and how they are told."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from numbers import Integral

from ecokv_cli.errors import UsageError

Budget = int | float
"""Per KV head and layer, the protected window included: an int >= 1 of tokens, or a float 0 < r < 1 of the prompt."""


def require_budget(budget: Budget) -> None:
    """Refuse what is neither a number of tokens nor a share.

    Raises
    ------
    UsageError
        If it is a whole number below 1, or another number outside 0 < r < 1.
    """
    if isinstance(budget, bool) or not isinstance(budget, Integral | float):
        raise UsageError(
            f"budget {budget!r} is of type {type(budget).__name__}; give an int of tokens, or a float between 0 and 1"
        )
    if isinstance(budget, float):
        if not 0 < budget < 1:
            raise UsageError(
                f"budget {budget}: a share of the prompt lies between 0 and 1; write tokens as a whole number"
            )
    elif budget < 1:
        raise UsageError(f"budget {budget}: must be 1 or more, or a share of the prompt between 0 and 1")


def tokens_of(budget: Budget, tokens: int) -> int:
    """What a budget comes to for a prompt of `tokens` tokens.

    A number of tokens is what it says. A share r is ``max(1, round(r N))``, to the nearest whole number and halves up,
    with r as it is written in decimals: 0.145 of 100 is 14.5 and so 15, though the nearest binary number is below.

    Parameters
    ----------
    budget
        Tokens, or a share 0 < r < 1.
    tokens
        N, at least 1.

    Returns
    -------
    int
        Tokens per KV head and layer, window included; of a share in [1, N].

    Raises
    ------
    UsageError
        If it is neither, see `require_budget`.
    """
    require_budget(budget)
    if not isinstance(budget, float):
        return int(budget)
    exact = Decimal(str(budget)) * tokens
    return max(1, int(exact.to_integral_value(ROUND_HALF_UP)))


def named(budget: Budget, tokens: int | None) -> str:
    """A budget in the words of an error: with the prompt and what it comes to, if it is a share."""
    if not isinstance(budget, float) or tokens is None:
        return f"budget {budget}"
    return f"budget {budget}, which is {tokens_of(budget, tokens)} of the prompt's {tokens} tokens,"


def raised(budget: Budget, tokens: int | None, least: int) -> str:
    """How a budget becomes one of at least `least` tokens, in the words of an error."""
    if not isinstance(budget, float) or tokens is None:
        return f"raise --budget to {least} or more"
    share = math.ceil(1000 * (least - 0.5) / tokens) / 1000
    if share >= 1:
        return f"give --budget {least} or more in its place"
    return f"raise --budget-ratio to {share} or more"


def in_short(budget: Budget) -> str:
    """``1,024`` or ``25 %``."""
    return f"{100 * budget:g} %" if isinstance(budget, float) else f"{budget:,}"


def in_words(budget: Budget) -> str:
    """``1,024 tokens`` or ``25 % of the prompt``."""
    return f"{in_short(budget)} of the prompt" if isinstance(budget, float) else f"{in_short(budget)} tokens"
