"""What docs/columns.md explains: the names in its sections, by command and file."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "columns.md").read_text(encoding="utf-8")


def names_in(text):
    """Everything that is written as code and could be the name of a column."""
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def split(text, mark):
    """What stands before the first heading of a rank, and the sections by heading."""
    before, *sections = re.split(rf"^{mark} ", text, flags=re.MULTILINE)
    return before, {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}


_, CHAPTERS = split(TEXT, "#")
SHARED = names_in(CHAPTERS["Columns of result tables"])


def explained(command, file):
    """Names that may stand in a file of a command: of all tables, of all its tables, and of its own section."""
    before, sections = split(CHAPTERS[f"Tables of `ecokv {command}`"], "##")
    (own,) = [text for heading, text in sections.items() if re.search(rf"\b{re.escape(file)}\b", heading)]
    return SHARED | names_in(before) | names_in(own)
