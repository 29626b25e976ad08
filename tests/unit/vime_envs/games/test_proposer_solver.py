"""Proposer and solvers: rewards by role, problems checked, solvers compared inside one problem."""

from __future__ import annotations

import json

import pytest

from vime_agents.episode import Outcome
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_envs.games.proposer_solver import SOLVERS, ProposerSolver, evaluate, last_number, proposer_reward


def posed(problem: str = "17 * (23 - 4) % 7") -> ProposerSolver:
    env = ProposerSolver()
    env.reset(seed=0)
    env.step({"proposer": f"Here you are.\nPROBLEM: {problem}"})
    return env


def rewards(env: ProposerSolver) -> dict[str, float | None]:
    return {agent: result.value for agent, result in env.results.items()}


@pytest.mark.parametrize(
    ("right", "expected"),
    [([1.0] * 4, 0.0), ([0.0] * 4, 0.0), ([1.0, 0, 0, 0], 0.75), ([1.0, 1.0, 1.0, 0], 0.25)],
)
def test_the_proposer_gains_by_problems_that_some_get_wrong(right: list[float], expected: float) -> None:
    assert proposer_reward(right) == expected


def test_solvers_answer_at_once_and_each_is_scored_for_itself() -> None:
    env = posed()  # 17 * 19 = 323 = 46 * 7 + 1
    assert env.acting == SOLVERS
    env.step({"solver_0": "It is 1", "solver_1": "1.0", "solver_2": "322 % 7 = 0", "solver_3": "no idea"})
    assert rewards(env) == {"solver_0": 1, "solver_1": 1, "solver_2": 0, "solver_3": 0, "proposer": 0.5}
    assert all("idea" not in json.dumps(env.messages[a]) for a in SOLVERS[:3])


@pytest.mark.parametrize(
    ("problem", "value"),
    [("1 + 1", 2), ("7 // -2", -4), ("-7 % 3", 2), ("2*(3-(4+5))", -12), ("999999 * 999999", 999998000001)],
)
def test_the_answer_is_pythons(problem: str, value: int) -> None:
    assert evaluate(problem) == value == eval(problem)


@pytest.mark.parametrize(
    "problem",
    ["", "2 ** 9", "1 / 2", "1.5 + 1", "5 // 0", "1 +", "x + 1", "__import__('os')", "99999999 * 99999999",
     "(" * 90, "1 2", "007", "\x00", "\ud800", "１ + 1", "1 + 1" + " + 1" * 40],
)  # fmt: skip
def test_a_problem_that_cannot_be_checked_costs_the_proposer_alone(problem: str) -> None:
    env = posed(problem)
    assert env.acting == ()
    assert rewards(env) == {"proposer": 0.0, **dict.fromkeys(SOLVERS)}
    assert env.results["solver_0"].status == "unscorable"
    assert env.counters == {"bad_problems": 1}


@pytest.mark.parametrize("reply", ["", "1 + 1", "\x00", "PROBLEM", "x" * 100_000, "9" * 100_000])
def test_a_reply_without_a_problem_is_one_that_cannot_be_checked(reply: str) -> None:
    env = ProposerSolver()
    env.reset(seed=0)
    env.step({"proposer": reply})
    assert rewards(env)["proposer"] == 0.0


def test_a_solver_whose_model_failed_counts_for_nothing_and_one_whose_context_is_full_is_wrong() -> None:
    env = posed()
    failed = Outcome(kind="failed", stop="error", cause="model", detail="broken")
    full = Outcome(kind="truncated", stop="context_length")
    env.step({"solver_0": "1", "solver_1": failed, "solver_2": full, "solver_3": "1"})
    found = rewards(env)
    assert found["proposer"] == pytest.approx(1 / 3)
    assert {s: found[s] for s in SOLVERS} == {"solver_0": 1, "solver_1": None, "solver_2": 0, "solver_3": 1}
    assert env.outcomes["solver_2"].stop == "context_length"
    env = posed()
    env.step(dict.fromkeys(SOLVERS, failed))
    assert set(rewards(env).values()) == {None}


def test_numbers_are_read_as_people_write_them() -> None:
    assert last_number("So 1,234,567") == 1234567
    assert last_number("from 3 to -4.") == -4
    assert last_number("9" * 100_000) is None
    assert last_number("version v2") is None


async def test_the_record_says_that_solvers_are_peers_and_the_proposer_is_not() -> None:
    runner = Runner(ProposerSolver, ScriptedPolicy("gold"), env_id="ProposerSolver-v0")
    task = ProposerSolver().task_set()[0]
    episode = await runner.play(EpisodeRequest(task=task, group_id="g", episode_id="e", seed=0))
    assert {t.agent: t.peers for t in episode.trajectories} == {
        "proposer": "",
        **dict.fromkeys(SOLVERS, "solver"),
    }
    assert {t.agent: t.reward.value for t in episode.trajectories} == {
        "proposer": 0.0,  # all are right: too easy
        **dict.fromkeys(SOLVERS, 1.0),
    }
