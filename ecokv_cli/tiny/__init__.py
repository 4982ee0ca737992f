"""The shipped model: its document generator, its training program and its checkpoint."""

from pathlib import Path

SHIPPED_MODEL = Path(__file__).parent / "ecokv-form-reader"
"""Folder of the shipped checkpoint; it loads like any other."""
