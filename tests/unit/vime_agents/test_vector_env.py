"""The vector env against Gymnasium's own, and what it does beyond: waiting at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import vime_agents as vime
from vime_agents import messages as msg
from vime_agents.errors import ConfigError, EnvError
from vime_agents.vector_env import AgentVectorEnv


class Count(vime.AgentEnv):
    """Counts down from a number of its task; the last reply is right or wrong."""

    max_turns = 4

    def make_task(self, rng: np.random.Generator) -> dict[str, int]:
        return {"start": int(rng.integers(1, 6))}

    def prompt(self) -> str:
        self.left = self.task["start"]
        return f"{self.left} left"

    def respond(self, message: msg.Message) -> list[msg.Message] | None:
        self.left -= 1
        self.give(0.125)
        if message["content"] == "fail":
            raise ValueError("as asked")
        return [msg.user(f"{self.left} left")] if self.left else None

    def max_tokens(self) -> int | None:
        return self.left if self.left % 2 else None

    def score(self, text: str) -> float:
        return 0.25 * (text == "right")


class AsyncCount(Count):
    """The same on the background loop."""

    async def prompt(self) -> str:  # type: ignore[override]
        return super().prompt()


class WithTool(vime.ToolEnv):
    """One tool; a reply without a call is the last."""

    max_turns = 3

    def make_task(self, rng: np.random.Generator) -> dict[str, int]:
        return {"n": int(rng.integers(100))}

    def prompt(self) -> str:
        return f"Add 1 to {self.task['n']}."

    @vime.tool
    def add(self, n: int) -> str:
        """Add one.

        Args:
            n: to this.
        """
        return str(n + 1)

    def score(self, text: str) -> float:
        return float(text == "right")


CALL = msg.assistant("", [msg.tool_call("add", {"n": 1}, "1")])
ENVS = (Count, AsyncCount, WithTool)


def pair(env: type[vime.AgentEnv], mode: AutoresetMode, steps: int | None) -> tuple[Any, Any]:
    makers: list[Any] = [env if steps is None else lambda: TimeLimit(env(), steps or 0)] * 3
    theirs = SyncVectorEnv(makers, autoreset_mode=mode)
    return theirs, AgentVectorEnv([env() for _ in range(3)], autoreset_mode=mode, max_episode_steps=steps)


def equal(one: Any, other: Any) -> None:
    """Types, shapes and values, down to what is in arrays of objects."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            equal(a, b)
    elif isinstance(one, np.ndarray):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        equal(one.tolist(), other.tolist())
    else:
        assert one == other


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env", ENVS)
def test_it_gives_what_gymnasiums_own_gives(
    env: type[vime.AgentEnv], mode: AutoresetMode, steps: int | None
) -> None:
    theirs, ours = pair(env, mode, steps)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert ours.metadata == theirs.metadata
    rng = np.random.default_rng(0)
    equal(theirs.reset(seed=5), ours.reset(seed=5))
    for _ in range(12):
        words = rng.choice(["right", "wrong", "call"], 3)
        actions = tuple(CALL if word == "call" and env is WithTool else str(word) for word in words)
        step = theirs.step(actions)
        equal(step, ours.step(actions))
        ended = step[2] | step[3]
        if mode == AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended}
            equal(theirs.reset(options=dict(options)), ours.reset(options=options))
    equal(theirs.reset(seed=[1, None, 3]), ours.reset(seed=[1, None, 3]))
    assert ours.get_attr("max_turns") == theirs.get_attr("max_turns")
    theirs.close()
    ours.close()


class Together(WithTool):
    """Its tool waits until the tools of three envs run."""

    barrier: asyncio.Barrier

    @vime.tool
    async def add(self, n: int) -> str:
        """Wait for the others.

        Args:
            n: nothing.
        """
        async with asyncio.timeout(20):
            await self.barrier.wait()
        return str(n)


def test_envs_that_wait_do_so_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "barrier", asyncio.Barrier(3), raising=False)
    envs = AgentVectorEnv([Together() for _ in range(3)])
    envs.reset(seed=0)
    observations, *_ = envs.step((CALL,) * 3)
    assert [messages[0]["content"] for messages in observations["messages"]] == ["1"] * 3
    envs.close()


@pytest.mark.parametrize("env", [Count, AsyncCount])
def test_an_env_that_fails_raises_and_all_go_on_after_a_reset(env: type[vime.AgentEnv]) -> None:
    envs = AgentVectorEnv([env() for _ in range(3)])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="as asked"):
        envs.step(("x", "fail", "x"))
    again = AgentVectorEnv([env() for _ in range(3)])
    equal(envs.reset(seed=1), again.reset(seed=1))
    equal(envs.step(("x",) * 3), again.step(("x",) * 3))
    envs.close()
    again.close()


def test_what_was_returned_does_not_change_by_a_reset_of_others() -> None:
    envs = AgentVectorEnv([Count() for _ in range(2)], autoreset_mode=AutoresetMode.DISABLED)
    before, _ = envs.reset(seed=0)
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    after["messages"][1][0]["content"] = "changed"
    assert before["messages"][1][0]["content"] != "changed"
    envs.close()


def test_a_registered_id_has_one_and_its_spec_goes_through_json() -> None:
    spec = EnvSpec.from_json(gymnasium.spec("vime_agents/Calculator-v0").to_json())
    envs = gymnasium.make_vec(spec, num_envs=2, max_episode_steps=1, task_seed=7)
    assert isinstance(envs, AgentVectorEnv)
    assert envs.get_attr("task_seed") == (7, 7)
    envs.reset(seed=0)
    call = msg.assistant("", [msg.tool_call("python", {"code": "1"}, "1")])
    assert envs.step((call, call))[3].tolist() == [True, True]
    envs.close()
    own = gymnasium.make_vec("vime_agents/Calculator-v0", num_envs=2, vectorization_mode="sync")
    assert type(own) is SyncVectorEnv
    own.close()


def test_a_seat_of_a_game_has_one_too() -> None:
    envs = gymnasium.make_vec("vime_agents/TicTacToe-v0", num_envs=2, agent="O")
    assert isinstance(envs, AgentVectorEnv)
    observations, _ = envs.reset(seed=0)
    assert all("O" in messages[0]["content"] for messages in observations["messages"])
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env", [Count, AsyncCount])
def test_gymnasiums_statistics_are_those_of_the_episodes(
    env: type[vime.AgentEnv], mode: AutoresetMode
) -> None:
    bare = AgentVectorEnv([env() for _ in range(3)], autoreset_mode=mode)
    envs = RecordEpisodeStatistics(bare)
    envs.reset(seed=2)
    ended, num_turns, num_ended = np.zeros(3, np.bool_), 0, 0
    for _ in range(20):
        num_turns += int(np.sum(~ended)) if mode == AutoresetMode.NEXT_STEP else 3
        _, _, terminated, truncated, _ = envs.step(("right",) * 3)
        ended = terminated | truncated
        num_ended += int(ended.sum())
        if mode == AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    pairs = list(zip(envs.return_queue, envs.length_queue, strict=True))
    assert len(pairs) == num_ended > 10
    # 0.125 for each turn and 0.25 for the last reply.
    assert all(earned == 0.125 * length + 0.25 for earned, length in pairs)
    turns = np.array(bare.get_attr("turn"))
    unfinished = turns[~ended].sum() if mode == AutoresetMode.NEXT_STEP else turns.sum()
    assert sum(length for _, length in pairs) + unfinished == num_turns
    envs.close()


def test_what_it_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="one or more AgentEnvs, got \\[\\]"):
        AgentVectorEnv([])
    with pytest.raises(ConfigError, match="one or more AgentEnvs"):
        AgentVectorEnv([gymnasium.make("CartPole-v1")])  # type: ignore[list-item]
    envs = AgentVectorEnv([Count(), Count()], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="3 of them for 2 envs"):
        envs.reset(seed=[1, 2, 3])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="1 of them for 2 envs"):
        envs.step(("x",))
    for one in ("xx", msg.assistant("x")):
        with pytest.raises(ValueError, match="one for each of 2 envs, in a list"):
            envs.step(one)  # type: ignore[arg-type]
    for mask in ([True, False], np.array([1, 0]), np.array([True])):
        with pytest.raises(ValueError, match="bool array of shape \\(2,\\)"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="chooses no env"):
        envs.reset(options={"reset_mask": np.zeros(2, np.bool_)})
    for _ in range(4):
        _, _, terminated, truncated, _ = envs.step(("x", "x"))
        if (terminated | truncated).any():
            break
    with pytest.raises(ValueError, match="have ended"):
        envs.step(("x", "x"))
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="was closed"):
        envs.reset(seed=0)
    with pytest.raises(ClosedEnvironmentError, match="was closed"):
        envs.step(("x", "x"))
    with pytest.raises(AttributeError, match="Nothing-v0"):
        __import__("vime_agents.vector_env", fromlist=["x"]).__getattr__("Nothing-v0")
