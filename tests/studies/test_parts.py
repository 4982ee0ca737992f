"""Finished samples are kept, reused, and never mixed up."""

from dataclasses import dataclass, field

import pytest

from ecokv_cli.errors import DumpError
from ecokv_cli.studies.parts import Codec, Parts


@dataclass
class FakeManifest:
    sample: str
    content: str = ""

    def to_json(self):
        return {"sample": self.sample, "content": self.content}


@dataclass
class FakeDump:
    manifest: FakeManifest


@dataclass
class Counting:
    fails: set = field(default_factory=set)
    called: list = field(default_factory=list)

    def __call__(self, dump):
        self.called.append(dump.manifest.sample)
        if dump.manifest.sample in self.fails:
            raise DumpError(f"{dump.manifest.sample}: broken")
        return dump.manifest.sample.upper()


CODEC = Codec(lambda folder, text: (folder / "r").write_text(text), lambda folder: (folder / "r").read_text())


@pytest.fixture
def samples():
    return [FakeDump(FakeManifest(name)) for name in "abc"]


def parts(tmp_path, **settings):
    return Parts(tmp_path / ".parts", settings, CODEC)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, samples):
    with pytest.raises(DumpError, match="b: broken"):
        parts(tmp_path).gather(samples, Counting({"b"}))
    again = Counting()
    found = parts(tmp_path).gather(samples, again)
    assert again.called == ["b", "c"]
    assert (found.results, found.reused, found.failed) == (["A", "B", "C"], 1, {})


def test_keep_going_leaves_out_what_fails_and_says_why(tmp_path, samples):
    found = parts(tmp_path).gather(samples, Counting({"a", "c"}), keep_going=True)
    assert found.results == ["B"]
    assert found.failed == {"a": "a: broken", "c": "c: broken"}


def test_if_all_fail_it_fails(tmp_path, samples):
    with pytest.raises(DumpError, match="c: broken"):
        parts(tmp_path).gather(samples, Counting(set("abc")), keep_going=True)


def test_other_settings_or_another_dump_of_the_same_name_are_computed_anew(tmp_path, samples):
    parts(tmp_path, window=4).gather(samples, Counting())
    other = Counting()
    parts(tmp_path, window=8).gather(samples, other)
    assert other.called == ["a", "b", "c"]
    redumped = Counting()
    samples[1].manifest.content = "new"
    parts(tmp_path, window=4).gather(samples, redumped)
    assert redumped.called == ["b"]


def test_progress_and_clearing(tmp_path, samples):
    seen = []
    made = parts(tmp_path)
    made.gather(samples, Counting(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    made.clear()
    assert not made.folder.exists()
