"""Explained samples: attention from an eager model, regions from pixels, selections made anew, on one page."""

import itertools

import numpy as np
import pytest
import torch

from ecokv_cli.dump.schema import BoxInfo, ImageGrid
from ecokv_cli.errors import ModelError, UsageError
from ecokv_cli.eviction.spec import parse_methods
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.prompting import prepare
from ecokv_cli.studies.evaluate import EvaluateSettings, Question, answer, arms_of, graded
from ecokv_cli.studies.evaluated import with_scores_of
from ecokv_cli.studies.explain import explain, regions_of
from ecokv_cli.studies.metrics import find_metric
from ecokv_cli.studies.selecting import capture_for, layers_of, select_arms
from ecokv_cli.studies.tasks import DOCQA_STEPS, docqa
from ecokv_cli.tiny import SHIPPED_MODEL

TILE = 28


@pytest.fixture(scope="module")
def loaded():
    return load_model(str(SHIPPED_MODEL), device="cpu")


@pytest.fixture(scope="module")
def settings():
    methods = parse_methods(["full", "adakv[window=5]", "random", "retentive[window=5]"])
    return EvaluateSettings(arms_of(methods, [997, 23], [5]), DOCQA_STEPS)


@pytest.fixture(scope="module")
def question():
    return list(docqa(5))[1]


@pytest.fixture(scope="module")
def answers(loaded, question, settings):
    return graded(answer(loaded, question, settings), {question.id: question.answers}, find_metric("exact"))


@pytest.fixture(scope="module")
def found(loaded, question, settings, answers):
    return explain(loaded, question, settings, answers)


@pytest.fixture(scope="module")
def eager(question, found):
    """Attention of an eager model's decoded tokens on the prompt, ``[layers, query heads, steps, N]``."""
    model = load_model(str(SHIPPED_MODEL), device="cpu", backend="eager")
    inputs = prepare(model, question.images, question.prompt).inputs
    n = inputs["input_ids"].shape[1]
    # A token for each digit; before them the tokenizer marks the beginning of a word.
    told = torch.tensor([model.tokenizer.encode(found.full, add_special_tokens=False)[-len(found.full) :]])
    with torch.inference_mode():
        ids = torch.cat([inputs["input_ids"], told], dim=1)
        more = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in inputs else {}
        if "mm_token_type_ids" in inputs:
            kinds = inputs["mm_token_type_ids"]
            more["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(told.shape)], dim=1)
        rows = model.model(**{**inputs, **more, "input_ids": ids}, output_attentions=True).attentions
    start = inputs["input_ids"][0].tolist().index(model.image_token_id)
    return torch.stack([layer[0, :, n:, :n] for layer in rows]).double(), start


def cells(box, image, start):
    """Prompt positions of the image tokens that a box touches: a token per tile of 28 x 28 pixels, in raster order."""
    across = image.width // TILE
    x0, y0, x1, y1 = (round(f * s) for f, s in zip(box.box, (image.width, image.height) * 2, strict=True))
    tiles = {(y // TILE, x // TILE) for y, x in itertools.product(range(y0, y1), range(x0, x1))}
    return sorted(start + row * across + col for row, col in tiles)


def selections(loaded, question, settings):
    """Per arm the masks ``[layers, H, N]``, each method asked by itself."""
    inputs = prepare(loaded, question.images, question.prompt).inputs
    captured = capture_for(loaded, inputs, settings, decode=settings.steps)
    layers = list(layers_of(loaded, captured, settings))
    return [
        torch.stack([arm.method.select(layer, arm.budget or layer.tokens).mask for layer in layers])
        for arm in settings.arms
    ]


def test_what_heads_lose_of_the_answer_is_what_an_eager_model_looks_at_there(loaded, question, settings, found, eager):
    rows, start = eager
    (image,), (value, key) = question.images, question.boxes
    attention = rows.unflatten(1, (loaded.info.kv_heads, -1)).mean(dim=(2, 3)).numpy()
    region = {"answer": cells(value, image, start)}
    region["other"] = [cell for cell in cells(key, image, start) if cell not in region["answer"]]
    assert found.full == question.answers[0]
    assert len(found.region) == len(settings.arms) * loaded.info.layers * loaded.info.kv_heads * 2
    masks = selections(loaded, question, settings)
    for row in found.region:
        arm = next(
            i for i, a in enumerate(settings.arms) if (a.method.name, a.budget) == (row["method"], row["budget"])
        )
        where = (row["layer"], row["kv_head"], region[row["region"]])
        kept = masks[arm][where].numpy()
        assert (row["tokens"], row["kept"]) == (len(where[2]), kept.sum())
        assert row["kept_share"] == pytest.approx(kept.mean())
        assert row["attention"] == pytest.approx(attention[where].sum(), abs=1e-5)
        assert row["lost"] == pytest.approx(attention[where][~kept].sum(), abs=1e-5)
    lost = found.region.where(region="answer", budget=23).numbers("lost")
    assert max(lost) > 0.1
    layer, head = np.unravel_index(attention[:, :, region["answer"]].sum(-1).argmax(), attention.shape[:2])
    assert found.focus == (layer, head)


def test_fidelity_and_positions_agree_with_the_masks(loaded, question, settings, found, eager):
    rows, _ = eager
    attention = rows.unflatten(1, (loaded.info.kv_heads, -1))
    masks = selections(loaded, question, settings)
    for number, arm in enumerate(settings.arms):
        where = {"method": arm.method.name, "budget": arm.budget}
        evicted = (attention * ~masks[number][:, :, None, None]).sum(-1).mean(dim=(2, 3))
        mass = np.reshape(found.fidelity.where(**where).numbers("mass"), evicted.shape)
        assert mass == pytest.approx(1 - evicted.numpy(), abs=1e-5)
        shares = found.positions.where(**where, layer="all").numbers("kept")
        assert shares == pytest.approx(masks[number].double().mean((0, 1)).tolist())
        alone = found.positions.where(**where, layer=found.focus[0]).numbers("kept")
        assert alone == masks[number][found.focus].double().tolist()


def test_a_budget_beyond_the_prompt_loses_nothing(found):
    whole = [row for row in found.methods if row["budget"] in {None, 997}]
    assert len(whole) == 4
    for row in whole:
        assert (row["region_kept"], row["region_lost"], row["score"]) == (1, 0, 1)
        assert row["mass"] == pytest.approx(1)
        assert row["output_error"] == pytest.approx(0, abs=1e-5)
        assert row["region_attention"] > 0.01


def test_heads_are_ranked_by_what_methods_lose_at_the_smallest_budget(found, loaded):
    heads = found.heads
    methods = heads.columns[5:]
    assert methods == ("adakv[window=5]", "random[window=5]", "retentive[window=5]")
    assert heads.distinct("budget") == [23]
    means = [np.mean([row[method] for method in methods]) for row in heads]
    assert means == sorted(means, reverse=True)
    assert len({(row["layer"], row["kv_head"]) for row in heads}) == loaded.info.layers * loaded.info.kv_heads
    one = heads.rows[0]
    (same,) = found.region.where(
        region="answer", budget=23, method="random[window=5]", layer=one["layer"], kv_head=one["kv_head"]
    )
    assert one["random[window=5]"] == same["lost"]


def test_without_boxes_the_rest_is_there(loaded, question, settings, answers, found):
    bare = explain(loaded, Question(question.id, question.images, question.prompt, question.answers), settings, answers)
    assert "has no boxes" in bare.note
    assert (bare.focus, len(bare.region)) == (None, 0)
    assert bare.fidelity.rows == found.fidelity.rows
    assert bare.methods.rows[1]["region_lost"] is None
    worst = bare.heads.rows[0]
    (same,) = bare.fidelity.where(budget=23, method="random[window=5]", layer=worst["layer"], kv_head=worst["kv_head"])
    assert worst["random[window=5]"] == pytest.approx(1 - same["mass"])


def test_an_answer_that_ends_at_once_cannot_judge(loaded, question, settings, answers, monkeypatch):
    first = answers.rows[0]["prediction"][0]
    monkeypatch.setattr("ecokv_cli.models.capture.end_ids", lambda *_: set(loaded.tokenizer.encode(first)))
    with pytest.raises(ModelError, match=r"page-0001: .* ends its answer at once"):
        explain(loaded, question, settings, answers)


@pytest.mark.parametrize(("texts", "region"), [
    (("7", " Total"), {"answer": [11], "other": [18]}),
    (("unknown", "words"), {"answer": [11, 18]}),
    (("total", "TOTAL "), {"answer": [11, 18]}),
])  # fmt: skip
def test_the_answers_region_is_of_boxes_with_its_text_or_of_all(texts, region):
    # A grid of 3 x 5 cells with a newline token after each row begins at position 10.
    grid = ImageGrid(0, 10, 3, 5, (0.0, 0.0, 1.0, 1.0), 1)
    places = ((0.2, 0.0, 0.4, 1 / 3), (0.41, 0.4, 0.59, 0.5))
    boxes = tuple(BoxInfo(text, 0, place) for text, place in zip(texts, places, strict=True))
    asked = Question("a", (), "", ("7", "total") if texts[0] == "total" else ("7",), "", boxes)
    assert regions_of(asked, [grid]) == region


def test_the_ledger_counts_what_is_kept_and_the_cache_what_it_takes(loaded, answers, settings):
    entry = 4 * 2 * loaded.info.head_dim
    places = loaded.info.layers * loaded.info.kv_heads
    rows = {(row["method"].partition("[")[0], row["budget"]): row for row in answers}
    full, ragged, plain = rows["full", None], rows["adakv", 23], rows["random", 23]
    assert full["ledger_bytes"] == full["cache_bytes"] == places * entry * full["tokens"]
    assert plain["ledger_bytes"] == plain["cache_bytes"] == places * entry * 23
    # Heads share the budget of their layer, and a layer is as long as its longest head, with a mask beside it.
    assert ragged["ledger_bytes"] == plain["ledger_bytes"] < ragged["cache_bytes"]
    for row in rows.values():
        assert row["peak_source"] == "counted"
        assert row["peak_bytes"] == row["cache_bytes"] + places * entry * (row["decoded"] - 1)
    # The state of the evicted is paid for by entries, and kept in double precision.
    assert rows["retentive", 23]["ledger_bytes"] == plain["ledger_bytes"] < rows["retentive", 23]["cache_bytes"]


def test_every_budget_of_a_method_is_charged_its_scoring(loaded, question, settings, monkeypatch):
    inputs = prepare(loaded, question.images, question.prompt).inputs
    layer = next(layers_of(loaded, capture_for(loaded, inputs, settings, decode=1), settings))
    ticks = itertools.count()
    monkeypatch.setattr("ecokv_cli.studies.selecting.clock", lambda _: next(ticks))
    # One tick to score, which budgets share, and one to select for each.
    assert select_arms(layer, settings.arms)[1] == [2] * len(settings.arms)
    assert next(ticks) == 2 * (4 + len(settings.arms))


def test_decoding_begins_with_a_copy_of_the_cache():
    # What the peak on a GPU counts on: the memory that decoding allocates holds the prompt's part of the cache.
    from transformers import DynamicCache

    keys, values = torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 3)
    cache = DynamicCache()
    cache.update(keys, values, 0)
    assert cache.layers[0].keys.data_ptr() != keys.data_ptr()
    assert cache.layers[0].values.data_ptr() != values.data_ptr()


def test_scores_of_an_evaluation_take_the_place_of_those_of_the_sample_alone(answers, tmp_path):
    assert with_scores_of(tmp_path / "answers.csv", answers) == (answers, False)
    others = graded(answers, {"page-0001": ("none",)}, find_metric("exact"))
    others.write_csv(tmp_path)
    changed, known = with_scores_of(tmp_path / "answers.csv", answers)
    assert known
    assert set(changed.numbers("score")) == {0}
    assert changed.rows[0] | {"score": 1} == answers.rows[0]
    others.rows[2]["tokens"] = 7
    others.write_csv(tmp_path)
    with pytest.raises(UsageError, match=r"its page-0001 has the answer '.*' and 7 tokens, .* give --samples"):
        with_scores_of(tmp_path / "answers.csv", answers)
