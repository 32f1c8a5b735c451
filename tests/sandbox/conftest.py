"""The local backends, on a folder of each test's own."""

from functools import partial

import pytest

from budwood.sandbox import LocalSettings, backend_named
from budwood.sandbox.testing import Bench, local_traces

from .inside import python_inside


@pytest.fixture
def root(tmp_path):
    """The folder of a test's backends."""
    return tmp_path / "sandboxes"


@pytest.fixture(params=["local", "local-unisolated"])
def backend_name(request):
    """The name of each backend that this machine can run."""
    if request.param == "local":
        request.getfixturevalue("namespaces")
    return request.param


@pytest.fixture
async def bench(backend_name, root):
    async with backend_named(backend_name, LocalSettings(root=root)) as backend:
        yield Bench(backend, python_inside(backend_name), partial(local_traces, root))
    assert list(root.iterdir()) == []
