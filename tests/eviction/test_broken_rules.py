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
    ("eviction.attention", "grouped = (queries * scaling)", "grouped = queries", "snapkv"),
    ("eviction.attention", ".triu(1) if seen is None", ".triu(2) if seen is None", "snapkv"),
    ("eviction.attention", "div_(group * window if gqa == \"mean\" else window)", "div_(window)", "snapkv"),
    ("eviction.attention", "if gqa == \"max\":\n            torch.maximum", "if gqa != \"max\":\n            torch.maximum", "snapkv"),
    ("eviction.attention", "return total.div_(len(queries) // len(keys))", "return total", "mmr"),
    ("eviction.importance", "F.pad(scores, (kernel // 2, kernel // 2))", "F.pad(scores, (kernel // 2, kernel // 2), value=1.0)", "snapkv"),
    ("eviction.importance", "max_pool1d(scores, kernel", "max_pool1d(scores * -1, kernel", "snapkv"),
    ("eviction.importance", ".mean(0).expand", ".amax(0).expand", "tova"),
    ("eviction.importance", "grouped.amax(1) if gqa", "grouped.amin(1) if gqa", "received"),
    ("eviction.importance", "torch.arange(layer.tokens, 0, -1", "torch.arange(layer.tokens + 1, 1, -1", "received"),
    ("eviction.importance", ".softmax(dim=-1)[..., :candidates].mean(dim=1)", ".softmax(dim=-1)[..., :candidates].amax(dim=1)", "oracle"),
    ("eviction.hosts.keys", "asked.count).neg_()", "asked.count)", "key_scores"),
    ("eviction.keyscores", "layer.values[:, :candidates], dim=-1)", "layer.values[:, :candidates], ord=1, dim=-1)", "key_scores"),
    ("eviction.hosts.plain", "position[: self.sinks] += asked.count", "position[: self.sinks] -= asked.count", "streaming"),
    ("eviction.diversity", "wanted / torch.where", "2 * wanted / torch.where", "boosters"),
    ("eviction.diversity", "(1 - share) * self.importance", "(1 + share) * self.importance", "boosters"),
    ("eviction.diversity", "0.01, 0.99", "0.05, 0.95", "ecokv"),
    ("eviction.diversity", "width = upper - lower", "width = upper - median", "ecokv"),
    ("eviction.greedy", "torch.maximum(resemblance, correlation)", "torch.minimum(resemblance, correlation)", "mmr"),
    ("eviction.greedy", "a + b * x + c * x * x", "a + b * x + c * x", "depth_profiles"),
    ("eviction.greedy", "3 * layer // last", "2 * layer // last", "depth_profiles"),
    ("eviction.memory", "/ math.log(window)", "/ math.log(window + 1)", "retentive"),
    ("eviction.memory", "((1 - gate) * after)", "(1 - gate)", "retentive"),
    ("eviction.memory", "return (1 - share) * exact + share * read", "return exact + share * read", "retentive"),
    ("eviction.memory", "features @ self.normaliser[..., None]", "features.sum(-1, keepdim=True)", "retentive"),
    ("eviction.memory", "(key_dim * value_dim + key_dim)", "(key_dim * value_dim)", "retentive"),
    ("eviction.allocation", "quotas > cap + 1e-9", "quotas > 2 * cap + 1e-9", "remainder"),
    ("eviction.allocation", "argsort(descending=True, stable=True)", "argsort(stable=True)", "remainder"),
    ("eviction.allocation", "weights = is_open.double()", "weights = is_open.double() * 0 + 1", "remainder"),
    ("eviction.allocation", "high = min(2 * free - free / beta, candidates)", "high = min(2 * free, candidates)", "pyramid"),
    ("eviction.allocation", "(high - low) // (layers - 1)", "-((low - high) // (layers - 1))", "pyramid"),
    ("eviction.allocation", "high >= low >= window", "high >= low", "pyramid"),
    ("eviction.allocation", "floor * free + (1 - floor) * raw.double()", "raw.double()", "ada"),
    ("eviction.allocation", "raw.double() * (1 - floor) + int(free * floor)", "raw.double() * (1 - floor) + free * floor", "ada"),
    ("eviction.allocation", "max(int(budget * floor), int(floor > 0))", "int(budget * floor)", "ada"),
    ("eviction.allocation", "tied.cumsum(0) - tied", "tied.cumsum(0)", "ada"),
    ("eviction.allocation", "ordered[:, :free].sum(-1)", "ordered.sum(-1)", "ada"),
    ("eviction.allocation", "// (query_heads // kv_heads)", "// query_heads", "sparse"),
    ("eviction.allocation", "shares * (total * (1 - floor))", "shares * total", "sparse"),
    ("eviction.selection", "tied.cumsum(-1) <= room", "tied.cumsum(-1) > room", "selection"),
    ("eviction.fidelity", "(full - left).norm(dim=-1) /", "(full - left).abs().sum(dim=-1) /", "fidelity"),
    ("eviction.fidelity", "- self.everything", "- 0 * self.everything", "fidelity"),
    ("eviction.fidelity", "max(first.window, second.window)", "first.window", "fidelity"),
    ("eviction.headscores", "tokens + steps[:, None]", "tokens + 0 * steps[:, None]", "visual_heads"),
    ("eviction.headscores", "1 / len(target.positions)", "1.0", "visual_heads"),
    ("eviction.headscores", "layer.window_queries[:, -1:]", "layer.window_queries[:, :1]", "visual_heads"),
    ("eviction.diversity", "minmax(norms)", "norms", "boosters"),
    ("eviction.diversity", "-key_norms(layer, count)", "key_norms(layer, count)", "boosters"),
    ("eviction.diversity", "    if not unit:", "    if unit:", "ecokv"),
    ("eviction.diversity", "(1 - cosines) / 2", "1 - cosines / 2", "ecokv"),
    ("eviction.diversity", "\"negative\": -cosines", "\"negative\": cosines", "ecokv"),
    ("eviction.diversity", "std(dim=-1, correction=0, keepdim=True)", "amax(dim=-1, keepdim=True)", "ecokv"),
    ("eviction.diversity", "values.amin(dim=-1, keepdim=True)", "values.mean(dim=-1, keepdim=True)", "ecokv"),
    ("eviction.diversity", "/ last + 0.5", "/ last", "ecokv"),
    ("eviction.diversity", "values.softmax(dim=-1)", "values.sigmoid()", "ecokv"),
    ("eviction.diversity", "rows.amax(dim=-1, keepdim=True).double()", "rows.amin(dim=-1, keepdim=True).double()", "ecokv"),
    ("eviction.boosters.ecokv", "self.alpha * euclidean + (1 - self.alpha) * cosine", "self.alpha * cosine + (1 - self.alpha) * euclidean", "ecokv"),
    ("eviction.boosters.ecokv", "r_cos, self.beta, self.clamp)", "r_cos, 1 - self.beta, self.clamp)", "ecokv"),
    ("eviction.boosters.ecokv", "importance if self.div_scale == \"importance\" else attention", "attention", "ecokv"),
    ("eviction.boosters.ecokv", "\"values\" if self.value_norm else \"none\"", "\"values\"", "ecokv"),
    ("eviction.boosters.ecokv", "count = layer.tokens if self.avg_domain == \"all\" else candidates", "count = layer.tokens", "ecokv"),
    ("eviction.boosters.ecokv", "over_all = self.avg_domain == \"all\" and", "over_all =", "ecokv"),
    ("eviction.boosters.ecokv", " and self.redundancy_map != \"minmax\"", "", "ecokv"),
    ("eviction.boosters.ecokv", "candidates if self.norm_domain == \"candidates\" else layer.tokens", "candidates", "ecokv"),
    ("eviction.boosters.ecokv", "if self.centroid == \"all\"", "if self.centroid", "ecokv"),
    ("eviction.boosters.ecokv", "unit=self.unit_mean", "unit=True", "ecokv"),
    ("eviction.boosters.ecokv", "\"max\" if self.div_scale == \"max\" else \"mean\"", "\"mean\"", "ecokv"),
    ("eviction.boosters.ecokv", "if self.scale_parts", "if not self.alpha", "ecokv"),
    ("eviction.boosters.ecokv", "scaled = self.alpha * parts[0]", "scaled = parts[0]", "ecokv"),
    ("eviction.boosters.ecokv", "if self.level == \"head\"", "if self.level", "ecokv"),
    ("eviction.boosters.ecokv", "found.mean().expand", "found.amax().expand", "ecokv"),
    ("eviction.boosters.ecokv", "if self.std:", "if False:", "ecokv"),
    ("eviction.boosters.ecokv", "self.std_of, self.ddof", "self.std_of, 0", "ecokv"),
    ("eviction.boosters.ecokv", "[:, :count], self.ddof)", "[:, :count], 0)", "ecokv"),
    ("eviction.boosters.ecokv", "return layer if self.rope == \"post\"", "return layer if self.rope", "ecokv_keys"),
    ("eviction.method", "final if self.booster and self.booster.allocates else host", "host", "ecokv_keys"),
    ("eviction.boosters.mixkv", "clamp(0, 1)", "clamp(0.5, 1)", "boosters"),
    ("eviction.boosters.mixkv", "_FIXED[self.redundancy]", "0.3", "boosters"),
    ("geometry.redundancy", "torch.sigmoid(-x)", "torch.sigmoid(x)", "ecokv"),
    ("geometry.redundancy", "2 * torch.sigmoid(-x)", "torch.sigmoid(-x)", "ecokv"),
    ("geometry.redundancy", "torch.exp(-x)", "torch.exp(-2 * x)", "ecokv"),
    ("geometry.redundancy", "1 / (1 + x)", "1 / (2 + x)", "ecokv"),
    ("geometry.redundancy", "torch.sigmoid(1 - x)", "torch.sigmoid(-x)", "ecokv"),
    ("geometry.redundancy", "1 - minmax(distances", "minmax(distances", "ecokv"),
    ("geometry.redundancy", "temperature or math.sqrt(dim)", "temperature or dim", "ecokv"),
    ("geometry.redundancy", "(temperature or math", "(math", "ecokv"),
    ("geometry.redundancy", "distances.mean(dim=-1, dtype=torch.float64), dim", "distances.amax(dim=-1), dim", "ecokv"),
    ("geometry.redundancy", ".square().sum(dim=-1)", ".sum(dim=-1)", "ecokv"),
    ("geometry.redundancy", "distances.shape[-1] - ddof", "distances.shape[-1] + ddof", "ecokv"),
    ("geometry.redundancy", "beta * r_euc + (1 - beta) * r_cos", "(1 - beta) * r_euc + beta * r_cos", "ecokv"),
    ("geometry.redundancy", "if clamp == \"r_cos\"", "if clamp != \"r_cos\"", "ecokv"),
    ("geometry.redundancy", "mixed if clamp == \"none\" else mixed.clamp(0, 1)", "mixed.clamp(0, 1)", "ecokv"),
    ("geometry.redundancy", "(values - low) /", "values /", "boosters"),
    ("geometry.spread", "centred[:leading].mean(0)", "centred.mean(0)", "ecokv"),
    ("geometry.spread", "centred.sub_(centred[:leading].mean(0))", "centred", "key_scores"),
    ("geometry.spread", "(squares + between)", "squares", "ecokv"),
    ("geometry.spread", ".sqrt().mean(-1)", ".mean(-1).sqrt()", "ecokv"),
    ("geometry.spread", "n * dim - ddof", "n * dim", "ecokv"),
    ("geometry.spread", "max(n - ddof, 1)", "n", "ecokv"),
    ("eviction.directions", "torch.reciprocal(length.clamp_min_(least), out=factor)", "factor.fill_(1.0)", "key_scores"),
    ("eviction.directions", "F.normalize(total / n, dim=-1)", "(total / n)", "key_scores"),
    ("eviction.directions", "cosines.mul_(inverse)", "cosines", "key_scores"),
    ("eviction.directions", "total.square() - (n - self.zero)", "total.square()", "boosters"),
    ("eviction.directions", "n - self.zero", "n", "boosters"),
    ("eviction.directions", "(lengths == least).sum(-1)", "(lengths != least).sum(-1)", "boosters"),
    ("eviction.directions", "keys / torch.where", "keys * torch.where", "mmr"),
    ("eviction.keyscores", "torch.split(layer.keys, block, dim=1)", "torch.split(layer.keys, block + 1, dim=1)", "key_scores"),
    ("eviction.hosts.plain", "(self.seed << 16) + asked.layer.index", "self.seed << 16", "random"),
    ("eviction.hosts.plain", "torch.rand(asked.layer.kv_heads, asked.count, generator=generator)", "torch.rand(1, asked.count, generator=generator).repeat(asked.layer.kv_heads, 1)", "random"),
    ("eviction.hosts.plain", "torch.rand(asked.layer.kv_heads, asked.count, generator=generator)", "torch.rand(asked.layer.kv_heads, asked.count, generator=generator).sort().values", "random"),
    ("eviction.attention", "std(dim=2, correction=0)", "amax(dim=2)", "mmr"),
    ("eviction.importance", "grouped.shape[1]", "2", "received"),
    ("eviction.greedy", "mean.mean(dim=-1, keepdim=True)", "mean.amax(dim=-1, keepdim=True)", "mmr"),
    ("eviction.greedy", " - mean.amin(dim=-1, keepdim=True)", "", "mmr"),
    ("eviction.greedy", "resemblance / max(size, 1)", "resemblance", "mmr"),
    ("eviction.greedy", "size = before.shape[1] + done", "size = done", "mmr"),
    ("eviction.greedy", "before.amax(dim=1)", "before.amin(dim=1)", "mmr"),
    ("eviction.greedy", "rows - rows.mean(dim=1, keepdim=True)", "rows.clone()", "mmr"),
    ("eviction.hosts.research", "rows.std(dim=1, correction=0)", "rows.std(dim=1)", "mmr"),
    ("eviction.hosts.research", "pool(mean, self.kernel, \"avg\")", "mean", "mmr"),
    ("eviction.memory", "mix * minmax(rows.mean(dim=1))", "(1 - mix) * minmax(rows.mean(dim=1))", "retentive"),
    ("eviction.memory", "/ math.log(rows.shape[-1])", "", "retentive"),
    ("eviction.memory", "(spread[:, None] @ rows)", "(spread[:, None] @ rows.square())", "retentive"),
    ("eviction.memory", "gate.gather(-1, order)", "gate", "retentive"),
    ("eviction.allocation", "tokens < 2 * free", "tokens < 4 * free", "pyramid"),
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
    """Pairs of a function, method or property and its twin."""
    for name, part in list(vars(module).items()):
        other = vars(twin)[name]
        if inspect.isclass(part) and part.__module__ == module.__name__:
            pairs = [(held, vars(other).get(key)) for key, held in vars(part).items()]
        elif isinstance(part, dict):
            pairs = [(held, other[key]) for key, held in part.items()]
        else:
            pairs = [(part, other)]
        for old, new in ((_plain(old), _plain(new)) for old, new in pairs):
            if inspect.isfunction(old) and old.__module__ == module.__name__:
                yield old, new


def _plain(part):
    """The function in a property."""
    return getattr(part, "fget", None) or getattr(part, "func", None) or part


@pytest.mark.parametrize(("name", "there", "instead", "check"), BREAKS, ids=range(len(BREAKS)))
def test_a_broken_formula_is_noticed(name, there, instead, check):
    module = importlib.import_module(f"ecokv_cli.{name}")
    with broken(module, there, instead), pytest.raises((AssertionError, IndexError, RuntimeError)):
        _run(check)
    _run(check)


def _run(check):
    for seed in range(3):
        CHECKS[check](seed)


def test_every_check_is_put_to_the_test():
    assert {check for *_, check in BREAKS} == CHECKS.keys()
