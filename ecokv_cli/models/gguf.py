"""Reading a GGUF file once per load."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def parsed_once() -> Iterator[None]:
    """Parse each GGUF file once inside the block.

    transformers parses the file anew for configuration, tokenizer and weights, and rebuilds the tensor-name map per
    tensor; together that is most of the loading time of a small model.
    """
    if not importlib.util.find_spec("gguf"):
        yield
        return
    import gguf

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = lru_cache(reader), lru_cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names
