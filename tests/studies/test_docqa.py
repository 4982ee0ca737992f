"""The shipped model reads held-out pages."""

import sys

import pytest
from PIL import Image

from ecokv_cli.errors import OutputError
from ecokv_cli.models.loading import load_model
from ecokv_cli.sample.manifest import read_manifest
from ecokv_cli.studies.docqa import accuracy_by_size, answer_pages, main
from ecokv_cli.studies.tables import Table
from ecokv_cli.tiny import SHIPPED_MODEL
from ecokv_cli.tiny.documents import VALIDATION_SEEDS, held_out


def test_the_shipped_model_answers_held_out_pages_of_every_size():
    answers = answer_pages(load_model(str(SHIPPED_MODEL), device="cpu"), 40)
    assert len(answers) == 40
    assert 64 <= min(answers.numbers("image_tokens")) < 80
    assert max(answers.numbers("image_tokens")) > 350
    assert sum(bool(row["correct"]) for row in answers) >= 38


def test_accuracy_counts_every_page_in_one_bin_and_gives_its_interval():
    answers = Table("docqa", ("image_tokens", "correct"))
    for tokens, correct in ((64, True), (127, False), (128, True), (384, True)):
        answers.add(image_tokens=tokens, correct=correct)
    rows = {row["image_tokens"]: row for row in accuracy_by_size(answers)}
    assert {name: row["pages"] for name, row in rows.items()} == {"64-127": 2, "128-191": 1, "320-384": 1, "all": 4}
    assert rows["64-127"]["accuracy"] == 0.5
    # Wilson interval of 3 out of 4.
    assert (rows["all"]["low"], rows["all"]["high"]) == (
        pytest.approx(0.3006, abs=1e-4),
        pytest.approx(0.9544, abs=1e-4),
    )


def test_exported_pages_are_those_of_the_task_with_answers_and_boxes(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "pages"
    monkeypatch.setattr(sys, "argv", ["docqa", "--export", str(folder), "--count", "3", "--validation"])
    main()
    manifest = capsys.readouterr().out.strip()
    samples = read_manifest(manifest)
    pages = list(held_out(3, VALIDATION_SEEDS))
    assert len(samples) == len(pages)
    for sample, (document, field) in zip(samples, pages, strict=True):
        with Image.open(sample.images[0]) as image:
            assert image.tobytes() == document.image.tobytes()
        assert sample.answers == (field.value,)
        assert sample.prompt == f"what is the {field.key}?"
        assert {box.text: box.box for box in sample.boxes} == {"key": field.key_box, field.value: field.value_box}
    with pytest.raises(OutputError, match="exists"):
        main()
