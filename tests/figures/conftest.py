"""Figures that tests share, each drawn once per test run."""

from __future__ import annotations

import functools

import album
import pytest


@functools.cache
def _drawing(name, size, width, samples):
    return album.draw(name, size, width, samples)


@pytest.fixture
def drawing():
    """`album.draw`, with every answer remembered."""
    return lambda name, size=album.SIZES[0], width="double", samples=1: _drawing(name, size, width, samples)
