"""Reading a GGUF file once per load, and without needless slowness.

transformers 5 parses a file's metadata for the configuration, the tokenizer, the model class and the weights, each
time through gguf's reader, which makes several memory-map slices per vocabulary entry, and rebuilds the map of tensor
names for every module of the model. For a model of 135 M parameters that is most of the time of loading it.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

_ARRAY, _STRING = 9, 8
"""GGUF's numbers of the two types that vocabularies are made of."""


@contextmanager
def parsed_once() -> Iterator[None]:
    """Parse each GGUF file once inside the block, whoever asks; does nothing where gguf is not installed.

    What comes out is the same: only repeated work, memory-map overhead per entry and a progress bar go.
    """
    if not importlib.util.find_spec("gguf"):
        yield
        return
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    changes: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
        (gguf, "GGUFReader", lambda reader: lru_cache(_plain_reader(reader))),
        (gguf, "get_tensor_name_map", lru_cache),
        (reading, "_gguf_parse_value", _quick),
        (reading, "load_gguf_checkpoint", _remembered),
        (reading, "tqdm", lambda _: _silent),
    )
    with ExitStack() as stack:
        for module, name, changed in changes:
            # None of these names is promised; a version without one is read as it does by itself.
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, changed(getattr(module, name))))
        yield


def _plain_reader(reader: Any) -> Any:
    """The reader with its memory map seen as a plain array, whose slices cost a tenth."""

    class Reader(reader):  # type: ignore[misc]
        @property
        def data(self) -> np.ndarray[Any, Any]:
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray[Any, Any]) -> None:
            import numpy as np

            self._plain = mapped.view(np.ndarray)

    return Reader


def _quick(parse: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`parse` with a short cut for the strings of a vocabulary."""

    def value(found: Any, kind: Any) -> Any:
        if kind == [_ARRAY, _STRING]:
            return found.tobytes().decode()
        return parse(found, kind)

    return value


def _remembered(load: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`load` that parses the metadata of a file once; the weights are read each time they are asked for."""
    parsed = lru_cache(load)

    def call(path: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        if arguments or options.get("return_tensors"):
            return load(path, *arguments, **options)
        return {part: dict(found) for part, found in parsed(path).items()}

    return call


def _silent(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items
