"""What is asked for is what is played, and how long that may take."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vime_agents.checking import catalog, kit
from vime_agents.checking.finding import CheckResult
from vime_agents.checking.fresh import run_fresh
from vime_agents.checking.scale import FULL, QUICK, Scale
from vime_agents.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent))
import gallery  # pyright: ignore[reportMissingImports]

SMALL = replace(QUICK, num_leak_episodes=16, call_s=5.0, settle_s=0.1)


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Task id -> episodes that `gallery:SingleTurn` has begun on it."""
    begun: Counter[str] = Counter()
    monkeypatch.setattr(gallery.SingleTurn, "setup", lambda env: begun.update([env.task_id]))
    return begun


async def run(check_id: str, scale: Scale, name: str = "SingleTurn") -> CheckResult:
    assert catalog.CHECKS
    return await kit.Session(f"gallery:{name}", scale=scale).run(check_id)


@pytest.mark.parametrize("check_id", ["gold", "gold-wins", "answer-form", "instances", "speed"])
async def test_the_checks_of_tasks_play_as_many_as_are_asked_for(check_id: str, episodes: Any) -> None:
    result = await run(check_id, replace(SMALL, num_tasks=9))
    assert result.state == "passed", result
    assert set(episodes) == {f"train-{index}" for index in range(9)}


async def test_a_split_with_fewer_tasks_than_are_asked_for_is_told_of(
    episodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": word, "word": word} for word in ("one", "two", "three", "four")]
    monkeypatch.setattr(gallery.SingleTurn, "tasks", lambda env: rows)
    told = {n: (await run("gold", replace(SMALL, num_tasks=n))).measured for n in (4, 5)}
    assert told == {4: {}, 5: {"tasks_in_split": 4}}
    assert set(episodes.values()) == {2}


@pytest.mark.parametrize(("check_id", "num_played"), [("global-rng", 5), ("same-seed", 10)])
async def test_the_checks_of_determinism_play_as_many_seeds_as_are_asked_for(
    check_id: str, num_played: int, episodes: Any
) -> None:
    await run(check_id, replace(SMALL, num_seeds=5))
    assert episodes.total() == 3 * num_played  # gold, wrong, garbage


async def test_seeds_are_the_same_only_when_as_many_as_are_asked_for_are() -> None:
    result = await run("seeds-differ", replace(SMALL, num_seeds=24), "OneSeed")
    assert [f.message for f in result.findings] == ["seeds 0 to 23 all begin with the same observation"]


@pytest.mark.integration  # two processes
async def test_new_processes_play_as_many_seeds_as_are_asked_for() -> None:
    for seen in await run_fresh(kit.Session("gallery:SingleTurn", scale=replace(SMALL, num_seeds=7))):
        assert Counter(e["policy"] for e in seen["episodes"]) == {"gold": 7, "wrong": 7, "garbage": 7}


@pytest.mark.parametrize("num_leak_episodes", [16, 21])
async def test_the_leak_checks_play_as_many_episodes_as_are_asked_for(
    num_leak_episodes: int, episodes: Any
) -> None:
    result = await run("leak-memory", replace(SMALL, num_leak_episodes=num_leak_episodes))
    assert result.state == "passed", result
    assert episodes.total() == 8 + 8 + num_leak_episodes  # to warm up, and again once memory is watched


async def test_what_one_episode_in_many_leaves_is_found_by_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, left = [], []

    def setup(env: Any) -> None:
        begun.append(env)
        if len(begun) % 30 == 0:
            left.append(os.open(os.devnull, os.O_RDONLY))

    monkeypatch.setattr(gallery.SingleTurn, "setup", setup)
    try:
        states = [
            (await run("leak-files", replace(SMALL, num_leak_episodes=many))).state for many in (100, 360)
        ]
    finally:
        for file in left:
            os.close(file)
    assert states == ["passed", "found"]


async def test_many_tasks_are_not_all_played_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    playing, most = 0, 0

    async def score(env: Any, text: str) -> float:
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        for _ in range(50):  # so that all that may play do
            await asyncio.sleep(0)
        playing -= 1
        return 0.0

    monkeypatch.setattr(gallery.SingleTurn, "score", score)
    assert (await run("instances", replace(SMALL, num_tasks=40))).state == "passed"
    assert 1 < most <= 8


@pytest.mark.parametrize(
    ("hold_s", "lag_s", "state"), [(0.1, 0.5, "passed"), (0.1, 0.02, "found"), (0.035, 0.02, "found")]
)
async def test_a_hook_may_hold_the_loop_for_as_long_as_is_asked_for(
    hold_s: float, lag_s: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery.Sleeps, "HOLD_S", hold_s)
    assert (await run("loop-blocking", replace(SMALL, lag_s=lag_s), "Sleeps")).state == state


async def test_never_fewer_tasks_are_looked_at_than_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_task(env: Any, rng: Any) -> Any:
        made.append(env)
        return {"word": str(rng.integers(10**9))}

    made: list[Any] = []
    monkeypatch.setattr(gallery.SingleTurn, "make_task", make_task)
    for num_tasks, looked_at in ((7, 20), (30, 30)):
        made.clear()
        await run("task-json", replace(SMALL, num_listed_tasks=20, num_tasks=num_tasks))
        assert len(made) == looked_at


async def test_tasks_that_cannot_be_read_in_time_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(gallery.SingleTurn, "make_task", lambda env, rng: go_on.wait())
    session = kit.Session("gallery:SingleTurn", scale=replace(SMALL, call_s=0.05))
    try:
        result = await session.run("task-json")
    finally:
        go_on.set()
    assert (result.state, result.reason) == ("not run", "500 tasks were not read within 0.15 s")
    assert session.hung  # its thread goes on: the process is not used any further


async def test_an_authors_own_time_out_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_task(env: Any, rng: Any) -> Any:
        raise TimeoutError("the hub does not answer")

    monkeypatch.setattr(gallery.SingleTurn, "make_task", make_task)
    session = kit.Session("gallery:SingleTurn", scale=SMALL)
    result = await session.run("task-json")
    assert "the hub does not answer" in result.reason + str(result.findings)
    assert not session.hung


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_tasks", 2),
        ("num_seeds", 0),
        ("num_leak_episodes", 15),
        ("num_leak_episodes", 10**7),
        ("lag_s", 0.009),
        ("lag_s", 5.1),
        ("lag_s", math.nan),
        ("call_s", 0),
        ("num_listed_tasks", 0),
    ],
)
def test_a_scale_that_would_say_nothing_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Scale\.{field}: .*{value}"):
        replace(FULL, **{field: value})


@pytest.mark.parametrize(
    ("scale", "minutes"),
    [
        (FULL, 15),
        (QUICK, 15),
        (replace(QUICK, num_tasks=18), 45),
        (replace(FULL, num_seeds=25), 37.5),
        (replace(FULL, num_leak_episodes=2000, num_tasks=12), 150),
        (replace(FULL, call_s=60.0), 45),
    ],
)
def test_a_check_may_take_as_much_longer_as_more_is_asked_of_it(scale: Scale, minutes: float) -> None:
    assert scale.check_s == pytest.approx(60 * minutes)
    assert scale.fresh_s <= scale.check_s / 2
