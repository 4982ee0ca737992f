"""Window by booster: the gain of a smaller window and the gain of the metric, told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ecokv_cli.studies.ablate.scores import differences, means
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ecokv_cli.studies.ablate.scores import Scored

    Array = npt.NDArray[np.float64]

CELLS = ("model", "budget", "window", "booster", "method", "mean", "low", "high", "n")
EFFECTS = ("model", "budget", "effect", "difference", "difference_low", "difference_high", "p", "n", "reading")


def factorial_tables(found: Sequence[Scored], seed: int = 0) -> list[Table]:
    """Cells of the 2 x 2 and its effects.

    Parameters
    ----------
    found
        The factorial at each budget.
    seed
        Seed of the resampling.

    Returns
    -------
    list of Table
        ``factorial``: mean score of each cell with its 95 % bootstrap interval over samples. ``factorial_effects``:
        see `effects`; each is a mean of paired differences with its interval and the two-sided p-value of a
        permutation test, not corrected for the number of rows.
    """
    cells, table = Table("factorial", CELLS), Table("factorial_effects", EFFECTS)
    for one in found:
        for variant, row in zip(one.experiment.variants, means(one.scores, seed), strict=True):
            cells.add(model=one.model, budget=one.budget, method=variant.name, **variant.levels, **row)
        parts = effects(one.scores)
        words = _words(one)
        for effect, row in zip(parts, differences(np.array(list(parts.values())), seed), strict=True):
            table.add(
                model=one.model, budget=one.budget, effect=effect, n=one.scores.shape[1], reading=words[effect], **row
            )
    return [cells, table]


def effects(scores: Array) -> dict[str, Array]:
    """Effects of every sample.

    Parameters
    ----------
    scores
        ``[4, samples]``: first window without and with booster, second window without and with booster.

    Returns
    -------
    dict
        ``[samples]`` each. `window` and `booster` are main effects: the mean of the two simple effects below them.
        `interaction` is how much more the booster gains at the second window than at the first; 0: the two gains add
        up. `both` is the last cell minus the first, which is `window` + `booster` whatever the interaction.
    """
    first, first_boosted, second, second_boosted = scores
    return {
        "window": (second - first + second_boosted - first_boosted) / 2,
        "booster": (first_boosted - first + second_boosted - second) / 2,
        "interaction": second_boosted - second - first_boosted + first,
        "window_plain": second - first,
        "window_boosted": second_boosted - first_boosted,
        "booster_first": first_boosted - first,
        "booster_second": second_boosted - second,
        "both": second_boosted - first,
    }


def _words(one: Scored) -> dict[str, str]:
    first, _, second, last = one.experiment.variants
    before, after, booster = first.levels["window"], second.levels["window"], last.levels["booster"]
    window = f"window {after} instead of {before}"
    return {
        "window": f"{window}, mean of without and with {booster}",
        "booster": f"+{booster}, mean of both windows",
        "interaction": f"gain of +{booster} at window {after} minus its gain at window {before}",
        "window_plain": f"{window}, without {booster}",
        "window_boosted": f"{window}, with {booster}",
        "booster_first": f"+{booster} at window {before}",
        "booster_second": f"+{booster} at window {after}",
        "both": f"{window} and +{booster}",
    }
