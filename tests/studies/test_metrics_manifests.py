"""docs/manifests.md: every snippet runs, on made-up rows, and gives a manifest that its metric can score."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from ecokv_cli.sample.manifest import read_manifest
from ecokv_cli.studies.metrics import METRICS, find_metric

GUIDE = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", GUIDE, re.MULTILINE | re.DOTALL))
PHRASE = "\nAnswer the question using a single word or phrase."
PAGE = Image.new("RGBA", (7, 5))

ROWS = {
    "DocVQA": [{"questionId": 349 + i, "question": "who?", "answers": ["A", "a"], "image": PAGE} for i in range(3)],
    "OCRBench": [
        {"dataset": name, "question": " what? ", "question_type": "t", "answer": ["x y"], "image": PAGE}
        for name in ("IIIT5K", "HME100k", "docVQA")
    ],
    "TextVQA": [{"question_id": 3, "question": "WHAT is it?", "answers": ["a"] * 10, "image": PAGE}],
    "ChartQA": [
        {"type": kind, "question": "how much?", "answer": "5%", "image": PAGE}
        for kind in ("human_test", "augmented_test")
    ],
    "TextCaps": [{"image_id": f"0{i}af", "caption_str": ["a can", "a tin"], "image": PAGE} for i in range(2)],
    "MP-DocVQA": [
        {"questionId": "11", "question": "when?", "answers": "['1970', \"'70\"]"}
        | {f"image_{n}": PAGE if n <= 3 else None for n in range(1, 21)}
    ],
}
WANTED = {  # folder: metric, ids, prompts, answers, images per sample
    "docvqa": ("anls", ["349", "350", "351"], f"who?{PHRASE}", ("A", "a"), 1),
    "ocrbench": ("contains", ["0000", "0002"], "what?", ("x y",), 1),
    "ocrbench-formulas": ("contains_formula", ["0001"], "what?", ("x y",), 1),
    "textvqa": ("vqa", ["3"], f"What is it?{PHRASE}", ("a",) * 10, 1),
    "chartqa": (
        "relaxed",
        ["human_test-0000", "augmented_test-0001"],
        "how much?\nAnswer the question with a single word.",
        ("5%",),
        1,
    ),
    "textcaps": (
        "cider",
        ["00af", "01af"],
        "Provide a one-sentence caption for the provided image.",
        ("a can", "a tin"),
        1,
    ),
    "mp-docvqa": ("anls", ["11"], f"when?{PHRASE}", ("1970", "'70"), 3),
}


@pytest.fixture
def manifests(tmp_path, monkeypatch):
    """Run all snippets in an empty folder, with a stand-in for the datasets library."""
    monkeypatch.chdir(tmp_path)
    shared = ModuleType("export")
    exec(SNIPPETS["The part they share"], shared.__dict__)
    monkeypatch.setitem(sys.modules, "export", shared)
    for name, rows in ROWS.items():
        asked = []

        def load_dataset(*path, split, streaming, rows=rows, asked=asked):
            asked.append(", ".join(f"`{part}`" for part in (*path, split)))
            return iter(rows)

        stand_in = ModuleType("datasets")
        stand_in.load_dataset = load_dataset
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
        exec(SNIPPETS[name], {})
        [row] = re.findall(rf"^\| {name} \| (.*?) \|", GUIDE, re.MULTILINE)
        assert set(asked) == {row}
    return tmp_path


def test_every_snippet_writes_a_manifest_that_its_metric_can_score(manifests):
    assert {path.name for path in manifests.iterdir()} == WANTED.keys()
    for folder, (metric, ids, prompt, answers, images) in WANTED.items():
        samples = read_manifest(manifests / folder / "samples.jsonl")
        assert [sample.id for sample in samples] == ids
        assert {(sample.prompt, sample.answers, len(sample.images)) for sample in samples} == {
            (prompt, answers, images)
        }
        for path in (path for sample in samples for path in sample.images):
            with Image.open(path) as image:
                assert (image.size, image.mode) == ((7, 5), "RGB")
        find_metric(metric).check([sample.answers for sample in samples], ids)


def test_the_guide_knows_every_metric_with_its_range():
    listed = re.findall(r"^\| `(\w+)` \| (0 (?:or|to) \d+) \|", GUIDE, re.MULTILINE)
    assert dict(listed) == {name: metric.range for name, metric in METRICS.items()}


def test_the_example_of_the_guide():
    code, shown = re.search(r"^(find_metric\(.*\))  # (\[.*\])$", GUIDE, re.MULTILINE).groups()
    assert eval(code, {"find_metric": find_metric}) == eval(shown)
