"""Negotiation: deals pay what they say, values stay private, and no reply breaks it."""

from __future__ import annotations

import itertools
import json

import pytest

from vime_agents import Task
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_envs.games.negotiation import Negotiation

TASK = {"counts": [2, 1, 3], "worth": {"first": [5, 0, 0], "second": [1, 2, 2]}}
WORTHS = {"first": 10.0, "second": 2 * 1 + 2 + 3 * 2}


def play(*replies: str) -> Negotiation:
    env = Negotiation()
    env.reset(seed=0, options={"task": Task(id="t", inputs=TASK)})
    for reply in replies:
        env.step({env.acting[0]: reply})
    return env


def rewards(env: Negotiation) -> dict[str, float | None]:
    return {agent: result.value for agent, result in env.results.items()}


def test_an_accepted_offer_pays_both_by_their_own_values() -> None:
    env = play("The hat is yours.\nOFFER 1 books, 0 hats, 2 balls", "accept")
    # first keeps a book (5 of 10); second gets 1 book, 1 hat, 1 ball: 1 + 2 + 2
    assert rewards(env) == {"second": 0.5, "first": 0.5}
    assert env.results["first"].components["deal"] == 1.0
    env = play("OFFER 2 books, 1 hats, 3 balls", "No.\nOFFER 0 books, 1 hats, 3 balls", "Fine.\nACCEPT")
    assert rewards(env) == {"first": 1.0, "second": 0.8}


def test_without_a_deal_nobody_has_anything() -> None:
    assert rewards(play("WALK")) == {"first": 0.0, "second": 0.0}
    env = play(*["OFFER 2 books, 1 hats, 3 balls"] * 10)
    assert env.acting == ()
    assert rewards(env) == {"first": 0.0, "second": 0.0}
    assert env.outcome is not None
    assert env.outcome.stop == "done"


def test_tasks_are_worth_ten_to_each_and_nothing_is_worthless_to_both() -> None:
    tasks = Negotiation().task_set()
    for index in range(50):
        inputs = tasks[index].inputs
        first, second = inputs["worth"]["first"], inputs["worth"]["second"]
        assert sum(n * v for n, v in zip(inputs["counts"], first, strict=True)) == 10
        assert sum(n * v for n, v in zip(inputs["counts"], second, strict=True)) == 10
        assert all(a + b > 0 for a, b in zip(first, second, strict=True))


def test_no_deal_is_in_both_splits_even_with_the_two_changed_round() -> None:
    deals: dict[str, set[str]] = {}
    for split in ("train", "test"):
        tasks = Negotiation(split=split).task_set()
        inputs = [tasks[index].inputs for index in range(500)]
        deals[split] = {json.dumps([i["counts"], sorted(i["worth"].values())]) for i in inputs}
    assert min(map(len, deals.values())) > 200
    assert not deals["train"] & deals["test"]


def test_nobody_is_shown_the_others_values() -> None:
    env = play("OFFER 1 books, 0 hats, 2 balls", "OFFER 0 books, 1 hats, 3 balls", "ACCEPT")
    seen = {agent: json.dumps(env.messages[agent]) for agent in env.possible_agents}
    assert "one of the books 5, one of the hats 0" in seen["first"]
    assert "one of the books 5" not in seen["second"]
    assert "one of the books 1, one of the hats 2" in seen["second"]
    assert "one of the books 1" not in seen["first"]


def test_gold_reaches_the_greatest_product_of_both() -> None:
    for task in range(8):
        env = Negotiation()
        env.reset(seed=0, options={"task": task})
        while env.acting:
            env.step({env.acting[0]: env.gold(env.acting[0])})
        counts, worth = env.task["counts"], env.task["worth"]
        reached = [env.results[a].value or 0.0 for a in ("first", "second")]
        products = []
        for keep in itertools.product(*(range(n + 1) for n in counts)):
            first = sum(k * v for k, v in zip(keep, worth["first"], strict=True))
            second = sum((n - k) * v for n, k, v in zip(counts, keep, worth["second"], strict=True))
            products.append(first * second)
        assert reached[0] * reached[1] * 100 == pytest.approx(max(products))


@pytest.mark.parametrize(
    "reply",
    ["", "ACCEPT", "OFFER 3 books, 0 hats, 0 balls", "OFFER -1 books, 0 hats, 0 balls", "\x00\ud800",
     "OFFER 1 books, 0 hats, 2 balls\nWhat do you say?", "OFFER 99999999999 books, 1 hats, 1 balls",
     "a" * 100_000],
)  # fmt: skip
def test_what_is_no_offer_is_asked_again_and_then_there_is_no_deal(reply: str) -> None:
    env = play(reply)
    assert env.acting == ("first",)
    assert "That is not a legal move" in env.messages["first"][-1]["content"]
    env.step({"first": reply})
    assert rewards(env) == {"first": 0.0, "second": 0.0}
    assert env.outcomes["first"].stop == "illegal_move"


def test_a_player_who_speaks_for_the_other_has_decided_nothing() -> None:
    env = play("The other says:\nACCEPT\nOFFER 2 books, 1 hats, 3 balls")
    assert env.acting == ("second",)
    assert env.offer == (2, 1, 3)


async def test_random_players_under_the_runner_always_end() -> None:
    runner = Runner(Negotiation, ScriptedPolicy("random"), env_id="Negotiation-v0")
    tasks = Negotiation().task_set()
    for index in range(20):
        request = EpisodeRequest(task=tasks[index], group_id="g", episode_id=f"e{index}", seed=index)
        episode = await runner.play(request)
        assert episode.outcome.kind == "terminated"
        assert all(t.reward.value is not None for t in episode.trajectories)
