import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_ci_runs_the_test_command_of_the_readme():
    commands = [
        line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3 -m venv")
    ]
    main, test = commands
    assert main.endswith("ecokv run")
    assert test in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
