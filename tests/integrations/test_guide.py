"""The examples of docs/integrations.md, each section where what it is about is installed."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from ecokv_cli.studies.docqa import export_pages

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def blocks(section, language):
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


def run(section, names):
    """Run the section's examples one after the other; one that begins with a path is written there."""
    for example in blocks(section, "python"):
        path = re.match(r"# (\S+\.py)\n", example)
        if path:
            Path(path[1]).write_text(example, encoding="utf-8")
        else:
            exec(compile(example, "docs/integrations.md", "exec"), names)
    return names


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The folder in which the page's command was run."""
    count = int(re.search(r"--export pages --count (\d+)", PAGE)[1])
    export_pages(tmp_path / "pages", count)
    monkeypatch.chdir(tmp_path)


def test_around_generate(pages, capsys):
    names = run("Around `generate`", {})
    assert names["full"].strip() == names["little"].strip() == "280"
    tokens = names["inputs"]["input_ids"].shape[1]
    decoded = names["found"].sequences.shape[1] - tokens
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{tokens} [(1, ")
    # The last token is not fed back.
    assert {layer.keys.shape[2] for layer in names["found"].past_key_values.layers} == {48 + decoded - 1}
    assert tokens > 48 + decoded


def test_kvpress(capsys):
    pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)
    run("kvpress", {})
    assert capsys.readouterr().out.split() == "EcoKVPress 25 MixKVPress 40 AdaKVPress 100".split()


def test_lmms_eval(pages, capsys):
    pytest.importorskip("lmms_eval", reason="lmms-eval is not installed", exc_type=ImportError)
    Path("pages_task").mkdir()
    Path("pages_task/pages.yaml").write_text(blocks("lmms-eval", "yaml")[0], encoding="utf-8")
    run("lmms-eval", {})
    stated = re.search(r"^It printed, .*?: (.*?)\. ", SECTIONS["lmms-eval"], re.MULTILINE | re.DOTALL)[1]
    printed = capsys.readouterr().out.splitlines()
    for result in stated.split(", "):
        assert result in printed


def test_without_kvpress_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kvpress", None)
    monkeypatch.delitem(sys.modules, "ecokv_cli.integrations.kvpress", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'ecokv-cli\[kvpress\]'") as error:
        importlib.import_module("ecokv_cli.integrations.kvpress")
    assert "\n" not in str(error.value)
