"""Evaluations of scripted policies on a small environment."""

import json
import math
from dataclasses import replace
from typing import ClassVar

import pytest

import vime_agents as vime
from vime_agents import messages as msg
from vime_agents import registry
from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.evaluation import evaluate as module
from vime_agents.evaluation.evaluate import eval_requests, evaluate
from vime_agents.evaluation.report import Tally
from vime_agents.policies.metered import Meter
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Usage
from vime_agents.reward import GroupReward
from vime_agents.task import Task


class Sum(vime.ToolEnv):
    """Adds with a tool. Tasks whose sum is a multiple of `broken_every` have no working tool."""

    max_turns = 3
    num_tasks = 12
    broken_every: ClassVar[int] = 0

    def make_task(self, rng):
        a, b = (int(x) for x in rng.integers(0, 1000, 2))
        return {"a": a, "b": b}

    def prompt(self):
        return f"{self.task['a']} + {self.task['b']} = ?"

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        if self.broken_every and (a + b) % self.broken_every == 0:
            raise vime.EnvFault("the adding machine is on fire")
        return str(a + b)

    def score(self, text):
        return float(text == str(self.task["a"] + self.task["b"]))

    def gold(self):
        call = msg.tool_call("add", self.task, "call-1")
        return [msg.assistant("", [call]), str(self.task["a"] + self.task["b"])]


class AlwaysBroken(Sum):
    """No tool works."""

    broken_every = 1


class HalfBroken(Sum):
    """The tool fails on even sums."""

    broken_every = 2


class Endless(Sum):
    """Never satisfied."""

    async def respond(self, message):
        return [msg.user("more")]

    def gold(self):
        return ["1", "2", "3"]


@pytest.fixture(autouse=True)
def envs(monkeypatch):
    """The classes above by their bare names."""
    classes = {c.__name__: c for c in (Sum, AlwaysBroken, HalfBroken, Endless, Compared, dict)}
    known = registry.env_class

    monkeypatch.setattr(module.registry, "env_class", lambda name: classes.get(name) or known(name))


async def test_gold_scores_the_maximum_and_wrong_the_minimum():
    gold = await evaluate("Sum", ScriptedPolicy("gold"), num_tasks=10, samples_per_task=2)
    wrong = await evaluate("Sum", ScriptedPolicy("wrong"), num_tasks=10)
    assert (gold.mean, gold.n, gold.n_scored, gold.ok, gold.turns_mean) == (1.0, 20, 20, 20, 2.0)
    assert gold.pass_at_k == {1: 1.0, 2: 1.0}
    assert gold.metrics["tool_calls"] == 1.0
    assert (wrong.mean, wrong.ci_low, wrong.n) == (0.0, 0.0, 10)
    # Wilson's upper bound at 0 of n: z^2 / (n + z^2).
    assert wrong.ci_high == pytest.approx(1.959964**2 / (10 + 1.959964**2))


class Compared(Sum):
    """What an episode gets depends on its siblings."""

    @staticmethod
    def _rank(episodes):
        return [float(rank) for rank in range(len(episodes))]

    group_rewards = (GroupReward(function=_rank, name="rank", range=(0.0, 2.0), weight=10.0),)


async def test_the_episodes_of_a_task_are_compared_with_each_other():
    episodes = []
    report = await evaluate(
        "Compared", ScriptedPolicy("gold"), num_tasks=4, samples_per_task=3, on_episode=episodes.append
    )
    # Each is right (1), and one of each task's three has rank 0, 1, 2 (times 10).
    assert report.mean == pytest.approx(1.0 + 10.0)
    assert (report.n, len(episodes)) == (12, 12)
    for start in range(0, 12, 3):
        group = episodes[start : start + 3]
        assert len({e.group_id for e in group}) == 1
        assert [e.reward for e in group] == [1.0, 11.0, 21.0]


class Counted(ScriptedPolicy):
    """Right answers, at 10 tokens read and 2 written a call, as its server says; or it says nothing."""

    def __init__(self, usage):
        super().__init__("gold")
        self.usage = usage

    async def act(self, conversation, **kwargs):
        return replace(await super().act(conversation, **kwargs), usage=self.usage)


TWELVE = Usage(prompt_tokens=10, sampled_tokens=2)


async def test_a_spent_budget_starts_no_more_episodes_and_finishes_those_in_flight():
    meter, episodes = Meter(max_tokens=30), []
    report = await evaluate(
        "Sum", Counted(TWELVE), num_tasks=12, concurrency=1, meter=meter, on_episode=episodes.append
    )
    # Two calls an episode: 24 tokens after the first, 48 after the second.
    assert [e.id for e in episodes] == ["eval-0-0", "eval-1-0"]
    assert (report.n, report.ok, report.mean, report.errors) == (2, 2, 1.0, {})
    assert report.budget_spent == "48 of 30 tokens"
    assert (meter.spent.calls, meter.spent.prompt_tokens, meter.spent.sampled_tokens) == (4, 40, 8)
    meter.max_tokens = None
    report = await evaluate("Sum", Counted(TWELVE), num_tasks=12, meter=meter, finished=episodes)
    assert (report.n, report.mean, report.budget_spent) == (12, 1.0, "")
    assert report.usage.total_tokens == 12 * 24


async def test_compared_episodes_are_played_to_the_end_of_their_group():
    report = await evaluate(
        "Compared",
        Counted(TWELVE),
        num_tasks=4,
        samples_per_task=3,
        concurrency=1,
        meter=Meter(max_tokens=4 * 24),
    )
    # The fourth episode spends it; the second task's other two are played still.
    assert (report.n, report.mean) == (6, pytest.approx(11.0))


async def test_a_budget_that_is_reached_with_the_last_episode_stopped_nothing():
    report = await evaluate("Sum", Counted(TWELVE), num_tasks=2, meter=Meter(max_tokens=48))
    assert (report.n, report.budget_spent) == (2, "")


async def test_without_counts_of_tokens_a_budget_is_refused():
    with pytest.raises(ConfigError, match="a budget cannot be kept: the model's server does not say"):
        await evaluate("Sum", Counted(Usage()), num_tasks=3, concurrency=1, meter=Meter(max_tokens=30))


async def test_garbage_ends_every_episode_without_a_failure():
    report = await evaluate("Sum", ScriptedPolicy("garbage"), num_tasks=12, samples_per_task=8)
    assert report.errors == {}
    assert (report.mean, report.ok + report.truncated, report.n) == (0.0, 96, 96)
    assert report.metrics["tool_errors"] > 0


async def test_the_same_seed_plays_the_same_episodes_and_another_one_others():
    async def played(seed):
        prompts = []
        await evaluate(
            "Sum",
            ScriptedPolicy("garbage"),
            num_tasks=4,
            seed=seed,
            on_episode=lambda e: prompts.append((e.id, repr(e.trajectories[0].turns[0].messages), e.seed)),
        )
        return sorted(prompts)

    assert await played(1) == await played(1)
    assert await played(1) != await played(2)


async def test_splits_do_not_share_tasks():
    async def prompts(split):
        seen = set()
        await evaluate(
            "Sum",
            ScriptedPolicy("wrong"),
            num_tasks=12,
            split=split,
            on_episode=lambda e: seen.add(e.trajectories[0].turns[0].messages[0]["content"]),
        )
        return seen

    assert not await prompts("train") & await prompts("test")


async def test_an_infrastructure_failure_is_no_zero_but_leaves_the_mean():
    report = await evaluate("HalfBroken", ScriptedPolicy("gold"), num_tasks=12, max_retries=0)
    failed = sum(report.errors.values())
    assert 0 < failed < 12
    assert (report.mean, report.n_scored, report.ok) == (1.0, 12 - failed, 12 - failed)
    assert report.mean_errors_as_zero == pytest.approx((12 - failed) / 12)
    assert report.infrastructure_error_rate == pytest.approx(failed / 12)
    assert "the adding machine is on fire" in next(iter(report.error_examples.values()))


async def test_when_everything_fails_there_is_no_mean_and_the_report_is_still_json():
    report = await evaluate("AlwaysBroken", ScriptedPolicy("gold"), num_tasks=3, max_retries=0)
    assert math.isnan(report.mean)
    assert report.infrastructure_error_rate == 1.0
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (plain["mean"], plain["ci_low"], plain["n_scored"]) == (None, None, 0)


async def test_a_turn_limit_truncates_and_is_counted_by_name():
    report = await evaluate("Endless", ScriptedPolicy("gold"), num_tasks=2)
    assert (report.truncated, report.ok, report.errors) == (2, 0, {})
    assert report.stops == {"max_turns": 2}
    assert report.turns_mean == 3.0


async def test_fewer_tasks_than_asked_are_all_played_once():
    report = await evaluate("Sum", ScriptedPolicy("wrong"), num_tasks=10_000)
    assert (report.num_tasks, report.n) == (12, 12)


async def test_given_tasks_are_played_instead_of_the_envs_own():
    tasks = [Task(id=f"t{i}", inputs={"a": i, "b": 1}) for i in range(3)]
    seen = []
    report = await evaluate(
        "Sum", ScriptedPolicy("gold"), num_tasks=2, tasks=tasks, on_episode=lambda e: seen.append(e.task_id)
    )
    assert (report.n, report.mean, sorted(seen)) == (2, 1.0, ["t0", "t1"])


async def test_what_was_played_before_counts_and_is_not_played_again():
    played, again = [], []
    whole = await evaluate(f"{__name__}:Sum", ScriptedPolicy("gold"), num_tasks=6, on_episode=played.append)
    report = await evaluate(
        f"{__name__}:Sum", ScriptedPolicy("wrong"), num_tasks=6, finished=played[:4], on_episode=again.append
    )
    assert {e.id for e in again} == {e.id for e in played[4:]}
    assert (whole.mean, report.n, report.mean) == (1.0, 6, pytest.approx(4 / 6))
    done = await evaluate(f"{__name__}:Sum", ScriptedPolicy("wrong"), num_tasks=6, finished=played)
    assert (done.n, done.mean) == (6, 1.0)
    with pytest.raises(ConfigError, match="have the environment's tasks changed"):
        await evaluate(f"{__name__}:Sum", ScriptedPolicy("gold"), num_tasks=6, seed=1, finished=played)


async def test_a_wrong_env_is_refused():
    with pytest.raises(UnknownIdError, match="Calculator-v0"):
        await evaluate("Calculatr-v0", ScriptedPolicy("gold"), num_tasks=1)
    with pytest.raises(ConfigError, match="needs a subclass of AgentEnv"):
        await evaluate("dict", ScriptedPolicy("gold"), num_tasks=1)


def test_every_request_has_its_own_id_and_seed_and_its_tasks_group():
    tasks = [Task(id=f"t{i}", inputs={}) for i in range(50)]
    requests = list(eval_requests(tasks, 4, seed=0))
    assert len({r.episode_id for r in requests}) == len({r.seed for r in requests}) == 200
    assert {r.group_id for r in requests} == {t.id for t in tasks}
    assert [r.seed for r in eval_requests(tasks[:3], 4, seed=0)] == [r.seed for r in requests[:12]]


def test_an_empty_tally_has_no_mean():
    assert math.isnan(Tally().mean)
    assert Tally().errors == {}
