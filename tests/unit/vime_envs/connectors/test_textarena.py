"""TextArena's games: its moves, messages and rewards, and no game in another's luck."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

from vime_agents.episode import Outcome
from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.multi_agent import MultiAgentEnv
from vime_agents.registry import env_class

textarena = pytest.importorskip("textarena")
from vime_envs.connectors.textarena import TextArenaGame, textarena_game  # noqa: E402

TicTacToe = textarena_game("TicTacToe-v0", num_players=2, name="TicTacToe")
KuhnPoker = textarena_game("KuhnPoker-v0", num_players=2)
MODULE = "vime_envs.connectors.textarena"


def play(cls: type[TextArenaGame], *replies: str, seed: int = 0) -> TextArenaGame:
    env = cls()
    env.reset(seed=seed)
    for reply in replies:
        env.step({env.acting[0]: reply})
    return env


def rewards(env: TextArenaGame) -> dict[str, float | None]:
    return {agent: result.value for agent, result in env.results.items()}


def test_a_won_game_pays_what_textarena_says() -> None:
    env = play(TicTacToe, "[0]", "I take [3].", "[1]", "[4]", "[2]")
    assert env.acting == ()
    assert rewards(env) == {"player_0": 1.0, "player_1": -1.0}
    assert {o.stop for o in env.outcomes.values()} == {"done"}


def test_each_reads_its_own_rules_and_what_the_other_did_but_not_its_own_replies() -> None:
    env = play(TicTacToe, "Hello, I am [4]")
    first, second = (env.messages[a] for a in ("player_0", "player_1"))
    assert "You are Player 0" in first[0]["content"]
    assert "You are Player 1" in second[0]["content"]
    assert "You are Player 0" not in second[0]["content"]
    assert "[Player 0] Hello, I am [4]" in second[0]["content"]
    env.step({"player_1": "[0]"})
    news = env.messages["player_0"][-1]["content"]
    assert "[Player 1] [0]" in news
    assert "Hello" not in news


def test_cards_are_the_players_own() -> None:
    cards: dict[str, set[str]] = {"player_0": set(), "player_1": set()}
    for seed in range(8):
        env = play(KuhnPoker, "[bet]", seed=seed)
        (own,) = [
            {c for c in "JQK" if f"Your card is: '{c}'" in str(env.messages[agent])} for agent in env.acting
        ]
        assert len(own) == 1
        cards[env.acting[0]] |= own
    assert cards["player_0"] | cards["player_1"] == {"J", "Q", "K"}


def test_an_illegal_move_is_asked_again_and_then_loses_by_textarenas_rule() -> None:
    env = play(TicTacToe, "[4]", "[4]")
    assert env.acting == ("player_1",)
    assert "invalid move" in env.messages["player_1"][-1]["content"]
    env.step({"player_1": "\x00\ud800" + "x" * 10_000})
    assert rewards(env) == {"player_0": 1.0, "player_1": -1.0}
    assert (env.outcomes["player_0"].stop, env.outcomes["player_1"].stop) == ("done", "illegal_move")
    assert env.counters == {"illegal_moves": 1, "replies_cut": 1}


def test_of_a_long_reply_the_end_is_played() -> None:
    env = play(TicTacToe, "[0] " + "[" * 5_000 + " so I take [4]")
    assert env.counters == {"replies_cut": 1}
    assert env.game.state.game_state["board"][1][1] == "O"
    assert "[Player 0] [[[[" in env.messages["player_1"][-1]["content"]


def test_whoever_cannot_go_on_has_lost_and_the_other_is_not_scored() -> None:
    env = TicTacToe()
    env.reset(seed=0)
    env.step({"player_0": Outcome(kind="truncated", stop="context_length")})
    assert rewards(env) == {"player_0": -1.0, "player_1": None}
    env.reset(seed=0)
    env.step({"player_0": Outcome(kind="failed", stop="error", cause="model")})
    assert rewards(env) == {"player_0": None, "player_1": None}


def test_games_leave_the_processs_generators_alone_and_do_not_disturb_each_other() -> None:
    def log(env: TextArenaGame) -> list[object]:
        return [env.messages, rewards(env)]

    moves = ["[check]", "[bet]", "[fold]", "[bet]", "[call]", "[check]", "[check]"]
    alone = log(play(KuhnPoker, *moves, seed=3))
    random.seed(9)
    np.random.seed(9)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    one, other = play(KuhnPoker, seed=3), play(KuhnPoker, seed=4)
    for move in moves:
        if one.acting:
            one.step({one.acting[0]: move})
        if other.acting:
            other.step({other.acting[0]: move})
    assert log(one) == alone
    assert log(other) != alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]


def test_a_game_for_one_is_a_gymnasium_env() -> None:
    cls = textarena_game("Blackjack-v0", num_players=1)
    seat = cls().as_gym("player_0", {})
    observation, _ = seat.reset(seed=1)
    assert "Blackjack" in observation["messages"][0]["content"]
    info: dict[str, Any] = {}
    while "reward_result" not in info:  # `max_turns` bounds it
        info = seat.step("[Stand]")[4]
    assert 0.0 <= info["reward_result"].value <= 1.0
    seat.close()


def test_every_game_is_an_id_that_workers_can_unpickle() -> None:
    cls = env_class(f"{MODULE}:ConnectFour_v0_for_2")
    assert issubclass(cls, MultiAgentEnv)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert cls.possible_agents == ("player_0", "player_1")
    for name in ("NoSuchGame_v0_for_2", "ConnectFour_v0"):
        with pytest.raises(ConfigError, match=name):
            env_class(f"{MODULE}:{name}")


def test_wrong_ids_and_numbers_are_refused() -> None:
    with pytest.raises(UnknownIdError, match="TicTacToe-v0"):
        textarena_game("TikTacToe-v0", num_players=2)
    with pytest.raises(ConfigError, match="num_players"):
        textarena_game("TicTacToe-v0", num_players=0)
