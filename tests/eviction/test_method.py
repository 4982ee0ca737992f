import pytest

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.spec import DEFAULT_METHODS, parse_method, parse_methods


@pytest.mark.parametrize(("spec", "canonical"), [
    *((name, name) for name in DEFAULT_METHODS),
    (" SnapKV + EcoKV ", "snapkv+ecokv"),
    ("snapkv[window=32,kernel=5]", "snapkv"),
    ("snapkv[kernel=7,window=8]", "snapkv[window=8,kernel=7]"),
    ("snapkv+ecokv[window=4,alpha=0.8]", "snapkv+ecokv"),
    ("snapkv+ecokv[kernel=3,beta=0,std=true]", "snapkv+ecokv[kernel=3,beta=0.0,std=true]"),
    ("snapkv[obs-window=32]+ecokv", "snapkv+ecokv[obs_window=32]"),
    ("random[seed=3]", "random[seed=3]"),
    ("pyramidkv+ecokv[beta=0.3]", "pyramidkv+ecokv[beta=0.3]"),
    ("pyramidkv[beta=5]+ecokv", "pyramidkv[beta=5]+ecokv"),
    ("pyramidkv[beta=5,kernel=7]+ecokv[window=8,beta=0.3]", "pyramidkv[beta=5]+ecokv[window=8,kernel=7,beta=0.3]"),
])  # fmt: skip
def test_canonical_form_is_short_and_reads_back_as_the_same_method(spec, canonical):
    method = parse_method(spec)
    assert method.name == canonical
    assert parse_method(canonical) == method


@pytest.mark.parametrize(("spec", "message"), [
    ("snapkw", r"unknown method 'snapkw' \(did you mean 'snapkv'\?\); known: full, random"),
    ("snapkv+mikv", r"unknown booster 'mikv' \(did you mean 'mixkv'\?\)"),
    ("keydiff+ecokv", r"keydiff has no attention scores to boost; hosts that have: h2o, observed, tova, snapkv, "),
    ("snapkv[windw=4]", r"unknown option 'windw' \(did you mean 'window'\?\)"),
    ("snapkv[kernel=4]", r"kernel=4 must be odd"),
    ("snapkv[kernel=big]", r"kernel=big is not a whole number"),
    ("snapkv[pooling=median]", r"pooling=median is not one of avg, max"),
    ("snapkv+ecokv[alpha=1.2]", r"alpha=1.2 is outside 0..1"),
    ("snapkv+ecokv[std=yes]", r"std=yes is neither true nor false"),
    ("snapkv+ecokv[temperature=-1]", r"temperature=-1.0 is negative"),
    ("snapkv[window]", r"'window' is not one option=value"),
    ("snapkv[window=4]+ecokv[window=8]", r"'window=8' is not one option=value, given once"),
    ("snapkv+ecokv[std=true,redundancy_map=minmax]", r"std=true has no redundancy_map=minmax; write sigmoid"),
    ("snapkv+ecokv[ddof=2]", r"ecokv: ddof=2 is neither 0 nor 1"),
    ("snapkv+ecokv[allocate=boosted]", r"allocate=boosted needs a host whose heads share .*, which snapkv is not"),
    ("mmr[kernel=2]", r"mmr: kernel=2 must be odd"),
    ("sparsemm[compat=kvcache_factory]", r"compat=kvcache_factory does not exist, kvcache_factory has no such rule"),
    ("snapkv[window=0]", r"keep_window=0: a window cannot be negative, and snapkv needs 1 query"),
    ("full[window=4]", r"keeps everything and has no window"),
    ("snapkv++ecokv", r"cannot be read"),
    ("", r"cannot be read"),
    ("snapkv[", r"cannot be read"),
])  # fmt: skip
def test_what_is_wrong_is_said_at_once(spec, message):
    with pytest.raises(MethodError, match=message):
        parse_method(spec)


def test_nan_is_no_number():
    with pytest.raises(MethodError, match="alpha=nan"):
        parse_method("snapkv+ecokv[alpha=nan]")


def test_a_window_for_all_matches_all_but_the_full_cache():
    methods = parse_methods(DEFAULT_METHODS, window=8)
    assert {m.keep_window for m in methods if m.name != "full"} == {8}
    assert {m.obs_window for m in methods if m.name != "full"} == {8}


def test_the_same_method_written_twice_counts_once():
    assert [m.name for m in parse_methods(["snapkv", "snapkv[window=32]", "keydiff"])] == ["snapkv", "keydiff"]


@pytest.mark.parametrize(
    ("name", "window"), [("snapkv", 32), ("snapkv+mixkv", 32), ("snapkv+ecokv", 4), ("keydiff", 0)]
)
def test_default_windows(name, window):
    assert parse_method(name).keep_window == window
    with_room = parse_method(name)
    with_room.require_budget(max(window, 1))
    if window > 1:
        with pytest.raises(MethodError, match=f"budget {window - 1} is smaller than its window of {window}"):
            with_room.require_budget(window - 1)
