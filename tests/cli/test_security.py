"""What strangers hand over never runs, never escapes, and never leaves its folder."""

import ast
import json
import re
from pathlib import Path

import pytest
from PIL import Image

import ecokv_cli

SOURCES = sorted(Path(ecokv_cli.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "subprocess", "yaml"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {"system", "popen", "execv", "spawnv"}


def calls(tree):
    """Name of what is called, whose it is, and the keywords it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            yield name, ast.unparse(owner) if owner else "", {k.arg: ast.unparse(k.value) for k in node.keywords}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_unpickles_or_runs_text(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & MODULES
    for name, owner, keywords in calls(tree):
        assert name not in BUILTINS or owner, name
        assert name not in METHODS, (name, owner)
        if name == "load" and owner in ("torch", "np", "numpy"):
            assert keywords.get("weights_only") == "True", "torch.load opens pickles"
        assert keywords.get("allow_pickle") in (None, "False")
        assert keywords.get("trust_remote_code") in (None, "trust_remote_code", "self.trust_remote_code", "False")


def test_remote_code_is_off_by_default():
    import inspect

    from ecokv_cli.cli import dump, run
    from ecokv_cli.models.loading import load_model

    for function in (load_model, dump.command, run.command):
        assert inspect.signature(function).parameters["trust_remote_code"].default is False


MARKUP = "<script>alert(7)</script><img src=x onerror=alert(8)>\"'&"


def test_nothing_a_user_writes_is_markup_in_the_report(ecokv, tmp_path):
    name = MARKUP.replace("/", "")
    Image.linear_gradient("L").resize((84, 56)).convert("RGB").save(tmp_path / f"{name}.png")
    row = {"id": "page", "image": f"{name}.png", "prompt": f"the total {MARKUP}", "answers": [MARKUP],
           "boxes": [{"text": MARKUP, "box": [0, 0, 28, 28]}]}  # fmt: skip
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    system = f"system {MARKUP}"
    status = ecokv("dump", "--manifest", "m.jsonl", "-o", "r", "--system", system, "--ignore-eos", "--decode", "2")[0]
    assert status == 0
    manifest = tmp_path / "r" / "dump" / "page" / "manifest.json"
    data = json.loads(manifest.read_text())
    data["model"]["id"] = data["command"] = data["model"]["architecture"] = MARKUP
    data["decoded"]["text"] = data["versions"]["torch"] = MARKUP
    data["tokens"]["strings"] = [MARKUP] * len(data["tokens"]["strings"])
    manifest.write_text(json.dumps(data))
    assert ecokv("analyze", "r", "--layers", "0", "--figures", "pca_scatter", "--format", "png,svg")[0] == 0
    assert ecokv("evict", "r", "-b", "8", "-w", "2", "--figures", "kept_over_image", "--format", "png")[0] == 0
    report = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "alert(7)" in report
    assert "<script>alert" not in report
    assert "<img src=x" not in report
    assert not re.search(r"<[^>]*\sonerror=", report)
    for drawing in (tmp_path / "r").rglob("*.svg"):
        assert "<script" not in drawing.read_text(encoding="utf-8")


@pytest.mark.parametrize("field", ["layers", "images"])
@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a/../../b", "..\\b", "C:\\b", "", ".hidden"])
def test_a_dump_that_names_files_elsewhere_is_refused_by_every_command(ecokv, run_folder, field, name):
    path = run_folder / "dump" / "two-columns" / "manifest.json"
    data = json.loads(path.read_text())
    data[field][0]["file"] = name
    path.write_text(json.dumps(data))
    for command in ("info", "analyze", "evict", "validate"):
        status, out, err = ecokv(command, run_folder)
        assert status == 1
        assert "expected the name of a file in the dump's folder" in out + err
    assert sorted(p.name for p in run_folder.iterdir()) == ["dump"]


@pytest.mark.parametrize("identifier", ["../../escape", "/abs", "..\\x", "C:/x", "a/../../../b"])
def test_an_id_in_a_manifest_cannot_leave_the_run_folder(ecokv, tmp_path, identifier):
    work = tmp_path / "work"
    work.mkdir()
    (work / "m.jsonl").write_text(json.dumps({"id": identifier, "prompt": "the total"}))
    status, _, err = ecokv("dump", "--manifest", work / "m.jsonl", "-o", work / "r")
    assert (status, "stays inside the run folder" in err) == (1, True)
    assert [p.name for p in tmp_path.iterdir()] == ["work"]
    assert [p.name for p in work.iterdir()] == ["m.jsonl"]
