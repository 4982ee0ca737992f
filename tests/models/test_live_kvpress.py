"""The same weights and prompt through an installed kvpress and through ecokv: both must keep the same keys.

Optional: skipped where kvpress is missing.
"""

import functools

import pytest

kvpress = pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)

from pressed import MODELS, made, pressed  # noqa: E402 - nothing is worth importing without kvpress

from ecokv_cli.eviction.spec import parse_method  # noqa: E402

TOKENS, WINDOW = 52, 7
SNAP = {"window_size": WINDOW, "kernel_size": 5}
PRESSES = {
    "snapkv": (lambda ratio: kvpress.SnapKVPress(ratio, **SNAP), f"snapkv[window={WINDOW}]"),
    "snapkv, kernel 1": (
        lambda ratio: kvpress.SnapKVPress(ratio, window_size=WINDOW, kernel_size=1),
        f"snapkv[window={WINDOW},kernel=1]",
    ),
    "keydiff": (kvpress.KeyDiffPress, "keydiff"),
    "knorm": (kvpress.KnormPress, "knorm"),
    "tova": (kvpress.TOVAPress, "tova"),
    "streaming": (lambda ratio: kvpress.StreamingLLMPress(ratio, n_sink=3), "streaming[sinks=3]"),
    "pyramidkv": (
        lambda ratio: kvpress.PyramidKVPress(ratio, **SNAP, beta=3),
        f"pyramidkv[window={WINDOW},beta=3,compat=kvpress]",
    ),
    "adakv, 0.2 safe": (
        lambda ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(ratio, **SNAP)),
        f"adakv[window={WINDOW},compat=kvpress]",
    ),
    "adakv, nothing safe": (
        lambda ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(ratio, **SNAP), alpha_safeguard=0.0),
        f"adakv[window={WINDOW},floor=0,compat=kvpress]",
    ),
    "adakv on keydiff": (
        lambda ratio: kvpress.AdaKVPress(kvpress.KeyDiffPress(ratio)),
        "adakv[base=keydiff,keep_window=0,compat=kvpress]",
    ),
}
RATIOS = (0.25, 0.5, 0.75)
"""Shares to remove that leave whole tokens: 39, 26 and 13 of 52."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """`made` by name, each once."""
    return functools.cache(lambda name: made(name, tmp_path_factory.mktemp("model"), TOKENS, WINDOW))


def theirs(model, ids, press, full):
    """Keys that kvpress left, per layer and head, as sets of rows; what AdaKV masks is taken from the full keys."""
    cache, masked = pressed(model, ids, press)
    kept = []
    for indices, cached, keys in zip(masked, cache.layers, full, strict=True):
        rows = [list(head) for head in cached.keys[0].tolist()]
        if indices is not None:
            _, heads, positions = indices
            gone = set(zip(heads.tolist(), positions.tolist(), strict=True))
            rows = [
                [row for position, row in enumerate(head) if (number, position) not in gone]
                for number, head in enumerate(keys.tolist())
            ]
        kept.append([set(map(tuple, head)) for head in rows])
    return kept


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_keys_are_kept(model, name, ratio, ready):
    plain, _, ids, layers = ready(model)
    build, spec = PRESSES[name]
    method, budget = parse_method(spec), int(TOKENS * (1 - ratio))
    found = theirs(plain, ids, build(ratio), [layer.keys for layer in layers])
    for layer, wanted in zip(layers, found, strict=True):
        mask = method.select(layer, budget).mask
        for head, keys in enumerate(wanted):
            assert set(map(tuple, layer.keys[head][mask[head]].tolist())) == keys
            assert len(keys) == int(mask[head].sum()) < TOKENS
