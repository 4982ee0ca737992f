"""Folders with one text in them, written as dumps are: whole or not at all."""

from ecokv_cli.dump.writer import fresh_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fill(folder, text):
    (folder / "content").write_text(text)


def content(folder):
    return (folder / "content").read_text()


def put(final, text, *, force=False):
    with fresh_folder(final, force=force) as partial:
        fill(partial, text)
