"""Many samples: order, resuming, refusing, going on."""

import json
from dataclasses import replace

import pytest

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.engines.workers import LocalWorkers, Tell
from ecokv_cli.errors import EcokvError, InputError, OutputError, UsageError
from ecokv_cli.models import many
from ecokv_cli.models.dumping import locate_boxes
from ecokv_cli.models.many import Failure, Hooks, Outcome
from ecokv_cli.models.settings import DumpSettings
from ecokv_cli.sample.samples import Box, Sample

PROMPTS = ("what is the total?", "the total", "what is the batch?", "the date")
TEXTS = tuple(Sample(f"s{i}", (), prompt) for i, prompt in enumerate(PROMPTS))
SETTINGS = DumpSettings(window=5, decode=3, ignore_eos=True)
TIMES = ("created", "seconds")


def dump_many(loaded, *arguments, hooks=None, **options):
    """Dump with one worker, which is this process."""
    hooks = hooks or Hooks()
    workers = LocalWorkers(lambda: loaded, Tell(hooks.progress, hooks.note))
    return many.dump_many(workers, *arguments, hooks=hooks, **options)


@pytest.fixture
def picture_file(tmp_path, picture):
    path = tmp_path / "page.png"
    picture.save(path)
    return path


@pytest.fixture
def pictured(picture_file):
    return Sample(
        "page",
        (picture_file,),
        "what is the total?",
        ("61543",),
        (Box("61543", (28, 21, 70, 42)), Box("key", (0, 0, 7, 7))),
    )


def contents(folder):
    """All bytes below a folder; of manifests the values without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name == "manifest.json":
            data = json.loads(path.read_text())
            found[name] = {key: value for key, value in data.items() if key not in TIMES}
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


class Stopped(BaseException):
    """Ends a run from outside, as Ctrl-C does."""


def stop_at(sample_number, phase):
    """Hooks that end the run in `phase` of the sample of that number."""
    at = []

    def progress(name, done, total):
        if name == "samples":
            at.append(done)
        if name == phase and at and at[-1] == sample_number and done == 2:
            raise Stopped

    return Hooks(progress)


def test_samples_are_dumped_in_order_and_skipped_when_run_again(loaded_model, tmp_path):
    loaded, seen = loaded_model("llama"), []
    hooks = Hooks(written=lambda manifest: seen.append((manifest.sample, manifest.prompt)))
    first = dump_many(loaded, TEXTS, SETTINGS, tmp_path / "dump", hooks=hooks)
    assert seen == [(s.id, s.prompt) for s in TEXTS]
    assert (first.done, first.skipped, first.failed) == (4, 0, ())
    assert first.bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.safetensors"))
    before, notes = contents(tmp_path), []
    again = dump_many(loaded, TEXTS, SETTINGS, tmp_path / "dump", hooks=Hooks(note=notes.append))
    assert again == Outcome(0, 4, (), 0)
    assert notes == ["4 of 4 already there"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize("phase", ["decode", "write"])
def test_a_run_that_was_ended_goes_on_and_equals_one_that_was_not(loaded_model, tmp_path, phase):
    loaded = loaded_model("llama")
    with pytest.raises(Stopped):
        dump_many(loaded, TEXTS, SETTINGS, tmp_path / "ended", hooks=stop_at(2, phase))
    assert sorted(p.name for p in (tmp_path / "ended").iterdir()) == ["s0", "s1"]
    rest = dump_many(loaded, TEXTS, SETTINGS, tmp_path / "ended")
    assert (rest.done, rest.skipped) == (2, 2)
    dump_many(loaded, TEXTS, SETTINGS, tmp_path / "whole")
    assert contents(tmp_path / "ended") == contents(tmp_path / "whole")


def test_a_damaged_dump_is_made_again(loaded_model, tmp_path):
    loaded = loaded_model("llama")
    dump_many(loaded, TEXTS, SETTINGS, tmp_path)
    before = contents(tmp_path)
    (tmp_path / "s1" / "layer_002.safetensors").write_bytes(b"cut off")
    (tmp_path / "s3" / "layer_000.safetensors").unlink()
    outcome = dump_many(loaded, TEXTS, SETTINGS, tmp_path)
    assert (outcome.done, outcome.skipped) == (2, 2)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("change", "message"), [
    ({"window": 7}, "settings.window 5, now 7"),
    ({"decode": 2}, "settings.decode 3, now 2"),
    ({"ignore_eos": False}, "settings.ignore_eos True, now False"),
    ({"store_dtype": "bfloat16"}, "stored_dtype 'float32', now 'bfloat16'"),
    ({"received_attention": True}, "settings.received_attention False, now True"),
    ({"prerope_keys": True}, "settings.prerope_keys False, now True"),
    ({"template": False}, "settings.template True, now False"),
    ({"seed": 3}, "settings.seed 0, now 3"),
    ({"max_pixels": 999}, "settings.max_pixels None, now 999"),
])  # fmt: skip
def test_other_settings_are_refused_by_name_before_anything_is_run(loaded_model, tmp_path, change, message):
    loaded = loaded_model("llama")
    dump_many(loaded, TEXTS[1:2], SETTINGS, tmp_path)
    with pytest.raises(OutputError, match=message) as caught:
        dump_many(loaded, TEXTS, replace(SETTINGS, **change), tmp_path, keep_going=True)
    assert "add --force" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["s1"]


def test_the_same_dtype_asked_for_in_another_way_is_the_same(loaded_model, tmp_path):
    loaded = loaded_model("llama")
    dump_many(loaded, TEXTS[:1], SETTINGS, tmp_path)
    assert dump_many(loaded, TEXTS[:1], replace(SETTINGS, store_dtype="float32"), tmp_path).skipped == 1


def test_another_input_is_refused_by_name(loaded_model, tmp_path, pictured, picture):
    loaded = loaded_model("shipped")
    folder = tmp_path / "dump"
    dump_many(loaded, [pictured], SETTINGS, folder)
    changes = [
        ({"prompt": "the total"}, "prompt 'what is the total.', now 'the total'"),
        ({"answers": ()}, "answers"),
        ({"boxes": pictured.boxes[:1]}, "boxes"),
        ({"images": pictured.images * 2}, "number of images 1, now 2"),
    ]
    for change, message in changes:
        with pytest.raises(OutputError, match=f"made with {message}"):
            dump_many(loaded, [replace(pictured, **change)], SETTINGS, folder)
    picture.transpose(1).save(pictured.images[0])
    with pytest.raises(OutputError, match=r"made with images\[0\].sha256"):
        dump_many(loaded, [pictured], SETTINGS, folder)


def test_another_model_or_back_end_is_refused_by_name(loaded_model, tmp_path):
    dump_many(loaded_model("llama"), TEXTS[:1], SETTINGS, tmp_path)
    with pytest.raises(OutputError, match=r"made with model\.id 'llama"):
        dump_many(loaded_model("shipped"), TEXTS[:1], SETTINGS, tmp_path)
    with pytest.raises(OutputError, match="made with attention 'sdpa', now 'eager'"):
        dump_many(loaded_model("llama", "eager"), TEXTS[:1], SETTINGS, tmp_path)


def test_a_dump_of_format_1_0_is_refused_as_its_settings_are_unknown(loaded_model, tmp_path):
    loaded = loaded_model("llama")
    dump_many(loaded, TEXTS[:1], SETTINGS, tmp_path)
    path = tmp_path / "s0" / "manifest.json"
    data = json.loads(path.read_text())
    del data["settings"]
    path.write_text(json.dumps(data | {"schema_version": "1.0"}))
    with pytest.raises(OutputError, match=r"settings.window '\(not recorded\)', now 5"):
        dump_many(loaded, TEXTS[:1], SETTINGS, tmp_path)


def test_force_replaces_what_is_there(loaded_model, tmp_path):
    loaded = loaded_model("llama")
    dump_many(loaded, TEXTS[:2], SETTINGS, tmp_path)
    outcome = dump_many(loaded, TEXTS[:2], replace(SETTINGS, window=7), tmp_path, force=True)
    assert (outcome.done, outcome.skipped) == (2, 0)
    assert open_dump(tmp_path / "s1").manifest.settings["window"] == 7


def test_a_folder_that_is_no_dump_is_never_replaced_without_force(loaded_model, tmp_path):
    (tmp_path / "s0").mkdir()
    (tmp_path / "s0" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="is no dump to go on from"):
        dump_many(loaded_model("llama"), TEXTS, SETTINGS, tmp_path)
    assert (tmp_path / "s0" / "thesis.txt").read_text() == "mine"


def test_the_first_failing_sample_is_named_and_the_ones_before_it_are_kept(loaded_model, tmp_path):
    samples = [*TEXTS[:2], Sample("bad", (tmp_path / "no.png",), "x"), TEXTS[3]]
    with pytest.raises(InputError, match=r"sample bad \(number 3 of 4\): image .*no.png' does not exist"):
        dump_many(loaded_model("llama"), samples, SETTINGS, tmp_path / "dump")
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["s0", "s1"]


def test_what_a_manifest_says_is_never_an_error_of_usage(loaded_model, tmp_path):
    samples = [Sample("bad", (), "what <|im_end|> is")]
    with pytest.raises(EcokvError, match=r"sample bad .*control token") as caught:
        dump_many(loaded_model("llama"), samples, SETTINGS, tmp_path)
    assert caught.value.exit_status == 1


def test_failing_samples_are_listed_when_told_to_keep_going(loaded_model, tmp_path, picture_file):
    broken, notes = tmp_path / "broken.png", []
    broken.write_bytes(picture_file.read_bytes()[:-50])
    samples = [
        TEXTS[0], Sample("gone", (tmp_path / "no.png",), "x"), Sample("broken", (broken,), "x"), TEXTS[1],
        Sample("beyond", (picture_file,), "x", (), (Box("t", (0, 0, 141, 84)),)),
    ]  # fmt: skip
    loaded = loaded_model("shipped")
    for done, skipped in ((2, 0), (0, 2)):
        outcome = dump_many(
            loaded, samples, SETTINGS, tmp_path / "dump", keep_going=True, hooks=Hooks(note=notes.append)
        )
        assert (outcome.done, outcome.skipped) == (done, skipped)
        assert [failure.sample for failure in outcome.failed] == ["gone", "broken", "beyond"]
    assert isinstance(outcome.failed[0], Failure)
    assert "cannot be decoded" in outcome.failed[1].reason
    assert "reaches to 141, 84 on image 0 of 140 x 84 pixels" in outcome.failed[2].reason
    assert [note for note in notes if note.startswith("sample gone failed: ")]
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["s0", "s1"]


def test_an_image_that_is_gone_fails_its_sample_also_when_that_is_there(loaded_model, tmp_path, pictured):
    loaded = loaded_model("shipped")
    dump_many(loaded, [pictured], SETTINGS, tmp_path / "dump")
    pictured.images[0].unlink()
    outcome = dump_many(loaded, [pictured, *TEXTS[:1]], SETTINGS, tmp_path / "dump", keep_going=True)
    assert (outcome.done, [failure.sample for failure in outcome.failed]) == (1, ["page"])
    assert open_dump(tmp_path / "dump" / "page").manifest.answers == ("61543",)


def test_a_wrong_setting_is_no_failure_of_a_sample(loaded_model, tmp_path):
    with pytest.raises(UsageError, match="--store-dtype int4"):
        dump_many(loaded_model("llama"), TEXTS, replace(SETTINGS, store_dtype="int4"), tmp_path, keep_going=True)
    with pytest.raises(UsageError, match="--max-pixels 0"):
        DumpSettings(max_pixels=0)


def test_errors_that_are_not_ours_are_not_swallowed(loaded_model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ecokv_cli.models.many.load_image", fail)
    samples = [Sample("x", ("p.png",), "x")]
    with pytest.raises(ZeroDivisionError):
        dump_many(loaded_model("llama"), samples, SETTINGS, tmp_path, keep_going=True)


def test_answers_boxes_and_settings_are_in_the_manifest(loaded_model, tmp_path, pictured):
    dump_many(loaded_model("shipped"), [pictured], replace(SETTINGS, max_pixels=5000), tmp_path / "dump")
    manifest = open_dump(tmp_path / "dump" / "page").manifest
    assert manifest.schema_version == "1.1"
    assert manifest.answers == ("61543",)
    assert manifest.images[0].used_size != manifest.images[0].original_size
    # Fractions of the original 140 x 84 pixels, whatever size was used.
    assert [(b.text, b.image, b.box) for b in manifest.boxes] == [
        ("61543", 0, (28 / 140, 21 / 84, 70 / 140, 42 / 84)), ("key", 0, (0.0, 0.0, 7 / 140, 7 / 84))
    ]  # fmt: skip
    assert manifest.settings["max_pixels"] == 5000


def test_boxes_are_fractions_of_their_own_image_and_end_within_it():
    boxes = [Box("a", (0, 0, 7, 5), 0), Box("b", (1.5, 1, 11, 13), 1)]
    located = locate_boxes(boxes, [(7, 5), (11, 13)])
    assert [(b.text, b.image, b.box) for b in located] == [
        ("a", 0, (0.0, 0.0, 1.0, 1.0)), ("b", 1, (1.5 / 11, 1 / 13, 1.0, 1.0))
    ]  # fmt: skip
    for corners in ((0, 0, 8, 5), (0, 0, 7, 5.5), (0, 0, 1 << 31, 5)):
        with pytest.raises(InputError, match=r"box 0 \('a'\) reaches to .* on image 0 of 7 x 5 pixels"):
            locate_boxes([Box("a", corners, 0)], [(7, 5)])


@pytest.mark.parametrize("name", ["shipped", "smollm2"])
def test_strings_of_the_answer_are_what_each_token_says_by_itself(loaded_model, tmp_path, name):
    loaded = loaded_model(name)
    dump_many(loaded, [Sample("s", (), "what is the total of this page?")], replace(SETTINGS, decode=7), tmp_path)
    decoded = open_dump(tmp_path / "s").manifest.decoded
    assert decoded.strings == tuple(loaded.tokenizer.decode([i], skip_special_tokens=False) for i in decoded.ids)
    assert not any("Ġ" in text or "Ċ" in text for text in decoded.strings)
    if name == "smollm2":
        assert "".join(decoded.strings).startswith(decoded.text)
