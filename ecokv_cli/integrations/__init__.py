"""ecokv's methods inside other programs: around `generate` of transformers, and as presses of kvpress."""

from ecokv_cli.models.generating import evicted

__all__ = ["evicted"]
