"""Figures that tests share, each drawn once per test run."""

from __future__ import annotations

import functools

import album
import pytest


@pytest.fixture(scope="session")
def drawing():
    """`album.draw`, with every answer remembered."""
    return functools.cache(album.draw)
