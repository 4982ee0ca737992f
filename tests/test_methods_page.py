"""docs/methods.md says what ``ecokv methods`` says, and the README names every method."""

import re

from methods_page import MARKER, PAGE, generated

from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS
from ecokv_cli.eviction.spec import parse_method

README = PAGE.parents[1] / "README.md"


def test_the_page_of_methods_is_up_to_date():
    _, marker, below = PAGE.read_text(encoding="utf-8").partition(MARKER)
    assert marker
    assert below == generated(), "run: python tests/methods_page.py"


def test_methods_that_documents_mention_can_be_read():
    options = r"(?:\[[^`\n]+?\])"
    method = rf"(route{options}|(?:{'|'.join(HOSTS)}){options}?(?:\+\w+{options}?)?)"
    for path in (PAGE, README):
        text = path.read_text(encoding="utf-8").partition(MARKER)[0]
        mentioned = re.findall(rf"[`\"]{method}[`\"]", text)
        assert sum("[" in spec for spec in mentioned) >= 2, path.name
        for spec in mentioned:
            assert parse_method(spec)


def test_the_readme_has_a_row_for_every_host_and_booster():
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\+?\w+)` \|", text, re.MULTILINE)
    assert [name for name in rows if name.lstrip("+") in {*HOSTS, *BOOSTERS}] == [*HOSTS, *(f"+{b}" for b in BOOSTERS)]
