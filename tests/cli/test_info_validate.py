"""``ecokv info`` and ``ecokv validate``, and which commands do without torch."""

import json
import shutil
import subprocess
import sys

import pytest

from ecokv_cli import __version__

HEAVY = ("torch", "transformers", "matplotlib", "scipy", "sklearn", "safetensors")


def imported(folder, *arguments):
    """The heavy libraries that a command has imported, and its status."""
    script = (
        "import sys; from ecokv_cli.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as leaving: status = leaving.code\n"
        f"print('heavy', status, *[m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, cwd=folder, check=False
    )
    _, status, *found = done.stderr.rstrip().splitlines()[-1].split()
    return status, found


@pytest.mark.parametrize("arguments", [
    ("--help",), ("--version",), ("dump", "--help"), ("info", "run"), ("info", "--env"), ("info", "run", "--json"),
    ("validate", "run"), ("methods",), ("methods", "snapkv+ecokv"), ("methods", "adakv", "--json"),
])  # fmt: skip
def test_commands_that_compute_nothing_do_without_heavy_libraries(run_folder, arguments):
    assert imported(run_folder.parent, *arguments) == ("0", [])


def test_info_describes_a_run(ecokv, run_folder):
    assert ecokv("evict", run_folder, "--figures", "none")[0] == 0
    status, out, err = ecokv("info", run_folder)
    assert (status, err) == (0, "")
    for text in (
        "ecokv-form-reader (Qwen2VLForConditionalGeneration)", "6 query, 2 KV, dimension 32",
        "354: 7 text, 342 image, 5 special", "keys, values, window_queries", "MB as float32",
        "window 32, seed 0, decode 32", f"ecokv {__version__}", "two-columns", "61543", "eviction", "ecokv evict",
    ):  # fmt: skip
        assert text in out, text


def test_info_as_json(ecokv, run_folder):
    status, out, err = ecokv("info", run_folder, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    (sample,) = found["samples"]
    assert (sample["tokens"], sample["tokens_by_role"]["image"], sample["answer"]) == (354, 342, "61543")
    assert sample["bytes"] == sum(path.stat().st_size for path in run_folder.rglob("*.safetensors"))
    assert found["settings"]["decode"] == 32
    assert (found["unreadable"], found["results"]) == ([], {})


def test_info_takes_the_latest_run_and_the_folder_of_a_sample(ecokv, run_folder, tmp_path):
    status, _, err = ecokv("info")
    assert (status, "run `ecokv dump` first" in err) == (1, True)
    shutil.copytree(run_folder, tmp_path / "ecokv-runs" / "one")
    for arguments in ((), (run_folder / "dump" / "two-columns",)):
        status, out, _ = ecokv("info", *arguments)
        assert (status, "two-columns" in out) == (0, True)


def test_info_of_a_run_with_a_sample_that_cannot_be_read(ecokv, run_folder):
    shutil.copytree(run_folder / "dump" / "two-columns", run_folder / "dump" / "broken")
    (run_folder / "dump" / "broken" / "manifest.json").write_text("{")
    status, out, err = ecokv("info", run_folder, "--json")
    assert status == 0
    assert "manifest.json: cannot be read" in err
    assert json.loads(out)["unreadable"] == ["broken"]
    shutil.rmtree(run_folder / "dump" / "two-columns")
    status, _, err = ecokv("info", run_folder)
    assert (status, err.count("\n")) == (1, 1)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000, '{"results": 3, "command": 1, "created": null}'])
def test_info_of_a_run_with_results_that_were_edited(ecokv, run_folder, text):
    (run_folder / "analysis").mkdir()
    (run_folder / "analysis" / "summary.json").write_text(text)
    status, out, err = ecokv("info", run_folder)
    assert (status, "two-columns" in out) == (0, True)
    assert "summary.json" in err


def test_info_notes_other_versions_of_libraries(ecokv, run_folder):
    path = run_folder / "dump" / "two-columns" / "manifest.json"
    data = json.loads(path.read_text())
    data["versions"] |= {"torch": "1.0", "gone": "7"}
    path.write_text(json.dumps(data))
    status, _, err = ecokv("info", run_folder)
    assert status == 0
    assert "made with other versions: torch 1.0 (here " in err
    assert "gone 7 (here none)" in err


def test_env_names_versions_system_and_cuda(ecokv, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, err = ecokv("info", "--env", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    import numpy as np
    import torch

    assert (found["ecokv"], found["torch"], found["numpy"]) == (__version__, torch.__version__, np.__version__)
    assert f"{sys.version_info.major}.{sys.version_info.minor}." in found["python"]
    built = f"for {torch.version.cuda}" if torch.version.cuda else "without"
    assert found["cuda"].startswith(f"torch built {built}, ")
    assert found["HF_HUB_OFFLINE"] == "1"
    assert ecokv("info", "somewhere", "--env")[0] == 2


def test_a_sound_run_is_valid(ecokv, run_folder):
    assert ecokv("validate", run_folder) == (0, "", f"{run_folder}: no fault in 1 sample\n")
    status, out, _ = ecokv("validate", run_folder, "--json", "-q")
    assert (status, json.loads(out)) == (0, {"run": str(run_folder), "samples": 1, "faults": []})


def test_each_fault_is_one_line_and_the_status_is_1(ecokv, run_folder):
    import torch
    from safetensors.torch import load_file, save_file

    sample = run_folder / "dump" / "two-columns"
    (sample / "layer_001.safetensors").unlink()
    tensors = load_file(sample / "layer_004.safetensors")
    tensors["keys"][1, 5, 7] = torch.nan
    save_file(tensors, sample / "layer_004.safetensors")
    record = json.loads((sample / "manifest.json").read_text())
    status, out, err = ecokv("validate", run_folder)
    assert (status, err) == (1, f"ecokv: error: {run_folder}: 2 faults; dump the samples concerned again\n")
    first, second = out.splitlines()
    assert first == f"{sample / 'layer_001.safetensors'}: layer 1: is missing"
    assert second.startswith(f"{sample / 'layer_004.safetensors'}: layer 4: has sha256 ")
    import hashlib

    digest = hashlib.sha256((sample / "layer_004.safetensors").read_bytes()).hexdigest()
    record["layers"][4]["sha256"] = digest
    (sample / "manifest.json").write_text(json.dumps(record))
    status, out, _ = ecokv("validate", run_folder, "--json")
    assert status == 1
    faults = json.loads(out)["faults"]
    assert [(fault["layer"], fault["head"]) for fault in faults] == [(1, None), (4, 1)]
    assert faults[1]["found"] == "keys, KV head 1: 1 NaN or infinite numbers"
