"""The report in a real browser: no console error, every image there, nothing wider than the page, tables that sort."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.figures.run_report import LAYER_MEASURES, WITH_INTERVAL
from ecokv_cli.studies.tables import Table

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const button = document.querySelectorAll("th button")[1];
  const column = () => [...document.querySelectorAll("tbody tr")].map(row => row.cells[1].textContent);
  const sorted = () => { button.click(); return [button.closest("th").getAttribute("aria-sort"), column()]; };
  button.focus();
  const found = {
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    images: [...document.images].map(image => image.complete && image.naturalWidth > 0),
    focused: document.activeElement === button,
    before: column(),
    up: sorted(),
    down: sorted(),
    targets: [...document.querySelectorAll("nav a")].map(a => document.querySelector(a.hash) !== null),
    boxes: [...document.querySelectorAll(".scroll")].map(box => ({
      wider: box.scrollWidth > box.clientWidth,
      hinted: box.previousElementSibling.matches(".hint") && box.previousElementSibling.offsetHeight > 0,
    })),
    requests: performance.getEntriesByType("resource").filter(entry => !entry.name.startsWith("data:")).length,
  };
  parent.postMessage(JSON.stringify(found), "*");
}, 100));
</script>
</body>"""

# Windows cannot be as narrow as a phone, frames can.
FRAME = """<!DOCTYPE html>
<link rel="icon" href="data:,">
<pre id="probe"></pre>
<iframe src="probed.html" width="{width}" height="900" style="border: 0"></iframe>
<script>addEventListener("message", event => document.getElementById("probe").textContent = event.data)</script>
"""


@pytest.fixture
def page(tmp_path, drawing):
    # Columns of the geometry of several samples, beside two for sorting in place of three narrower ones.
    ends = {name: (f"{name}_low", f"{name}_high") for name in WITH_INTERVAL}
    measures = [column for name in LAYER_MEASURES for column in (name, *ends.get(name, ()))][2:]
    table = Table("scores", ("method", "score", *measures))
    for name, score in (("b", 7.25), ("a", None), ("c", -1e-9), ("d", 41.5)):
        table.add(method=name, score=score, **dict.fromkeys(measures, 0.123456))
    figures = (drawing("cosine", width="single"), drawing("sinks"))
    section = Section("Part", ("Text",), (TableView(table, "Scores", file="scores.csv"),), figures)
    words = {"settings": {"a_long_name": "x" * 300}, "versions": {}, "command": "ecokv run " + "y" * 300}
    return write_report(tmp_path / "report.html", "Run", (section,), summary=("Summary",), **words)


def browse(page, width, more=""):
    """What the probe finds, and the lines that the page wrote to the console."""
    folder = page.parent
    probed = page.read_text(encoding="utf-8").replace("</body>", more + PROBE)
    (folder / "probed.html").write_text(probed, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--window-size=1600,1000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    found = re.search(r'<pre id="probe">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("width", [400, 1400])
def test_the_report_works_in_a_browser(page, width):
    found, console = browse(page, width)
    assert console == []
    assert found["width"] == width
    assert found["overflow"] <= 0
    assert found["images"] == [True, True]
    assert found["focused"]
    assert found["before"] == ["7.25", "–", "−1.0e−09", "41.50"]
    assert found["up"] == ["ascending", ["−1.0e−09", "7.25", "41.50", "–"]]
    assert found["down"] == ["descending", ["41.50", "7.25", "−1.0e−09", "–"]]
    narrow = width == 400
    assert found["boxes"] == [{"wider": wide and narrow, "hinted": wide and narrow} for wide in (True, False, True)], (
        "the table, the narrow figure, the wide one"
    )
    assert len(found["targets"]) > 4
    assert all(found["targets"])
    assert found["requests"] == 0


def test_an_error_or_a_wide_part_of_the_page_would_be_seen(page):
    broken = "<div style='width: 500px'>wide</div><script>throw new Error('seen')</script>"
    found, console = browse(page, 400, broken)
    assert any("seen" in line for line in console)
    assert found["overflow"] > 50
