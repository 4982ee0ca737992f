"""One option at a time: every variant against the method as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.studies.ablate.scores import differences, means
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.studies.ablate.scores import Scored

VARIANTS = (
    "model", "budget", "variant", "method", "mean", "low", "high", "against", "difference", "difference_low",
    "difference_high", "p", "changed", "n",
)  # fmt: skip


def variants_table(found: Sequence[Scored], seed: int = 0) -> Table:
    """Mean and paired difference of every variant.

    Parameters
    ----------
    found
        One experiment at each budget.
    seed
        Seed of the resampling.

    Returns
    -------
    Table
        Named after the experiment. Mean score with its 95 % bootstrap interval over samples; paired difference
        `against` the method with its options as given, its interval and the two-sided p-value of a permutation test
        (not corrected for the number of rows), empty for that method itself; and in how many of the `n` samples the
        answer `changed`, right or wrong.
    """
    table = Table(found[0].experiment.name.replace("-", "_"), VARIANTS)
    for one in found:
        against = one.experiment.reference.name
        paired = differences(one.scores - one.reference, seed)
        rows = zip(one.experiment.variants, means(one.scores, seed), paired, one.changed, strict=True)
        for variant, mean, difference, changed in rows:
            itself = variant.method.name == against
            table.add(
                model=one.model, budget=one.budget, variant=variant.name, method=variant.method.name, changed=changed,
                against=None if itself else against, **mean, **(dict.fromkeys(difference) if itself else difference),
            )  # fmt: skip
    return table
