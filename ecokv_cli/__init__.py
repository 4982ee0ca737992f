"""Offline analysis of KV-cache geometry and eviction in multimodal language models.

The names in `__all__` are the Python interface; docs/python.md shows it at work. They are loaded when first asked for,
because most of them bring torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Dump",
    "EcokvError",
    "Fidelity",
    "HeldOut",
    "Layer",
    "Method",
    "Run",
    "Scores",
    "Selection",
    "Table",
    "analyze",
    "evict",
    "frame",
    "jaccard",
    "open_run",
    "parse_method",
]

_HOMES = {
    "ecokv_cli.api": (
        "analyze",
        "evict",
        "frame",
        "open_run",
    ),
    "ecokv_cli.dump.reader": ("Dump",),
    "ecokv_cli.dump.runs": ("Run",),
    "ecokv_cli.errors": ("EcokvError",),
    "ecokv_cli.eviction.fidelity": (
        "Fidelity",
        "HeldOut",
        "jaccard",
    ),
    "ecokv_cli.eviction.layer": ("Layer",),
    "ecokv_cli.eviction.method": (
        "Method",
        "Scores",
    ),
    "ecokv_cli.eviction.selection": ("Selection",),
    "ecokv_cli.eviction.spec": ("parse_method",),
    "ecokv_cli.studies.tables": ("Table",),
}


def __getattr__(name: str) -> Any:
    """Load a name of the interface."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'ecokv_cli' has no attribute {name!r}")
