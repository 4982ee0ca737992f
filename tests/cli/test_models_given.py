"""Models as users name them: broken, gated, with code of their own, from the hub's cache."""

import io
import json
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import as_hub_cache, build, copied, with_code_of_its_own

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


def test_code_of_a_checkpoint_runs_only_when_asked_for_and_is_then_named(
    ecokv, ecokv_process, tiny, tmp_path, monkeypatch
):
    marker = tmp_path / "ran"
    with_code_of_its_own(tiny, tmp_path / "own", marker)
    common = ("dump", "-m", "own", "-p", "the total", "--decode", "1", "-o", "r")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # if anybody asked, the answer would be yes
    message = "ecokv: error: own: needs code of its own; read it, then add --trust-remote-code\n"
    assert ecokv(*common) == (1, "", message)
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
    plain = open_dump(tmp_path / "plain" / "dump" / "sample")
    for name in ("cpu", "auto", "sequential"):
        assert ecokv(*common, "-o", name, "--device-map", name, "--dtype", "float32")[0] == 0
        mapped = open_dump(tmp_path / name / "dump" / "sample")
        assert plain.manifest.decoded == mapped.manifest.decoded
        for index in range(2):
            assert torch.allclose(plain.layer(index).keys, mapped.layer(index).keys, rtol=0, atol=1e-5)
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


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_the_attention_back_end_is_chosen_and_written_down(ecokv, tiny, tmp_path, name):
    assert (
        ecokv("dump", "-m", tiny, "-p", "the total", "--decode", "1", "--attn-implementation", name, "-o", "r")[0] == 0
    )
    assert manifest(tmp_path / "r").attention == name
    assert f"{name} attention" in ecokv("info", "r")[1]


def test_a_model_that_computes_nonsense_is_dumped_said_and_not_analysed(ecokv, tiny, tmp_path):
    """Infinite weights in the second layer: the first one is sound, and can be analysed alone."""
    folder = copied(tiny, tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.k_proj.weight"][7] = torch.inf  # KV head 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    status, _, err = ecokv("dump", "-m", folder, "-p", "the total", "--decode", "1", "--ignore-eos", "-o", "r")
    assert status == 0
    assert re.search(r"layer 1: keys holds \d+ NaN or infinite numbers; analysis will refuse them\n", err)
    for command in (("analyze", "r"), ("evict", "r", "-b", "4", "-w", "2")):
        status, _, err = ecokv(*command)
        assert (status, err.count("\n")) == (1, 1)
        assert "layer 1, KV head 1: keys holds" in err
    assert ecokv("analyze", "r", "--layers", "0", "--figures", "none")[0] == 0
    status, out, _ = ecokv("validate", "r")
    assert status == 1
    assert "layer 1: keys, KV head 1: " in out


# --- what a text model is and is not given


def test_an_image_for_a_text_model(ecokv, tiny, tmp_path):
    from PIL import Image

    Image.new("RGB", (28, 28)).save(tmp_path / "page.png")
    status, _, err = ecokv("dump", "page.png", "-m", tiny, "-p", "the total", "-o", "r")
    assert status == 1
    assert "model (LlamaForCausalLM) takes no images and 1 were given; leave them out" in err
    assert not (tmp_path / "r").exists()
