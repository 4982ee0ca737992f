"""The report is one page that needs nothing else, shows everything it was given and believes none of it."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from io import BytesIO
from urllib.parse import urlsplit

import pytest
from PIL import Image

from ecokv_cli.errors import OutputError
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.tables import Table

EVIL = "<script>alert('x')</script>&\"'"


class Page(HTMLParser):
    """Tags with attributes, text per tag, and whether every tag is closed in order."""

    VOID = frozenset({"meta", "link", "img"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.text.append((self.open[-1], data.strip()))

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def inside(self, tag):
        return [text for name, text in self.text if name == tag]


def table(rows=29):
    made = Table("scores", ("method", "layer", "score", "tiny", "note"))
    for i in range(rows):
        made.add(method=EVIL, layer=i, score=None if i == 1 else 17.123456 + i, tiny=1e-9, note="")
    return made


@pytest.fixture
def write(tmp_path, drawing):
    def write(**changes):
        view = TableView(table(), f"Scores {EVIL}", limit=13, file="analysis/a b#c.csv")
        figures = (drawing("cosine", width="single"), drawing("cosine"))
        page = {
            "title": f"Run {EVIL}",
            "sections": (Section(f"Part {EVIL}", (f"Text {EVIL}",), (view,), figures, "analysis/figures"),),
            "summary": (f"Summary {EVIL}",),
            "settings": {"prompt": f"{EVIL}\nsecond line", "budgets": [16, 32], "window": None, EVIL: True, "a": 0.5},
            "versions": {"torch": EVIL},
            "command": f"ecokv run {EVIL}",
            "highlights": {"mean cosine": EVIL},
        } | changes
        path = tmp_path / "report.html"
        assert write_report(path, page.pop("title"), page.pop("sections"), **page) == path
        return path.read_text(encoding="utf-8")

    return write


def test_nothing_handed_in_becomes_markup(write):
    html = write()
    page = Page(html)
    assert len(page.named("script")) == 1
    assert "alert" not in page.inside("script")[0]
    assert "<script>alert" not in html
    for tag in ("title", "h1", "h2", "td", "p", "pre", "dd", "dt", "a"):
        assert any("<script>alert('x')</script>&\"'" in text for text in page.inside(tag)), tag


def test_captions_are_escaped(write, drawing):
    from dataclasses import replace

    odd = replace(drawing("cosine"), caption=EVIL, title=f'" onload="{EVIL}')
    page = Page(write(sections=(Section("One", figures=(odd,)),)))
    assert EVIL in page.inside("figcaption")
    assert set(page.named("img")[0]) == {"src", "width", "height", "class", "alt"}


def test_page_asks_for_nothing_from_outside(write):
    html = write()
    assert "http://" not in html
    assert "https://" not in html
    page = Page(html)
    for _, attributes in page.tags:
        for name in ("src", "href"):
            target = attributes.get(name) or ""
            assert urlsplit(target).scheme in {"", "data"}
            assert not target.startswith("//")
    assert "url(" not in html
    assert "@import" not in html
    policy = next(m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_images_are_inside_with_words_for_them(write):
    images = Page(write()).named("img")
    assert len(images) == 2
    for attributes in images:
        assert len(attributes["alt"]) > 10
        kind, data = attributes["src"].split(",", 1)
        assert kind == "data:image/png;base64"
        with Image.open(BytesIO(base64.b64decode(data))) as image:
            assert image.width / image.height == pytest.approx(
                int(attributes["width"]) / int(attributes["height"]), abs=0.02
            )


def test_saved_figures_are_shown_as_they_are(write, drawing, tmp_path):
    from ecokv_cli.figures.gallery import Plate

    file = drawing("cosine", width="single").save(tmp_path / "a b", ("png", "svg"))[0]
    plate = Plate(file, (3.3, 2.5), "Cosine", "How to read it.")
    page = Page(write(sections=(Section("One", figures=(plate,), folder="a b"),)))
    assert page.named("img")[0]["src"].endswith(base64.b64encode(file.read_bytes()).decode())
    linked = [a["href"] for a in page.named("a") if not a["href"].startswith("#")]
    assert linked == [f"a%20b/cosine_distribution.{kind}" for kind in ("png", "svg", "csv")]


def test_contents_lead_somewhere(write):
    page = Page(write())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    inner = [a["href"][1:] for a in page.named("a") if a["href"].startswith("#")]
    assert len(inner) == 1 + 1 + 2 + 3
    assert set(inner) <= set(ids)
    assert page.named("html")[0]["lang"] == "en"


def test_long_tables_are_cut_and_say_where_the_rest_is(write):
    html = write()
    page = Page(html)
    assert len(page.named("tr")) == 1 + 13
    assert "The first 13 of 29 rows." in html
    assert any(a["href"] == "analysis/a%20b%23c.csv" for a in page.named("a"))
    whole = write(sections=(Section("One", tables=(TableView(table(5), "Five"),)),))
    assert "The first" not in whole


def test_numbers_are_for_reading_and_sort_by_value(write):
    page = Page(write())
    cells = page.inside("td")
    assert "17.12" in cells
    assert "–" in cells
    assert "1.0e−09" in cells or "1.0e-09" in cells or "0.000000001" in cells
    keys = [attributes.get("data-key") for attributes in page.named("td")]
    assert "17.123456" in keys
    assert "" in keys, "undefined numbers sort last"
    heads = page.named("th")
    assert [h.get("class") for h in heads] == [None, "number", "number", "number", None]


def test_chosen_columns_only(write):
    view = TableView(table(3), "Three", columns=("score", "layer"))
    page = Page(write(sections=(Section("One", tables=(view,)),)))
    assert page.inside("th") == ["score", "layer"]


def test_settings_are_in_words(write):
    page = Page(write())
    values = page.inside("dd")
    assert "16, 32" in values
    assert "–" in values
    assert "yes" in values
    assert "0.5" in values
    assert f"{EVIL}\nsecond line" in values


def test_same_input_gives_the_same_bytes(write):
    assert write() == write()


def test_old_page_survives_a_failure(write, tmp_path):
    before = write()
    with pytest.raises(KeyError):
        write(sections=(Section("One", tables=(TableView(table(), "", columns=("nothing",)),)),))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_folder_that_is_not_there(tmp_path):
    nothing = {"summary": (), "settings": {}, "versions": {}, "command": ""}
    with pytest.raises(OutputError, match=r"report .*gone.*report.html: cannot be written"):
        write_report(tmp_path / "gone" / "report.html", "Run", (), **nothing)
