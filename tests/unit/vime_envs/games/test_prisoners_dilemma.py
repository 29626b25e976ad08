"""The iterated prisoner's dilemma: payoffs, what each sees, and who does not choose."""

from __future__ import annotations

import pytest

from vime_envs.games.prisoners_dilemma import PrisonersDilemma

BOTH = ("player_0", "player_1")


def rounds(env: PrisonersDilemma, first: str, second: str, num: int) -> None:
    for _ in range(num):
        env.step({"player_0": first, "player_1": second})


def values(env: PrisonersDilemma) -> list[float | None]:
    return [env.results[agent].value for agent in BOTH]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("cooperate", "cooperate", [3.0, 3.0]),
        ("cooperate", "defect", [0.0, 5.0]),
        ("defect", "cooperate", [5.0, 0.0]),
        ("defect", "defect", [1.0, 1.0]),
    ],
)
def test_ten_rounds_pay_the_mean_of_their_points(first: str, second: str, expected: list[float]) -> None:
    env = PrisonersDilemma()
    env.reset(seed=0)
    rounds(env, first, second, 9)
    assert env.acting == BOTH
    rounds(env, first, second, 1)
    assert values(env) == pytest.approx(expected)
    assert env.acting == ()
    assert [env.results[a].components["cooperation"] for a in BOTH] == [
        float(move == "cooperate") for move in (first, second)
    ]


def test_each_round_is_rewarded_and_shown_from_ones_own_side() -> None:
    env = PrisonersDilemma()
    observations, _ = env.reset(seed=0)
    assert observations["player_0"] == observations["player_1"]
    observations, rewards, *_ = env.step({"player_0": "I cooperate.", "player_1": "Defect!"})
    assert rewards == {"player_0": 0.0, "player_1": 0.5}
    texts = [observations[a]["messages"][0]["content"] for a in BOTH]
    assert texts == [
        "You: cooperate. The other: defect. Round 2 of 10: cooperate or defect?",
        "You: defect. The other: cooperate. Round 2 of 10: cooperate or defect?",
    ]
    env.close()


@pytest.mark.parametrize("reply", ["", "both", "\x00", "\ud800", "cooperated", "x" * 100_000])
def test_who_does_not_choose_is_asked_again_and_then_ends_with_nothing(reply: str) -> None:
    env = PrisonersDilemma()
    env.reset(seed=0)
    rounds(env, "defect", "cooperate", 4)
    env.step({"player_0": reply, "player_1": "cooperate"})
    assert env.acting == ("player_0",)
    env.step({"player_0": reply})
    assert values(env) == pytest.approx([0.0, 6 * 3 / 10])
    assert env.outcomes["player_0"].stop == "illegal_move"
    assert env.outcomes["player_1"].stop == "done"


def test_defecting_is_best_against_either_reply() -> None:
    for other in ("cooperate", "defect"):
        worth = {}
        for reply in ("cooperate", "defect"):
            env = PrisonersDilemma()
            env.reset(seed=0)
            worth[reply] = env.step({"player_0": reply, "player_1": other})[1]["player_0"]
            assert env.gold("player_0") == "defect"
            env.close()
        assert worth["defect"] > worth["cooperate"]


def test_when_nobody_chooses_nobody_has_anything() -> None:
    env = PrisonersDilemma()
    env.reset(seed=0)
    rounds(env, "cooperate", "cooperate", 3)
    rounds(env, "no", "no", 2)
    assert values(env) == pytest.approx([0.0, 0.0])
    assert env.counters["forfeits"] == 2


async def test_a_limit_scores_the_rounds_that_were_played() -> None:
    env = PrisonersDilemma()
    await env.areset(seed=0)
    await env.astep({"player_0": "defect", "player_1": "cooperate"})
    results = await env.score_partial("max_tokens")
    assert [results[a].value for a in BOTH] == pytest.approx([0.5, 0.0])
    assert env.outcomes["player_0"].kind == "truncated"
