"""PettingZoo's own games in one line: the same game as PettingZoo plays it, and no bad reply breaks it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")
import pettingzoo
from gymnasium import spaces

from vime_agents.episode import Outcome
from vime_agents.errors import ConfigError
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.multi_agent.pettingzoo_game import PettingZooGame, as_text, pettingzoo_game
from vime_agents.policies.scripted import ScriptedPolicy


class Race(pettingzoo.ParallelEnv):
    """Everybody steps by 0 to 2 at once; who reaches 3 is done, who has not after 3 steps is cut short."""

    metadata = {"name": "race"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["a", "b", "c"]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return SPACES[agent]

    def action_space(self, agent: str) -> Any:
        return ACTIONS[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.steps = list(self.possible_agents), 0
        self.at = dict.fromkeys(self.agents, 0)
        return {a: np.array([0]) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.steps += 1
        for agent, action in actions.items():
            self.at[agent] += int(action)
        here = self.agents
        done = {a: self.at[a] >= 3 for a in here}
        cut = {a: self.steps == 3 and not done[a] for a in here}
        self.agents = [a for a in here if not done[a] and not cut[a]]
        observations = {a: np.array([self.at[a]]) for a in here}
        return observations, {a: 0.25 * actions[a] for a in here}, done, cut, {a: {} for a in here}


SPACES = {a: spaces.Box(0, 9, (1,), np.int64) for a in "abc"}
ACTIONS = {a: spaces.Discrete(3) for a in "abc"}


@pytest.fixture(scope="module")
def tic_tac_toe() -> type[PettingZooGame]:
    return pettingzoo_game("classic/tictactoe-v3")


@pytest.fixture
def game(tic_tac_toe: type[PettingZooGame]) -> Iterator[PettingZooGame]:
    made = tic_tac_toe()
    yield made
    made.close()


def test_a_game_is_played_as_pettingzoo_plays_it(game: PettingZooGame) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        theirs = pettingzoo.make("aec", "classic/tictactoe-v3")
        theirs.reset(seed=0)
        observations, _ = game.reset(seed=seed)
        returns = dict.fromkeys(theirs.possible_agents, 0.0)
        for agent in theirs.agent_iter():
            observation, reward, terminated, truncated, _ = theirs.last()
            returns[agent] += reward
            if terminated or truncated:
                theirs.step(None)
                continue
            assert game.acting == (agent,)
            assert game.legal(agent) == [str(i) for i in np.flatnonzero(observation["action_mask"])]
            text = observations[agent]["messages"][0]["content"]
            assert as_text(observation["observation"]) in text
            action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            theirs.step(action)
            observations, *_ = game.step({agent: f"I play {action}"})
        assert {a: r.value for a, r in game.results.items()} == returns
        assert game.outcome is not None
        assert game.outcome.stop == "done"


def test_a_masked_action_is_asked_again_and_then_costs_the_game(game: PettingZooGame) -> None:
    game.reset(seed=0)
    game.step({"player_1": "4"})
    step = game.step({"player_2": "4"})
    assert "4 is not legal now. Try again." in step[0]["player_2"]["messages"][0]["content"]
    assert "Legal actions: 0, 1, 2, 3, 5, 6, 7, 8." in step[0]["player_2"]["messages"][0]["content"]
    game.step({"player_2": "no"})
    assert {a: r.value for a, r in game.results.items()} == {"player_1": 1.0, "player_2": -1.0}
    assert game.outcomes["player_2"].stop == "illegal_move"


def test_actions_may_have_names() -> None:
    names = ("rock", "paper", "scissors")
    game = pettingzoo_game("classic/rps-v2", reward_range=(-15, 15), actions=names)()
    game.reset(seed=0)
    assert game.legal("player_0") == list(names)
    for _ in range(15):
        game.step({"player_0": "Paper!"})
        game.step({"player_1": "I choose rock"})
    assert {a: r.value for a, r in game.results.items()} == {"player_0": 15.0, "player_1": -15.0}
    assert game.outcomes["player_0"] == Outcome(kind="truncated", stop="max_turns") == game.outcome


def test_a_parallel_env_whose_agents_leave_at_different_times() -> None:
    game = pettingzoo_game(Race)()
    game.reset(seed=0)
    replies = {"a": ["2", "1"], "b": ["1", "2"], "c": ["0", "1", "1"]}
    while game.acting:
        (agent,) = game.acting
        game.step({agent: replies[agent].pop(0)})
    assert {a: r.value for a, r in game.results.items()} == {"a": 0.75, "b": 0.75, "c": 0.5}
    assert {a: o.kind for a, o in game.outcomes.items()} == {
        "a": "terminated",
        "b": "terminated",
        "c": "truncated",
    }
    assert not any(replies.values())
    assert game.outcome == Outcome(kind="terminated", stop="done")


def test_an_env_is_made_for_each_episode_and_closed() -> None:
    made: list[Counted] = []

    class Counted(Race):
        closed = 0

        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            self.closed += 1

    game = pettingzoo_game(Counted)()
    for _ in range(3):
        game.reset(seed=0)
    game.close()
    assert [env.closed for env in made] == [1, 1, 1, 1]  # the first told its agents


def test_what_cannot_be_named_in_a_reply_is_refused() -> None:
    class Continuous(Race):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(0, 1, (2,))

    class Unknown(Race):
        possible_agents = []  # noqa: RUF012

    with pytest.raises(ConfigError, match="a reply can only name Discrete actions"):
        pettingzoo_game(Continuous)
    with pytest.raises(ConfigError, match="2 names for the 3 actions of a"):
        pettingzoo_game(Race, actions=("go", "stay"))
    with pytest.raises(ConfigError, match="possible_agents must be known"):
        pettingzoo_game(Unknown)


def test_numbers_are_written_as_boards() -> None:
    assert as_text(3) == "3"
    assert as_text(np.array([[0.5, 1], [2, 3]])) == "0.5 1\n2 3"
    assert as_text(np.eye(2, dtype=bool)[..., None]) == "plane 0:\n1 0\n0 1"
    assert as_text({"hand": np.array([1, 2])}) == "hand: 1 2"


async def test_ready_ones_are_evaluated_like_any_other() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PettingZoo's, at import
        from vime_envs.games.classic import ConnectFour
    game = ConnectFour()
    await game.areset(seed=0)
    observations, *_ = await game.astep({"player_0": "3"})
    text = observations["player_1"]["messages"][0]["content"]
    assert ". . . o . . .\n0 1 2 3 4 5 6\nLegal actions: 0, 1, 2, 3, 4, 5, 6." in text
    await game.aclose()
    report = await evaluate("vime_envs.games.classic:ConnectFour", ScriptedPolicy("random"), num_tasks=4)
    assert (report.ok, report.mean) == (4, 0.0)
