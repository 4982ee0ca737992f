"""What a journal asks of every figure: its size, its type, nothing cut off, the same bytes every time."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys

import matplotlib as mpl
import pytest
from album import FLAT, LAYERED, SIZES, draw
from matplotlib.text import Text
from PIL import Image

from ecokv_cli.errors import OutputError, UsageError
from ecokv_cli.figures.style import KINDS, encode, inches, method_styles, save

SMALL = [*FLAT, *LAYERED]
UNNAMED = {"overlay", "answer", "role", "overlap", "regions", "redundancy"}
"""Figures without an axis that would need a name, or whose panels carry it."""

EVERY = [(name, SIZES[0]) for name in FLAT] + list(itertools.product(LAYERED, SIZES))


def is_fit_for_print(figure, width):
    assert figure.get_figwidth() == width
    assert 0.9 < figure.get_figheight() < 9
    box = figure.get_tightbbox()
    assert box.x0 > -0.01
    assert box.y0 > -0.01
    assert box.x1 < width + 0.01
    assert box.y1 < figure.get_figheight() + 0.01
    assert {t.get_fontsize() for t in figure.findobj(Text) if t.get_visible() and t.get_text()} <= {7.0, 7.5, 9.0}
    for ax in (ax for ax in figure.axes if ax.get_visible()):
        for axis in (ax.xaxis, ax.yaxis):
            ticks = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
            assert len(ticks) <= 12
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(ticks))


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_double_column(drawing, name, size):
    is_fit_for_print(drawing(name, size).figure, 6.9)


@pytest.mark.parametrize("name", SMALL)
def test_single_column(drawing, name):
    is_fit_for_print(drawing(name, width="single").figure, 3.3)


@pytest.mark.parametrize("name", LAYERED)
def test_single_column_of_a_large_model_and_several_samples(drawing, name):
    is_fit_for_print(drawing(name, SIZES[2], "single", 3).figure, 3.3)


@pytest.mark.parametrize("name", LAYERED)
def test_one_layer_and_one_head(drawing, name):
    is_fit_for_print(drawing(name, (1, 1), "4.7").figure, 4.7)


@pytest.mark.parametrize("name", SMALL)
def test_axes_say_what_they_show(drawing, name):
    figure = drawing(name).figure
    axes = [ax for ax in figure.axes if ax.get_visible() and ax.get_xticks().size and not ax.images]
    words = [figure.get_supxlabel(), figure.get_supylabel(), *(ax.get_xlabel() + ax.get_ylabel() for ax in axes)]
    assert name in UNNAMED or any(len(word) > 4 for word in words)
    assert 1 <= len(drawing(name).caption.split(". ")) <= 6
    assert len(drawing(name).caption) > 150


@pytest.mark.parametrize("name", SMALL)
def test_saving_twice_gives_the_same_files(drawing, name, tmp_path):
    this = drawing(name, width="single")
    first = this.save(tmp_path / "a", KINDS)
    second = this.save(tmp_path / "b", KINDS)
    assert [p.name for p in first] == [f"{this.stem}.{kind}" for kind in (*KINDS, "csv")]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in first)

    pdf, png, _, data = first
    assert b"/FontFile2" in pdf.read_bytes()
    assert b"/Type3" not in pdf.read_bytes()
    assert b"CreationDate" not in pdf.read_bytes()
    with Image.open(png) as image:
        assert image.size == tuple((300 * this.figure.get_size_inches()).astype(int))
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    with data.open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(this.data) > 0


@pytest.mark.parametrize("name", LAYERED)
def test_large_models_give_the_same_bytes_too(drawing, name):
    figure = drawing(name, SIZES[2]).figure
    assert encode(figure, "svg") == encode(figure, "svg")


@pytest.mark.parametrize("name", ["cosine", "sinks", "redundancy", "plane"])
def test_drawing_twice_gives_the_same_bytes(drawing, name):
    assert encode(draw(name).figure, "svg") == encode(drawing(name).figure, "svg")


def test_the_users_own_matplotlib_settings_do_not_matter(drawing):
    usual = encode(drawing("geometry").figure, "svg")
    with mpl.rc_context({"font.size": 31, "lines.linewidth": 5, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        assert encode(draw("geometry").figure, "svg") == usual
        assert mpl.rcParams["font.size"] == 31


@pytest.mark.parametrize("name", ["pca", "plane"])
def test_dense_clouds_are_pixels_inside_vectors(drawing, name):
    figure = drawing(name).figure
    assert all(cloud.get_rasterized() for ax in figure.axes for cloud in ax.collections)
    assert b"<image" in encode(figure, "svg")


def test_drawing_needs_neither_pyplot_nor_torch():
    rooms = ("registry", "gallery", "compare", "route", "run_report")
    imports = "; ".join(f"import ecokv_cli.figures.{room}" for room in rooms)
    heavy = ["matplotlib.pyplot", "torch", "safetensors", "transformers"]
    code = f"{imports}; import sys, json; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []


@pytest.mark.parametrize(("given", "expected"), [("single", 3.3), ("double", 6.9), ("5.5", 5.5), (7, 7.0), ("3", 3.0)])
def test_width(given, expected):
    assert inches(given) == expected


@pytest.mark.parametrize("given", ["", "wide", "0", "-3.3", "nan", "inf", 2.9, 20.1])
def test_odd_width(given):
    with pytest.raises(UsageError, match="single, double or a number of inches from 3 to 20"):
        inches(given)


def test_a_width_that_is_too_narrow_is_refused_with_the_reason():
    with pytest.raises(UsageError, match=r"figure width '2': .*; in a narrower one words would overlap"):
        inches("2")


def test_unknown_format(drawing, tmp_path):
    with pytest.raises(UsageError, match="'gif': choose from pdf, png, svg"):
        drawing("role").save(tmp_path, ("png", "gif"))
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(drawing, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match=r"figure kept: cannot write to .*file"):
        save(drawing("role").figure, blocked, "kept", ("png",))


def test_default_methods_always_look_the_same():
    alone = method_styles(["snapkv+ecokv"])["snapkv+ecokv"]
    crowd = method_styles(["zzz", "snapkv", "aaa", "snapkv+ecokv", "random[seed=1]"])
    assert crowd["snapkv+ecokv"] == alone
    assert crowd["random[seed=1]"] == method_styles(["random"])["random"]


def test_variants_of_one_method_look_different():
    names = ["snapkv+ecokv", *(f"snapkv+ecokv[alpha={a / 10}]" for a in range(6)), "adakv", "streaming"]
    styles = method_styles(names)
    assert len({(s.color, s.marker) for s in styles.values()}) == len(names)
    assert len({s.marker for s in styles.values()}) == len(names), "told apart in grey"
    assert len({s.hatch for s in styles.values()}) == len(names), "told apart in grey"
    assert styles == method_styles(reversed(names))
