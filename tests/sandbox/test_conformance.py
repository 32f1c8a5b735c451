"""Every backend that this machine can run passes every check."""

import pytest

from budwood.sandbox.testing import CHECKS, NotApplicable


@pytest.mark.parametrize("name", CHECKS)
async def test_conformance(bench, name):
    try:
        await CHECKS[name](bench)
    except NotApplicable as why:
        pytest.skip(str(why))


def test_the_suite_is_all_there():
    assert len(CHECKS) > 50
