"""Versions of what decides the numbers, and of what else is installed; no library is imported to ask."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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

EXTRAS = (
    "accelerate",
    "gguf",
    "torchvision",
    "pyarrow",
    "pandas",
    "ray",
    "kvpress",
    "huggingface-hub",
    "typer",
    "rich",
)
"""Packages that ecokv can do without, or that decide no number."""

VARIABLES = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MPLBACKEND",
    "NO_COLOR",
)
"""Environment variables that change what a command does."""


def versions() -> dict[str, str]:
    """Versions of ecokv, Python and the libraries that decide the numbers."""
    return {"ecokv": __version__, "python": platform.python_version(), **_installed(PACKAGES)}


def environment() -> dict[str, str]:
    """What to put into a bug report: `versions`, extras, system, processors, CUDA, and variables that are set."""
    return {
        **versions(),
        **_installed(EXTRAS),
        "system": platform.platform(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "cuda": _cuda(),
        **{name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cuda() -> str:
    """Which CUDA torch was built for, read from its sources, and which driver runs."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    source = Path(spec.origin).with_name("version.py")
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    built = re.search(r"^cuda\b[^=]*= *'([^']+)'", text, re.MULTILINE)
    driver = Path("/proc/driver/nvidia/version")
    running = re.search(r"\d+\.\d+(\.\d+)?", driver.read_text(encoding="utf-8")) if driver.is_file() else None
    return (
        f"torch built {f'for {built[1]}' if built else 'without'}, "
        f"{f'driver {running[0]}' if running else 'no NVIDIA driver'}"
    )
