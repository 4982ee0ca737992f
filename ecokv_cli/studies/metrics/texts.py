"""Metrics that compare a prediction with each answer by itself and keep the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ecokv_cli.studies.metrics.checks import require_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ANLS_THRESHOLD = 0.5
TOLERANCE = 0.05


def exact(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Exact match with any answer, case included.

    ``1 if any(p == a) else 0`` after runs of white space became one blank and the ends were stripped.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        Accepted answers of every sample.

    Returns
    -------
    list of float
        One per sample, 0 or 1; the mean is the accuracy.

    Raises
    ------
    InputError
        If a sample has no answer.
    """
    return _best("exact", _exact, predictions, answers)


def contains(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Any answer stands in the prediction: the rule of all of OCRBench but its formulas.

    ``1 if any(a in p) else 0`` after both were lower-cased, stripped, and line feeds became blanks.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        Accepted answers of every sample.

    Returns
    -------
    list of float
        One per sample, 0 or 1. A long prediction that happens to name the answer counts too, so numbers are
        comparable only at the same limit of answer tokens.

    Raises
    ------
    InputError
        If a sample has no answer.

    Notes
    -----
    Source: OCRBench (arXiv 2305.07895) and its published evaluation. Deviation: a blank answer, which stands in any
    text, counts only for a blank prediction.
    """
    return _best("contains", _contains, predictions, answers)


def contains_formula(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    r"""Any answer stands in the prediction, blanks aside: OCRBench's rule for handwritten formulas (HME100k).

    ``1 if any(a in p) else 0`` after all blanks and line feeds were removed; case matters, as in LaTeX, where
    ``\Delta`` is not ``\delta``.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        Accepted answers of every sample.

    Returns
    -------
    list of float
        One per sample, 0 or 1.

    Raises
    ------
    InputError
        If a sample has no answer.

    Notes
    -----
    Source and deviation as for `contains`.
    """
    return _best("contains_formula", _contains_formula, predictions, answers)


def anls(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Average normalised Levenshtein similarity: DocVQA, InfographicVQA, MP-DocVQA.

    ``max over a of (1 - NL(a, p) if NL(a, p) < 0.5 else 0)``, with ``NL`` the Levenshtein distance in code points
    divided by the length of the longer text; both lower-cased, stripped, runs of white space as one blank.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        Accepted answers of every sample.

    Returns
    -------
    list of float
        One per sample: 0, or above 0.5 and at most 1; the mean over samples is the reported ANLS. A misread
        character costs a little, a wrong answer everything.

    Raises
    ------
    InputError
        If a sample has no answer.

    Notes
    -----
    Source: Biten et al., Scene Text Visual Question Answering (ICCV 2019), equation 1; Mathew et al., DocVQA (WACV
    2021). Deviations: two blank texts are equal (1). The challenge's script, and the harnesses that follow it, differ
    from the papers' formula in two details that are not followed here: a similarity of exactly 0.5 counts as 0.5
    rather than 0, and lengths are taken before stripping.
    """
    return _best("anls", _anls, predictions, answers)


def relaxed(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Relaxed accuracy of ChartQA: numbers within 5 %, other texts equal.

    ``1 if any(|p - a| <= 0.05 |a|) else 0`` where both are numbers and ``a`` is not 0, equality without regard to
    case otherwise. A number is what Python's `float` reads; with a percent sign at the end it is divided by 100, so
    ``96%`` and ``0.96`` are the same and ``96%`` and ``96`` are not. ``1,000`` and ``$5`` are texts.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        Accepted answers of every sample; ChartQA has one.

    Returns
    -------
    list of float
        One per sample, 0 or 1. Years fall under the tolerance too: 1960 counts where 2010 is right.

    Raises
    ------
    InputError
        If a sample has no answer.

    Notes
    -----
    Source: Masry et al., ChartQA (Findings of ACL 2022), section 5.1, as in the published evaluations of Pix2Struct and
    Qwen-VL. Deviations: white space at the ends is stripped, and ``nan`` and ``inf`` are texts.
    """
    return _best("relaxed", _relaxed, predictions, answers)


def _best(
    metric: str, score: Callable[[str, str], float], predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> list[float]:
    require_answers(metric, answers)
    return [
        float(max(score(prediction, answer) for answer in given))
        for prediction, given in zip(predictions, answers, strict=True)
    ]


def _exact(prediction: str, answer: str) -> float:
    return _single_blanks(prediction) == _single_blanks(answer)


def _contains(prediction: str, answer: str) -> float:
    return _stands_in(*(text.lower().strip().replace("\n", " ") for text in (answer, prediction)))


def _contains_formula(prediction: str, answer: str) -> float:
    return _stands_in(*(text.strip().replace("\n", "").replace(" ", "") for text in (answer, prediction)))


def _stands_in(answer: str, prediction: str) -> bool:
    return answer in prediction if answer else not prediction


def _anls(prediction: str, answer: str) -> float:
    # Not at the top: listing the metrics, as a help text does, must not wait for it.
    from rapidfuzz.distance import Levenshtein

    texts = [_single_blanks(text.lower()) for text in (prediction, answer)]
    distance = Levenshtein.distance(*texts) / (max(map(len, texts)) or 1)
    return 1 - distance if distance < ANLS_THRESHOLD else 0.0


def _relaxed(prediction: str, answer: str) -> float:
    prediction, answer = prediction.strip(), answer.strip()
    found, wanted = _number(prediction), _number(answer)
    if found is not None and wanted:
        return abs(found - wanted) / abs(wanted) <= TOLERANCE
    return prediction.lower() == answer.lower()


def _number(text: str) -> float | None:
    try:
        number = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _single_blanks(text: str) -> str:
    return " ".join(text.split())
