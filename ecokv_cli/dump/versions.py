"""Versions of what decides the numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ecokv_cli import __version__

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "scikit-learn",
    "matplotlib",
    "pillow",
)


def versions() -> dict[str, str]:
    """Versions of ecokv, Python and the libraries that decide the numbers."""
    found = {"ecokv": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
