"""The store of these tests holds the example trajectories."""

import pytest


@pytest.fixture
def store(recorded_store):
    return recorded_store
