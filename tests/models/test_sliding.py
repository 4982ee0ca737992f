"""Sliding-window layers: captured, kept apart, never analysed."""

import json

import pytest
import torch
from tiny_parts import PROMPT, has_template, inputs_of
from tiny_text import WINDOW

from ecokv_cli.cli.main import app
from ecokv_cli.dump.layers import choose_layers, left_out, ranges
from ecokv_cli.dump.reader import open_dump, read_tensors
from ecokv_cli.dump.validation import faults
from ecokv_cli.errors import DumpError, ModelError, UsageError
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.models.capture import capture
from ecokv_cli.models.dumping import write_dump
from ecokv_cli.models.evicted import compact, decode_evicted, masked, untouched
from ecokv_cli.models.settings import DumpSettings
from ecokv_cli.sample.images import load_image
from ecokv_cli.sample.samples import Sample

MIXED = ("gemma3", "gemma3_text", "qwen2_window")
STEPS = 9


@pytest.fixture
def written(loaded_model, tmp_path, picture):
    """Dump one prompt with a model by name."""

    def write(name, **settings):
        loaded, images = loaded_model(name), []
        if loaded.multimodal:
            picture.save(tmp_path / "page.png")
            images = [load_image(tmp_path / "page.png")]
        options = DumpSettings(window=5, decode=3, ignore_eos=True, template=has_template(loaded), **settings)
        write_dump(loaded, Sample("page", (), PROMPT), images, options, tmp_path / "run" / "dump" / "page")
        return open_dump(tmp_path / "run" / "dump" / "page")

    return write


@pytest.mark.parametrize("name", MIXED)
def test_a_dump_has_of_sliding_layers_what_their_cache_held(name, written, loaded_model, picture):
    dump = written(name)
    n = len(dump.manifest.tokens.ids)
    assert n > WINDOW
    captured = capture(loaded_model(name), inputs_of(loaded_model(name), picture), window=5, decode=0)
    assert dump.windows == dict.fromkeys(captured.sliding, WINDOW)
    assert dump.full_layers == ((0,) if name == "qwen2_window" else (1, 3))
    for record in dump.manifest.layers:
        if record.kind == "full":
            assert (record.window, record.held(n)) == (None, range(n))
            assert dump.layer(record.index).tokens == n
            continue
        assert (record.kind, record.window, record.held(n)) == ("sliding", WINDOW, range(n - WINDOW + 1, n))
        found = read_tensors(dump.folder, record, ("keys", "values"))
        # Bit for bit what transformers' own cache holds, see the capture tests.
        assert torch.equal(found["keys"], captured.cache.layers[record.index].keys[0])
        assert torch.equal(found["values"], captured.cache.layers[record.index].values[0])
        with pytest.raises(DumpError, match=f"layer {record.index} is a sliding window of {WINDOW}"):
            dump.layer(record.index)
    assert list(faults(dump.folder)) == []


@pytest.mark.parametrize("prompt", ["the total", PROMPT])
def test_in_a_mixed_model_they_are_kept_apart_on_short_prompts_too(loaded_model, prompt):
    loaded = loaded_model("gemma3_text")
    captured = capture(loaded, inputs_of(loaded, prompt=prompt), window=5, decode=2, ignore_eos=True)
    assert list(captured.sliding) == [0, 2]
    assert captured.sliding[0].keys.shape[1] == min(captured.prompt_tokens, WINDOW - 1)


def test_a_model_of_nothing_but_windows_takes_prompts_that_fit_and_refuses_others(loaded_model):
    loaded = loaded_model("mistral_window")
    short = inputs_of(loaded, prompt="the total")
    n = short["input_ids"].shape[1]
    fits = WINDOW - 1 - n
    captured = capture(loaded, short, window=5, decode=fits, ignore_eos=True)
    assert captured.sliding == {}
    for index in range(3):
        tensors, _ = captured.layer(index)
        assert tensors["keys"].shape[1] == n
        assert tensors["decode_keys"].shape[1] == fits
    with pytest.raises(ModelError, match=f"every layer is a sliding window of {WINDOW} .* {WINDOW} tokens") as caught:
        capture(loaded, short, window=5, decode=fits + 1)
    assert "lower --decode" in str(caught.value)
    with pytest.raises(ModelError, match="MistralForCausalLM"):
        capture(loaded, inputs_of(loaded), window=5, decode=0)


@pytest.mark.parametrize("name", ["gemma3_text", "qwen2_window", "mistral_window"])
def test_long_prompts_in_blocks_equal_the_full_mask(name, loaded_model, monkeypatch):
    """Blocks of 7 queries against transformers' N x N mask."""
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, prompt=f"{PROMPT} {PROMPT} {PROMPT}")
    with torch.inference_mode():
        whole = loaded.model(**inputs).logits
        masks = []
        monkeypatch.setattr("ecokv_cli.models.sliding.BLOCK", 7)
        original = torch.nn.functional.scaled_dot_product_attention

        def spy(*arguments, attn_mask=None, **options):
            masks.append(None if attn_mask is None else tuple(attn_mask.shape[2:]))
            return original(*arguments, attn_mask=attn_mask, **options)

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
        blocks = loaded.model(**inputs).logits
    assert inputs["input_ids"].shape[1] > 2 * WINDOW
    torch.testing.assert_close(whole, blocks, rtol=0, atol=1e-5)
    shapes = {mask for mask in masks if mask is not None}
    assert shapes
    assert all(rows <= 7 and columns <= 7 + WINDOW - 1 for rows, columns in shapes)


def test_masks_that_are_more_than_sliding_stay_whole(loaded_model, monkeypatch, picture):
    """Gemma 3's image tokens see each other, which blocks of causal attention would not give."""
    loaded = loaded_model("gemma3")
    inputs = inputs_of(loaded, picture)
    with torch.inference_mode():
        whole = loaded.model(**inputs).logits
        monkeypatch.setattr("ecokv_cli.models.sliding.BLOCK", 7)
        assert torch.equal(whole, loaded.model(**inputs).logits)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MIXED)
def test_decoding_on_an_evicted_cache_leaves_sliding_layers_whole(name, backend, loaded_model, picture):
    loaded = loaded_model(name, backend)
    inputs = inputs_of(loaded, picture)
    captured = capture(loaded, inputs, window=4, decode=STEPS, ignore_eos=True)
    method = parse_method("adakv[window=4,floor=0]")

    def caches(how, budget):
        found = []
        for index in range(loaded.info.layers):
            if index in captured.sliding:
                found.append(untouched(captured, index))
                continue
            tensors, scaling = captured.layer(index)
            layer = Layer(index=index, layers=loaded.info.layers, scaling=scaling, **tensors)
            found.append(how(captured, index, method.select(layer, budget)))
        return found

    everything = decode_evicted(loaded, captured, caches(compact, captured.prompt_tokens), STEPS, ignore_eos=True)
    assert everything.ids == captured.answer
    options = {"ignore_eos": True, "keep_logits": True, "forced": captured.answer}
    small, large = (decode_evicted(loaded, captured, caches(how, 13), STEPS, **options) for how in (compact, masked))
    torch.testing.assert_close(small.logits, large.logits, rtol=0, atol=1e-5)
    assert small.cache_bytes < large.cache_bytes


def test_all_means_full_layers_and_a_sliding_one_is_refused_by_name(written):
    dump = written("gemma3_text")
    assert choose_layers("all", dump) == [1, 3]
    assert choose_layers("-1,1", dump) == [1, 3]
    assert left_out(dump) == f"layers 0,2 are sliding windows of {WINDOW}: left out"
    for text, named in (("0", "layer 0 is a sliding window"), ("1-3", "layer 2 is"), ("0,2", "layers 0,2 are")):
        with pytest.raises(UsageError, match=rf"--layers {text}: {named}.*write all, or 1,3$"):
            choose_layers(text, dump)
    plain = written_manifest_without_kinds(dump)
    assert choose_layers("all", plain) == [0, 1, 2, 3]
    assert left_out(plain) == ""


def written_manifest_without_kinds(dump):
    """The same dump as format 1.0 has it, which knows of no kinds."""
    path = dump.folder / "manifest.json"
    data = json.loads(path.read_text())
    for record in data["layers"]:
        del record["kind"], record["window"]
    path.write_text(json.dumps(data))
    return open_dump(dump.folder)


def test_numbers_are_written_as_ranges():
    assert ranges([0, 1, 2, 4, 7, 8]) == "0-2,4,7-8"
    assert ranges([5]) == "5"


def test_commands_list_what_they_leave_out_and_their_tables_hold_full_layers_only(written, capsys, monkeypatch):
    def ecokv(*arguments):
        monkeypatch.setattr("sys.argv", ["ecokv", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            app()
        return leaving.value.code or 0, capsys.readouterr().err

    run = written("gemma3_text").folder.parent.parent
    note = f"layers 0,2 are sliding windows of {WINDOW}: left out"
    budget = ("--budget", 11, "--window", 4)
    for command, options, table in (
        ("analyze", (), "analysis/geometry.csv"),
        ("evict", budget, "eviction/fidelity.csv"),
    ):
        status, said = ecokv(command, run, "--format", "png", *options)
        assert (status, note in said) == (0, True), said
        rows = (run / table).read_text().splitlines()
        column = rows[0].split(",").index("layer")
        assert {row.split(",")[column] for row in rows[1:]} == {"1", "3"}
        status, said = ecokv(command, run, "--force", "--layers", "0-1", *options)
        assert (status, "--layers 0-1: layer 0 is a sliding window of 16" in said) == (2, True), said
