"""The sample pages that come with ecokv, and their questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.errors import InputError
from ecokv_cli.sample.manifest import read_manifest

if TYPE_CHECKING:
    from ecokv_cli.sample.samples import Sample

MANIFEST = "samples.jsonl"

_INSTALLED = Path(__file__).parent / "inputs"
_CHECKOUT = Path(__file__).parents[2] / "sample_inputs"


def shipped_folder() -> Path:
    """Find the folder of the samples: inside an installed package, or beside it in a checkout.

    Raises
    ------
    InputError
        If neither is there.
    """
    for folder in (_INSTALLED, _CHECKOUT):
        if (folder / MANIFEST).is_file():
            return folder
    raise InputError(
        f"the shipped samples are missing: no {MANIFEST} in {str(_INSTALLED)!r} or {str(_CHECKOUT)!r}; "
        "reinstall ecokv-cli, or give your own image and prompt"
    )


def shipped_samples() -> tuple[Sample, ...]:
    """List the shipped samples in the order of their manifest.

    Raises
    ------
    InputError
        If the samples are missing.
    """
    return read_manifest(shipped_folder() / MANIFEST)


def default_sample() -> Sample:
    """Return the sample used when the user names none: a two-column page asked for a five-digit number.

    Raises
    ------
    InputError
        If the samples are missing.
    """
    return shipped_samples()[0]
