"""Finished samples are kept, reused, and never mixed up."""

from dataclasses import dataclass, field

import pytest

from ecokv_cli.errors import DumpError
from ecokv_cli.studies.parts import Codec, Parts, Task, tables_codec
from ecokv_cli.studies.tables import Table


@dataclass
class Work:
    """Tasks a, b and c, some of which fail; remembers which were run."""

    fails: str = ""
    content: dict = field(default_factory=dict)
    called: list = field(default_factory=list)

    def tasks(self):
        return [Task(name, self.content.get(name, ""), lambda name=name: self.run(name)) for name in "abc"]

    def run(self, name):
        self.called.append(name)
        if name in self.fails:
            raise DumpError(f"{name}: broken")
        return name.upper()


CODEC = Codec(lambda folder, text: (folder / "r").write_text(text), lambda folder: (folder / "r").read_text())


def parts(tmp_path, **settings):
    return Parts(tmp_path / ".parts", settings, CODEC)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    with pytest.raises(DumpError, match="b: broken"):
        parts(tmp_path).gather(Work("b").tasks())
    again = Work()
    found = parts(tmp_path).gather(again.tasks())
    assert again.called == ["b", "c"]
    assert (found.results, found.reused, found.failed) == (["A", "B", "C"], 1, {})


def test_keep_going_leaves_out_what_fails_and_says_why(tmp_path):
    found = parts(tmp_path).gather(Work("ac").tasks(), keep_going=True)
    assert found.results == ["B"]
    assert found.failed == {"a": "a: broken", "c": "c: broken"}


def test_if_all_fail_it_fails(tmp_path):
    with pytest.raises(DumpError, match="c: broken"):
        parts(tmp_path).gather(Work("abc").tasks(), keep_going=True)


def test_other_settings_or_another_input_of_the_same_name_are_computed_anew(tmp_path):
    parts(tmp_path, window=4).gather(Work().tasks())
    other = Work()
    parts(tmp_path, window=8).gather(other.tasks())
    assert other.called == ["a", "b", "c"]
    changed = Work(content={"b": "new"})
    parts(tmp_path, window=4).gather(changed.tasks())
    assert changed.called == ["b"]


def test_progress(tmp_path):
    seen = []
    parts(tmp_path).gather(Work().tasks(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_tables_keep_the_kind_of_every_value(tmp_path):
    table = Table("t", ("a", "b", "c", "d"))
    table.add(a="12", b=0.1 + 0.2, c=None, d=True)
    codec = tables_codec(lambda tables: tables[0], lambda result: [result])
    codec.write(tmp_path, table)
    assert codec.read(tmp_path) == table
