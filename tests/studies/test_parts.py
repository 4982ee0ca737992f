"""Finished samples are kept, reused, and never mixed up."""

from dataclasses import dataclass, field

import pytest

from ecokv_cli.engines.workers import Outcome, Tell
from ecokv_cli.errors import DumpError, OutputError
from ecokv_cli.studies.parts import Codec, Parts, Task, require_named, tables_codec
from ecokv_cli.studies.tables import Table


@dataclass
class Work:
    """Tasks a, b and c, some of which fail; remembers which were run."""

    fails: str = ""
    content: dict = field(default_factory=dict)
    called: list = field(default_factory=list)

    def tasks(self):
        return [Task(name, self.content.get(name, ""), name) for name in "abc"]

    def gather(self, parts, **options):
        return parts.gather(self.tasks(), self.run, **options)

    def run(self, context, name):
        assert context is None
        self.called.append(name)
        if name in self.fails:
            raise DumpError(f"{name}: broken")
        return name.upper()


CODEC = Codec(lambda folder, text: (folder / "r").write_text(text), lambda folder: (folder / "r").read_text())


def parts(tmp_path, **settings):
    return Parts(tmp_path / ".parts", settings, CODEC)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    with pytest.raises(DumpError, match="b: broken"):
        Work("b").gather(parts(tmp_path))
    again = Work()
    found = again.gather(parts(tmp_path))
    assert again.called == ["b", "c"]
    assert (list(found.results), found.reused, found.failed) == (["A", "B", "C"], 1, {})


def test_keep_going_leaves_out_what_fails_and_says_why(tmp_path):
    found = Work("ac").gather(parts(tmp_path), keep_going=True)
    assert list(found.results) == ["B"]
    assert found.failed == {"a": "a: broken", "c": "c: broken"}


def test_if_all_fail_it_fails(tmp_path):
    with pytest.raises(DumpError, match="c: broken"):
        Work("abc").gather(parts(tmp_path), keep_going=True)


def test_other_settings_or_another_input_of_the_same_name_are_computed_anew(tmp_path):
    Work().gather(parts(tmp_path, window=4))
    other = Work()
    other.gather(parts(tmp_path, window=8))
    assert other.called == ["a", "b", "c"]
    changed = Work(content={"b": "new"})
    changed.gather(parts(tmp_path, window=4))
    assert changed.called == ["b"]


def test_progress(tmp_path):
    seen = []
    for _ in range(2):
        Work().gather(parts(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3), (3, 3)]


class Elsewhere:
    """Workers that are done in any order, and may have been lost after they stored a result."""

    def __init__(self, order, lost=()):
        self.order, self.lost = order, lost

    def run(self, work, items):
        for name in self.order:
            for _ in range(2 if name in self.lost else 1):
                value = work(None, items[name], Tell())
            yield Outcome(name, value, None)


def test_results_come_in_the_order_of_the_samples_whoever_was_first(tmp_path):
    work = Work()
    found = work.gather(parts(tmp_path), workers=Elsewhere("cab"))
    assert work.called == ["c", "a", "b"]
    assert list(found.results) == ["A", "B", "C"]
    assert found.results[-1] == "C"
    assert list(found.results[1:]) == ["B", "C"]


def test_a_result_that_was_stored_before_its_worker_was_lost_is_taken(tmp_path):
    work = Work()
    assert list(work.gather(parts(tmp_path), workers=Elsewhere("abc", lost="b")).results) == ["A", "B", "C"]
    assert work.called == ["a", "b", "c"]


def test_a_folder_that_the_workers_do_not_share_is_told(tmp_path):
    class Far(Elsewhere):
        def run(self, work, items):
            yield from (Outcome(name, None, None) for name in items)

    with pytest.raises(OutputError, match=r"a-[0-9a-f]+: a worker wrote it, but .* that all machines share"):
        Work().gather(parts(tmp_path), workers=Far("abc"))


def test_tables_keep_the_kind_of_every_value(tmp_path):
    table = Table("t", ("a", "b", "c", "d"))
    table.add(a="12", b=0.1 + 0.2, c=None, d=True)
    codec = tables_codec(lambda tables: tables[0], lambda result: [result])
    codec.write(tmp_path, table)
    assert codec.read(tmp_path) == table


def test_a_cut_part_is_named(tmp_path):
    codec = tables_codec(lambda tables: tables, lambda tables: tables)
    codec.write(tmp_path, [Table("t", ("a",), [{"a": 1}])])
    path = tmp_path / "tables.json"
    path.write_text(path.read_text()[:-3])
    with pytest.raises(DumpError, match=r"tables\.json: cannot be read .*run its study again"):
        codec.read(tmp_path)


def test_parts_of_another_study_are_not_passed_over_in_silence(tmp_path):
    work = Work()
    work.gather(parts(tmp_path, beta=1))
    (parts(tmp_path).folder / ".c-0123.partial").mkdir()  # of a process that was killed
    parts(tmp_path, beta=1).require_mine(work.tasks())
    with pytest.raises(OutputError, match="holds 3 samples of another study"):
        parts(tmp_path, beta=2).require_mine(work.tasks())


def test_parts_of_samples_that_are_not_asked_for_are_named_without_any_settings(tmp_path):
    work = Work()
    work.gather(parts(tmp_path, beta=1))
    folder = parts(tmp_path).folder
    names = [task.name for task in work.tasks()]
    require_named(folder, names)
    require_named(folder, [*names, "more-of-them"])
    require_named(folder / "nothing", names)
    (folder / ".z-0123.partial").mkdir()  # of a process that was killed
    for left in (names[1:], names[:1]):
        other = min(set(names) - set(left))
        count = len(names) - len(left)
        with pytest.raises(OutputError, match=rf"holds {count} samples that are not asked for now, such as {other}, "):
            require_named(folder, left)
