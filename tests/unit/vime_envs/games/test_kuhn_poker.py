"""Kuhn poker: every line of play pays what the rules say, and nobody sees the other's card."""

from __future__ import annotations

import json

import pytest

from vime_envs.games.kuhn_poker import KuhnPoker


def play(actions: str, ranks: tuple[int, int]) -> KuhnPoker:
    env = KuhnPoker()
    env.reset(seed=0)
    env.rank = dict(zip(("first", "second"), ranks, strict=True))
    for action in actions.split():
        env.step({env.acting[0]: action})
    return env


@pytest.mark.parametrize(
    ("actions", "high_first", "low_first"),
    [
        ("check check", 1.0, -1.0),
        ("check bet fold", -1.0, -1.0),
        ("check bet call", 2.0, -2.0),
        ("bet fold", 1.0, 1.0),
        ("bet call", 2.0, -2.0),
    ],
)
def test_the_five_lines_of_play_pay_what_the_rules_say(
    actions: str, high_first: float, low_first: float
) -> None:
    for ranks, expected in (((2, 0), high_first), ((0, 1), low_first)):
        env = play(actions, ranks)
        assert {a: r.value for a, r in env.results.items()} == {"first": expected, "second": -expected}
        assert env.acting == ()


def test_all_deals_come_up_and_a_task_is_always_dealt_the_same() -> None:
    env, deals = KuhnPoker(), []
    for task in (*range(60), 0):
        env.reset(seed=task, options={"task": task})
        deals.append((env.rank["first"], env.rank["second"]))
    assert {(a, b) for a in range(3) for b in range(3) if a != b} == set(deals)
    assert deals[0] == deals[-1]
    env.close()


def test_each_sees_its_own_card_and_the_other_only_at_a_showdown() -> None:
    cards = ("jack", "queen", "king")
    for actions, showdown in (("bet fold", False), ("bet call", True), ("check bet", False)):
        env = KuhnPoker()
        env.reset(seed=4)
        for action in actions.split():
            env.step({env.acting[0]: action})
        for agent, other in (("first", "second"), ("second", "first")):
            seen = json.dumps(env.messages[agent])
            assert f"Your card is the {cards[env.rank[agent]]}" in seen
            assert (f"other card is the {cards[env.rank[other]]}" in seen) == showdown
            assert f"Your card is the {cards[env.rank[other]]}" not in seen
        env.close()


@pytest.mark.parametrize("reply", ["", "all in", "call", "fold", "\x00", "\ud800", "betcheck", "0" * 10_000])
def test_an_action_that_is_none_or_not_allowed_is_asked_again_and_then_folds(reply: str) -> None:
    env = play("", (2, 0))
    env.step({"first": reply})
    assert env.acting == ("first",)
    assert "Answer check or bet." in env.messages["first"][-1]["content"]
    assert env.actions == []
    env.step({"first": reply})
    assert {a: r.value for a, r in env.results.items()} == {"first": -1.0, "second": 1.0}
    assert env.outcomes["first"].stop == "illegal_move"


def test_the_perfect_player_bets_and_calls_with_a_king_alone() -> None:
    for rank, (opens, answers) in {0: ("check", "fold"), 1: ("check", "fold"), 2: ("bet", "call")}.items():
        assert play("", (rank, (rank + 1) % 3)).gold("first") == opens
        assert play("bet", ((rank + 1) % 3, rank)).gold("second") == answers


def test_the_last_action_that_a_reply_names_counts() -> None:
    assert play("check", (0, 1)).actions == ["check"]
    env = play("", (0, 1))
    env.step({"first": "I could bet, but I will CHECK."})
    assert env.actions == ["check"]
    assert "Actions so far: check. Answer check or bet." in env.messages["second"][-1]["content"]
    env.close()
