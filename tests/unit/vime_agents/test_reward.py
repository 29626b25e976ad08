from __future__ import annotations

import functools
import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.vime_agents import reward_graders
from vime_agents.env import AgentEnv
from vime_agents.episode import RewardResult
from vime_agents.errors import ConfigError, ContractError, GraderError, GraderTimeout, Unscorable
from vime_agents.reward import Reward, reward, reward_from_score

UNIT = (0.0, 1.0)


@pytest.mark.parametrize(
    ("score", "value"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(1), 1.0),
        (np.bool_(True), 1.0),
    ],
)
def test_a_number_is_the_reward(score, value: float) -> None:
    result = reward_from_score(score, UNIT)
    assert (result.value, type(result.value)) == (value, float)
    assert (result.components, result.weights, result.status) == ({"score": value}, {"score": 1.0}, "ok")


def test_components_are_weighed_and_weight_zero_is_a_metric() -> None:
    result = reward_from_score({"right": 1.0, "short": (0.5, 0.2), "turns": (37, 0)}, (0.0, 2.0))
    assert result.value == pytest.approx(1.1)
    assert result.components == {"right": 1.0, "short": 0.5, "turns": 37.0}
    assert result.weights == {"right": 1.0, "short": 0.2, "turns": 0.0}


parts = st.floats(-100, 100, width=32)


@given(st.dictionaries(st.text(max_size=3), st.tuples(parts, parts), max_size=6))
def test_the_value_is_the_exact_weighted_sum(components: dict) -> None:
    exact = sum((Fraction(v) * Fraction(w) for v, w in components.values()), Fraction(0))
    result = reward_from_score(components, (-math.inf, math.inf))
    assert result.value == pytest.approx(float(exact), rel=1e-12, abs=1e-9)


def test_a_result_passes_as_it_is() -> None:
    unscorable = RewardResult(value=None, status="unscorable", detail="no answer key")
    assert reward_from_score(unscorable, UNIT) is unscorable


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (None, "score must be a finite number, got None"),
        ("1.0", "score must be a finite number, got '1.0'"),
        (1j, "must be a finite number"),
        (float("nan"), "must be a finite number"),
        (float("inf"), "must be a finite number"),
        (np.array([1.0]), "must be a finite number"),
        ({"a": None}, "a must be a finite number"),
        ({"a": (1.0, float("nan"))}, "a weight must be a finite number"),
        ({"a": (1.0, 0.5, 2)}, r"a must be a number or \(value, weight\)"),
        (1.01, r"reward 1\.01 is outside the declared range \[0\.0, 1\.0\]"),
        (-0.01, "outside the declared range"),
        ({"a": 1.0, "b": 1.0}, "outside the declared range"),
        (RewardResult(value=2.0), "outside the declared range"),
    ],
)
def test_what_is_no_reward_is_the_graders_failure(score, message: str) -> None:
    with pytest.raises(GraderError, match=message):
        reward_from_score(score, UNIT)


def test_the_ends_of_the_range_are_inside() -> None:
    assert [reward_from_score(s, UNIT).value for s in UNIT] == [0.0, 1.0]


# ----------------------------------------------------------------------------------------- components


class Words(AgentEnv):
    reward_range = (0.0, 2.0)

    def tasks(self):
        return [{"q": "say yes", "answer": "yes", "turn": "of the task"}]

    def prompt(self):
        return self.task["q"]

    def gold(self):
        return self.task["answer"]


def played(cls: type[AgentEnv], text: str = "yes") -> RewardResult:
    env = cls()
    env.reset(seed=0)
    _, value, terminated, _, info = env.step(text)
    assert terminated
    result = info["reward_result"]
    assert value == (0.0 if result.value is None else result.value)
    env.close()
    return result


def test_components_get_what_their_parameters_name() -> None:
    seen = {}

    class Env(Words):
        @reward
        def right(self, text, answer) -> bool:
            seen["self"] = (type(self), self.task_id)
            return text == answer

        @reward(weight=0.5)
        async def brief(self, messages, task, count, limit=10) -> float:
            seen["brief"] = ([m["content"] for m in messages], dict(task), limit)
            count("asked")
            return 0.5

        @reward(weight=0, name="num_turns", range=(0, 99))
        def turns(turn, env, counters, task_id) -> int:
            seen["turns"] = (turn, type(env), counters, task_id)
            return turn

    result = played(Env)
    assert result == RewardResult(
        value=1.25,
        components={"right": 1.0, "brief": 0.5, "num_turns": 1.0},
        weights={"right": 1.0, "brief": 0.5, "num_turns": 0.0},
    )
    env_id = seen["self"][1]
    assert seen["self"] == (Env, env_id)
    assert seen["brief"] == (["say yes", "yes"], {"q": "say yes", "answer": "yes", "turn": "of the task"}, 10)
    assert seen["turns"] == (1, Env, {}, env_id)


def test_a_subclass_may_replace_a_component() -> None:
    class Base(Words):
        @reward
        def right(self) -> float:
            return 1.0

        @reward
        def other(self) -> float:
            return 0.25

    class Changed(Base):
        @reward(weight=2)
        def right(self) -> float:
            return 0.5

    assert played(Changed).components == {"right": 0.5, "other": 0.25}
    assert Base.right(None) == 1.0


class Process(Words):
    right = reward_graders.exact
    where = reward_graders.pid


@pytest.mark.parametrize(("text", "value"), [("yes", 1.0), ("no", 0.0)])
def test_components_may_run_in_processes_of_their_own(text: str, value: float) -> None:
    result = played(Process, text)
    assert result.value == value
    assert result.components["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("component", "error", "message"),
    [
        (reward_graders.hangs, GraderTimeout, r"hangs: no answer within 0\.2 s"),
        (
            reward(
                lambda: 2.0,
            ),
            GraderError,
            r"<lambda> is 2\.0, outside its declared range \[0\.0, 1\.0\]",
        ),
        (reward(lambda: None), GraderError, "<lambda> must be a finite number, got None"),
        (reward(lambda: 1 / 0), GraderError, r"<lambda>: ZeroDivisionError\('division by zero'\)"),
        (reward(lambda anser: 0), ContractError, r"asks for 'anser'; .*; did you mean 'answer'\?"),
    ],
)
async def test_a_component_that_fails_is_the_episodes_failure_and_no_zero(
    component: Reward, error: type, message: str
) -> None:
    env = type("Env", (Words,), {"bad": component, "good": reward(lambda self: 1.0, name="good")})()
    await env.areset(seed=0)
    with pytest.raises(error, match=message):
        await env.astep("yes")
    with pytest.raises(ContractError, match="after the episode ended"):
        await env.astep("yes")


def test_what_nobody_can_score_is_unscorable_and_no_zero() -> None:
    class Env(Words):
        right = reward(lambda: 1.0, name="right")
        key = reward_graders.no_key

    assert played(Env) == RewardResult(value=None, status="unscorable", detail="no_key: no key")

    class Own(Words):
        def score(self, text):
            raise Unscorable("no answer key")

    assert played(Own) == RewardResult(value=None, status="unscorable", detail="no answer key")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: reward(process=True)(lambda self: 1), ContractError, "cannot have 'self' there"),
        (lambda: reward(process=True)(lambda env: 1), ContractError, "cannot have 'env' there"),
        (lambda: reward(lambda *text: 1), ContractError, "parameters are given by name"),
        (lambda: reward(lambda **text: 1), ContractError, "parameters are given by name"),
        (lambda: reward(weight=math.nan)(lambda: 1), ConfigError, "the weight must be finite"),
        (lambda: reward(range=(1, 0))(lambda: 1), ConfigError, r"range must be \(low, high\)"),
        (lambda: reward(functools.partial(int, 1)), ConfigError, "needs a `name`"),
    ],
)
def test_components_that_cannot_work_are_refused_where_they_are_defined(make, error, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


async def test_two_components_of_one_name_are_refused() -> None:
    env = type("Env", (Words,), {"a": reward(lambda: 1, name="x"), "b": reward(lambda: 1, name="x")})()
    await env.areset(seed=0)
    with pytest.raises(ContractError, match="two rewards have the same name"):
        await env.astep("yes")


# ----------------------------------------------------------------------------------------------- steps


class Steps(Words):
    reward_range = (-1.0, 2.0)
    max_turns = 3

    async def respond(self, message):
        if message["content"] == "bad":
            self.give(math.nan)
        if message["content"].isdecimal():
            self.give(int(message["content"]) / 10)
            self.give(0.1)
        return None if message["content"] == "yes" else [{"role": "user", "content": "go on"}]

    def score(self, text):
        return {"right": float(text == "yes")}


@pytest.mark.parametrize(
    ("replies", "rewards", "components"),
    [
        (["2", "3", "yes"], [0.3, 0.4, 1.0], {"right": 1.0, "steps": 0.7}),
        (["2", "no", "3"], [0.3, 0.0, 0.4], {"right": 0.0, "steps": 0.7}),
        (["no", "yes"], [0.0, 1.0], {"right": 1.0}),
    ],
)
def test_rewards_of_steps_sum_to_the_episodes(replies: list, rewards: list, components: dict) -> None:
    env = Steps()
    for _ in range(2):  # the second episode starts from nothing
        env.reset(seed=0)
        steps = [env.step(reply) for reply in replies]
        assert [s[1] for s in steps] == pytest.approx(rewards)
        result = steps[-1][4]["reward_result"]
        assert result.components == pytest.approx(components)
        assert result.value == pytest.approx(sum(rewards))


async def test_a_steps_reward_is_a_finite_number_within_the_whole_range() -> None:
    env = Steps()
    await env.areset(seed=0)
    with pytest.raises(GraderError, match="a step's reward must be a finite number, got nan"):
        await env.astep("bad")
    await env.areset(seed=0)
    await env.astep("20")
    with pytest.raises(GraderError, match=r"reward 3\.1 is outside the declared range \[-1\.0, 2\.0\]"):
        await env.astep("yes")
    await env.areset(seed=0)
    await env.astep("4")
    assert (await env.score_partial()).components == {"right": 0.0, "steps": 0.5}
