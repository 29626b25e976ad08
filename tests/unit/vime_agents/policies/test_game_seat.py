"""gymnasium.make makes a seat of a game."""

from __future__ import annotations

import warnings

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from vime_agents.errors import ConfigError
from vime_agents.policies.scripted import ScriptedPolicy


def test_every_seat_of_every_game_is_a_gymnasium_env_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for game, agents in (("TicTacToe", ("X", "O")), ("KuhnPoker", ("first", "second"))):
            for agent in agents:
                env = gymnasium.make(f"vime_agents/{game}-v0", agent=agent)
                check_env(env.unwrapped)
                env.close()


def test_opponents_are_named_or_given_and_the_first_seat_is_the_usual_one() -> None:
    for opponents in ("scripted:gold", "gold", ScriptedPolicy("gold")):
        env = gymnasium.make("vime_agents/TicTacToe-v0", opponents=opponents)
        observation, _ = env.reset(seed=0)
        assert "You play X" in observation["messages"][0]["content"]
        observation, *_ = env.step("0")
        # The answer to a corner that does not lose is the centre.
        assert observation["messages"][0]["content"].splitlines()[2] == "3 O 5"
        env.close()
    with pytest.raises(ConfigError, match="scripted:gold"):
        gymnasium.make("vime_agents/TicTacToe-v0", opponents="best")
    with pytest.raises(ConfigError, match="no agent 'Z'"):
        gymnasium.make("vime_agents/TicTacToe-v0", agent="Z")


def test_its_spec_survives_json() -> None:
    spec = gymnasium.spec("vime_agents/TicTacToe-v0")
    env = gymnasium.make(EnvSpec.from_json(spec.to_json()), agent="O", opponents="scripted:wrong")
    _, info = env.reset(seed=0)
    assert info["task_id"]
    env.close()
