import os
import subprocess
import sys

import pytest

from ecokv_cli.cli.main import app


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ecokv(tmp_path, monkeypatch, capsys):
    """Run the command in this process and in an empty folder; returns status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ecokv", *map(str, arguments)])
        capsys.readouterr()
        try:
            app()
            status = 0
        except SystemExit as leaving:
            status = leaving.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def ecokv_process(tmp_path):
    """Run the command as a process of its own."""

    def run(*arguments, stdin=b"", **environment):
        command = [sys.executable, "-m", "ecokv_cli", *map(str, arguments)]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def dumped(tmp_path_factory):
    """A run folder with a dump of the shipped sample by the shipped model."""
    from ecokv_cli.cli.console import Screen
    from ecokv_cli.cli.dump import ImageChoice, choose_sample, dump_step
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.models.source import ModelSource

    run = Run(tmp_path_factory.mktemp("dumped") / "run")
    screen = Screen(quiet=True, verbose=False, as_json=True)
    recipe = ModelSource(None, None, "cpu", "auto", "sdpa", trust_remote_code=False)
    dump_step(screen, run, choose_sample((), None), recipe, DumpSettings(), pictures=ImageChoice(), force=False)
    return run.folder


@pytest.fixture
def run_folder(dumped, tmp_path):
    """A private copy of that run."""
    import shutil

    return shutil.copytree(dumped, tmp_path / "run")
