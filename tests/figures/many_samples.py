"""Nine small samples in memory, of other lengths, with an image, two or none, and the settings of studies."""

from dataclasses import fields, replace

from builders import random_layer
from memory_dumps import memory_dump

from ecokv_cli.dump.schema import ImageGrid, Tokens
from ecokv_cli.eviction.spec import parse_methods, parse_single
from ecokv_cli.studies.analyze import AnalyzeSettings
from ecokv_cli.studies.evict import EvictSettings
from ecokv_cli.studies.tables import Table

LAYERS, LENGTHS = 2, (29, 53, 29, 41, 31, 37, 43, 59, 47)
TEXT_ONLY = (2, 5)
GEOMETRY = AnalyzeSettings((0, 1), (0, 1), parse_single("snapkv+ecokv[window=3]"), 100, 0, ((1, 0),))
EVICTION = EvictSettings(tuple(parse_methods(["full", "snapkv", "keydiff"], 3)), (7, 11), (0, 1), (0, 1), (1, 0))


def sample(number):
    """A sample of its own length, with an image of 3 x 5 tokens or two, or without any."""
    count = LENGTHS[number]
    images = 0 if number in TEXT_ONLY else 1 + number % 2
    grids = tuple(ImageGrid(i, 1 + 15 * i, 3, 5, (0.0, 0.0, 1.0, 1.0), 0) for i in range(images))
    cells = [None, *range(15 * images), *[None] * (count - 1 - 15 * images)]
    roles = tuple("text" if cell is None else "image" for cell in cells[1:])
    tokens = Tokens(
        tuple(range(count)), ("x",) * count, ("special", *roles),
        *(tuple(None if c is None else part(c) for c in cells) for part in (
            lambda c: c // 15, lambda c: c % 15 // 5, lambda c: c % 5,
        )),
    )  # fmt: skip
    layers = [replace(random_layer(7 * number + i, tokens=count, shift=0.3 * i), index=i) for i in range(LAYERS)]
    return memory_dump(
        f"s{number}", layers=LAYERS, made=tuple(replace(layer, layers=LAYERS) for layer in layers), tokens=tokens,
        grids=grids,
    )  # fmt: skip


def joined(results):
    """All rows in one result."""
    tables = {}
    for each in fields(results[0]):
        parts = [getattr(result, each.name) for result in results]
        if isinstance(parts[0], Table):
            tables[each.name] = Table(parts[0].name, parts[0].columns, [row for part in parts for row in part])
    return replace(results[0], **tables)
