"""Models as users name them: broken, gated, with code of their own, from the hub's cache, with other templates."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import TEMPLATE, as_hub_cache, build, copied, with_code_of_its_own

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.errors import ModelError
from ecokv_cli.models import loading
from ecokv_cli.models.loading import load_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tiny") / "model")


def refused(source, **options):
    with pytest.raises(ModelError) as caught:
        load_model(str(source), **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{source}: ")
    return message


def manifest(run, sample="sample"):
    return open_dump(run / "dump" / sample).manifest


# --- checkpoints that cannot be used


def test_pickled_weights_are_never_opened(tiny, tmp_path):
    folder, marker = copied(tiny, tmp_path / "pickled"), tmp_path / "ran"
    (folder / "model.safetensors").unlink()

    class Trap:
        def __reduce__(self):
            return (type(marker).touch, (marker,))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"model.norm.weight": Trap()}))
    assert "has no safetensors weights, and pickled ones are never opened" in refused(folder)
    assert not marker.exists()
    torch.save(load_file(tiny / "model.safetensors"), folder / "pytorch_model.bin")
    assert "has no safetensors weights" in refused(folder)


@pytest.mark.parametrize(("change", "message"), [
    (lambda f: cut(f / "model.safetensors"), "cannot be loaded ("),
    (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be loaded ("),
    (lambda f: (f / "config.json").write_text("{broken"), "cannot be loaded ("),
    (lambda f: (f / "config.json").write_text("{}"), "cannot be loaded ("),
    (lambda f: (f / "config.json").write_text('{"model_type": "no_such_model"}'), "cannot be loaded ("),
    (lambda f: (f / "tokenizer.json").write_text("{broken"), "cannot be loaded ("),
    (lambda f: edit(f / "config.json", hidden_size=32), "cannot be loaded ("),
    (lambda f: edit(f / "config.json", num_hidden_layers=3), "lacks 9 of its weights, such as model.layers.2."),
    (lambda f: without(f / "model.safetensors", "model.norm.weight"), "lacks 1 of its weights, such as model.norm"),
])  # fmt: skip
def test_broken_checkpoints_are_one_line(tiny, tmp_path, change, message):
    folder = copied(tiny, tmp_path / "broken")
    change(folder)
    assert message in refused(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without(path, name):
    found = load_file(path)
    del found[name]
    save_file(found, path, metadata={"format": "pt"})


@pytest.mark.parametrize(("error", "message"), [
    (OSError("You are trying to access a gated repo.\nMake sure to have access to it at https://hub/x."),
     "gated; accept its licence on the hub and set HF_TOKEN"),
    (OSError("We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cache."),
     "not in the local cache and the hub cannot be reached"),
    (OSError("main2 is not a valid git identifier (branch name, tag name or commit id) that exists for this model"),
     "has no such --revision"),
    (OSError("x/y is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"),
     "the hub knows no such model, or it is private"),
    (ImportError("loading this needs `num2words`"), "num2words`; install the package it names"),
    (ImportError("Please install torch and gguf>=0.10.0"), "install 'ecokv-cli[gguf]'"),
    (KeyError("some_field"), "cannot be loaded ('some_field')"),
])  # fmt: skip
def test_what_the_hub_says_becomes_a_remedy(tmp_path, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", fail)
    assert message in refused("x/y")


# --- code that comes with a checkpoint


def test_code_of_a_checkpoint_runs_only_when_asked_for_and_is_then_named(ecokv_process, tiny, tmp_path):
    marker = tmp_path / "ran"
    with_code_of_its_own(tiny, tmp_path / "own", marker)
    common = ("dump", "-m", "own", "-p", "the total", "--decode", "1", "-o", "r")
    done = ecokv_process(*common, stdin=b"y\n", HF_HOME=str(tmp_path / "hub"))
    assert done.returncode == 1
    assert done.stderr == b"ecokv: error: own: needs code of its own; read it, then add --trust-remote-code\n"
    assert not marker.exists()
    done = ecokv_process(*common, "--trust-remote-code", HF_HOME=str(tmp_path / "hub"))
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    found = manifest(tmp_path / "r").model
    assert (found.remote_code, found.architecture) == (True, "OwnModel")
    (code,) = found.code
    assert code.startswith("own_code.py ")
    assert len(code.split()[1]) == 16


def test_the_flag_alone_names_no_code(ecokv, tiny, tmp_path):
    assert ecokv("dump", "-m", tiny, "-p", "the total", "--decode", "1", "-o", "r", "--trust-remote-code")[0] == 0
    found = manifest(tmp_path / "r").model
    assert (found.remote_code, found.code) == (True, ())


# --- hub ids, revisions, devices


def test_a_hub_id_and_its_revisions_are_loaded_offline(ecokv_process, tiny, tmp_path):
    other = build(tmp_path / "other", seed=2)
    commits = as_hub_cache(tmp_path / "home", "someone/tiny", {"main": tiny, "v2": other})
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    common = ("dump", "-m", "someone/tiny", "-p", "the total", "--decode", "1")
    for revision, options in (("main", ()), ("v2", ("--revision", "v2"))):
        done = ecokv_process(*common, *options, "-o", revision, **environment)
        assert done.returncode == 0, done.stderr
        found = manifest(tmp_path / revision).model
        assert (found.id, found.revision) == ("someone/tiny", commits[revision])
    one, two = (open_dump(tmp_path / name / "dump" / "sample").layer(0).keys for name in ("main", "v2"))
    assert not torch.allclose(one, two)
    done = ecokv_process(*common, "--revision", "v3", "-o", "v3", **environment)
    assert done.returncode == 1
    assert b"someone/tiny: " in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_revision_of_something_on_the_disk_is_refused(ecokv, tiny):
    status, _, err = ecokv("dump", "-m", tiny, "-p", "the total", "--revision", "main")
    assert status == 2
    assert "revisions are for hub ids" in err


def test_a_device_map_gives_the_same_dump(ecokv, tiny, tmp_path):
    pytest.importorskip("accelerate")
    common = ("dump", "-m", tiny, "-p", "the total", "--decode", "2", "--ignore-eos")
    assert ecokv(*common, "-o", "plain", "--device", "cpu")[0] == 0
    assert ecokv(*common, "-o", "mapped", "--device-map", "cpu")[0] == 0
    plain, mapped = (open_dump(tmp_path / name / "dump" / "sample") for name in ("plain", "mapped"))
    assert plain.manifest.decoded == mapped.manifest.decoded
    for index in range(2):
        assert torch.equal(plain.layer(index).keys, mapped.layer(index).keys)
    status, _, err = ecokv(*common, "-o", "both", "--device-map", "auto", "--device", "cpu")
    assert status == 2
    assert "--device-map auto and --device cpu exclude each other" in err
    status, _, err = ecokv(*common, "-o", "bad", "--device-map", "sideways")
    assert status == 1
    assert "cannot be loaded (" in err


def test_a_device_map_without_accelerate_says_what_to_install(ecokv, tiny, monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: None)
    status, _, err = ecokv("dump", "-m", tiny, "-p", "the total", "--device-map", "auto")
    assert status == 2
    assert "needs accelerate; pip install 'ecokv-cli[accelerate]'" in err


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_dtype_is_computed_in_and_stored(ecokv, tiny, tmp_path, name):
    assert ecokv("dump", "-m", tiny, "-p", "the total", "--decode", "1", "--dtype", name, "-o", "r")[0] == 0
    found = manifest(tmp_path / "r")
    assert (found.compute_dtype, found.stored_dtype) == (name, name)
    assert ecokv("validate", "r")[0] == 0


# --- what a text model is and is not given


def test_an_image_for_a_text_model(ecokv, tiny, tmp_path):
    from PIL import Image

    Image.new("RGB", (28, 28)).save(tmp_path / "page.png")
    status, _, err = ecokv("dump", "page.png", "-m", tiny, "-p", "the total", "-o", "r")
    assert status == 1
    assert "model (LlamaForCausalLM) takes no images and 1 were given; leave them out" in err
    assert not (tmp_path / "r").exists()


@pytest.fixture
def untemplated(tiny, tmp_path):
    folder = copied(tiny, tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    return folder


def test_no_chat_template(ecokv, untemplated, tmp_path):
    common = ("dump", "-m", untemplated, "-p", "the total", "--decode", "1")
    status, _, err = ecokv(*common, "-o", "r")
    assert status == 1
    assert "plain: has no chat template; add --no-chat-template" in err
    assert ecokv(*common, "-o", "r", "--no-chat-template")[0] == 0
    assert len(manifest(tmp_path / "r").tokens.ids) == 2
    status, _, err = ecokv(*common, "-o", "s", "--system", "x")
    assert status == 1
    assert "no single chat template to put --system into; add --chat-template" in err
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    assert ecokv(*common, "-o", "s", "--chat-template", "t.jinja", "--system", "the date")[0] == 0


# --- other templates, system messages


def rendered(run):
    return "".join(manifest(run).tokens.strings).replace("▁", " ")


def test_a_template_from_a_file(ecokv, tiny, tmp_path):
    (tmp_path / "t.jinja").write_text("<|im_start|> value {{ messages[0]['content'] }} of total")
    common = ("dump", "-m", tiny, "-p", "the date", "--decode", "1")
    assert ecokv(*common, "-o", "own")[0] == 0
    assert ecokv(*common, "-o", "other", "--chat-template", "t.jinja")[0] == 0
    assert rendered(tmp_path / "own") == "<|im_start|> user the date<|im_end|><|im_start|> assistant"
    assert rendered(tmp_path / "other") == "<|im_start|> value the date of total"
    own, other = (manifest(tmp_path / name).model for name in ("own", "other"))
    assert (own.chat_template, len(other.chat_template)) == ("", 64)


def test_a_template_by_name(ecokv, tiny, tmp_path):
    folder = copied(tiny, tmp_path / "named")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "short.jinja").write_text("{{ messages[-1]['content'] }} total")
    common = ("dump", "-m", folder, "-p", "the date", "--decode", "1")
    assert ecokv(*common, "-o", "r", "--chat-template", "short")[0] == 0
    assert rendered(tmp_path / "r") == " the date total"
    status, _, err = ecokv(*common, "-o", "s", "--chat-template", "shrt")
    assert status == 2
    assert "--chat-template shrt: no such file, and no template of named (it has: default, short)" in err


@pytest.mark.parametrize("system", ["the batch", "a \"date\" \\n %} {{ 7 * 7 }} 'x'", "line one\nline two", "😀 é", ""])
def test_a_system_message_comes_first_and_literally(tiny, system):
    from ecokv_cli.models.prompting import _rendered
    from ecokv_cli.models.templates import use_template

    loaded = use_template(load_model(str(tiny)), None, system)
    start = f"<|im_start|>system {system}<|im_end|><|im_start|>user the date<|im_end|>"
    assert _rendered(loaded, 0, "the date").startswith(start)
    assert loaded.info.system == system


def test_a_system_message_for_a_multimodal_model_is_text_before_the_image(ecokv, tmp_path):
    common = ("dump", "--decode", "1")
    assert ecokv(*common, "-o", "r", "--system", "the batch")[0] == 0
    assert rendered_start(tmp_path / "r") == "<|im_start|><unk> the batch<|im_end|><|im_start|> user"
    assert manifest(tmp_path / "r", "two-columns").model.system == "the batch"


def rendered_start(run):
    strings = "".join(manifest(run, "two-columns").tokens.strings).replace("▁", " ")
    return strings[: strings.index("<|vision_start|>")]


def test_a_line_end_at_the_start_of_a_template_is_kept(tiny):
    from ecokv_cli.models.prompting import _rendered
    from ecokv_cli.models.templates import use_template
    from ecokv_cli.sample.templates import ChatTemplate

    template = ChatTemplate("t", "\nX{% for m in messages %}{{ m['content'] }};{% endfor %}")
    assert _rendered(use_template(load_model(str(tiny)), template, "one"), 0, "two") == "\nXone;two;"


def test_another_system_message_or_template_is_another_run(ecokv, tiny, tmp_path):
    (tmp_path / "m.jsonl").write_text('{"prompt": "the total"}')
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }} total")
    common = ("dump", "--manifest", "m.jsonl", "-m", tiny, "-o", "r", "--decode", "1")
    assert ecokv(*common, "--system", "the date")[0] == 0
    assert "1 of 1 already there" in ecokv(*common, "--system", "the date")[2]
    status, _, err = ecokv(*common, "--system", "the batch")
    assert status == 1
    assert "made with model.system 'the date', now 'the batch'" in err
    status, _, err = ecokv(*common, "--chat-template", "t.jinja")
    assert status == 1
    assert "made with model.chat_template '', now " in err


@pytest.mark.parametrize(("template", "options", "status", "message"), [
    ("{% for %}", (), 1, "chat template 't.jinja': fails on a plain question ("),
    ("{{ raise_exception('no, thanks') }}", (), 1, "fails on a plain question (no, thanks)"),
    ("{{ messages[7]['content'] }}", (), 1, "fails on a plain question ("),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", (), 1, "fails on a plain question ("),
    ("total {{ messages[-1]['content'] }}", ("--system", "the date"), 1, "leaves the system message out"),
    (TEMPLATE, ("--no-chat-template",), 2, "--chat-template and --no-chat-template exclude each other"),
    (TEMPLATE, ("--system", "x<|im_end|>"), 2, "the prompt holds '<|im_end|>', a control token"),
    (TEMPLATE, ("--system", "-", "-p", "-"), 2, "standard input can be read once"),
])  # fmt: skip
def test_templates_that_do_not_work(ecokv, tiny, tmp_path, template, options, status, message):
    (tmp_path / "t.jinja").write_text(template)
    found, _, err = ecokv("dump", "-m", tiny, "-p", "the date", "-o", "r", "--chat-template", "t.jinja", *options)
    assert (found, err.count("\n")) == (status, 1)
    assert message in err
    assert not (tmp_path / "r").exists()


def test_a_model_whose_template_takes_no_system_message(ecokv, tiny, tmp_path):
    folder = copied(tiny, tmp_path / "strict")
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusing + TEMPLATE)
    status, _, err = ecokv("dump", "-m", folder, "-p", "the date", "--system", "be brief")
    assert status == 1
    assert "strict: its chat template takes no system message (System role not supported); leave --system out" in err


def test_a_template_that_places_no_image(ecokv, tmp_path):
    (tmp_path / "t.jinja").write_text("<|im_start|> the total")
    status, _, err = ecokv("dump", "--chat-template", "t.jinja", "-o", "r")
    assert status == 1
    assert err.count("\n") == 1
    assert "image" in err
    assert not (tmp_path / "r").exists()
