"""Accuracy by agreement with ten annotators, and the answer processing that belongs to it: TextVQA, VQA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ecokv_cli.studies.metrics.checks import require_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

AGREEING = 3
"""As many other annotators make an answer fully right."""

FEWEST_ANSWERS = AGREEING + 1
"""With fewer, leave-one-out subsets are too small for any prediction to reach 1."""

_PUNCTUATION = ';/[]"{}()=+\\_-><@`!'
_SENTENCE_DOT = re.compile(r"\.(?!\d)")
_ARTICLES = frozenset(("a", "an", "the"))
_NUMBERS = {"none": "0"} | {
    word: str(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
}  # fmt: skip
_CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()


def _without_one_apostrophe(word: str) -> list[str]:
    return [word[:i] + word[i + 1 :] for i, character in enumerate(word) if character == "'"]


# The published table is exactly this, and one entry that runs the other way.
_CONTRACTIONS = {short: word for word in _CONTRACTED for short in _without_one_apostrophe(word)} | {
    "somebody'd": "somebodyd"
}


def vqa(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """VQA accuracy: full marks where three other annotators agree with the prediction.

    ``mean over annotators i of min(1, m_i / 3)``, ``m_i`` the number of annotators other than i whose answer equals
    the prediction, after `processed`. With m of n answers equal that is
    ``(m min(1, (m - 1) / 3) + (n - m) min(1, m / 3)) / n``; of ten answers one match gives 0.3, two 0.6, three 0.9.

    Parameters
    ----------
    predictions
        One text per sample.
    answers
        The answers of all annotators of every sample, repetitions included; the benchmarks have ten.

    Returns
    -------
    list of float
        One per sample, from 0 to 1; the mean over samples is the reported accuracy. Where annotators disagree even
        the best answer stays below 1.

    Raises
    ------
    InputError
        If a sample has fewer than four answers.

    Notes
    -----
    Source: Antol et al., VQA (ICCV 2015); Singh et al., Towards VQA Models That Can Read (CVPR 2019), whose evaluation
    processes all answers. VQA's own script does so only where annotators differ, and treats ``'s`` and commas between
    digits otherwise; it is not followed.
    """
    require_answers("vqa", answers, fewest_answers=FEWEST_ANSWERS)
    return [_accuracy(prediction, given) for prediction, given in zip(predictions, answers, strict=True)]


def processed(text: str) -> str:
    """An answer as the evaluation server compares it.

    Lower case; no commas and question marks; ``'s`` as a word of its own; other punctuation removed where one of its
    kind stands beside a blank, a blank otherwise; no full stops but before digits; ``none`` and number words to ten as
    digits; no articles; apostrophes put back into contractions.

    Parameters
    ----------
    text
        A prediction or an answer.

    Returns
    -------
    str
        Words separated by one blank.

    Notes
    -----
    Source: the answer processor of TextVQA's evaluation. Deviation: it stops after 32 full stops, this does not.
    """
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    text = text.replace("\n", " ").replace("\t", " ").strip()
    plain = text
    for mark in _PUNCTUATION:
        beside_blank = f"{mark} " in text or f" {mark}" in text
        plain = plain.replace(mark, "" if beside_blank else " ")
    words = [_NUMBERS.get(word, word) for word in _SENTENCE_DOT.sub("", plain).split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def _accuracy(prediction: str, answers: Sequence[str]) -> float:
    wanted = processed(prediction)
    n, m = len(answers), sum(processed(answer) == wanted for answer in answers)
    # In whole thirds, so that full agreement is exactly 1.
    return (m * min(AGREEING, m - 1) + (n - m) * min(AGREEING, m)) / (AGREEING * n)
