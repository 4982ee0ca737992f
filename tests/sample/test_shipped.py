"""The shipped samples: what they promise, and that they are the pages their seeds give."""

import json

import numpy as np
import pytest
from PIL import Image

from ecokv_cli.errors import InputError
from ecokv_cli.sample import shipped
from ecokv_cli.sample.images import load_image
from ecokv_cli.sample.shipped import default_sample, shipped_folder, shipped_samples
from ecokv_cli.tiny.documents import HELD_OUT_SEEDS, TILE, render

ROWS = [json.loads(line) for line in (shipped_folder() / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
PAGES = [row for row in ROWS if "seed" in row]


def tokens(sample):
    (image,) = sample.images
    width, height = load_image(image).used_size
    assert width % TILE == height % TILE == 0
    return (width // TILE) * (height // TILE)


@pytest.mark.parametrize("row", PAGES, ids=lambda row: row["id"])
def test_each_page_is_the_one_its_seed_gives(row):
    document = render(row["seed"], row["lines"], row["columns"])
    assert np.array_equal(np.asarray(Image.open(shipped_folder() / row["image"])), document.pixels)
    (field,) = [f for f in document.fields if row["prompt"] == f"what is the {f.key}?"]
    assert row["answers"] == [field.value]
    assert row["boxes"] == {"key": list(field.key_box), "value": list(field.value_box)}


def test_the_pages_are_held_out_and_not_among_those_used_for_evaluation():
    seeds = [row["seed"] for row in PAGES]
    assert len(set(seeds)) == 3
    assert all(HELD_OUT_SEEDS.start + 100_000 <= seed < HELD_OUT_SEEDS.stop for seed in seeds)


def test_the_default_sample():
    sample = default_sample()
    assert sample == shipped_samples()[0]
    assert PAGES[0]["id"] == sample.id
    assert PAGES[0]["columns"] == 2
    assert 300 <= tokens(sample) <= 384
    (answer,) = sample.answers
    assert len(answer) == 5
    assert answer.isdecimal()


def test_the_manifest_is_read_completely():
    samples = shipped_samples()
    assert [(s.id, s.prompt, list(s.answers)) for s in samples] == [(r["id"], r["prompt"], r["answers"]) for r in ROWS]
    assert [s.images for s in samples] == [(shipped_folder() / row["image"],) for row in ROWS]
    for sample, row in zip(samples, ROWS, strict=True):
        assert [list(b.box) for b in sample.boxes] == list(row["boxes"].values())
        assert [b.text for b in sample.boxes] == (["key", row["answers"][0]] if row["boxes"] else [])


def test_sizes_are_spread():
    assert [tokens(sample) for sample in shipped_samples()[:3]] == [342, 180, 80]


def test_every_sample_loads_without_a_note():
    for sample in shipped_samples():
        assert load_image(sample.images[0]).notes == ()


def test_the_photograph_is_the_unchanged_original():
    photograph = shipped_samples()[3]
    assert load_image(photograph.images[0]).sha256 == "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29"
    assert (photograph.answers, photograph.boxes) == ((), ())
    readme = (shipped_folder() / "README.md").read_text(encoding="utf-8")
    assert all(text in readme for text in ("danielbuechele", "CC BY 2.0", "creativecommons.org/licenses/by/2.0/"))


def test_the_installed_folder_comes_first(tmp_path, monkeypatch):
    (tmp_path / "samples.jsonl").touch()
    monkeypatch.setattr(shipped, "_INSTALLED", tmp_path)
    assert shipped_folder() == tmp_path


def test_missing_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_INSTALLED", tmp_path / "one")
    monkeypatch.setattr(shipped, "_CHECKOUT", tmp_path / "two")
    with pytest.raises(InputError, match="shipped samples are missing") as caught:
        default_sample()
    assert all(name in str(caught.value) for name in ("one", "two", "reinstall"))
