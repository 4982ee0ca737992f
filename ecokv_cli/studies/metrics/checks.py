"""What metrics refuse before they score: samples without answers, and too few answers or samples to mean anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def require_answers(
    metric: str,
    answers: Sequence[Sequence[str]],
    ids: Sequence[str] | None = None,
    fewest_answers: int = 1,
    fewest_samples: int = 1,
) -> None:
    """Check that a metric can be computed.

    Parameters
    ----------
    metric
        Its name, for the message.
    answers
        Accepted answers of every sample.
    ids
        Names of the samples; counted from 1 where not given.
    fewest_answers, fewest_samples
        What the metric needs.

    Raises
    ------
    InputError
        If there are too few samples, or a sample has too few answers; then naming the first one.
    TypeError
        If a sample's answers are one text, whose letters would be taken for answers.
    """
    if len(answers) < fewest_samples:
        raise InputError(
            f"metric '{metric}': found {_count(len(answers), 'sample')}, expected at least {fewest_samples}: "
            "give it more samples"
        )
    for number, given in enumerate(answers):
        if isinstance(given, str):
            raise TypeError(f"answers[{number}] is a text, expected a sequence of texts")
        if len(given) < fewest_answers:
            name = f"'{ids[number]}'" if ids is not None else f"{number + 1} of {len(answers)}"
            raise InputError(
                f"sample {name}: found {_count(len(given), 'answer')}, metric '{metric}' expected at least "
                f'{fewest_answers}: complete "answers" of that sample in the manifest'
            )


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
