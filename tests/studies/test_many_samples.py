"""Studies of many samples: the rows of a single study, resumed, with failures told, one sample in memory at a time."""

import pickle
from dataclasses import replace

import pytest
from dump.small_dump import TOKENS, manifest, tensors
from memory_dumps import memory_dump

from ecokv_cli.dump.masks import read_masks
from ecokv_cli.dump.reader import Dump, DumpHandle, open_dump
from ecokv_cli.dump.writer import LayerWriter
from ecokv_cli.errors import DumpError
from ecokv_cli.eviction.spec import parse_methods, parse_single
from ecokv_cli.studies import many
from ecokv_cli.studies.analyze import AnalyzeSettings, analyze
from ecokv_cli.studies.evict import EvictSettings, evict
from ecokv_cli.studies.many import Handling, analyze_many, evict_many, keep_masks
from ecokv_cli.studies.results import write_tables

GEOMETRY = AnalyzeSettings((0, 2), (0, 1), parse_single("snapkv+ecokv[window=3]"), 100, 0, ((0, 1),))
EVICTION = EvictSettings(tuple(parse_methods(["snapkv", "keydiff"], 3)), (7,), (0, 1), (0, 1), (1, 0))


class Broken(Dump):
    """A dump whose layers cannot be read."""

    def layer(self, index):
        raise DumpError(f"{self.manifest.sample}: layer {index} is damaged")


def samples(names="abc", broken=""):
    made = [memory_dump(name, seed=10 * i, digest=str(i) * 64) for i, name in enumerate(names)]
    return [Broken(dump.folder, dump.manifest) if dump.manifest.sample in broken else dump for dump in made]


def handling(folder, **options):
    return Handling(folder / ".parts", {"window": 3}, **options)


@pytest.fixture
def calls(monkeypatch):
    """Samples that were really analysed."""
    made = []

    def counted(dumps, settings):
        made.extend(dump.manifest.sample for dump in dumps)
        return analyze(dumps, settings)

    monkeypatch.setattr(many, "analyze", counted)
    return made


def same_csv(folder, results, once):
    write_tables(folder, results)
    (folder / "once").mkdir()
    for table in once.tables:
        assert (folder / f"{table.name}.csv").read_bytes() == table.write_csv(folder / "once").read_bytes()


def test_the_rows_are_those_of_all_samples_analysed_at_once(tmp_path):
    found = analyze_many(samples(), GEOMETRY, handling(tmp_path))
    assert list(found.parts) == ["a", "b", "c"]
    assert [result.layers.distinct("sample") for result in found.results] == [["a"], ["b"], ["c"]]
    same_csv(tmp_path, found.results, analyze(samples(), GEOMETRY))


def test_eviction_too_and_its_masks_are_files_by_sample(tmp_path):
    found = evict_many(samples(), EVICTION, handling(tmp_path))
    once = evict(samples(), EVICTION)
    same_csv(tmp_path, found.results, once)
    keep_masks(found, tmp_path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"{s}.safetensors" for s in "abc"]
    (tmp_path / "kept" / "b.safetensors").rename(tmp_path / "kept.safetensors")
    masks = read_masks(tmp_path)
    assert list(masks) == ["b"]
    assert all((masks["b"][key] == mask).all() for key, mask in once.masks["b"].items())


def test_the_masks_of_one_sample_are_one_file(tmp_path):
    keep_masks(evict_many(samples("a"), EVICTION, handling(tmp_path)), tmp_path)
    assert list(read_masks(tmp_path)) == ["a"]
    assert not (tmp_path / "kept").exists()


def test_a_run_that_failed_goes_on_at_the_sample(tmp_path, calls):
    with pytest.raises(DumpError, match="b: layer 0 is damaged"):
        analyze_many(samples(broken="b"), GEOMETRY, handling(tmp_path))
    found = analyze_many(samples(), GEOMETRY, handling(tmp_path))
    assert (calls, found.reused, found.failed) == (["a", "b", "b", "c"], 1, {})
    assert len(found.results) == 3


def test_a_sample_of_the_same_name_and_other_content_is_done_again(tmp_path, calls):
    analyze_many(samples(), GEOMETRY, handling(tmp_path))
    other = samples()
    other[1] = replace(other[1], manifest=replace(other[1].manifest, rendered_sha256="another"))
    assert analyze_many(other, GEOMETRY, handling(tmp_path)).reused == 2
    assert calls == ["a", "b", "c", "b"]


def test_a_failing_sample_is_left_out_and_told(tmp_path):
    found = analyze_many(samples(broken="b"), GEOMETRY, handling(tmp_path, keep_going=True))
    assert found.failed == {"b": "b: layer 0 is damaged"}
    assert list(found.parts) == ["a", "c"]
    assert [result.layers.rows[0]["sample"] for result in found.results] == ["a", "c"]


@pytest.fixture
def stored(tmp_path):
    """A dump on the disk."""
    folder = tmp_path / "page"
    folder.mkdir()
    writer = LayerWriter(folder)
    for layer in range(3):
        writer.add(layer, tensors(layer), 0.3)
    writer.finish(manifest(writer.records))
    return folder


def test_a_handle_is_the_dump_without_its_manifest_in_memory(stored):
    handle, dump = DumpHandle(stored), open_dump(stored)
    assert handle.manifest == dump.manifest
    assert handle.full_layers == (0, 1, 2)
    assert handle.layer(1).tokens == TOKENS
    assert handle.opened() == dump == dump.opened()
    assert len(pickle.dumps(handle)) < 500 < len(pickle.dumps(dump))
    assert pickle.loads(pickle.dumps(handle)).manifest == dump.manifest
    (stored / "manifest.json").unlink()
    with pytest.raises(DumpError, match="no manifest"):
        _ = handle.manifest


def test_a_handle_can_have_another_name(stored):
    handle = DumpHandle(stored, "run--page")
    assert handle.manifest.sample == handle.opened().manifest.sample == "run--page"
    assert open_dump(stored).manifest.sample == "page"


def test_samples_by_handle_give_the_same_rows(stored, tmp_path):
    settings = replace(GEOMETRY, layers=(0,))
    found = analyze_many([DumpHandle(stored)], settings, handling(tmp_path))
    assert found.results[0].geometry == analyze([open_dump(stored)], settings).geometry
