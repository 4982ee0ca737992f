"""Dumps whose layers live in memory, for studies: random tensors in prime-number shapes, and any manifest."""

from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import torch
from builders import GROUP, KV_HEADS, STEPS, TOKENS, random_layer

from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.schema import Decoded, ImageInfo, Manifest, ModelInfo, Tokens
from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class MemoryDump(Dump):
    """A dump that hands out the layers it was given."""

    made: tuple[Layer, ...] = ()

    def layer(self, index):
        return self.made[index]


def memory_dump(
    sample="page", *, layers=3, seed=0, kv_heads=KV_HEADS, group=GROUP, model="tiny", digest="0" * 64,
    page="one", prompt="what?", strings=("a",) * STEPS, ended=False, made=None, **fields,
):  # fmt: skip
    """A dump of `layers` random layers; `page` and `prompt` stand for the image's and the prompt's checksum."""
    if made is None:
        made = tuple(
            replace(random_layer(seed + index, kv_heads=kv_heads, group=group, shift=0.2 * index), index=index)
            for index in range(layers)
        )
        made = tuple(replace(layer, layers=layers) for layer in made)
    nothing, first = (None,) * TOKENS, crc32(prompt.encode())
    ids = tuple(range(first, first + TOKENS))
    manifest = {
        "schema_version": "1.1", "created": "", "sample": sample, "command": "", "seed": 0, "device": "cpu",
        "model": ModelInfo(model, None, "Tiny", "tiny", digest, layers, kv_heads * group, kv_heads, 5, False),
        "attention": "sdpa", "compute_dtype": "float32", "stored_dtype": "float32", "processor": {},
        "images": (ImageInfo("page.png", "image_000.png", "PNG", page, (70, 50), (70, 50), ()),), "grids": (),
        "prompt": prompt, "rendered_sha256": prompt, "position_ids": (), "window": 11, "tensors": (), "layers": (),
        "tokens": Tokens(ids, ("x",) * TOKENS, ("text",) * TOKENS, nothing, nothing, nothing),
        "decoded": Decoded(tuple(range(len(strings))), tuple(strings), "".join(strings), ended),
        "seconds": {}, "versions": {},
    }  # fmt: skip
    return MemoryDump(Path("run") / "dump" / sample, Manifest(**(manifest | fields)), made)


def with_extras(layer, head_scores=None, seed=1):
    """The layer with received attention of random queries, and head scores if given."""
    generator = torch.Generator().manual_seed(seed)
    shape = (layer.window_queries.shape[0], layer.tokens, layer.keys.shape[-1])
    queries = torch.randn(*shape, generator=generator, dtype=torch.float64)
    keys = layer.keys.repeat_interleave(len(queries) // layer.kv_heads, 0)
    later = torch.ones(layer.tokens, layer.tokens, dtype=torch.bool).triu(1)
    logits = (queries @ keys.transpose(1, 2) * layer.scaling).masked_fill(later, -torch.inf)
    received = logits.softmax(-1).sum(1)
    return replace(layer, received_attention=received, head_scores=head_scores)
