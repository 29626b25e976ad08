"""A folder is scored again into a new one; the old one stays as it is."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest

from vime_agents.cli import main
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError
from vime_agents.evaluation.compare import compare
from vime_agents.evaluation.rescore import rescore
from vime_agents.evaluation.stand_in import Refused
from vime_agents.grading import default_pool
from vime_agents.storage.stored_evaluation import StoredEvaluation

SOURCE = '''
import rescored_graders as graders
import vime_agents as vime
from vime_agents.grading import GraderLimits
from vime_agents.reward import GroupReward, reward


class Words(vime.AgentEnv):
    """Say the word."""

    reward_range = (-10, 10)
    mended = False
    answers = {"a": "ant", "b": "bee", "c": "cat", "d": "dog"}

    def tasks(self):
        return [{"id": key, "answer": answer} for key, answer in self.answers.items()]

    def prompt(self):
        return f"Say {self.task_id}."

    def gold(self):
        return f"It is {self.task['answer']}."

    def score(self, text):
        if not self.mended and self.task_id == "b":
            raise ValueError("a bug in the grader")
        if not self.mended and self.task_id == "c":
            raise vime.EnvFault("not the grader's fault")
        return {"right": float(f" {self.task['answer']}" in text), "length": (len(text), 0.0)}


class Mended(Words):
    mended = True

    def score(self, text):
        self.count("graded")
        return super().score(text) | {"exact": (float(text == self.task["answer"]), 2.0)}


class OtherAnswers(Mended):
    answers = {"a": "ape", "b": "bee", "c": "cat", "d": "dog"}


class MoreBefore(Mended):
    answers = {"0": "none", "1": "one", "2": "two", "3": "three", **Words.answers}


class WithoutOne(Mended):
    answers = {key: answer for key, answer in Words.answers.items() if key != "d"}


class InAProcess(Words):
    score = vime.AgentEnv.score
    right = reward(process=GraderLimits(timeout_s=0.5))(graders.says_or_loops)


class Failing(Words):
    def score(self, text):
        raise ValueError("another bug")


class Boxed(vime.AgentEnv):
    tasks, prompt, answers = Words.tasks, Words.prompt, Words.answers

    @reward
    def right(self, text, answer):
        return answer in text

    @reward
    async def tests(self):
        return await self.sandbox()


class Longest(Words):
    """Its episodes of a task are compared."""

    mended = True
    group_rewards = (GroupReward(function=lambda episodes: [0.5 for _ in episodes], name="even"),)


class LongestNow(Longest):
    group_rewards = (GroupReward(function=lambda episodes: [0.25 for _ in episodes], name="even"),)
'''

GRADERS = """
def says_or_loops(text, answer, task_id):
    while task_id == "d":
        pass
    return answer in text
"""


@pytest.fixture(autouse=True)
def rescored_envs(tmp_path, monkeypatch):
    """`rescored_envs:Words`, ..."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "rescored_envs.py").write_text(SOURCE)
    (tmp_path / "modules" / "rescored_graders.py").write_text(GRADERS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("rescored_envs")
    sys.modules.pop("rescored_envs", None)
    sys.modules.pop("rescored_graders", None)


@pytest.fixture
def folder(tmp_path) -> StoredEvaluation:
    return evaluated(tmp_path / "old", "Words")


def evaluated(path: Path, env: str, *flags: str) -> StoredEvaluation:
    """An evaluation of the four words by their gold replies."""
    main(
        [
            "eval",
            f"rescored_envs:{env}",
            "-m",
            "scripted:gold",
            *flags,
            "--max-retries",
            "0",
            "--out",
            str(path),
        ]
    )
    return StoredEvaluation.open(path)


def digest(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.iterdir())}


def by_task(folder: Path) -> dict[str, Episode]:
    return {episode.task_id: episode for episode in StoredEvaluation.open(folder).episodes()}


async def test_mended_graders_give_their_rewards_in_a_new_folder(folder, tmp_path):
    before = digest(folder.path)
    found = await rescore(folder, tmp_path / "new", env_id="rescored_envs:Mended", concurrency=3)
    assert digest(folder.path) == before
    assert (found.num_rescored, found.num_changed) == (3, 1)
    assert found.left == {"failed, and not in their grading": 1}
    assert (found.old.mean, found.old.n_scored, found.new.mean, found.new.n_scored) == (1.0, 2, 1.0, 3)
    (change,) = found.changes  # of the grading that failed; the other rewards were right before
    assert (change.task_id, change.old, change.new) == ("b", None, 1.0)
    assert change.components == {"right": (None, 1.0), "length": (None, 10.0), "exact": (None, 0.0)}
    old, new = by_task(folder.path), by_task(tmp_path / "new")
    assert list(old) == list(new)
    assert (old["b"].status, new["b"].status) == ("error:grader", "ok")
    assert new["a"].trajectories[0].reward.weights == {"right": 1.0, "length": 0.0, "exact": 2.0}
    assert new["a"].metrics == {"close_failures": 0.0, "graded": 1}
    assert new["c"].outcome == old["c"].outcome
    report = json.loads((tmp_path / "new" / "report.json").read_text())
    assert (report["mean"], report["env_id"], report["n"]) == (1.0, "rescored_envs:Mended", 4)
    assert report["rescored_from"] == {
        "folder": str(folder.path),
        "env": "rescored_envs:Words",
        "kept": [],
        "tasks": "unchanged",
        "mean": 1.0,
    }
    compared = compare(folder, StoredEvaluation.open(tmp_path / "new"))
    assert (compared.reward.same, compared.unscored, compared.warnings) == (2, 2, ())


async def test_a_reward_that_changed_moves_the_last_turns_too(folder, tmp_path, rescored_envs, monkeypatch):
    monkeypatch.setattr(rescored_envs.Words, "score", lambda self, text: -float(len(text)) / 2)
    await rescore(folder, tmp_path / "new")
    (trajectory,) = by_task(tmp_path / "new")["a"].trajectories
    assert (trajectory.reward.value, trajectory.turns[-1].reward) == (-5.0, -5.0)  # "It is ant."


async def test_a_grader_that_fails_now_is_a_failure_and_no_zero(folder, tmp_path):
    found = await rescore(folder, tmp_path / "new", env_id="rescored_envs:Failing")
    assert (found.new.n_scored, found.new.errors) == (0, {"env": 1, "grader": 3})
    assert {change.new for change in found.changes} == {None}
    assert "another bug" in found.changes[0].detail


async def test_other_tasks_are_refused_until_it_is_said_which_to_take(folder, tmp_path):
    env_id = "rescored_envs:OtherAnswers"
    with pytest.raises(ConfigError, match=r"task 'a': answer 'ant' -> 'ape'\. Give --tasks present"):
        await rescore(folder, tmp_path / "new", env_id=env_id)
    stored = await rescore(folder, tmp_path / "stored", env_id=env_id, tasks_from="stored")
    assert (stored.new.mean, stored.other_tasks) == (1.0, ())
    present = await rescore(folder, tmp_path / "present", env_id=env_id, tasks_from="present")
    assert present.new.mean == pytest.approx(2 / 3)
    assert present.other_tasks == ("task 'a': answer 'ant' -> 'ape'",)
    # What was played is what was played: the two can be compared.
    assert compare(folder, StoredEvaluation.open(tmp_path / "present")).reward.worse == 1


async def test_tasks_are_found_by_their_ids_wherever_they_are_now(folder, tmp_path):
    found = await rescore(folder, tmp_path / "a", env_id="rescored_envs:MoreBefore", tasks_from="present")
    assert (found.num_rescored, found.new.mean, found.other_tasks) == (3, 1.0, ())
    env_id = "rescored_envs:WithoutOne"
    for tasks_from in ("present", None):
        with pytest.raises(ConfigError, match=r"1 of the tasks .*, 'd' the first .* Give --tasks stored"):
            await rescore(folder, tmp_path / "b", env_id=env_id, tasks_from=tasks_from)
    assert (await rescore(folder, tmp_path / "c", env_id=env_id, tasks_from="stored")).num_rescored == 3


async def test_graders_in_processes_are_killed_as_in_play(folder, tmp_path):
    default_pool().close()  # so that the graders' server finds this test's modules
    found = await rescore(folder, tmp_path / "new", env_id="rescored_envs:InAProcess")
    default_pool().close()
    assert (found.new.mean, found.new.n_scored) == (1.0, 2)
    assert by_task(tmp_path / "new")["d"].outcome.detail.startswith("GraderTimeout: rescored_graders.says_or")


async def test_a_refusal_leaves_nothing_behind(folder, tmp_path):
    names = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(Refused, match=r"^tests needs the episode's sandbox, of episode eval-"):
        await rescore(folder, tmp_path / "new", env_id="rescored_envs:Boxed")
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_comparisons_within_a_task_are_made_again(tmp_path):
    folder = evaluated(tmp_path / "old", "Longest", "-k", "2")
    found = asyncio.run(rescore(folder, tmp_path / "new", env_id="rescored_envs:LongestNow", concurrency=3))
    assert (found.old.mean, found.new.mean, found.num_changed) == (1.5, 1.25, 8)
    assert by_task(tmp_path / "new")["a"].trajectories[0].reward.components["even"] == 0.25


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"env_id": "TicTacToe-v0"}, "several agents"),
        (
            {"env_id": "rescored_envs:Boxed", "keep": ["test"]},
            r"right, tests; got 'test'. Did you mean 'tests'",
        ),
        ({"keep": ["right"]}, "has a `score`, and no components"),
        ({"env_id": "rescored_envs:Boxed", "keep": ["right", "tests"]}, "nothing would be scored again"),
        ({"env_id": "rescored_envs:Boxed", "keep": ["tests"]}, "no episode can be scored again: 3 without"),
        ({"out": "old"}, "is there already"),
    ],
)
async def test_what_makes_no_sense_is_refused(folder, tmp_path, kwargs, told):
    out = tmp_path / kwargs.pop("out", "new")
    with pytest.raises(ConfigError, match=told):
        await rescore(folder, out, **kwargs)


async def test_folders_of_an_older_release_say_what_they_lack(folder, tmp_path):
    lines = [json.loads(line) for line in (folder.path / "episodes.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("graded", None)
    (folder.path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="does not hold what its graders were given"):
        await rescore(folder, tmp_path / "new")
    (folder.path / "tasks.jsonl").unlink()
    with pytest.raises(ConfigError, match="does not hold the tasks"):
        await rescore(StoredEvaluation.open(folder.path), tmp_path / "new")
