"""Every architecture end to end: dumped, analysed and evicted; the tables of docs/models.md say what is seen here."""

import math
from importlib.metadata import version

import pytest
from architecture_table import DOCS, NOTES, REFUSED, documented, dump_of, refusal_of, refusal_row, row_of
from tiny_parts import inputs_of

from ecokv_cli.errors import ModelError
from ecokv_cli.eviction.spec import parse_methods
from ecokv_cli.figures.pages import kept_over_images
from ecokv_cli.models.capture import capture
from ecokv_cli.studies.analyze import AnalyzeSettings, analyze
from ecokv_cli.studies.evict import EvictSettings, evict


@pytest.fixture(scope="module")
def dumped(loaded_model, tmp_path_factory):
    """A dump by the name of its tiny model; made once."""
    made = {}

    def dump(name):
        if name not in made:
            made[name] = dump_of(name, loaded_model(name), tmp_path_factory.mktemp("dumps"))
        return made[name]

    return dump


@pytest.mark.parametrize("name", NOTES)
def test_the_table_of_the_docs_says_what_a_dump_of_the_architecture_holds(name, dumped):
    lines, (table, _) = documented()
    assert lines[table][list(NOTES).index(name)] == row_of(name, dumped(name))
    assert len(lines[table]) == len(NOTES)


@pytest.mark.parametrize("name", NOTES)
def test_analysis_and_eviction_run_on_all_full_layers_and_no_others(name, dumped):
    dump = dumped(name)
    model, layers = dump.manifest.model, dump.full_layers
    heads = tuple(range(model.kv_heads))
    boosted = parse_methods(["snapkv+ecokv"], 4)[0]
    analysis = analyze([dump], AnalyzeSettings(layers, heads, boosted, 97, 0, ((layers[0], 0),)))
    geometry = next(table for table in analysis.tables if table.name == "geometry")
    assert set(geometry.distinct("layer")) == set(layers)
    assert all(math.isfinite(row["cos_mean"]) and row["norm_mean"] > 0 for row in geometry)
    methods = parse_methods(["snapkv", "snapkv+ecokv", "keydiff", "oracle"], 4)
    eviction = evict([dump], EvictSettings(tuple(methods), (11,), layers, heads, (layers[0], 0)))
    assert set(eviction.fidelity.distinct("layer")) == set(layers)
    assert all(row["kept"] == 11 and 0 < row["mass"] <= 1 for row in eviction.fidelity)
    assert len(eviction.fidelity.rows) == len(methods) * len(layers) * len(heads)


@pytest.mark.parametrize("name", ["internvl", "idefics3", "llava_next"])
def test_kept_positions_are_drawn_over_the_whole_image_and_not_one_of_its_tiles(name, dumped):
    dump = dumped(name)
    settings = EvictSettings(tuple(parse_methods(["snapkv"], 4)), (11,), dump.full_layers, (0,), (0, 0))
    (drawing,) = kept_over_images(evict([dump], settings).positions, dump)
    shown = {row["position"] for row in drawing.data}
    # Whole images come last, after the tiles or the coarser view.
    grid = dump.manifest.grids[-1]
    assert grid.box == (0, 0, 1, 1)
    assert (min(shown), len(shown)) == (grid.start, grid.rows * grid.cols)


@pytest.mark.parametrize("name", NOTES)
def test_keys_before_rotation_keep_the_norm_of_those_after_it(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    if name == "phi3":
        with pytest.raises(ModelError, match=r"Phi3ForCausalLM: layer 0 .* leave out --prerope-keys"):
            capture(loaded, inputs, window=3, decode=0, prerope=True)
        return
    captured = capture(loaded, inputs, window=3, decode=0, prerope=True)
    for index in set(range(loaded.info.layers)) - captured.sliding.keys():
        tensors, _ = captured.layer(index)
        before, after = tensors["prerope_keys"], tensors["keys"]
        assert before.shape == after.shape
        assert not before.equal(after)
        assert before.norm(dim=-1).allclose(after.norm(dim=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_the_docs_name_what_is_refused(name, tmp_path):
    lines, (_, table) = documented()
    found = refusal_row(name, refusal_of(name, tmp_path))
    wanted = lines[table][list(REFUSED).index(name)]
    # Older versions describe some configurations in other words.
    known = version("transformers") in DOCS.read_text(encoding="utf-8").partition("5.2.0 and")[2][:20]
    cells = slice(None) if known else slice(2)
    assert found.split(" | ")[cells] == wanted.split(" | ")[cells]
    assert len(lines[table]) == len(REFUSED)
