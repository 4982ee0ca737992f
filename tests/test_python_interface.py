"""The Python interface: the documented examples run, and its names are the documented ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ecokv_cli
from ecokv_cli.cli.main import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page_run(tmp_path_factory):
    """The folder in which the page's command was run."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", re.search(r"^    (ecokv dump .*)$", PAGE, re.MULTILINE).group(1).split())
        with pytest.raises(SystemExit) as leaving:
            app()
    assert not leaving.value.code
    return folder


def test_every_example_runs(page_run, monkeypatch, capsys):
    monkeypatch.chdir(page_run)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "61543" in printed
    assert "snapkvv: unknown" in printed or "'snapkvv'" in printed


def test_all_names_are_documented_and_no_others():
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Names")[1], re.MULTILINE)
    assert sorted(documented) == sorted(ecokv_cli.__all__)
    for name in ecokv_cli.__all__:
        assert getattr(ecokv_cli, name).__doc__
    # Type checkers and editors read the stub.
    stub = (ROOT / "ecokv_cli" / "__init__.pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r'^    "(\w+)",$', stub, re.MULTILINE)) == sorted(ecokv_cli.__all__)


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ecokv_cli.nothing  # noqa: B018


def test_the_package_alone_brings_nothing_heavy():
    code = "import sys, ecokv_cli; print([m for m in ('torch', 'pandas', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_frame_has_the_columns_and_missing_numbers():
    table = ecokv_cli.Table("t", ("layer", "value"))
    table.add(layer=0, value=1.5)
    table.add(layer=1, value=None)
    frame = ecokv_cli.frame(table)
    assert list(frame.columns) == ["layer", "value"]
    assert frame["value"].isna().tolist() == [False, True]
    assert frame["layer"].dtype.kind == "i"


def test_a_frame_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ecokv_cli.EcokvError, match=r"ecokv-cli\[pandas\]"):
        ecokv_cli.frame(ecokv_cli.Table("t", ("a",)))


def test_studies_want_samples():
    with pytest.raises(ecokv_cli.EcokvError, match="no samples given"):
        ecokv_cli.evict([])


def test_studies_take_methods_as_written_or_read_and_refuse_none(page_run):
    samples = ecokv_cli.open_run(page_run / "my-run").samples()
    method = ecokv_cli.parse_method("snapkv+ecokv[window=2]")
    written, read = (ecokv_cli.evict(samples, [each], [64], layers="0") for each in (method.name, method))
    assert written["fidelity"].rows == read["fidelity"].rows
    numbers = [ecokv_cli.analyze(samples, layers=layers, booster=method)["layers"].rows for layers in ("0,-1", [0, -1])]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == 2
    for methods, budgets, said in (
        ([], [64], "no methods given"), (["snapkv"], [], "no budgets given"),
        (["snapkv"], [None], "of type NoneType"),
    ):  # fmt: skip
        with pytest.raises(ecokv_cli.EcokvError, match=said):
            ecokv_cli.evict(samples, methods, budgets)
    with pytest.raises(ecokv_cli.EcokvError, match="snapkv needs 1 query or more"):
        ecokv_cli.evict(samples, ["snapkv"], [64], window=0)
