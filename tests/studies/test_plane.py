"""The plane of the focused head is the one of the full cache, whatever is evicted."""

import numpy as np
import pytest
from builders import DIM, TOKENS, random_layer

from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.schema import Decoded, Manifest, ModelInfo, Tokens
from ecokv_cli.eviction.spec import parse_methods
from ecokv_cli.studies.evict import EvictSettings, evict

ROLES = ("special", *("image",) * 20, *("text",) * 8)


class FakeDump(Dump):
    """A dump of one layer, from memory."""

    def layer(self, index):
        return random_layer(5, shift=0.3)


@pytest.fixture
def result(tmp_path):
    nothing = (None,) * TOKENS
    manifest = Manifest(
        schema_version="1.0", created="", sample="page", command="", seed=0, device="cpu", processor={}, images=(),
        grids=(), model=ModelInfo("tiny", None, "Tiny", "tiny", "", 5, 6, 2, DIM, remote_code=False),
        attention="sdpa", compute_dtype="float32", stored_dtype="float32", prompt="?", rendered_sha256="",
        tokens=Tokens(tuple(range(TOKENS)), ("x",) * TOKENS, ROLES, nothing, nothing, nothing), position_ids=(),
        window=11, tensors=(), decoded=Decoded((1, 2, 3, 4), ("a",) * 4, "aaaa", ended=False), layers=(), seconds={},
        versions={},
    )  # fmt: skip
    methods = tuple(parse_methods(["snapkv", "keydiff"], 3))
    return evict([FakeDump(tmp_path, manifest)], EvictSettings(methods, (7, 11), (3,), (0, 1), (3, 1)))


def test_plane_is_the_principal_plane_of_all_keys(result):
    keys = random_layer(5, shift=0.3).keys[1].numpy()
    centred = keys - keys.mean(0)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    drawn = np.array([result.plane.numbers(c) for c in ("pc1", "pc2")]).T
    expected = centred @ axes[:2].T
    signs = np.sign((drawn * expected).sum(0))
    assert drawn == pytest.approx(expected * signs, abs=1e-5)
    ratios = lengths**2 / (lengths**2).sum()
    assert result.plane.numbers("ev1") == pytest.approx([ratios[0]] * TOKENS)
    assert result.plane.numbers("ev2") == pytest.approx([ratios[1]] * TOKENS)


def test_plane_has_one_row_per_position_and_positions_say_what_is_kept(result):
    assert result.plane in result.tables
    assert result.plane.numbers("position") == list(range(TOKENS))
    assert tuple(row["role"] for row in result.plane) == ROLES
    where = {"layer": result.plane.rows[0]["layer"], "kv_head": result.plane.rows[0]["kv_head"]}
    assert where == {"layer": 3, "kv_head": 1}
    for budget in (7, 11):
        for method in result.positions.distinct("method"):
            assert sum(result.positions.where(**where, method=method, budget=budget).numbers("kept")) == budget
