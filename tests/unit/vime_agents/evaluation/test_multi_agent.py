"""Evaluating games: the mean is of the evaluated policy's agents, and every agent is reported."""

from __future__ import annotations

import json

import pytest

from vime_agents.episode import Episode
from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.policies.pool import PolicyPool
from vime_agents.policies.scripted import ScriptedPolicy

TIC_TAC_TOE = "TicTacToe-v0"
NIM = "tests.unit.vime_agents.multi_agent.games:Nim"


async def test_the_mean_is_of_the_agents_that_the_policy_plays() -> None:
    for agent, other in (("X", "O"), ("O", "X")):
        report = await evaluate(
            TIC_TAC_TOE, ScriptedPolicy("gold"), agents={other: ScriptedPolicy("wrong")}, num_tasks=12
        )
        assert (report.mean, report.n, report.n_scored, report.ok) == (1.0, 12, 12, 12)
        assert report.stops == {"forfeit": 12}
        assert (report.agents[agent].mean, report.agents[other].mean) == (1.0, -1.0)
        assert (report.agents[other].policy, report.agents[other].stops) == (
            "scripted:wrong",
            {"illegal_move": 12},
        )
        assert report.metrics["illegal_moves"] == 2.0
        assert report.pass_at_k == {1: 1.0}
        json.dumps(report.to_dict(), allow_nan=False)


async def test_a_policy_may_play_against_itself() -> None:
    report = await evaluate("PrisonersDilemma-v0", ScriptedPolicy("random"), num_tasks=8, samples_per_task=2)
    assert (report.n, report.n_scored) == (16, 16)
    first, second = report.agents["player_0"], report.agents["player_1"]
    assert (first.n_scored, second.n_scored) == (16, 16)
    assert report.mean == pytest.approx((first.mean + second.mean) / 2)
    assert report.mean_errors_as_zero == pytest.approx(report.mean)
    assert 1.0 < report.mean < 3.0
    assert report.pass_at_k == {}


async def test_a_role_stands_for_all_its_agents() -> None:
    with pytest.raises(ConfigError, match="nobody is left to evaluate"):
        await evaluate(
            "PrisonersDilemma-v0",
            ScriptedPolicy("random"),
            agents={"player": ScriptedPolicy("wrong")},
            num_tasks=1,
        )


async def test_all_agents_given_to_others_leave_nobody_to_evaluate() -> None:
    for agents in (
        {"*": ScriptedPolicy("wrong")},
        {"*": ScriptedPolicy("wrong"), "player_0": ScriptedPolicy("gold")},
    ):
        with pytest.raises(ConfigError, match="nobody is left to evaluate"):
            await evaluate("PrisonersDilemma-v0", ScriptedPolicy("random"), agents=agents, num_tasks=1)


async def test_games_without_a_reward_are_no_zeros() -> None:
    report = await evaluate(NIM, ScriptedPolicy("gold"), num_tasks=3)
    assert (report.errors, report.n_scored, report.mean_errors_as_zero) == ({"env": 3}, 0, 0.0)
    assert "Nim has no `gold`" in report.error_examples["env"]
    assert report.to_dict()["agents"]["first"]["mean"] is None


async def test_agents_who_do_not_exist_are_named() -> None:
    policy = ScriptedPolicy("gold")
    with pytest.raises(UnknownIdError, match="unknown agent or role 'Y'"):
        await evaluate(TIC_TAC_TOE, policy, agents={"Y": policy}, num_tasks=1)
    with pytest.raises(ConfigError, match="'Calculator-v0' has one agent"):
        await evaluate("Calculator-v0", policy, agents={"X": policy}, num_tasks=1)


def pool(seed: str = "0") -> PolicyPool:
    return PolicyPool([ScriptedPolicy("random"), ScriptedPolicy("wrong")], seed=seed)


async def test_each_opponent_of_a_pool_has_its_own_line() -> None:
    episodes: list[Episode] = []
    report = await evaluate(
        TIC_TAC_TOE,
        ScriptedPolicy("gold"),
        agents={"O": pool()},
        num_tasks=10,
        samples_per_task=2,
        on_episode=episodes.append,
    )
    assert set(report.opponents) == {"scripted:random", "scripted:wrong"}
    for name, against in report.opponents.items():
        own = [
            first.reward.value
            for first, second in (e.trajectories for e in episodes)
            if second.policy == name and first.reward.value is not None
        ]
        assert (against.n, against.n_scored) == (10, 10)
        assert against.mean == pytest.approx(sum(own) / 10)
        assert (against.won, against.drawn, against.lost) == (own.count(1.0), own.count(0.0), own.count(-1.0))
        assert against.ahead is None  # X was always the policy's: nothing tells strength from seat
    assert report.opponents["scripted:wrong"].won == 10
    assert report.first_seat is None
    assert report.agents["O"].policy == "scripted:random|scripted:wrong"
    json.dumps(report.to_dict(), allow_nan=False)


async def test_a_policy_in_every_seat_counts_as_itself() -> None:
    report = await evaluate(
        TIC_TAC_TOE, ScriptedPolicy("gold"), agents={"O": pool()}, rotate_seats=True, num_tasks=24
    )
    assert (report.n, report.n_scored, report.opponents["scripted:wrong"].won) == (24, 24, 12)
    assert report.mean == pytest.approx(sum(o.mean for o in report.opponents.values()) / 2)
    assert report.mean > 0.7
    assert report.agents["X"].mean == -report.agents["O"].mean
    assert report.agents["O"].stops["illegal_move"] == report.agents["X"].stops["illegal_move"] == 6
    ahead = report.opponents["scripted:wrong"].ahead
    assert ahead is not None
    assert ahead.elo > 0
    assert report.first_seat is not None
    plain = report.to_dict()
    assert plain["opponents"]["scripted:wrong"]["ahead"]["elo"] == ahead.elo


async def test_an_opponent_of_the_same_name_is_no_stronger() -> None:
    report = await evaluate(
        TIC_TAC_TOE,
        ScriptedPolicy("gold"),
        agents={"O": ScriptedPolicy("gold")},
        rotate_seats=True,
        num_tasks=8,
    )
    (against,) = report.opponents.values()
    assert (against.n, against.drawn, report.mean) == (8, 8, 0.0)
    assert against.ahead is not None
    assert against.ahead.elo == pytest.approx(0.0, abs=1e-6)
    assert against.ahead.low < -100
    assert against.ahead.high > 100


async def test_games_that_failed_are_no_losses() -> None:
    report = await evaluate(NIM, ScriptedPolicy("gold"), agents={"second": pool()}, num_tasks=4)
    assert report.errors == {"env": 4}
    assert {(o.n, o.n_scored, o.won + o.drawn + o.lost) for o in report.opponents.values()} == {(2, 0, 0)}
    assert report.to_dict()["opponents"]["scripted:wrong"]["mean"] is None
