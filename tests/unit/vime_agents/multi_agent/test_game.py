"""Games: a reply that is no legal move never breaks one, and what it costs is on record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.vime_agents.multi_agent.games import LastOneOut, Nim
from vime_agents.episode import Outcome
from vime_agents.errors import ContractError, IllegalMove
from vime_agents.multi_agent.game import one_of, whole_number

HOSTILE = ["", " ", "I refuse.", "\x00", "\ud800", "9" * 100_000, "{}", "-1", "1.5", "x1", "1e9", "²", "١"]


def said(step: Any, agent: str) -> str:
    return "\n".join(m["content"] for m in step[0][agent]["messages"])


@pytest.mark.parametrize("reply", HOSTILE)
def test_a_bad_reply_is_asked_again_and_the_second_forfeits(reply: str) -> None:
    env = Nim()
    env.reset(seed=0)
    step = env.step({"first": reply})
    assert env.acting == ("first",)
    assert said(step, "first").startswith("That is not a legal move: ")
    assert said(step, "first").endswith("5 sticks are left. Take 1 or 2.")
    assert env.sticks == 5
    _, rewards, terminated, _, infos = env.step({"first": reply})
    assert (rewards, terminated) == ({"first": -1.0, "second": 1.0}, {"first": True, "second": True})
    assert infos["first"]["outcome"].stop == "illegal_move"
    assert infos["second"]["outcome"] == Outcome(kind="terminated", stop="done")
    assert env.outcome is not None
    assert env.outcome.stop == "forfeit"
    assert env.outcome.detail.startswith("first: illegal_move: ")
    assert env.counters == {"illegal_moves": 2, "illegal_moves/first": 2, "forfeits": 1, "forfeits/first": 1}


def test_whoever_mends_its_move_plays_on() -> None:
    env = Nim()
    env.reset(seed=0)
    for agent, reply in (("first", "3"), ("first", "2"), ("second", "2"), ("first", "2")):
        step = env.step({agent: reply})
    assert "That is not a legal move: only 1 is left. Try again." not in said(step, "first")
    assert env.outcome is not None
    assert env.outcome.stop == "forfeit"  # `move` refused the second mistake: the retry was spent
    assert "only 1 is left" in env.outcome.detail


def test_a_move_is_refused_before_anything_changed() -> None:
    env = Nim()
    env.reset(seed=0)
    for agent, reply in (("first", "2"), ("second", "2")):
        env.step({agent: reply})
    step = env.step({"first": "2"})
    assert said(step, "first") == (
        "That is not a legal move: only 1 is left. Try again.\n\n1 sticks are left. Take 1 or 2."
    )
    assert env.step({"first": "1"})[1] == {"first": 1.0, "second": -1.0}


def test_of_those_who_move_at_once_only_the_one_at_fault_is_asked_again() -> None:
    env = LastOneOut()
    env.reset(seed=0)
    step = env.step({"a": "4", "b": "no", "c": "5"})
    assert env.acting == ("b",)
    assert "That is not a legal move" in said(step, "b")
    assert (said(step, "a"), said(step, "c")) == ("", "")
    step = env.step({"b": "3"})
    assert env.agents == ["a", "c"]
    assert env.outcomes["b"].stop == "out"
    assert step[1] == {"a": 0.5, "b": 0.0, "c": 0.5}


def test_several_may_forfeit_at_once_and_step_rewards_are_taken_back() -> None:
    class Strict(LastOneOut):
        illegal_retries = 0

    env = Strict()
    env.reset(seed=0)
    env.step({"a": "4", "b": "1", "c": "5"})
    _, rewards, *_ = env.step({"a": "no", "c": "no"})
    assert rewards == {"a": -0.5, "c": -0.5}
    assert [env.results[a].value for a in ("a", "b", "c")] == [0.0, 0.0, 0.0]
    assert env.counters["forfeits"] == 2

    class ZeroSum(Strict):
        zero_sum = True
        reward_range = (-2.0, 2.0)

        def moves(self, moves: Mapping[str, int]) -> Any:
            return dict.fromkeys(self.agents, 0.0)

    for bad, expected in (("a", {"a": -2.0, "b": 1.0, "c": 1.0}), ("abc", dict.fromkeys("abc", 0.0))):
        env = ZeroSum()
        env.reset(seed=0)
        assert env.step({a: "no" if a in bad else "1" for a in "abc"})[1] == expected


def test_the_game_may_go_on_without_whoever_forfeits() -> None:
    class Eliminates(LastOneOut):
        illegal_retries = 0

        def forfeit(self, agents: Any) -> Any:
            for agent in agents:
                self.leave(agent)
            return self.agents

    env = Eliminates()
    env.reset(seed=0)
    *_, infos = env.step({"a": "no", "b": "1", "c": "2"})
    assert infos["a"]["outcome"].stop == "illegal_move"
    assert env.acting == ("b", "c")
    env.step({"b": "1", "c": "2"})
    assert env.outcome == Outcome(kind="terminated", stop="done")


def test_an_agent_that_cannot_go_on_forfeits_without_a_retry_and_a_failed_model_has_no_reward() -> None:
    full = Outcome(kind="truncated", stop="context_length", detail="9 of 8")
    failed = Outcome(kind="failed", stop="error", cause="model", detail="nothing")
    for outcome, value, status in ((full, -1.0, "ok"), (failed, None, "error")):
        env = Nim()
        env.reset(seed=0)
        env.step({"first": outcome})
        assert env.outcomes["first"] == outcome
        assert (env.results["first"].value, env.results["first"].status) == (value, status)
        assert env.results["second"].value == 1.0


def test_a_game_that_cannot_say_whose_move_was_illegal_is_told_so() -> None:
    class Vague(LastOneOut):
        def moves(self, moves: Mapping[str, int]) -> Any:
            raise IllegalMove("somebody cheated")

    env = Vague()
    env.reset(seed=0)
    with pytest.raises(ContractError, match="raise it in `parse`"):
        env.step({"a": "1", "b": "2", "c": "3"})


def test_a_game_of_one_at_a_time_says_what_it_needs() -> None:
    class NoMoves(LastOneOut):
        moves = Nim.moves

    env = NoMoves()
    env.reset(seed=0)
    with pytest.raises(ContractError, match="needs `moves`"):
        env.step({"a": "1", "b": "2", "c": "3"})


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ("I play 4.", 4), ("not 3 but 5", 5), ("04", 4), ("1-3", 3), ("(7)", 7), ("square 2\n", 2)],
)
def test_the_last_whole_number_of_a_text_counts(text: str, number: int) -> None:
    assert whole_number(text, 0, 8) == number


def test_numbers_below_zero_are_read() -> None:
    assert whole_number("I go to -12!", -20, 5) == -12


@pytest.mark.parametrize("text", [*HOSTILE, "9", "4 or 4.5", "v2"])
def test_what_is_no_number_within_bounds_is_illegal(text: str) -> None:
    with pytest.raises(IllegalMove, match="whole number from 0 to 8"):
        whole_number(text, 0, 8)


def test_only_the_end_of_a_very_long_reply_is_read() -> None:
    assert whole_number("7" + " " * 9_000 + "!", 0, 8) == 7
    assert one_of("x" * 10**6 + " fold", ("fold", "call")) == "fold"
    for text in ("7" + " " * 10_000, "17" + "." * 9_999, "1" * 10_001):
        with pytest.raises(IllegalMove, match="answer with a whole number"):
            whole_number(text, 0, 8)
    with pytest.raises(IllegalMove):
        one_of("unfold" + "." * 9_996, ("fold", "call"))


def test_the_last_of_the_words_counts() -> None:
    assert one_of("I will not Defect; I COOPERATE.", ("cooperate", "defect")) == "cooperate"
    for text in ("", "cooperated", "\x00", "uncooperate"):
        with pytest.raises(IllegalMove, match="one of cooperate, defect"):
            one_of(text, ("cooperate", "defect"))


def test_plain_rules_run_in_the_callers_thread_and_asynchronous_ones_on_one_loop() -> None:
    class Noted(Nim):
        def __init__(self) -> None:
            super().__init__()
            self.threads: list[str] = []

        def note(self) -> None:
            self.threads.append(threading.current_thread().name)

        def view(self, me: str) -> str:
            self.note()
            return super().view(me)

        def move(self, me: str, taken: int) -> Any:
            self.note()
            return super().move(me, taken)

    class Awaited(Noted):
        async def parse(self, me: str, text: str) -> int:
            await asyncio.sleep(0)
            self.note()
            return super().parse(me, text)

    for make in (Noted, Awaited):
        env = make()
        env.reset(seed=0)
        *_, infos = env.step({"first": "2"})
        assert (env.sticks, infos["second"]["acting"]) == (3, True)
        env.close()
        here = threading.current_thread().name
        if make is Noted:
            assert env.threads == [here] * 3
        else:
            assert len(env.threads) == 4
            assert env.threads[1] == "vime-env-loop"  # `parse`, after the first view
            assert here not in env.threads
