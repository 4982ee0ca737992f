"""CIDEr-D over a corpus: by hand, against a literal loop, and its tokens."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.studies.metrics import METRICS
from ecokv_cli.studies.metrics.captions import caption_tokens

CAPTIONS = st.lists(st.sampled_from(["red", "bus", "stop", "sign", "a", "on"]), max_size=9).map(" ".join)
CORPORA = st.lists(st.tuples(CAPTIONS, st.lists(CAPTIONS, min_size=1, max_size=5)), min_size=2, max_size=5)


def cider(*samples):
    predictions, answers = zip(*samples, strict=True)
    return METRICS["cider"].function(predictions, answers)


def ngrams(caption, n):
    words = caption.split(" ") if caption else []
    return [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]


def literal_cider(samples):
    """Equations 2 to 5 of the paper term by term on words parted by blanks, in the order they are printed."""
    scores = []
    for candidate, references in samples:
        over_n = 0.0
        for n in (1, 2, 3, 4):
            vocabulary = sorted(
                {g for text, others in samples for caption in [text, *others] for g in ngrams(caption, n)}
            )
            idf = []
            for g in vocabulary:
                having = 0
                for _, others in samples:
                    having += any(g in ngrams(caption, n) for caption in others)
                idf.append(math.log(len(samples)) - math.log(max(1, having)))
            for reference in references:
                c = [ngrams(candidate, n).count(g) * w for g, w in zip(vocabulary, idf, strict=True)]
                s = [ngrams(reference, n).count(g) * w for g, w in zip(vocabulary, idf, strict=True)]
                product = sum(min(x, y) * y for x, y in zip(c, s, strict=True))
                lengths = math.sqrt(sum(x * x for x in c)) * math.sqrt(sum(y * y for y in s))
                apart = len(candidate.split()) - len(reference.split())
                if lengths > 0:
                    over_n += math.e ** (-(apart**2) / (2 * 6**2)) * product / lengths / len(references) / 4
        scores.append(10 * over_n)
    return scores


@pytest.mark.parametrize(
    ("prediction", "wanted"),
    [
        ("red bus", 10 * 2 / 4),  # two of the four orders exist and agree
        ("bus", 10 * math.exp(-1 / 72) / 4),
        ("bus bus", 10 * 0.5 / 4),  # clipped: twice the word is half the cosine
        ("red", 0),  # in every sample, so without weight
        ("red bus here now", 10 * math.exp(-4 / 72) * (1 / math.sqrt(3) + 1 / math.sqrt(3)) / 4),
        ("", 0),
    ],
)
def test_by_hand(prediction, wanted):
    """Of two samples: "red" is in both, "bus" and "red bus" in the first alone."""
    first, _ = cider((prediction, ["red bus"]), ("whatever", ["red"]))
    assert first == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(CORPORA)
def test_is_the_literal_sum(samples):
    assert cider(*samples) == pytest.approx(literal_cider(samples), abs=1e-9)


@given(CORPORA)
def test_a_caption_like_its_only_reference_is_worth_ten(samples):
    unlike_all = "one two three four five"
    assert cider((unlike_all, [unlike_all]), *samples)[0] == pytest.approx(10)
    assert cider((unlike_all, [unlike_all, "red bus"]), *samples)[0] == pytest.approx(5)


@given(CORPORA)
def test_order_of_samples_does_not_matter_and_weights_come_from_references_alone(samples):
    values = cider(*samples)
    assert cider(*samples[::-1])[::-1] == values
    changed = cider(samples[0], *(("red red red", references) for _, references in samples[1:]))
    assert changed[0] == values[0]


def test_values_of_the_coco_caption_evaluation():
    """What pycocoevalcap 1.2 with Stanford's tokenizer returned for these captions."""
    samples = [
        ("A red-haired man doesn't see the sign.", ["A man with red hair can't see a sign.", "The man ignores it!"]),
        ("A bottle of Dr. Pepper, 1.5 L.", ["Dr. Pepper (1.5L) on a table", "a bottle of dr. pepper's soda: 99%"]),
        ("The U.S. flag at 10:30 a.m.", ["\u201cU.S.\u201d flag, it\u2019s 10:30 A.M.", "flag of the U.S."]),
    ]
    published = [1.140264211939043, 3.5187926982908135, 2.6120359870066148]
    assert cider(*samples) == pytest.approx(published, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('The sign says "STOP", it\'s 3,000.', "the sign says stop it 's 3,000"),
        ("Don't, can't, cannot; they'd've", "do n't ca n't can not they 'd 've"),
        ("a red-haired man (left) -- 50% off!", "a red-haired man -lrb- left -rrb- 50 % off"),
        ("$5.00 on #1 at 10:30 A.M.", "$ 5.00 on # 1 at 10:30 a.m."),
        ("Mr. Smith's St. and no. 5, no.", "mr. smith 's st. and no. 5 no"),
        ("AT&T and/or w/ o'clock", "at&t and/or w / o'clock"),
        ("3.5mm 10th 5pm 7-up 24/7", "3.5 mm 10th 5pm 7-up 24/7"),
        ("the boys\u2019 \u201ccaf\u00e9\u201d\u2026 wow!!", "the boys caf\u00e9 wow !!"),
        ("http://a.b/c?d=1 foo@bar.com #tag @user", "http://a.b/c?d=1 foo@bar.com #tag @user"),
        ("D. Marsh sat.", "d. marsh sat"),
        (" . ", ""),
    ],
)
def test_tokens_are_those_of_the_coco_evaluation(text, wanted):
    """Each line was put through Stanford's tokenizer once; the right side is what it returned."""
    assert " ".join(caption_tokens(text)) == wanted
