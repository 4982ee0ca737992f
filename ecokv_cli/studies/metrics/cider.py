"""Consensus of captions over a corpus: CIDEr-D, as TextCaps reports it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_cli.studies.metrics.captions import caption_tokens
from ecokv_cli.studies.metrics.checks import require_answers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0
SCALE = 10.0

FEWEST_SAMPLES = 2
"""In a corpus of one every n-gram is in every sample, and every weight zero."""

_Ngram = tuple[str, ...]


@dataclass(frozen=True)
class _Vectors:
    """Weights of a caption's n-grams, a dictionary per order, and their Euclidean norms."""

    length: int
    weights: tuple[dict[_Ngram, float], ...]
    norms: tuple[float, ...]


def cider(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """CIDEr-D of every caption against its references.

    For n = 1 to 4, ``g(c)`` holds for every n-gram its count in the caption times ``log(N / max(1, df))``, with N the
    number of samples and df the number of samples with the n-gram in any reference. Then, ``|c|`` being the length in
    tokens,

    ``10 mean over n, references r of exp(-(|c| - |r|)^2 / 72) min(g(c), g(r)) . g(r) / (||g(c)|| ||g(r)||)``.

    Parameters
    ----------
    predictions
        One caption per sample.
    answers
        Reference captions of every sample; TextCaps has five.

    Returns
    -------
    list of float
        One per sample, from 0 to 10; the mean over samples is the corpus' CIDEr-D (tables print it times 100). Ten is
        for a caption that equals all its references and has at least four tokens and something rare in it; people
        reach about one. As document frequencies come from the samples given, values of different or cut-down sets are
        not comparable.

    Raises
    ------
    InputError
        If there are fewer than two samples or a sample has no reference.

    Notes
    -----
    Source: Vedantam et al., CIDEr (CVPR 2015), section 5 (CIDEr-D), with counts instead of relative frequencies, as in
    the authors' code and in the COCO caption evaluation, which calls this CIDEr. Deviation: `caption_tokens` instead of
    Stanford's tokenizer.
    """
    require_answers("cider", answers, fewest_samples=FEWEST_SAMPLES)
    references = [[caption_tokens(reference) for reference in given] for given in answers]
    frequency = Counter(
        ngram for given in references for ngram in {ngram for tokens in given for ngram in _counts(tokens)}
    )
    return [
        _score(
            _vectors(caption_tokens(prediction), frequency, len(answers)),
            [_vectors(tokens, frequency, len(answers)) for tokens in given],
        )
        for prediction, given in zip(predictions, references, strict=True)
    ]


def _counts(tokens: Sequence[str]) -> Counter[_Ngram]:
    return Counter(tuple(tokens[i : i + n]) for n in ORDERS for i in range(len(tokens) - n + 1))


def _vectors(tokens: Sequence[str], frequency: Mapping[_Ngram, int], samples: int) -> _Vectors:
    weights: tuple[dict[_Ngram, float], ...] = tuple({} for _ in ORDERS)
    for ngram, count in _counts(tokens).items():
        weights[len(ngram) - 1][ngram] = count * math.log(samples / max(1, frequency.get(ngram, 0)))
    return _Vectors(len(tokens), weights, tuple(math.hypot(*order.values()) for order in weights))


def _score(caption: _Vectors, references: Sequence[_Vectors]) -> float:
    # fsum, so that the order of the references cannot matter.
    return SCALE * math.fsum(_similarity(caption, each) for each in references) / (len(references) * len(ORDERS))


def _similarity(caption: _Vectors, reference: _Vectors) -> float:
    """Sum over the orders of the clipped cosine, times the penalty for another length."""
    total = 0.0
    for ours, theirs, norm, other in zip(
        caption.weights, reference.weights, caption.norms, reference.norms, strict=True
    ):
        if norm and other:
            shared = ours.keys() & theirs.keys()
            total += math.fsum(min(ours[g], theirs[g]) * theirs[g] for g in shared) / (norm * other)
    return total * math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
