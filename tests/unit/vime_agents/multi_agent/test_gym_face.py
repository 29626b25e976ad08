"""One agent of a game as a Gymnasium env: the others play inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from tests.unit.vime_agents.multi_agent.games import LastOneOut, Nim
from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError, EngineError, ModelError, UnknownIdError
from vime_agents.messages import assistant
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Conversation, Generation, Sampling
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.task import Task
from vime_envs.games.tic_tac_toe import TicTacToe


class Says:
    """A policy that replies what a function returns."""

    name, exact_tokens = "says", False

    def __init__(self, function: Callable[[Conversation], str]) -> None:
        self.function = function
        self.seen: list[str] = []

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        self.seen += [m["content"] for m in conversation.take_new()]
        return Generation(message=assistant(self.function(conversation)), finish_reason="stop")

    async def aclose(self) -> None:
        """Nothing to release."""


def test_the_others_play_until_it_is_ones_turn() -> None:
    opponent = Says(lambda c: "2")
    env = Nim().as_gym("second", opponent)
    observation, _ = env.reset(seed=0)
    assert [m["content"] for m in observation["messages"]] == ["3 sticks are left. Take 1 or 2."]
    _, reward, terminated, truncated, info = env.step("1")
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert info["reward_result"].value == -1.0
    assert (info["outcome"].stop, info["stop"]) == ("done", "done")
    assert opponent.seen == ["5 sticks are left. Take 1 or 2.", "2 sticks are left. Take 1 or 2."]
    env.close()


def test_an_illegal_move_is_asked_again_and_the_forfeit_is_named() -> None:
    env = Nim().as_gym("first", Says(lambda c: "1"))
    env.reset(seed=0)
    observation, reward, terminated, _, _ = env.step("no")
    assert "not a legal move" in observation["messages"][0]["content"]
    assert (reward, terminated) == (0.0, False)
    _, reward, terminated, _, info = env.step("no")
    assert (reward, terminated, info["stop"]) == (-1.0, True, "illegal_move")


def test_those_who_act_at_once_are_asked_at_once_and_being_out_is_the_end() -> None:
    env = LastOneOut().as_gym("a", {"b": Says(lambda c: "5"), "player": Says(lambda c: "6")})
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("1")
    assert [m["content"] for m in observation["messages"]] == ["You are out."]
    assert (reward, terminated, info["stop"]) == (0.0, True, "out")
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step("6")
    assert (reward, terminated) == (0.5, False)
    _, reward, terminated, _, info = env.step("7")
    assert (reward, terminated) == (2.0, True)
    assert info["reward_result"].value == 2.5


def test_a_game_that_is_over_before_ones_turn_ends_with_any_reply() -> None:
    env = Nim().as_gym("second", Says(lambda c: "nothing"))
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("1")
    assert (reward, terminated, info["stop"]) == (1.0, True, "done")


def test_an_opponent_whose_model_fails_has_lost_and_one_whose_engine_fails_ends_the_episode() -> None:
    def fails(error: Exception) -> Callable[[Conversation], str]:
        def act(conversation: Conversation) -> str:
            raise error

        return act

    env = Nim().as_gym("first", Says(fails(ModelError("empty"))))
    env.reset(seed=0)
    assert env.step("1")[1:3] == (1.0, True)
    env = Nim().as_gym("first", Says(fails(EngineError("502"))))
    env.reset(seed=0)
    with pytest.raises(EngineError, match="502"):
        env.step("1")


def test_the_limit_of_the_game_truncates() -> None:
    class Short(Nim):
        max_turns = 3

        def standing(self) -> dict[str, float]:
            return {"first": 0.5, "second": -0.5}

    env = Short().as_gym("first", Says(lambda c: "1"))
    env.reset(seed=0)
    env.step("1")
    _, reward, terminated, truncated, info = env.step("1")
    assert (reward, terminated, truncated, info["stop"]) == (0.5, False, True, "max_turns")


def test_gymnasium_finds_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for agent in ("X", "O"):
            env = TicTacToe().as_gym(agent, ScriptedPolicy("random"))
            assert isinstance(env, AgentEnv)
            check_env(env, skip_render_check=True)  # it would make others, by a spec
            env.close()


async def test_it_is_played_by_the_runner_and_is_the_same_for_the_same_seed() -> None:
    async def episodes(limits: Limits | None = None) -> list[Any]:
        runner = Runner(
            lambda: TicTacToe().as_gym("O", ScriptedPolicy("random")),
            Says(lambda c: "046258137"[c.turn]),
            env_id="test",
            limits=limits,
        )
        requests = [
            EpisodeRequest(task=Task(id=f"t{i}", inputs={}), group_id="g", episode_id=f"e{i}", seed=i)
            for i in range(12)
        ]
        found = {e.id: e async for e in runner.run(requests)}
        return [found[r.episode_id] for r in requests]

    first, again = await episodes(), await episodes()
    assert {e.status for e in first} == {"ok"}
    assert [e.reward for e in first] == [e.reward for e in again]
    said = [[m["content"] for t in e.trajectories[0].turns for m in t.messages] for e in first]
    assert said == [[m["content"] for t in e.trajectories[0].turns for m in t.messages] for e in again]
    assert len({tuple(s) for s in said}) > 4
    cut = await episodes(Limits(max_turns=1))
    assert {e.reward for e in cut if e.status == "truncated"} == {None}


def test_a_stranger_is_named() -> None:
    opponent = Says(lambda c: "1")
    with pytest.raises(ConfigError, match="no agent 'third' in Nim"):
        Nim().as_gym("third", opponent)
    with pytest.raises(UnknownIdError, match="'thrid'"):
        LastOneOut().as_gym("a", {"thrid": opponent, "*": opponent})
    with pytest.raises(ConfigError, match="nobody plays 'c'"):
        LastOneOut().as_gym("a", {"b": opponent})
