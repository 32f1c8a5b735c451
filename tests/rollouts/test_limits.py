"""What an agent runs into, or leaves behind, is its own doing; and nothing of it stays."""

import pytest

from .limits import BY_VERIFIER, LEFT_BEHIND, LIMITS, Probe, seen

pytestmark = pytest.mark.usefixtures("namespaces")


async def hold(probe: Probe, folder):
    found = await seen(probe, folder)
    assert found.outcome == probe.wanted
    assert found.left == []


@pytest.mark.parametrize("name", LIMITS)
async def test_an_agent_that_runs_into_a_limit_ends_there(name, tmp_path):
    await hold(LIMITS[name], tmp_path)


@pytest.mark.parametrize("name", LEFT_BEHIND)
async def test_what_an_agent_leaves_behind_gets_it_no_other_try(name, tmp_path):
    await hold(LEFT_BEHIND[name], tmp_path)


@pytest.mark.parametrize("name", BY_VERIFIER)
async def test_a_verifier_that_runs_into_a_limit_has_not_judged(name, tmp_path):
    await hold(BY_VERIFIER[name], tmp_path)
