"""Lanes stay with their replica; one that is gone is passed over."""

import random

import pytest

from budwood.proxy.engine import Engine, EngineSettings, Problem
from budwood.proxy.engine.replicas import Replicas, pauses
from budwood.proxy.testing import Reply, ScriptedEngine

URLS = tuple(f"http://127.0.0.{i}:1" for i in range(1, 5))


def _replicas(now):
    return Replicas(EngineSettings(urls=URLS, unhealthy_s=5), clock=lambda: now[0])


def test_a_lane_stays_and_lanes_spread():
    replicas = _replicas([0.0])
    first = {f"la_{i}": replicas.ordered(f"la_{i}")[0].url for i in range(400)}
    assert first == {lane: replicas.ordered(lane)[0].url for lane in first}
    for url in URLS:
        assert 60 < list(first.values()).count(url) < 140


def test_only_the_lanes_of_a_lost_replica_move():
    now = [0.0]
    replicas = _replicas(now)
    lanes = [f"la_{i}" for i in range(100)]
    before = {lane: replicas.ordered(lane)[0] for lane in lanes}
    replicas.mark_down(replicas.all[0])
    after = {lane: replicas.ordered(lane)[0] for lane in lanes}
    assert all((before[lane] is after[lane]) != (before[lane] is replicas.all[0]) for lane in lanes)
    now[0] = 6.0
    assert {lane: replicas.ordered(lane)[0] for lane in lanes} == before


def test_when_all_are_down_all_are_tried():
    replicas = _replicas([0.0])
    for replica in replicas.all:
        replicas.mark_down(replica)
    assert len(replicas.ordered("la_1")) == 4


def test_pauses_have_full_jitter_under_a_bound_that_doubles():
    settings = EngineSettings(tries=8)
    for seed in range(50):
        found = list(pauses(settings, random.Random(seed)))
        assert len(found) == 7
        bounds = [0.5, 1, 2, 4, 8, 8, 8]
        assert all(0 <= pause <= bound for pause, bound in zip(found, bounds, strict=True))


async def test_a_call_goes_to_another_replica_when_its_own_is_gone(engine_call, read):
    reply = [Reply("Hi.")] * 3
    async with ScriptedEngine(reply) as one, ScriptedEngine(reply) as two:
        values = {"urls": (one.url, two.url), "backoff_min_s": 0.0}
        async with Engine(EngineSettings(**values)) as engine:
            info = await engine.probe()
            assert info.problems == ()
            call = await engine_call(engine)
            await read(engine, call)
            mine, other = (one, two) if one.calls else (two, one)
            await mine.__aexit__()
            await read(engine, call)
            assert len(other.calls) == 1
            info = await engine.probe()
            assert Problem.REPLICA_DOWN in info.problems


async def test_replicas_that_differ_are_told():
    async with ScriptedEngine(max_model_len=5000) as one, ScriptedEngine() as two:
        async with Engine(EngineSettings(urls=(one.url, two.url))) as engine:
            assert Problem.REPLICAS_DIFFER in (await engine.probe()).problems


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_urls_are_taken_with_and_without_v1(url):
    assert EngineSettings.model_validate({"urls": url}).urls == ("http://h:1",)
    assert EngineSettings.model_validate({"urls": f"{url},{url}"}).urls == ("http://h:1",) * 2


def test_an_url_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="http://"):
        EngineSettings.model_validate({"urls": "ftp://h"})
