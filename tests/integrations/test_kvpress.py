"""ECOKV and MixKV as presses: kvpress keeps what `Method.select` keeps. Skipped where kvpress is missing."""

import functools

import pytest
import torch

kvpress = pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)

from pressed import MODELS, made, pressed  # noqa: E402 - nothing is worth importing without kvpress
from transformers import pipeline  # noqa: E402

from ecokv_cli.errors import MethodError  # noqa: E402
from ecokv_cli.eviction.allocation import ada_counts  # noqa: E402
from ecokv_cli.eviction.selection import top_mask  # noqa: E402
from ecokv_cli.eviction.spec import parse_method  # noqa: E402
from ecokv_cli.integrations.kvpress import EcoKVPress, MixKVPress  # noqa: E402

TOKENS, DECODED = 53, 5
PRESSES = {
    "ecokv": (EcoKVPress, "snapkv+ecokv"),
    "ecokv, other settings": (
        lambda ratio: EcoKVPress(ratio, window_size=7, kernel_size=3, alpha=0.3, beta=0.9),
        "snapkv+ecokv[window=7,kernel=3,alpha=0.3,beta=0.9]",
    ),
    "mixkv": (lambda ratio: MixKVPress(ratio, window_size=5), "snapkv+mixkv[window=5]"),
}
RATIOS = (0.25, 0.5, 0.8)


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """`made` by name, each once."""
    return functools.cache(lambda name: made(name, tmp_path_factory.mktemp("model"), TOKENS, window=7))


def rows(keys):
    return [set(map(tuple, head.tolist())) for head in keys]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_kept_is_what_select_keeps(model, name, ratio, ready):
    plain, _, ids, layers = ready(model)
    build, spec = PRESSES[name]
    method, budget = parse_method(spec), int(TOKENS * (1 - ratio))
    cache, _ = pressed(plain, ids, build(ratio))
    for layer, cached in zip(layers, cache.layers, strict=True):
        mask = method.select(layer, budget).mask
        wanted = [layer.keys[head][mask[head]] for head in range(layer.kv_heads)]
        assert rows(cached.keys[0]) == rows(wanted)
        assert cached.keys.shape[2] == budget
        assert all(len(head) == budget for head in rows(wanted))
        # Values go with their keys.
        where = (layer.keys[0][:, None] == cached.keys[0, 0][None]).all(-1).nonzero()
        assert torch.equal(layer.values[0][where[:, 0]], cached.values[0, 0][where[:, 1]])


@pytest.mark.parametrize("safe", [0.0, 0.2])
@pytest.mark.parametrize("model", ["llama, 3 query heads per KV head", "qwen2"])
def test_inside_adakv_the_boosted_scores_share_out_and_fill_the_budget(model, safe, ready):
    plain, _, ids, layers = ready(model)
    method, budget, window = parse_method("snapkv+ecokv"), 13, 4
    ragged = False
    _, masked = pressed(plain, ids, kvpress.AdaKVPress(EcoKVPress(1 - (budget + 0.5) / TOKENS), alpha_safeguard=safe))
    for layer, (_, heads, positions) in zip(layers, masked, strict=True):
        kept = torch.ones(layer.kv_heads, TOKENS, dtype=torch.bool)
        kept[heads, positions] = False
        scores = method.scores(layer).final
        counts = ada_counts(scores, budget, window, floor=safe, compat="kvpress")
        assert torch.equal(kept[:, :-window], top_mask(scores, counts))
        assert kept[:, -window:].all()
        assert kept.sum() == layer.kv_heads * budget
        ragged |= len(set(kept.sum(-1).tolist())) > 1
    assert ragged


def test_the_window_is_kept_where_nothing_else_fits_and_refused_where_it_does_not(ready):
    plain, _, ids, layers = ready("qwen2")
    cache, _ = pressed(plain, ids, MixKVPress(1 - 7.5 / TOKENS, window_size=7))
    for layer, cached in zip(layers, cache.layers, strict=True):
        assert rows(cached.keys[0]) == rows(layer.keys[:, -7:])
    with pytest.raises(MethodError, match="budget 6 is smaller than its window of 7") as error:
        pressed(plain, ids, MixKVPress(1 - 6.5 / TOKENS, window_size=7))
    assert "\n" not in str(error.value)


def test_samples_of_a_batch_are_scored_one_by_one(ready):
    plain, _, ids, _ = ready("qwen2")
    other = ids.flip(1)
    both, _ = pressed(plain, torch.cat([ids, other]), EcoKVPress(0.7))
    for number, alone in enumerate((ids, other)):
        single, _ = pressed(plain, alone, EcoKVPress(0.7))
        for batched, cached in zip(both.layers, single.layers, strict=True):
            torch.testing.assert_close(
                batched.keys[number].sort(dim=1).values, cached.keys[0].sort(dim=1).values, atol=1e-5, rtol=0
            )


def test_in_the_pipeline_the_answer_is_that_of_the_selected_cache(ready):
    plain, tokenizer, ids, _ = ready("llama, 3 query heads per KV head")
    answers = pipeline("kv-press-text-generation", model=plain, tokenizer=tokenizer, device="cpu")
    # The pipeline puts the first token before the context.
    context, question = tokenizer.decode(ids[0, 1:]), "w3 w5"
    plain_ids = tokenizer.encode(tokenizer.bos_token + " " + context, return_tensors="pt")
    found = answers(" " + context, question=question, press=EcoKVPress(0.75), max_new_tokens=DECODED)
    whole = answers(" " + context, question=question, press=EcoKVPress(0.0), max_new_tokens=DECODED)
    cache, _ = pressed(plain, plain_ids, EcoKVPress(0.75))
    fed, position, words = tokenizer.encode(question + "\n", return_tensors="pt"), plain_ids.shape[1], []
    with torch.no_grad():
        while len(words) < DECODED:
            places = torch.arange(position, position + fed.shape[1])[None]
            logits = plain(input_ids=fed, position_ids=places, past_key_values=cache).logits
            fed, position = logits[:, -1:].argmax(-1), position + fed.shape[1]
            words.append(int(fed))
    assert found["answer"] == tokenizer.decode(words)
    assert found != whole


@pytest.mark.parametrize(("build", "words"), [
    (lambda: EcoKVPress(0.5, alpha=1.5), "alpha=1.5 is outside 0..1"),
    (lambda: EcoKVPress(0.5, kernel_size=4), "kernel=4 must be odd"),
    (lambda: MixKVPress(0.5, window_size=0), "needs 1 query or more"),
])  # fmt: skip
def test_impossible_settings_are_noticed_at_once(build, words):
    with pytest.raises(MethodError, match=words):
        build()
