"""What an agent runs into, or leaves behind, is its own doing; and nothing of it stays."""

import pytest

from .limits import PROBES, seen

pytestmark = pytest.mark.usefixtures("namespaces")


@pytest.mark.parametrize("name", PROBES)
async def test_a_rollout_that_goes_wrong_has_its_outcome_and_leaves_nothing(name, tmp_path):
    found = await seen(PROBES[name], tmp_path)
    assert found.outcome == PROBES[name].wanted
    assert found.left == []
