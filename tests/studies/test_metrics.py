"""Answer metrics: published examples, cases by hand, plain reimplementations, and what holds for all texts."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.studies.metrics import METRICS, find_metric
from ecokv_cli.studies.metrics.vqa import processed

# Small alphabets, so that texts meet; with what the rules single out.
TEXTS = st.text(alphabet="abAB 15.%,'-\n", max_size=7)
ANSWERS = st.lists(TEXTS, min_size=4, max_size=10)
SETS = st.lists(st.tuples(TEXTS, ANSWERS), min_size=2, max_size=5)
RANGES = {"anls": "0 to 1", "vqa": "0 to 1", "cider": "0 to 10"}


def score(metric, prediction, *answers):
    [value] = METRICS[metric].function([prediction], [list(answers)])
    return value


def levenshtein(first, second):
    """Dynamic programming as in the textbook, the whole matrix."""
    cost = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            if 0 in (i, j):
                cost[i][j] = i + j
            else:
                swap = cost[i - 1][j - 1] + (first[i - 1] != second[j - 1])
                cost[i][j] = min(swap, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    return cost[-1][-1]


def test_published_example():
    """The metrics' test of google-research/pix2struct, whose numbers are times 100."""
    predictions = ["abc", "abc", "Abc", "100%", "100%", "100%", "100%", "Don't"]
    answers = [["abc"], ["Abc"], ["abc"], ["96%"], ["94%"], ["0.96"], ["0.94"], ["Won't"]]
    for metric, published in (("exact", 12.5), ("anls", 47.5), ("relaxed", 62.5), ("cider", 128.6)):
        values = METRICS[metric].function(predictions, answers)
        assert len(values) == 8
        assert 100 * sum(values) / 8 == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize(
    ("prediction", "answers", "wanted"),
    [
        ("  Total:\n 61 543 ", ["total: 61 543", "Total: 61 543"], 1),
        ("total: 61 543", ["Total: 61 543"], 0),
        ("61543", ["61 543"], 0),
        ("", [" "], 1),
    ],
)
def test_exact_knows_white_space_and_no_more(prediction, answers, wanted):
    assert score("exact", prediction, *answers) == wanted


@pytest.mark.parametrize(
    ("prediction", "answers", "plain", "formula"),
    [
        ("The sign says COFFEE Shop.", ["tea", "coffee shop"], 1, 0),
        ("coffee\nshop", ["coffee shop"], 1, 1),
        ("coffeeshop", ["coffee shop"], 0, 1),
        (r"= \frac {1} {2} x", [r"\frac{1}{2}x"], 0, 1),
        (r"\Delta x", [r"\delta x"], 1, 0),
        ("off", ["coffee"], 0, 0),
        ("anything", ["", " \n"], 0, 0),
        ("\n", [""], 1, 1),
    ],
)
def test_contains_and_what_blanks_and_case_mean_for_formulas(prediction, answers, plain, formula):
    assert score("contains", prediction, *answers) == plain
    assert score("contains_formula", prediction, *answers) == formula


@pytest.mark.parametrize(
    ("prediction", "answers", "wanted"),
    [
        ("ITC Limited", ["itc limited", "ITC Limited"], 1),
        (" 23  sep\n1970", ["23 Sep 1970"], 1),
        ("80Z02", ["80202"], 0.8),
        ("kitten", ["sitting"], 4 / 7),
        ("abc", ["xbc", "abz", "abcd"], 0.75),
        ("14", ["15"], 0),  # a distance of exactly one half
        ("145", ["155", "999"], 2 / 3),
        ("", ["yes"], 0),
        ("", [" "], 1),
        ("naïve", ["naive"], 0.8),
    ],
)
def test_anls_by_hand(prediction, answers, wanted):
    assert score("anls", prediction, *answers) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=300)
@given(TEXTS, ANSWERS)
def test_anls_is_that_of_the_textbook_distance(prediction, answers):
    best = 0.0
    for answer in answers:
        a, p = (" ".join(text.lower().split()) for text in (answer, prediction))
        longer = max(len(a), len(p))
        distance = levenshtein(a, p) / longer if longer else 0
        best = max(best, 1 - distance if distance < 0.5 else 0)
    assert score("anls", prediction, *answers) == best


@pytest.mark.parametrize(
    ("prediction", "answer", "wanted"),
    [
        ("105", "100", 1),
        ("95", "100", 1),
        ("105.01", "100", 0),
        ("-3.1", "-3", 1),
        ("3", "-3", 0),
        ("96%", "100%", 1),
        ("0.5", "50%", 1),
        ("50", "50%", 0),
        ("50 %", "50%", 1),
        ("1960", "2010", 1),
        ("0", "0", 1),
        ("0.0", "0", 0),  # no tolerance around zero, so the texts are compared
        ("0", "0.01", 0),
        ("1,000", "1000", 0),
        ("1,000", "1,000", 1),
        (" Blue", "blue\n", 1),
        ("blues", "blue", 0),
        ("nan", "NaN", 1),
        ("inf", "3", 0),
        ("3", "inf", 0),
        ("%", "%", 1),
        ("", "5", 0),
    ],
)
def test_relaxed_by_hand(prediction, answer, wanted):
    assert score("relaxed", prediction, answer) == wanted
    assert score("relaxed", prediction, "something else", answer) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Two dogs", "2 dogs"),
        ("none", "0"),
        ("an apple, a pear", "apple pear"),
        ("1,000", "1000"),
        ("3.5 in.", "3.5 in"),
        ("u.s.", "us"),
        ("what's this?", "what 's this"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("Im", "im"),
        ("lets", "lets"),
        ("somebody'd", "somebodyd"),
        ("red/blue", "red blue"),
        ("red/ blue", "red blue"),
        ("a-b -c", "ab c"),  # a dash beside a blank takes all dashes with it
        ("(yes)\tNo!\n", "yes no"),
        ("50%", "50%"),
        ("x".join(';/[]"{}()=+\\_-><@`!'), " ".join("x" * 18)),
        ("$5: #1 & ~2", "$5: #1 & ~2"),
        ("", ""),
        ("." * 40 + "x", "x"),
    ],
)
def test_answers_are_processed_as_on_the_server(text, wanted):
    assert processed(text) == wanted


def test_one_two_and_three_of_ten_annotators():
    """The well-known steps of the metric: 0.3, 0.6, 0.9, then 1."""
    for matches, wanted in enumerate((0, 0.3, 0.6, 0.9, 1, 1)):
        answers = ["The Cat"] * matches + [f"dog {i}" for i in range(10 - matches)]
        assert score("vqa", "cat", *answers) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=300)
@given(TEXTS, ANSWERS)
def test_vqa_is_the_mean_over_leave_one_out_subsets(prediction, answers):
    left_out = []
    for i in range(len(answers)):
        others = answers[:i] + answers[i + 1 :]
        left_out.append(min(sum(processed(other) == processed(prediction) for other in others) / 3, 1))
    assert score("vqa", prediction, *answers) == pytest.approx(sum(left_out) / len(left_out), abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
@given(SETS)
def test_values_keep_to_their_range_and_do_not_depend_on_the_order_of_answers(name, samples):
    predictions, answers = zip(*samples, strict=True)
    values = METRICS[name].function(predictions, answers)
    assert len(values) == len(samples)
    assert all(type(value) is float and 0 <= value <= (10 + 1e-9 if name == "cider" else 1) for value in values)
    if name not in RANGES:
        assert set(values) <= {0.0, 1.0}
    assert METRICS[name].range == RANGES.get(name, "0 or 1")
    assert METRICS[name].function(predictions, [given[::-1] for given in answers]) == values
    assert METRICS[name].function(predictions, [sorted(given) for given in answers]) == values


@pytest.mark.parametrize("name", [name for name in METRICS if name != "cider"])
@given(TEXTS, ANSWERS)
def test_an_answer_itself_is_right_and_more_answers_never_hurt(name, text, others):
    if name == "vqa":
        assert score(name, text, *[text] * 4) == 1
    else:
        assert score(name, text, *others, text) == 1
        first, second = others[:2]
        assert score(name, text, first) <= score(name, text, first, second)


@given(SETS)
def test_samples_do_not_see_each_other(samples):
    predictions, answers = zip(*samples, strict=True)
    for name, metric in METRICS.items():
        if metric.fewest_samples == 1:
            alone = [score(name, prediction, *given) for prediction, given in samples]
            assert metric.function(predictions, answers) == alone


def test_names_are_found_and_unknown_ones_refused_with_the_nearest():
    for name in METRICS:
        assert find_metric(name) is METRICS[name]
        assert METRICS[name].name == name
        assert METRICS[name].reading
    with pytest.raises(UsageError, match=r"unknown metric 'anl' \(did you mean 'anls'\?\); known: exact, .*, cider$"):
        find_metric("anl")
    with pytest.raises(UsageError, match=r"unknown metric 'zzz'; known: exact"):
        find_metric("zzz")


@pytest.mark.parametrize("name", METRICS)
def test_a_sample_without_answers_is_named(name):
    answers = [["a"] * 5, [], ["b"] * 5]
    with pytest.raises(InputError, match=rf"^sample 2 of 3: found no answers, metric '{name}' expected at least \d: "):
        METRICS[name].function(["a", "b", "c"], answers)
    with pytest.raises(InputError, match=r"^sample 'page-7': found no answers"):
        METRICS[name].check(answers, ["page-3", "page-7", "page-9"])
    METRICS[name].check(answers[::2], ["page-3", "page-9"])


def test_too_few_annotators_or_samples_to_mean_anything():
    with pytest.raises(InputError, match="sample 1 of 1: found 1 answer, metric 'vqa' expected at least 4"):
        score("vqa", "a", "a")
    with pytest.raises(InputError, match="metric 'cider': found 1 sample, expected at least 2"):
        score("cider", "a", "a")
    with pytest.raises(InputError, match="sample 'p': found 3 answers, metric 'vqa' expected at least 4"):
        METRICS["vqa"].check([["a"] * 3], ["p"])
    with pytest.raises(InputError, match="metric 'cider': found 1 sample, expected at least 2"):
        METRICS["cider"].check([["a"]])
    for name, metric in METRICS.items():
        with pytest.raises(InputError, match=f"metric '{name}': found no samples"):
            metric.function([], [])


def test_a_text_is_not_taken_for_a_list_of_letters_nor_a_sample_dropped():
    with pytest.raises(TypeError, match=r"answers\[0\] is a text"):
        METRICS["exact"].function(["a"], ["abc"])
    for metric in METRICS.values():
        with pytest.raises(ValueError, match="argument 2 is longer"):
            metric.function(["a"], [["a"] * 4] * 2)


def test_listing_metrics_loads_nothing_heavy():
    code = "import sys, ecokv_cli.studies.metrics; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ecokv_cli.studies.metrics.registry" in loaded
    assert not {"torch", "numpy", "scipy", "rapidfuzz"} & set(loaded)


def test_the_textbook_distance_of_the_textbook():
    words = ("kitten", "sitten", "sittin", "sitting")
    assert [levenshtein(a, b) for a, b in pairwise(words)] == [1, 1, 1]
    assert levenshtein("kitten", "sitting") == 3
    assert levenshtein("", "abc") == 3
