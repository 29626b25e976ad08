"""Coding: gold passes every test, what is to be repaired does not, cheats get nothing. Real sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents
from vime_agents.hidden_tests import HiddenTestReport, run_hidden_tests
from vime_agents.messages import assistant, tool_call
from vime_envs.coding import TEST_TASKS, Coding


def all_tasks() -> dict[str, Mapping[str, Any]]:
    sets = [Coding(split=split).task_set() for split in ("train", "test")]
    return {tasks[i].id: tasks[i].inputs for tasks in sets for i in range(len(tasks))}


async def reports_of(solutions: Mapping[str, str], timeout_s: float = 20.0) -> dict[str, HiddenTestReport]:
    """Task -> what its tests say of a solution."""
    pool: Any = vime_agents.registry.sandbox_pool(size=0)
    try:
        judge, box = [await pool.create(Coding.sandbox_spec) for _ in range(2)]
        reports = {}
        for name, text in solutions.items():
            tests = {"test_solution.py": all_tasks()[name]["tests"]}
            await box.write("solution.py", text.encode())
            reports[name] = await run_hidden_tests(
                judge, box, tests, modules=["solution"], call_timeout_s=timeout_s / 4, timeout_s=timeout_s
            )
        return reports
    finally:
        await pool.aclose()


def test_there_are_tasks_to_learn_from_and_others_to_be_tested_with() -> None:
    tasks = all_tasks()
    assert len(tasks) >= 12
    assert {
        name for name, task in tasks.items() if not {"prompt", "solution", "tests"} <= task.keys()
    } == set()
    test = Coding(split="test").task_set()
    assert {test[i].id for i in range(len(test))} == set(TEST_TASKS)
    for task in tasks.values():
        assert "import" not in task["prompt"]
        assert "##" not in task["prompt"]


async def test_gold_passes_every_test() -> None:
    reports = await reports_of({name: task["solution"] for name, task in all_tasks().items()})
    failed = {name: report for name, report in reports.items() if not report.all_passed}
    assert not failed
    assert all(len(report.results) >= 3 for report in reports.values())


async def test_what_is_to_be_repaired_is_broken() -> None:
    starts = {name: task["start"] for name, task in all_tasks().items() if "start" in task}
    assert len(starts) >= 2
    reports = await reports_of(starts, timeout_s=2.0)
    assert [name for name, report in reports.items() if report.all_passed] == []


async def test_the_module_is_there_to_be_repaired_and_a_real_repair_is_paid() -> None:
    env = Coding(split="test")
    try:
        observation, _ = await env.areset(options={"task": "first_index"})
        prompt = observation["messages"][0]["content"]
        assert prompt.startswith("solution.py holds `first_index(items, wanted)`.")
        observation, *_ = await env.astep(
            assistant("", [tool_call("bash", {"command": "cat solution.py"}, "1")])
        )
        assert observation["messages"][0]["content"].strip() == env.task["start"].strip()
        for reply in env.gold():
            _, reward, terminated, _, info = await env.astep(reply)
        assert (reward, terminated) == (1.0, True)
        assert info["reward_result"].components == {"passed": 1.0, "fraction": 1.0}
    finally:
        await env.aclose()


HOSTILE = {
    "prints PASS and ends the process": "import os\nprint('PASS', flush=True)\nos._exit(0)\n",
    "loops at import": "while True: pass\n",
    "patches assertions": "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n",
}


async def test_tricks_get_nothing() -> None:
    for trick, text in HOSTILE.items():
        (report,) = (await reports_of({"life": text}, timeout_s=2.0)).values()
        assert report.fraction == 0.0, trick


@pytest.mark.parametrize("reply", ["", "def first_index(items, wanted): ...", "PASS", "\0\ud800"])
async def test_talk_is_not_paid(reply: str) -> None:
    env = Coding(split="test")
    try:
        await env.areset(options={"task": "csv_line"})
        _, reward, terminated, _, info = await env.astep(reply)
        assert (reward, terminated, info["reward_result"].status) == (0.0, True, "ok")
    finally:
        await env.aclose()


def test_gymnasium_finds_nothing_to_say() -> None:
    with gymnasium.make("vime_agents/Coding-v0") as env:
        check_env(env.unwrapped)
