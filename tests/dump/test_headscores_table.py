"""The file of head scores: comes back as written, is refused for another model, and breaks with one line only."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_dump import manifest

from ecokv_cli.dump.headscores import KIND, HeadScores, read_head_scores, write_head_scores
from ecokv_cli.errors import DumpError, OutputError

MODEL = manifest(()).model
TABLE = HeadScores("tiny", "0" * 64, 5, 17, ((0.5, 0.0, 1 / 3, 2.0, 0.1, 0.0),) * 2 + ((0.0,) * 6,))
repeatable = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
finite = st.floats(0, 1e6, allow_nan=False)


def text_of(**changes):
    return json.dumps({"kind": KIND, **vars(TABLE), **changes})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "scores.json"


@settings(repeatable, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 5), st.data(), st.text(max_size=7))
def test_a_table_comes_back_as_written(file, layers, heads, data, name):
    rows = data.draw(st.lists(st.tuples(*[finite] * heads), min_size=layers, max_size=layers))
    rows[0] = (0.25, *rows[0][1:])
    table = HeadScores(
        name, "ab", data.draw(st.integers(0)), 3, tuple(rows), data.draw(st.none() | st.text(max_size=7)), "cd"
    )
    write_head_scores(file, table, force=True)
    assert read_head_scores(file) == table
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_scores_of_the_model_are_handed_out_as_they_are():
    scores = TABLE.for_model(MODEL, "file")
    assert scores.dtype == torch.float64
    assert scores.tolist() == [list(row) for row in TABLE.scores]


@pytest.mark.parametrize(("layers", "heads", "shape"), [(4, 6, "4 x 6"), (3, 8, "3 x 8"), (28, 28, "28 x 28")])
def test_another_shape_names_both_shapes_and_the_command(layers, heads, shape):
    model = replace(MODEL, id="large", layers=layers, query_heads=heads)
    wanted = (
        f"scores.json: head scores of 3 layers x 6 query heads (tiny), the model here has {shape} (large); "
        "make a table for this model with `ecokv headscores RUN`"
    )
    with pytest.raises(DumpError, match=re.escape(wanted)):
        TABLE.for_model(model, "scores.json")


COMMITS = ("1234567890abcdef" * 3)[:40], "f" * 40


@pytest.mark.parametrize(("table", "model", "message"), [
    ({}, {"id": "large"}, "head scores of tiny, the model here is large; "),
    ({}, {"id": "large", "config_sha256": "1" * 64}, "head scores of tiny, the model here is large; "),
    (
        {}, {"config_sha256": "1" * 64},
        "head scores of tiny with configuration 000000000000, the model here is tiny with configuration 111111111111; ",
    ),
    (
        {"revision": COMMITS[0]}, {"revision": COMMITS[1]},
        "head scores of tiny at commit 1234567890ab, the model here is tiny at commit ffffffffffff; ",
    ),
    # Weights that were trained on in the same folder.
    (
        {"weights_sha256": "a" * 64, "revision": COMMITS[0]}, {"weights_sha256": "b" * 64, "revision": COMMITS[0]},
        "head scores of tiny with weights aaaaaaaaaaaa, the model here is tiny with weights bbbbbbbbbbbb; ",
    ),
    # A branch is no commit, and a table without one cannot be held against it.
    ({"revision": "main"}, {"revision": "main", "id": "large"}, "head scores of tiny, the model here is large; "),
    ({}, {"revision": COMMITS[0], "config_sha256": "1" * 64}, "head scores of tiny with configuration 000000000000, "),
])  # fmt: skip
def test_another_checkpoint_of_the_same_shape_is_refused_with_what_tells_it_apart(table, model, message):
    with pytest.raises(DumpError, match=re.escape(f"file: {message}") + ".*with `ecokv headscores RUN`$"):
        replace(TABLE, **table).for_model(replace(MODEL, **model), "file")


@pytest.mark.parametrize(("table", "model"), [
    ({}, {}),
    ({}, {"revision": COMMITS[0]}),  # a table of before there were revisions in tables
    ({"revision": COMMITS[0]}, {"revision": COMMITS[0]}),
    # Neither does the same checkpoint in another folder, or one whose commit did not touch the weights.
    (
        {"weights_sha256": "a" * 64, "revision": COMMITS[0]},
        {"weights_sha256": "a" * 64, "revision": COMMITS[1], "id": "copy", "config_sha256": "1" * 64},
    ),
    # One commit is one checkpoint, in whatever dtype, cache or fork it was loaded.
    ({"revision": COMMITS[0]}, {"revision": COMMITS[0], "id": "a/fork", "config_sha256": "1" * 64}),
])  # fmt: skip
def test_the_same_checkpoint_is_not_refused(table, model):
    assert replace(TABLE, **table).for_model(replace(MODEL, **model), "file").shape == (3, 6)


def test_the_shape_is_looked_at_first():
    with pytest.raises(DumpError, match="3 layers x 6 query heads"):
        replace(TABLE, revision=COMMITS[0]).for_model(replace(MODEL, layers=7, revision=COMMITS[0]), "file")


def test_an_existing_file_needs_force_and_what_cannot_be_written_leaves_nothing(file, tmp_path):
    write_head_scores(file, TABLE, force=False)
    with pytest.raises(OutputError, match=r"exists; add --force .*--output"):
        write_head_scores(file, TABLE, force=False)
    write_head_scores(file, replace(TABLE, samples=7), force=True)
    assert read_head_scores(file).samples == 7
    for refused in (file / "below-a-file.json", tmp_path):
        with pytest.raises(OutputError, match=r"cannot be written .*--output"):
            write_head_scores(refused, TABLE, force=True)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    write_head_scores(tmp_path / "new" / "folder" / "scores.json", TABLE, force=False)
    assert read_head_scores(tmp_path / "new" / "folder" / "scores.json") == TABLE


@pytest.mark.parametrize(("text", "message"), [
    ("", "cannot be read as head scores"),
    ("{", "cannot be read as head scores"),
    ("[" * 100_000, "cannot be read as head scores"),
    ("[]", "not a table of head scores; .*ecokv headscores RUN"),
    ("{}", "not a table of head scores"),
    (text_of(kind="ecokv head scores 2"), "not a table of head scores"),
    (text_of(scores={}), "scores is not a list of rows"),
    (text_of(scores=[]), "scores is not a list of rows"),
    (text_of(scores=[[]]), "scores is not a list of rows"),
    (text_of(scores=[1.0]), "scores is not a list of rows"),
    (text_of(scores=[[1.0], [1.0, 2.0]]), "rows of different lengths"),
    (text_of(scores=[[1.0, 2.0], [3.0, -0.5]]), "layer 1, head 1: a score must be a number from 0 to 1e"),
    (text_of(scores=[[1.0, math.nan]]), "layer 0, head 1: a score must be a number"),
    (text_of(scores=[[1e308, 1e308]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[[math.inf]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[[True]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[["1"]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[[None]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[[10**400]]), "layer 0, head 0: a score must be a number"),
    (text_of(scores=[[0.0, 0.0]]), "all scores are 0"),
    (text_of(model=None), "model is missing or not as it was written"),
    (text_of(revision=7), "revision is missing or not as it was written"),
    (text_of(samples=1.5), "samples is missing or not as it was written"),
    (text_of(tokens=True), "tokens is missing or not as it was written"),
    (text_of().replace("17", "1" * 5000), "cannot be read as head scores"),
])  # fmt: skip
def test_what_is_no_table_is_refused_with_the_reason(file, text, message):
    file.write_text(text)
    with pytest.raises(DumpError, match=message):
        read_head_scores(file)


def test_a_missing_file_names_the_command_that_makes_it_and_a_folder_is_none(file):
    with pytest.raises(DumpError, match=rf"no such file; make it with `ecokv headscores RUN --output {file}`"):
        read_head_scores(file)
    with pytest.raises(DumpError, match="cannot be read as head scores"):
        read_head_scores(file.parent)


def read_or_refuse(file):
    """A damaged table is read if it still is one, or refused as such; nothing else happens."""
    refused, scores = "", []
    try:
        scores = read_head_scores(file).scores
    except DumpError as error:
        refused = str(error)
    assert "\n" not in refused
    assert all(math.isfinite(score) and score >= 0 for row in scores for score in row)


@repeatable
@given(st.integers(0, 400), st.integers(0, 40), st.binary(max_size=9))
def test_damaged_bytes(file, where, cut, instead):
    whole = text_of().encode()
    file.write_bytes(whole[:where] + instead + whole[where + cut :])
    read_or_refuse(file)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)


@repeatable
@given(st.sampled_from(["kind", *vars(TABLE)]), anything)
def test_any_value_in_any_field(file, field, value):
    file.write_text(text_of(**{field: value}))
    read_or_refuse(file)


@repeatable
@given(st.integers(0, 2), st.integers(0, 5), anything)
def test_any_value_as_a_score(file, layer, head, value):
    rows = [list(row) for row in TABLE.scores]
    rows[layer][head] = value
    file.write_text(text_of(scores=rows))
    read_or_refuse(file)
