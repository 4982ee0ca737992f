"""Analyses of layers in memory: a prompt with a special token, an image of 4 x 5 tokens and text."""

from dataclasses import replace

from builders import random_layer
from memory_dumps import memory_dump

from ecokv_cli.dump.schema import ImageGrid, Tokens
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.analyze import AnalyzeSettings, analyze

TOKENS, WINDOW = 29, 4
ROLES = ("special", *("image",) * 20, *("text",) * 8)
GRID = ImageGrid(0, 1, 4, 5, (0.0, 0.0, 1.0, 1.0), 0)


def settings(**changes):
    base = {
        "layers": (0, 2), "heads": (0, 1), "method": parse_method("snapkv+ecokv"), "pairs": 10_000, "seed": 0,
        "pca": ((2, 1),),
    }  # fmt: skip
    return AnalyzeSettings(**(base | changes))


def dump_of(*layers, roles=ROLES, grids=(GRID,), sample="page"):
    n = len(roles)
    tokens = Tokens(tuple(range(n)), tuple(f"t{i}" for i in range(n)), roles, *[(None,) * n] * 3)
    return memory_dump(sample, made=layers, tokens=tokens, grids=grids)


def layer_of(index, **changes):
    return replace(random_layer(index, shift=0.2 * index), index=index, layers=3, **changes)


def one_layer(layer, **changes):
    """The analysis of one layer by itself."""
    roles = ROLES if layer.tokens == TOKENS else ("text",) * layer.tokens
    grids = (GRID,) if layer.tokens == TOKENS else ()
    return analyze([dump_of(replace(layer, index=0), roles=roles, grids=grids)], settings(layers=(0,), **changes))
