"""Commands over many samples do not gather their manifests: they hold few at a time, however many there are."""

import json
import weakref

import pytest

from ecokv_cli.dump import reader, runs

SAMPLES = 7


@pytest.fixture
def most_held(monkeypatch):
    """The largest number of manifests that were in memory when another had been read, as a list of one."""
    opened, most = reader.open_dump, [0]
    alive = weakref.WeakValueDictionary()

    def counting(folder):
        dump = opened(folder)
        alive[id(dump.manifest)] = dump.manifest
        most[0] = max(most[0], len(alive))
        return dump

    for module in (reader, runs):
        monkeypatch.setattr(module, "open_dump", counting)
    return most


@pytest.fixture
def many(run_folder):
    """A run of seven samples that differ in their prompt; layers are links to the same files."""
    (original,) = (run_folder / "dump").iterdir()
    for number in range(1, SAMPLES):
        folder = run_folder / "dump" / f"copy-{number}"
        folder.mkdir()
        for file in original.iterdir():
            (folder / file.name).hardlink_to(file)
        manifest = json.loads((original / "manifest.json").read_text(encoding="utf-8"))
        (folder / "manifest.json").unlink()
        ids = manifest["tokens"]["ids"]
        tokens = manifest["tokens"] | {"ids": [*ids[:-1], ids[-1] + number]}
        changed = {"sample": folder.name, "prompt": f"prompt {number}", "tokens": tokens}
        (folder / "manifest.json").write_text(json.dumps(manifest | changed), encoding="utf-8")
    return run_folder


@pytest.mark.parametrize("command", [
    ("info",), ("info", "--json"),
    ("route", "--method", "knorm", "--method", "vnorm", "-b", "16", "--format", "png", "--quiet"),
])  # fmt: skip
def test_manifests_are_not_gathered(ecokv, many, most_held, command):
    name, *options = command
    status, out, err = ecokv(name, many, *options)
    assert status == 0, err
    assert (f"copy-{SAMPLES - 1}" in out) == (name == "info")
    assert 1 <= most_held[0] <= 5, "the first, the one at hand, the one before, and two that the reader remembers"
