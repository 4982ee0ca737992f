# ruff: noqa: E501 - one row for each broken formula
"""The checks bite: each formula is broken on purpose, and the check of its rule must fail."""

import importlib
import inspect
import types
from contextlib import contextmanager

import pytest
from eviction_rules import CHECKS

BREAKS = [
    # module, what stands there, what is put in its place, check that must notice
    ("attention", "grouped = (queries * scaling)", "grouped = queries", "snapkv"),
    ("attention", ".triu(1) if seen is None", ".triu(2) if seen is None", "snapkv"),
    ("attention", "div_(window if gqa == \"max\" else group * window)", "div_(window)", "snapkv"),
    ("attention", "if gqa == \"max\":\n            torch.maximum", "if gqa != \"max\":\n            torch.maximum", "snapkv"),
    ("attention", "return total.div_(len(queries) // len(keys))", "return total", "mmr"),
    ("importance", "F.pad(scores, (kernel // 2, kernel // 2))", "F.pad(scores, (kernel // 2, kernel // 2), value=1.0)", "snapkv"),
    ("importance", "max_pool1d(scores, kernel", "max_pool1d(scores * -1, kernel", "snapkv"),
    ("importance", ".mean(0).expand", ".amax(0).expand", "tova"),
    ("importance", "grouped.amax(1) if gqa", "grouped.amin(1) if gqa", "received"),
    ("importance", "torch.arange(layer.tokens, 0, -1", "torch.arange(layer.tokens + 1, 1, -1", "received"),
    ("importance", ".softmax(dim=-1)[..., :candidates].mean(dim=1)", ".softmax(dim=-1)[..., :candidates].amax(dim=1)", "oracle"),
    ("hosts.keys", "asked.count).neg_()", "asked.count)", "key_scores"),
    ("keyscores", "layer.values[:, :candidates], dim=-1)", "layer.values[:, :candidates], ord=1, dim=-1)", "key_scores"),
    ("hosts.plain", "position[: self.sinks] += asked.count", "position[: self.sinks] -= asked.count", "streaming"),
    ("diversity", "minmax(value_norms(layer", "(value_norms(layer", "boosters"),
    ("diversity", "wanted / torch.where", "2 * wanted / torch.where", "boosters"),
    ("diversity", "(1 - share) * importance", "(1 + share) * importance", "boosters"),
    ("diversity", "normalised(layer.key_distances[:, :candidates], normalisation)", "1 - normalised(layer.key_distances[:, :candidates], normalisation)", "boosters"),
    ("diversity", "0.01, 0.99", "0.05, 0.95", "ecokv"),
    ("diversity", "width = upper - lower", "width = upper - median", "ecokv"),
    ("boosters", "self.alpha * euclidean + (1 - self.alpha) * cosine", "self.alpha * cosine + (1 - self.alpha) * euclidean", "ecokv"),
    ("boosters", "layer.directions.mean_cosine, self.beta)", "layer.directions.mean_cosine, 1 - self.beta)", "ecokv"),
    ("boosters", "attention if self.div_scale == \"attention\" else importance", "attention", "ecokv"),
    ("boosters", "with_value_norm(attention, layer) if self.value_norm else attention", "with_value_norm(attention, layer)", "ecokv"),
    ("boosters", ": None if self.avg_domain == \"all\" else candidates", ":", "ecokv"),
    ("greedy", "centred.square().mean(dim=1).sqrt()", "rows.std(dim=1)", "mmr"),
    ("greedy", "torch.maximum(resemblance, correlation)", "torch.minimum(resemblance, correlation)", "mmr"),
    ("greedy", "resemblance / max(done, 1)", "resemblance", "mmr"),
    ("greedy", "mean.mean(dim=-1, keepdim=True) if unit", "mean.amax(dim=-1, keepdim=True) if unit", "mmr"),
    ("greedy", "a + b * x + c * x * x", "a + b * x + c * x", "depth_profiles"),
    ("greedy", "3 * layer // last", "2 * layer // last", "depth_profiles"),
    ("memory", "/ math.log(window)", "/ math.log(window + 1)", "retentive"),
    ("memory", "mix * minmax(rows.mean(dim=1))", "(1 - mix) * minmax(rows.mean(dim=1))", "retentive"),
    ("memory", "((1 - gate) * after)", "(1 - gate)", "retentive"),
    ("memory", "return (1 - share) * exact + share * read", "return exact + share * read", "retentive"),
    ("memory", "features @ self.normaliser[..., None]", "features.sum(-1, keepdim=True)", "retentive"),
    ("memory", "(key_dim * value_dim + key_dim)", "(key_dim * value_dim)", "retentive"),
    ("allocation", "quotas > cap + 1e-9", "quotas > 2 * cap + 1e-9", "remainder"),
    ("allocation", "argsort(descending=True, stable=True)", "argsort(stable=True)", "remainder"),
    ("allocation", "weights = is_open.double()", "weights = is_open.double() * 0 + 1", "remainder"),
    ("allocation", "high = min(2 * free - free / beta, candidates)", "high = min(2 * free, candidates)", "pyramid"),
    ("allocation", "(high - low) // (layers - 1)", "-((low - high) // (layers - 1))", "pyramid"),
    ("allocation", "high >= low >= window", "high >= low", "pyramid"),
    ("allocation", "floor * free + (1 - floor) * raw.double()", "raw.double()", "ada"),
    ("allocation", "raw.double() * (1 - floor) + int(free * floor)", "raw.double() * (1 - floor) + free * floor", "ada"),
    ("allocation", "max(int(budget * floor), int(floor > 0))", "int(budget * floor)", "ada"),
    ("allocation", "tied.cumsum(0) - tied", "tied.cumsum(0)", "ada"),
    ("allocation", "ordered[:, :free].sum(-1)", "ordered.sum(-1)", "ada"),
    ("allocation", "// (query_heads // kv_heads)", "// query_heads", "sparse"),
    ("allocation", "shares * (total * (1 - floor))", "shares * total", "sparse"),
    ("selection", "tied.cumsum(-1) <= room", "tied.cumsum(-1) > room", "selection"),
    ("fidelity", "(full - left).norm(dim=-1) /", "(full - left).abs().sum(dim=-1) /", "fidelity"),
    ("fidelity", "- self.everything", "- 0 * self.everything", "fidelity"),
    ("fidelity", "max(first.window, second.window)", "first.window", "fidelity"),
    ("headscores", "tokens + steps[:, None]", "tokens + 0 * steps[:, None]", "visual_heads"),
    ("headscores", "1 / len(target.positions)", "1.0", "visual_heads"),
    ("headscores", "layer.window_queries[:, -1:]", "layer.window_queries[:, :1]", "visual_heads"),
]  # fmt: skip


@contextmanager
def broken(module, there, instead):
    """The functions of a module run with part of its source replaced."""
    source = inspect.getsource(module)
    assert source.count(there) >= 1, f"{there!r} does not stand in {module.__name__}"
    twin = types.ModuleType(module.__name__)
    twin.__dict__.update(module.__dict__)
    exec(compile(source.replace(there, instead, 1), module.__file__, "exec"), twin.__dict__)
    swapped = []
    try:
        for old, new in _functions(module, twin):
            if old.__code__ != new.__code__:
                swapped.append((old, old.__code__))
                old.__code__ = new.__code__
        assert swapped, f"{there!r} is in no function"
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def _functions(module, twin):
    """Pairs of a function or method and its twin."""
    for name, part in list(vars(module).items()):
        if getattr(part, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(part):
            yield part, vars(twin)[name]
        elif inspect.isclass(part):
            for key, method in vars(part).items():
                if inspect.isfunction(method) and method.__module__ == module.__name__:
                    yield method, vars(vars(twin)[name])[key]


@pytest.mark.parametrize(("name", "there", "instead", "check"), BREAKS, ids=range(len(BREAKS)))
def test_a_broken_formula_is_noticed(name, there, instead, check):
    module = importlib.import_module(f"ecokv_cli.eviction.{name}")
    with broken(module, there, instead), pytest.raises((AssertionError, IndexError, RuntimeError)):
        _run(check)
    _run(check)


def _run(check):
    for seed in range(3):
        CHECKS[check](seed)


def test_every_check_is_put_to_the_test():
    assert {check for *_, check in BREAKS} == CHECKS.keys()
