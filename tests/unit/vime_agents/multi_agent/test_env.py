"""The contract of an env of several agents: whose turn, who sees what, who gets what, how it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.unit.vime_agents.multi_agent.games import LastOneOut, Nim
from vime_agents.episode import Outcome
from vime_agents.errors import ConfigError, ContractError, EnvError, GraderError, IllegalMove
from vime_agents.multi_agent import Game, MultiAgentEnv
from vime_agents.multi_agent.env import Step
from vime_agents.task import Task


def text(step: Any, agent: str) -> str:
    return "\n".join(m["content"] for m in step[0][agent]["messages"])


def play(env: MultiAgentEnv, *moves: Mapping[str, str], task: int = 0) -> list[Step]:
    env.reset(seed=0, options={"task": task})
    return [env.step(move) for move in moves]


def test_only_the_agent_whose_turn_it_is_is_asked_with_what_is_new_to_it() -> None:
    env = Nim()
    first = env.reset(seed=0)
    assert env.acting == ("first",)
    assert text(first, "first") == "5 sticks are left. Take 1 or 2."
    assert first[0]["second"] == {"messages": ()}
    step = env.step({"first": "2"})
    assert (text(step, "first"), text(step, "second")) == ("", "3 sticks are left. Take 1 or 2.")
    assert [step[4][a]["acting"] for a in ("first", "second")] == [False, True]
    env.close()


def test_a_game_ends_with_everybodys_reward_and_outcome() -> None:
    env = Nim()
    *_, last = play(env, {"first": "2"}, {"second": "1"}, {"first": "2"})
    observations, rewards, terminated, truncated, infos = last
    assert rewards == {"first": 1.0, "second": -1.0}
    assert (terminated, truncated) == ({"first": True, "second": True}, {"first": False, "second": False})
    assert infos["second"]["reward_result"].value == -1.0
    assert infos["first"]["outcome"] == Outcome(kind="terminated", stop="done")
    assert (env.agents, env.acting, env.outcome) == ([], (), Outcome(kind="terminated", stop="done"))
    assert observations["first"] == {"messages": ()}
    with pytest.raises(ContractError, match="after the episode ended"):
        env.step({"second": "1"})


def test_agents_leave_and_each_ones_steps_sum_to_its_reward() -> None:
    env = LastOneOut()
    steps = play(env, {"a": "5", "b": "0", "c": "6"}, {"a": "1", "c": "2"})
    assert text(steps[0], "b") == "You are out."
    assert steps[0][2] == {"a": False, "b": True, "c": False}
    assert steps[0][4]["b"]["outcome"].stop == "out"
    assert text(steps[0], "a") == "In play: a, c. Name a number from 0 to 9."
    assert set(steps[1][0]) == {"a", "c"}
    paid = {a: sum(step[1].get(a, 0.0) for step in steps) for a in ("a", "b", "c")}
    assert paid == {"a": 0.5 + 1.0, "b": 0.0, "c": 0.5 + 0.5 + 1.5}
    assert {a: env.results[a].value for a in paid} == paid
    assert env.results["c"].components == {"score": 1.5, "steps": 1.0}


def test_all_may_leave_at_once() -> None:
    env = LastOneOut()
    (step,) = play(env, {"a": "1", "b": "1", "c": "1"})
    assert step[2] == {"a": True, "b": True, "c": True}
    assert (env.agents, env.acting) == ([], ())
    assert step[1] == {"a": 0.0, "b": 1.0, "c": 2.0}


def test_nobody_sees_what_is_anothers() -> None:
    env = LastOneOut()
    env.reset(seed=3)
    secrets = dict(env.secret)
    env.step({"a": "5 is my private thought", "b": "6", "c": "7"})
    env.step({"b": "1", "c": "2"})
    for agent, messages in env.messages.items():
        seen = json.dumps(messages)
        assert str(secrets[agent]) in seen
        assert not [other for other in secrets if other != agent and str(secrets[other]) in seen]
        assert ("private thought" in seen) == (agent == "a")


def test_an_observation_is_nobodys_to_change() -> None:
    env = Nim()
    observations, _ = env.reset(seed=0)
    observations["first"]["messages"][0]["content"] = "changed"
    reply: Any = {"role": "assistant", "content": "2"}
    env.step({"first": reply})
    reply["content"] = "changed"
    assert [m["content"] for m in env.messages["first"]] == ["5 sticks are left. Take 1 or 2.", "2"]
    env.close()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"second": "1"}, r"it is the turn of \['first'\], but \['second'\] replied"),
        ({}, "but \\[\\] replied"),
        ({"first": "1", "second": "1"}, "replied"),
        ({"first": 7}, "first: an action is a str or an assistant message, got 7"),
        ({"first": {"role": "user", "content": "1"}}, "an action is"),
    ],
)
def test_a_step_that_breaks_the_contract_changes_nothing(actions: Any, message: str) -> None:
    env = Nim()
    env.reset(seed=0)
    with pytest.raises(ContractError, match=message):
        env.step(actions)
    assert env.turn == 0
    assert env.step({"first": "1"})[1] == {"first": 0.0, "second": 0.0}
    env.close()


@pytest.mark.parametrize(
    ("verdict", "error", "message"),
    [
        ("third", EnvError, r"gives the turn to \{'third'\}"),
        (["first", "third"], EnvError, "gives the turn to"),
        ([], EnvError, "gives the turn to nobody"),
        (None, EnvError, "gives the turn to nobody"),
        (3, EnvError, "must return an agent"),
        ({"first": 1.0}, EnvError, r"scores of \['first'\], but in play are \['first', 'second'\]"),
        ({"first": 1.0, "second": -0.5}, GraderError, "zero-sum, but its rewards sum to 0.5"),
        ({"first": 2.0, "second": -2.0}, GraderError, "outside the declared range"),
        ({"first": float("nan"), "second": 0.0}, GraderError, "finite"),
        ({"first": "won", "second": 0.0}, GraderError, "finite number"),
    ],
)
def test_an_author_who_breaks_the_contract_is_told(verdict: Any, error: type, message: str) -> None:
    class Broken(Nim):
        def move(self, me: str, taken: int) -> Any:
            return verdict

    env = Broken()
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.step({"first": "1"})
    assert env.acting == ()


def test_a_hook_that_raises_is_named() -> None:
    class Broken(Nim):
        def view(self, me: str) -> str:
            raise ZeroDivisionError("oops")

    class Refuses(Nim):
        def view(self, me: str) -> str:
            raise IllegalMove("nobody can be asked again")

    with pytest.raises(EnvError, match=r"Broken\.view: ZeroDivisionError\('oops'\)"):
        Broken().reset(seed=0)
    with pytest.raises(EnvError, match=r"Refuses\.view: IllegalMove"):
        Refuses().reset(seed=0)


def test_whoever_is_out_gets_nothing_more() -> None:
    class Generous(LastOneOut):
        def moves(self, moves: Mapping[str, int]) -> Any:
            self.leave("a")
            self.give("a", 1.0)

    env = Generous()
    env.reset(seed=0)
    with pytest.raises(ContractError, match="'a', who is not in play"):
        env.step({"a": "1", "b": "1", "c": "1"})


def test_the_turn_limit_truncates_and_scores_what_stands() -> None:
    class Short(LastOneOut):
        max_turns = 5

        def standing(self) -> dict[str, float]:
            return dict.fromkeys(self.agents, 0.25)

    class Unknown(Short):
        def standing(self) -> None:
            return None

    moves = ({"a": "5", "b": "0", "c": "6"}, {"a": "1", "c": "x"})
    *_, last = play(Short(), *moves)
    assert last[3] == {"a": True, "c": True}
    assert last[4]["a"]["outcome"] == Outcome(kind="truncated", stop="max_turns", detail="limit 5 turns")
    assert last[4]["a"]["reward_result"].value == 0.75
    *_, last = play(Unknown(), *moves)
    assert (last[4]["a"]["reward_result"].value, last[4]["a"]["reward_result"].status) == (None, "unscorable")
    assert last[1]["a"] == 0.0


def test_the_same_task_has_the_same_luck_and_another_has_not() -> None:
    secrets = []
    for task, seed in ((0, 1), (0, 2), (1, 1)):
        env = LastOneOut()
        env.reset(seed=seed, options={"task": task})
        secrets.append(env.secret)
        env.close()
    assert secrets[0] == secrets[1] != secrets[2]
    first, again = LastOneOut(), LastOneOut()
    assert first.reset(seed=7)[0] == again.reset(seed=7)[0]
    assert LastOneOut(task_seed=1).reset(seed=7)[0] != first.reset(seed=7)[0]
    with pytest.raises(ConfigError, match="task index 10000 is outside"):
        first.reset(options={"task": 10_000})
    for seed in ("x", -1, 1.5):
        task = Task(id="t", inputs={"seed": seed})
        with pytest.raises(ConfigError, match="task 't': its `seed` must be a whole number >= 0, got"):
            first.reset(options={"task": task})
    with pytest.raises(ConfigError, match="no task 'nothing'"):
        first.reset(options={"task": "nothing"})


def test_the_global_generators_are_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    play(LastOneOut(), {"a": "1", "b": "1", "c": "1"})
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr]


def test_asynchronous_hooks_rows_and_message_views() -> None:
    class Async(MultiAgentEnv):
        possible_agents = ("asker", "solver")
        ended = 0

        def tasks(self) -> list[dict[str, Any]]:
            return [{"id": "one", "question": "1 + 1?"}]

        async def start(self, rng: np.random.Generator) -> str:
            return "solver"

        async def view(self, agent: str) -> list[dict[str, str]]:
            return [
                {"role": "system", "content": "Solve."},
                {"role": "user", "content": self.task["question"]},
            ]

        async def advance(self, replies: Any) -> dict[str, Any]:
            right = replies["solver"]["content"] == "2"
            return {"asker": 0.0, "solver": {"right": float(right), "length": (1.0, 0.0)}}

        async def teardown(self) -> None:
            self.ended += 1

    env = Async()
    observations, infos = env.reset()
    assert infos["solver"]["task_id"] == "one"
    assert [m["role"] for m in observations["solver"]["messages"]] == ["system", "user"]
    *_, infos = env.step({"solver": "2"})
    assert infos["solver"]["reward_result"].components == {"right": 1.0, "length": 1.0}
    env.close()
    assert env.ended == 1


def test_names_and_roles_are_checked_at_construction() -> None:
    class Nobody(Game):
        pass

    class Stranger(Nim):
        roles = {"third": "player"}  # noqa: RUF012

    with pytest.raises(ContractError, match="must be distinct names"):
        Nobody()
    with pytest.raises(ContractError, match=r"'third'.*do not take part"):
        Stranger()
