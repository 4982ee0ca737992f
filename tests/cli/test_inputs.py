"""What people really hand in beside images, and where it goes: prompts, paths, streams."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from ecokv_cli.cli import console
from ecokv_cli.dump.reader import open_dump

SHORT = ("--decode", "1", "--ignore-eos")


def picture(width=84, height=56):
    return Image.linear_gradient("L").resize((width, height)).convert("RGB")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def manifest(run, sample="sample"):
    return open_dump(run / "dump" / sample).manifest


# --- prompts


@pytest.mark.parametrize("prompt", ["", "  ", "\n\t"])
def test_a_blank_prompt_goes_with_an_image_and_is_said(ecokv, tmp_path, prompt):
    picture().save(tmp_path / "page.png")
    status, _, err = ecokv("dump", "page.png", "-p", prompt, *SHORT, "-o", "r")
    assert status == 0
    assert "the prompt is blank" in err
    assert ecokv("dump", "-p", prompt)[0] == 2


def test_prompts_from_standard_input_and_files(ecokv, tmp_path, monkeypatch):
    (tmp_path / "Größe der Frage.txt").write_bytes(b"\xef\xbb\xbfwhat is\r\nthe total?\r\n")
    assert ecokv("dump", "-p", "@Größe der Frage.txt", *SHORT, "-o", "file")[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"what is\nthe total?\n")))
    assert ecokv("dump", "-p", "-", *SHORT, "-o", "stdin")[0] == 0
    assert manifest(tmp_path / "file").prompt == manifest(tmp_path / "stdin").prompt == "what is\nthe total?"


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|video_pad|>"])
def test_control_tokens_in_a_prompt_are_never_bound(ecokv, tmp_path, token):
    picture().save(tmp_path / "page.png")
    for images in ((), ("page.png",)):
        status, out, err = ecokv("dump", *images, "-p", f"the {token} total", "-o", "r")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"the prompt holds '{token}', a control token of this model" in err
    assert not (tmp_path / "r").exists()


def test_a_broken_up_control_token_is_text(ecokv, tmp_path):
    assert ecokv("dump", "-p", "the < |im_end|> total", *SHORT, "-o", "r")[0] == 0
    ids = manifest(tmp_path / "r").tokens
    assert ids.strings.count("<|im_end|>") == 1  # the template's own


def test_a_prompt_of_one_token_goes_through_all_commands(ecokv, tmp_path):
    assert ecokv("dump", "-p", "total", "--no-chat-template", "--decode", "2", "--ignore-eos", "-o", "r")[0] == 0
    assert manifest(tmp_path / "r").tokens.strings == ("▁total",)
    assert ecokv("validate", "r")[0] == 0
    figures = ("--figures", "pca_scatter,spearman_by_layer,redundancy_by_head", "--format", "png")
    assert ecokv("analyze", "r", "--layers", "0,5", *figures)[0] == 0
    status, _, err = ecokv("evict", "r", "-b", "4", "-w", "2", "--figures", "none")
    assert (status, "nothing evicted" in err) == (0, True)
    for row in rows(tmp_path / "r" / "analysis" / "layers.csv"):
        assert (float(row["cos_mean"]), row["spearman"]) == (0, "")


@pytest.mark.parametrize(("window", "kept", "said"), [(20, 13, True), (13, 13, True), (12, 12, False)])
def test_a_prompt_about_as_long_as_the_window(ecokv, tmp_path, window, kept, said):
    """Of 13 positions, with a budget of the window: longer ones keep all, one shorter keeps the window alone."""
    prompt = "what is the total of the date?"
    assert ecokv("dump", "-p", prompt, *SHORT, "-o", "r")[0] == 0
    assert len(manifest(tmp_path / "r").tokens.ids) == 13
    methods = ("snapkv", "keydiff", "snapkv+ecokv", "pyramidkv", "adakv")
    status, _, err = ecokv(
        "evict", "r", "-b", window, "-w", window, "--figures", "none", *(a for m in methods for a in ("--method", m))
    )
    assert (status, "nothing evicted" in err) == (0, said)
    found = rows(tmp_path / "r" / "eviction" / "ledger.csv")
    assert {row["method"].partition("[")[0] for row in found} == set(methods)
    assert {int(row["kept"]) for row in found} == {kept}


# --- names and places


@pytest.mark.parametrize(
    "name", ["Rechnung für März 請求書", "a b c", 'it\'s "quoted" & <b>', "100%{x}", "[bold]x", "C:\\scans\\page"]
)
def test_names_with_spaces_signs_and_other_alphabets(ecokv, tmp_path, name):
    picture().save(tmp_path / f"{name}.png")
    status, out, _ = ecokv("dump", f"{name}.png", "-p", "the total", *SHORT, "-o", f"run of {name}")
    assert status == 0
    assert f"run of {name}" in out
    (sample,) = (tmp_path / f"run of {name}" / "dump").iterdir()
    assert open_dump(sample).manifest.images[0].source == f"{name}.png"
    assert ecokv("validate", f"run of {name}")[0] == 0


@pytest.mark.parametrize(("place", "message"), [
    ("file", "a file is in the way of the folder"),
    ("file/deeper", "a file is in the way of the folder"),
    ("/proc/ecokv", "cannot be written ("),
])  # fmt: skip
def test_places_where_nothing_can_be_written_are_found_before_the_model_is_loaded(ecokv, tmp_path, place, message):
    (tmp_path / "file").touch()
    status, out, err = ecokv("dump", "-p", "the total", "-m", "no/such/model", "-o", place)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err


def test_folders_that_are_missing_are_made(ecokv, tmp_path):
    assert ecokv("dump", "-p", "the total", *SHORT, "-o", "new/deep/run")[0] == 0
    assert manifest(tmp_path / "new" / "deep" / "run").prompt == "the total"


def test_an_existing_dump_is_kept_without_force_and_the_model_is_not_looked_for(ecokv, run_folder):
    before = {p.name: p.read_bytes() for p in (run_folder / "dump" / "two-columns").iterdir()}
    status, _, err = ecokv("dump", "-o", run_folder, "-m", "no/such/model")
    assert (status, "two-columns exists; add --force to replace it" in err) == (1, True)
    assert {p.name: p.read_bytes() for p in (run_folder / "dump" / "two-columns").iterdir()} == before


def test_too_little_space_is_found_before_the_run(ecokv, tmp_path, monkeypatch):
    from ecokv_cli.dump import writer

    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    status, _, err = ecokv("dump", "-p", "the total", "-o", "r", "-q")
    assert (status, err.count("\n")) == (1, 1)
    assert "r/dump/sample: the dump needs about 0.00 GB and 0.00 GB are free; choose another disk" in err
    assert not (tmp_path / "r").exists()


def test_the_size_is_said_before_it_is_written_unless_quiet(ecokv):
    status, _, err = ecokv("dump", "-p", "the total", *SHORT, "-o", "r")
    assert status == 0
    assert "MB will be written" in err
    assert ecokv("dump", "-p", "the total", *SHORT, "-o", "s", "-q")[2] == ""


# --- streams


def test_a_full_standard_output_is_one_line():
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "ecokv_cli", "info", "--env"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away(run_folder):
    with subprocess.Popen(
        [sys.executable, "-m", "ecokv_cli", "info", str(run_folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_nobody_sees_them(ecokv, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, out, err = ecokv("dump", "-p", "the total", *SHORT, "-o", "r", "-v")
    assert status == 0
    assert "\x1b" not in out + err


# --- errors that were not foreseen


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(("error", "message"), [
    (MemoryError(), "out of memory; give a smaller image (--max-pixels) or a shorter prompt"),
    (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory; give a smaller image"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
     "out of memory; give a smaller image"),
    (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero (test_inputs.py, line "),
])  # fmt: skip
def test_any_other_error_is_one_line_too(ecokv, tmp_path, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("ecokv_cli.models.dumping.capture", fail)
    common = ("dump", "-p", "the total", "-o", "r")
    status, out, err = ecokv(*common, "-q")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"ecokv: error: {message}")
    assert not (tmp_path / "r").exists()
    with pytest.raises(type(error)):
        ecokv(*common, "--debug")


@pytest.mark.parametrize(("named", "where"), [(["some/x"], "some/x"), ([], "input or output")])
def test_errors_of_the_system_are_one_line_too(ecokv, monkeypatch, named, where):
    def fail(*_):
        raise OSError(28, "No space left on device", *named)

    monkeypatch.setattr(console.Screen, "show", fail)
    told = "No space left on device; see that it can be read and written, or give another path\n"
    assert ecokv("methods") == (1, "", f"ecokv: error: {where}: {told}")


def test_what_rooms_log_is_shown_or_not(capsys):
    import logging

    log = logging.getLogger("ecokv_cli.somewhere")
    for quiet, expected in ((False, "7 is [bold]odd[/bold]\nnote\n"), (True, "")):
        console.Screen(quiet=quiet, verbose=False, as_json=False)
        log.info("%d is [bold]odd[/bold]", 7)
        log.warning("note")
        log.debug("not shown")
        assert capsys.readouterr().err == expected


def test_json_on_stdout_stays_json_whatever_is_said_on_the_way(ecokv, tmp_path):
    picture(560, 280).save(tmp_path / "page.png")
    status, out, err = ecokv(
        "dump", "page.png", "-p", "the total", *SHORT, "-o", "r", "--json", "-v", "--max-pixels", "9000"
    )
    assert status == 0
    assert json.loads(out)["run"] == "r"
    assert "scaled from" in err
