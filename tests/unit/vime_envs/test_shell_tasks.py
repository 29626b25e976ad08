"""ShellTasks: gold reaches every goal in a real sandbox; undone, half done and hostile work does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents  # noqa: F401 - registers the ids
from vime_agents.messages import assistant, tool_call
from vime_envs.shell_tasks import ShellTasks


@pytest.fixture
async def env() -> AsyncIterator[ShellTasks]:
    made = ShellTasks(split="test")
    yield made
    await made.aclose()


def index_of(env: ShellTasks, beginning: str) -> int:
    tasks = env.task_set()
    return next(i for i in range(200) if tasks[i].inputs["prompt"].startswith(beginning))


async def play(env: ShellTasks, task: int, *commands: str) -> float:
    await env.areset(options={"task": task})
    for command in commands:
        await env.astep(assistant("", [tool_call("bash", {"command": command}, "1")]))
    _, reward, terminated, _, info = await env.astep("Done.")
    assert terminated
    assert info["reward_result"].ok
    return reward


TEMPLATES = (
    "Move each",
    "Rename each",
    "Write to found.txt",
    "Delete,",
    "Make the files",
    "In all *.conf",
    "Make a symbolic",
    "The lines of sales",
)


@pytest.mark.parametrize("beginning", TEMPLATES)
async def test_the_goal_is_reached_by_gold_and_not_by_nothing(env: ShellTasks, beginning: str) -> None:
    task = index_of(env, beginning)
    inputs = env.task_set()[task].inputs
    assert await play(env, task, inputs["command"]) == 1.0
    assert await play(env, task) == 0.0
    assert await play(env, task, inputs["command"], "touch another") == 0.0


def test_there_are_all_templates_and_splits_share_nothing() -> None:
    prompts = [ShellTasks(split="train").task_set()[i].inputs["prompt"] for i in range(100)]
    assert all(any(p.startswith(beginning) for p in prompts) for beginning in TEMPLATES)
    files = [
        {str(ShellTasks(split=split).task_set()[i].inputs["files"]) for i in range(200)}
        for split in ("train", "test")
    ]
    assert not files[0] & files[1]


def test_goals_say_what_the_prompts_ask_for() -> None:
    tasks = ShellTasks(split="train").task_set()
    for inputs in (tasks[i].inputs for i in range(150)):
        prompt, files, goal = inputs["prompt"], inputs["files"], inputs["goal"]
        texts = {path: kind.partition(" ")[2] for path, kind in goal.items() if kind.startswith("file ")}
        if prompt.startswith("Rename each"):
            assert sorted(texts.values()) == sorted(files.values())
            assert all(path == path.lower() and " " not in path for path in goal)
        elif prompt.startswith("The lines of sales"):
            lines = [line.split(",") for path in files for line in files[path].splitlines()]
            sums = [line.split(",") for line in texts["totals.csv"].splitlines()]
            assert {thing: int(n) for thing, n in sums} == {
                thing: sum(int(n) for name, n in lines if name == thing) for thing, _ in lines
            }
            assert sums == sorted(sums)
        elif prompt.startswith("Make a symbolic"):
            versions = [tuple(map(int, path.split("/")[0][1:].split("."))) for path in files]
            assert goal["current"] == "link v" + ".".join(map(str, max(versions)))
        elif prompt.startswith("Delete,"):
            gone = files.keys() - texts.keys()
            assert all(path.endswith((".tmp", "~")) or not files[path] for path in gone)
            assert not any(path.endswith((".tmp", "~")) or not text for path, text in texts.items())


@pytest.mark.parametrize(
    "work",
    [
        "mkdir txt csv md; mv *.txt txt; mv *.csv csv; mv *.md md; mkfifo pipe",
        "rm -rf -- * .[!.]*",
        "cd / && rm -rf /work",
        "head -c 4000000 /dev/zero > big",
        "ln -s / root",
        "mkdir locked && chmod 0 locked",
        "touch \"$(printf 'bad\\377name')\"",
        "tar() { echo; }; export -f tar; alias tar=true; mkdir -p bin; printf '#!/bin/sh\\n' > bin/tar; "
        "PATH=$PWD/bin",
        "(while :; do touch a$RANDOM; done) &",
    ],
)
async def test_hostile_work_gets_nothing(env: ShellTasks, work: str) -> None:
    assert await play(env, index_of(env, "Move each"), work) == 0.0


@pytest.mark.parametrize(
    ("beginning", "command"),
    [
        ("Make the files", "chmod -R a+x bin"),
        ("Make a symbolic", "ln -s $(ls -d v* | sort -V | head -n 1) current"),
        ("Make a symbolic", "cp -r $(ls -d v* | sort -V | tail -n 1) current"),
        ("Write to found.txt", "cat *.log > found.txt"),
        ("In all *.conf", "sed -i 's/host=.*/host=x/' *.conf"),
        ("Delete,", "find . -empty -delete; find . -name '*.tmp' -delete"),
    ],
)
async def test_half_right_is_wrong(env: ShellTasks, beginning: str, command: str) -> None:
    assert await play(env, index_of(env, beginning), command) == 0.0


@pytest.mark.parametrize("reply", ["", "Done.", "\0\ud800", "x" * 100_000])
async def test_talk_is_not_paid(env: ShellTasks, reply: str) -> None:
    await env.areset(options={"task": 0})
    _, reward, terminated, _, info = await env.astep(reply)
    assert (reward, terminated, info["reward_result"].ok) == (0.0, True, True)


def test_gymnasium_finds_nothing_to_say() -> None:
    with gymnasium.make("vime_agents/ShellTasks-v0") as env:
        check_env(env.unwrapped)
