"""evaluate --explain, alone and beside an evaluation, and what evaluate draws and reports."""

import csv
import json
from html.parser import HTMLParser

from PIL import Image

from ecokv_cli.studies.tasks import docqa

ARMS = ("--method", "snapkv", "--method", "snapkv+ecokv", "-b", "12,6", "--window", "4", "--format", "png")
TASK = ("evaluate", "--task", "docqa", "--samples", "2", *ARMS, "-o", "r")


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Headings(HTMLParser):
    """Second-level headings and the words of a page."""

    def __init__(self, path):
        super().__init__()
        self.found, self.words, self.inside = [], [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.inside = tag

    def handle_data(self, data):
        self.words.append(data)
        if self.inside == "h2" and data.strip():
            self.found.append(data)


def test_a_sample_is_explained_alone_then_beside_an_evaluation(ecokv, tmp_path):
    status, out, err = ecokv(*TASK, "--explain", "page-0001", "--figures", "kept-over-answer")
    assert status == 0, err
    assert "heads that lose most of the attention on the answer's region, budget 6" in " ".join(out.split())
    assert "snapkv[window=4]" in out
    folder = tmp_path / "r" / "evaluation"
    place = folder / "explain" / "page-0001"
    question = list(docqa(2))[1]
    methods = rows(place / "explain_methods.csv")
    assert [(row["method"], row["budget"]) for row in methods] == [
        ("full", ""), ("snapkv[window=4]", "12"), ("snapkv[window=4]", "6"), ("snapkv+ecokv", "12"),
        ("snapkv+ecokv", "6"),
    ]  # fmt: skip
    assert (methods[0]["prediction"], methods[0]["score"]) == (question.answers[0], "1.0")
    assert {p.stem for p in (place / "figures").glob("*.png")} == {
        "kept_over_answer_0_budget_12", "kept_over_answer_0_budget_6",
    }  # fmt: skip
    # Two heads in each of six layers, five arms, the answer and the rest.
    assert len(rows(place / "explain_region.csv")) == 5 * 6 * 2 * 2
    assert not (folder / "summary.json").exists()
    page = Headings(tmp_path / "r" / "report.html")
    assert page.found == ["Contents", "Summary", "Sample page-0001 explained", "Settings", "Versions", "Command"]
    assert question.prompt in " ".join(page.words)

    status, out, err = ecokv(*TASK, "--figures", "accuracy_by_budget,cost_ratios")
    assert status == 0, err
    assert "mean, 95 % interval over samples" in " ".join(out.split())
    assert (place / "summary.json").exists()
    assert {p.stem for p in (folder / "figures").glob("*.png")} == {"accuracy_by_budget", "cost_ratios"}
    assert {p.stem for p in (folder / "figures").glob("*.csv")} == {"accuracy_by_budget", "cost_ratios"}
    page = Headings(tmp_path / "r" / "report.html")
    assert page.found[2:4] == ["Answers", "Sample page-0001 explained"]
    assert "evaluation: budgets" in page.words

    for command, message in (
        ((*TASK, "--explain", "page-0001"), "page-0001 exists; add --force"),
        ((*TASK, "--explain", "page-0011"), "--explain 'page-0011': no such sample; did you mean page-0001?"),
        ((*TASK, "--explain", "page-0000", "--figures", "cost_ratios"), "--figures 'cost_ratios': no such figure"),
        ((*TASK, "--explain", "page-0000", "--shard", "1/2"), "leave --shard out"),
        ((*TASK, "--smallest", "99", "--explain", "page-0000"), "give --samples, --smallest"),
    ):
        status, _, err = ecokv(*command)
        assert status == 2
        assert message in err
    assert ecokv(*TASK, "--figures", "none", "--force")[0] == 0
    assert not place.exists(), "what was explained belonged to the evaluation that was replaced"


def test_a_manifest_with_and_without_boxes(ecokv, tmp_path):
    question = list(docqa(3))[1]
    (image,) = question.images
    image.save(tmp_path / "page.png")
    boxes = {name: [x * s for x, s in zip(box.box, (image.width, image.height) * 2, strict=True)]
             for name, box in zip(("value", "key"), question.boxes, strict=True)}  # fmt: skip
    line = {"image": "page.png", "prompt": question.prompt, "answers": [*question.answers]}
    lines = [{**line, "id": "boxed", "boxes": boxes}, {**line, "id": "bare"},
             {**line, "id": "text", "image": None, "prompt": "what is the total?"}]  # fmt: skip
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ("evaluate", "--manifest", "m.jsonl", *ARMS, "-o", "r", "--max-new-tokens", "8")
    assert ecokv("dump", "-o", "r")[0] == 0
    status, out, err = ecokv(*command, "--figures", "none", "--explain", "bare", "--explain", "boxed")
    assert status == 0, err
    page = Headings(tmp_path / "r" / "report.html")
    assert page.found[2:5] == ["Sample", "Sample bare explained", "Sample boxed explained"]
    assert "bare: task" not in page.words
    assert "bare: steps" in page.words
    assert "bare has no boxes, so what is lost of the answer's region is not known" in err
    assert "heads that lose most of all attention, budget 6" in " ".join(out.split())
    boxed, bare = (tmp_path / "r" / "evaluation" / "explain" / name for name in ("boxed", "bare"))
    assert rows(bare / "explain_region.csv") == []
    same = [column for column in rows(bare / "explain_fidelity.csv")[0] if column != "sample"]
    assert [[row[c] for c in same] for row in rows(bare / "explain_fidelity.csv")] == [
        [row[c] for c in same] for row in rows(boxed / "explain_fidelity.csv")
    ]
    # The value of three to five digits, 14 pixels each, touches this many tiles of 28.
    x0, _, x1, _ = boxes["value"]
    found = {int(row["tokens"]) for row in rows(boxed / "explain_region.csv") if row["region"] == "answer"}
    tall = {1, 2}
    assert found <= {tiles * (int(x1 - 1) // 28 - int(x0) // 28 + 1) for tiles in tall}


def test_a_box_beyond_its_image_is_refused_by_name(ecokv, tmp_path):
    Image.new("L", (56, 84)).save(tmp_path / "page.png")
    line = {"id": "far", "image": "page.png", "prompt": "?", "answers": ["1"], "boxes": {"value": [0, 0, 57, 9]}}
    (tmp_path / "m.jsonl").write_text(json.dumps(line))
    status, _, err = ecokv("evaluate", "--manifest", "m.jsonl", *ARMS, "--explain", "far")
    assert status == 1
    assert "sample far: box 0 ('1') reaches to 57, 9" in err
