"""Fixtures for the tests of engines."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def unreachable() -> Iterator[None]:
    """For a test that finds no engine: the SDK does not close a socket that it could not connect."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
