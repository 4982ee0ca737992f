"""All hosts, boosted forms and options that decide what is kept, for tests that hold for every method."""

from dataclasses import replace
from functools import lru_cache

import torch
from builders import random_layer
from memory_dumps import with_extras

from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS
from ecokv_cli.eviction.spec import parse_method

PLAIN = [name for name in HOSTS if name != "full"]
BOOSTED = [
    f"{host}+{booster}" for host, kind in HOSTS.items() if kind().scores_attention for booster in BOOSTERS
]  # fmt: skip
OPTIONS = [
    "snapkv[kernel=7,pooling=max,gqa=max]",
    "h2o[gqa=max]",
    "streaming[sinks=0]",
    "manifoldkv[block=7]",
    "pyramidkv[beta=1]",
    "adakv[floor=0]",
    "adakv[floor=1]",
    "adakv[normalise=true]",
    "adakv[base=keydiff]",
    "adakv[base=vnorm,floor=0.5]",
    "sparsemm[floor=0]",
    "sparsemm[floor=1]",
    "mmr[aggregate=mean,unit=raw]",
    "mmr[profile=segments,l1=0.5:0.2:0.1,l2=-0.5:0:0.5]",
    "retentive[mix=0]",
    "mmr[start=window,corr=keys,sigma=heads,kernel=3,unit=range]",
    "retentive[entropy=given,order=retention]",
    "snapkv[gqa=sum]",
    "snapkv+mixkv[redundancy=fixed,intrinsic=keys]",
    "snapkv+ecokv[std=true]",
    "snapkv+ecokv[std=true,std_of=dimensions,ddof=1]",
    "snapkv+ecokv[normalisation=rank,norm_domain=all,centroid=candidates,cosine=half,unit_mean=false]",
    "adakv+ecokv[allocate=boosted,scale_parts=true,div_scale=max,level=layer]",
]
EVERY = [*PLAIN, *BOOSTED, *OPTIONS]
"""Everything that evicts, with exact totals."""

UNIFORM = [spec for spec in EVERY if not spec.startswith(("pyramidkv", "adakv", "sparsemm"))]
"""Those that give every head of every layer the same."""


@lru_cache(64)
def model_of(layers, *, kv_heads=2, group=3, tokens=29, seed=0):
    """All layers of a random model with received attention and head scores, some of which are 0."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(layers, kv_heads * group, generator=generator, dtype=torch.float64)
    table = torch.where(table > 0.4, table**3, 0.0)
    table[0, 0] = 0.7
    made = []
    for index in range(layers):
        layer = random_layer(seed + index, kv_heads=kv_heads, group=group, tokens=tokens, shift=0.1 * index)
        made.append(with_extras(replace(layer, index=index, layers=layers), table, seed=seed))
    return tuple(made)


def at_window(spec, window):
    """The method with that window, both for scoring and protected."""
    return parse_method(spec).with_window(window)


def protected(method, layer):
    """Tokens of the budget that are not up to the scores: window, sinks, state."""
    return method.keep_window + getattr(method.host, "sinks", 0) + method.host.reserve(layer)
