"""The runner: one Episode for each request, failures typed, nothing ever lost, leaked or hung."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import pytest

from tests.unit.vime_agents.loop_clock import LoopClock
from vime_agents.deadlines import off_the_clock
from vime_agents.env import AgentEnv
from vime_agents.episode import Episode
from vime_agents.errors import EngineError, EnvFault, ModelError, SandboxTimeout
from vime_agents.messages import Message, assistant
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Sampling, Usage
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodePlay, EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.task import Task
from vime_agents.token_log import Piece, SampledTokens


class CountingEnv(AgentEnv):
    """Ends after `turns` replies; reward = share of replies that are 'ok'."""

    open_envs: ClassVar[set[int]] = set()
    max_turns = 10

    def prompt(self) -> str:
        self.open_envs.add(id(self))
        return "go"

    async def respond(self, message: Message) -> list[Message] | None:
        if self.turn >= self.task.get("turns", 1):
            return None
        return [{"role": "user", "content": "more"}]

    def score(self, text: str) -> float:
        replies = [m["content"] for m in self.messages if m["role"] == "assistant"]
        return sum(r == "ok" for r in replies) / len(replies)

    def teardown(self) -> None:
        self.open_envs.discard(id(self))


class FunctionPolicy:
    """Plays what a function returns; records tokens as if an engine had sampled them."""

    name = "function"
    exact_tokens = True

    def __init__(self, function: Callable[[Conversation], Any]) -> None:
        self.function = function
        self.in_flight = self.max_in_flight = self.calls = 0
        self.samplings: list[Sampling] = []

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        self.calls += 1
        self.samplings.append(sampling)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            text = self.function(conversation)
            if asyncio.iscoroutine(text):
                text = await text
        finally:
            self.in_flight -= 1
        new = conversation.take_new()
        pieces = [Piece(token_ids=(len(m["content"]),), source="user") for m in new]
        conversation.log.extend(pieces, turn=conversation.turn)
        sampled = SampledTokens(token_ids=(7, 8), logprobs=(-0.5, -0.25), versions=((3, 0, 2),))
        conversation.log.append_sampled(sampled, turn=conversation.turn)
        usage = Usage(prompt_tokens=1, sampled_tokens=2)
        return Generation(message=assistant(text), finish_reason="stop", usage=usage)

    async def aclose(self) -> None:
        """Nothing to release."""


def request(index: int = 0, **inputs: Any) -> EpisodeRequest:
    task = Task(id=f"t{index}", inputs=inputs)
    return EpisodeRequest(task=task, group_id=f"g{index}", episode_id=f"e{index}", seed=index)


def runner(function: Callable[[Conversation], Any], **kwargs: Any) -> Runner:
    kwargs.setdefault("retry_backoff_s", 0.001)
    make_env = kwargs.pop("make_env", CountingEnv)
    return Runner(make_env, FunctionPolicy(function), env_id="test", **kwargs)


async def collect(r: Runner, requests: list[EpisodeRequest]) -> dict[str, Episode]:
    return {e.id: e async for e in r.run(requests)}


async def only(r: Runner, **inputs: Any) -> Episode:
    return (await collect(r, [request(**inputs)]))["e0"]


async def test_an_episode_holds_turns_tokens_and_reward() -> None:
    episode = await only(runner(lambda c: "ok" if c.turn == 0 else "no"), turns=2)
    (trajectory,) = episode.trajectories
    assert (episode.status, episode.reward, episode.group_id) == ("ok", 0.5, "g0")
    assert [t.reply["content"] for t in trajectory.turns] == ["ok", "no"]
    assert [m["content"] for m in trajectory.turns[1].messages] == ["more"]
    (segment,) = trajectory.segments
    assert segment.token_ids.tolist() == [2, 7, 8, 4, 7, 8]
    assert segment.loss_mask.tolist() == [False, True, True, False, True, True]
    assert trajectory.num_sampled_tokens == 4
    assert trajectory.weight_versions == (3,)
    assert not CountingEnv.open_envs


async def test_a_call_that_the_engine_aborts_has_its_own_seconds() -> None:
    clock = LoopClock()

    class Aborted(FunctionPolicy):
        async def act(self, conversation: Conversation, **kwargs: Any) -> Generation:
            generation = await super().act(conversation, **kwargs)
            clock.now += 30.0 if conversation.turn == 0 else 2.0
            return generation if conversation.turn == 0 else replace(generation, finish_reason="abort")

    r = Runner(CountingEnv, Aborted(lambda c: "ok"), env_id="test", max_retries=0)
    episode = await only(r, turns=3)
    assert episode.status == "error:engine"
    assert [turn.policy_s for turn in episode.trajectories[0].turns] == [30.0, 2.0]


async def test_no_more_than_the_allowed_episodes_are_in_flight_and_all_finish() -> None:
    async def slow(conversation: Conversation) -> str:
        await asyncio.sleep(0.001)
        return "ok"

    r = runner(slow, concurrency=7)
    episodes = await collect(r, [request(i, turns=3) for i in range(50)])
    assert len(episodes) == 50
    assert r.policy.max_in_flight == 7  # type: ignore[attr-defined]


async def test_a_slow_episode_holds_back_no_other() -> None:
    release = asyncio.Event()

    async def act(conversation: Conversation) -> str:
        if conversation.episode_id.startswith("e0-"):
            await release.wait()
        return "ok"

    order: list[str] = []
    async for episode in runner(act, concurrency=2).run([request(i) for i in range(10)]):
        order.append(episode.id)
        if len(order) == 9:
            release.set()
    assert order == [*(f"e{i}" for i in range(1, 10)), "e0"]


async def test_infrastructure_is_retried_with_a_fresh_record() -> None:
    def fails_twice(conversation: Conversation) -> str:
        if conversation.turn == 1 and not conversation.episode_id.endswith("-a2"):
            raise EngineError("502")
        return "ok"

    r = runner(fails_twice, max_retries=2)
    episode = await only(r, turns=2)
    assert (episode.status, episode.attempt, episode.reward) == ("ok", 2, 1.0)
    assert episode.trajectories[0].num_sampled_tokens == 4
    assert r.stats.retries == 2
    assert not CountingEnv.open_envs


@pytest.mark.parametrize(
    ("error", "status", "attempts"),
    [
        (EngineError("gone"), "error:engine", 3),
        (EnvFault("registry down"), "error:env", 3),
        (ModelError("empty"), "error:model", 1),
        (RuntimeError("a bug"), "error:env", 1),
    ],
)
async def test_a_failure_is_typed_has_no_reward_and_ends_no_run(
    error: Exception, status: str, attempts: int
) -> None:
    def act(conversation: Conversation) -> str:
        if conversation.episode_id.startswith("e1-"):
            raise error
        return "ok"

    r = runner(act, max_retries=2)
    episodes = await collect(r, [request(i) for i in range(3)])
    assert [episodes[f"e{i}"].status for i in range(3)] == ["ok", status, "ok"]
    assert episodes["e1"].reward is None
    assert episodes["e1"].attempt == attempts - 1
    assert not CountingEnv.open_envs


@pytest.mark.parametrize("where", ["respond", "score", "score after the limit"])
async def test_a_sandbox_that_does_not_answer_is_not_an_episode_that_took_too_long(where: str) -> None:
    """`SandboxTimeout` is a `TimeoutError`, but not of any limit of the runner's."""

    class Silent(CountingEnv):
        async def respond(self, message: Message) -> list[Message] | None:
            if where == "respond":
                raise SandboxTimeout("no answer", limit="answer", limit_s=15.0, elapsed_s=15.0)
            return await super().respond(message)

        def score(self, text: str) -> float:
            raise SandboxTimeout("no answer", limit="answer", limit_s=15.0, elapsed_s=15.0)

    limits = Limits(max_turns=1) if where.endswith("limit") else Limits()
    r = runner(lambda c: "ok", make_env=Silent, max_retries=1, limits=limits)
    episode = await only(r, turns=5 if where.endswith("limit") else 1)
    assert (episode.outcome.kind, episode.outcome.cause, episode.reward) == ("failed", "sandbox", None)
    assert episode.outcome.detail == "SandboxTimeout: no answer"
    assert r.policy.calls == 2  # type: ignore[attr-defined]


async def test_a_hook_that_raises_fails_its_episode_naming_the_hook() -> None:
    class Broken(CountingEnv):
        def score(self, text: str) -> float:
            raise ZeroDivisionError("oops")

    episode = await only(runner(lambda c: "ok", make_env=Broken))
    assert episode.status == "error:grader"
    assert "Broken.score" in episode.outcome.detail
    assert "oops" in episode.outcome.detail
    assert episode.trajectories[0].turns[0].reply["content"] == "ok"


async def test_an_env_that_cannot_be_made_fails_its_episode() -> None:
    def make_env() -> CountingEnv:
        raise OSError("no display")

    episode = await only(runner(lambda c: "ok", make_env=make_env))
    assert episode.status == "error:env"
    assert "no display" in episode.outcome.detail


async def test_a_policy_that_hangs_is_cut_and_the_episode_has_no_reward() -> None:
    async def act(conversation: Conversation) -> str:
        if conversation.turn == 1:
            await asyncio.sleep(60)
        return "ok"

    episode = await only(runner(act, limits=Limits(generation_s=0.05)), turns=2)
    assert episode.outcome.stop == "timeout:generation"
    assert (episode.status, episode.reward) == ("truncated", None)
    assert len(episode.trajectories[0].turns) == 1
    assert not CountingEnv.open_envs


async def test_a_wedged_env_is_cut_and_has_no_reward() -> None:
    class Wedged(CountingEnv):
        async def respond(self, message: Message) -> None:
            await asyncio.sleep(60)

    episode = await only(runner(lambda c: "ok", make_env=Wedged, limits=Limits(env_s=0.05)))
    assert episode.outcome.stop == "timeout:env"
    assert (episode.status, episode.reward) == ("truncated", None)


async def test_the_episode_deadline_covers_every_turn() -> None:
    async def act(conversation: Conversation) -> str:
        await asyncio.sleep(0.03)
        return "ok"

    episode = await only(runner(act, limits=Limits(episode_s=0.08)), turns=10)
    assert episode.outcome.stop == "timeout:episode"
    assert episode.reward == 1.0

    class Wedged(CountingEnv):
        async def respond(self, message: Message) -> None:
            await asyncio.sleep(60)

    episode = await only(runner(lambda c: "ok", make_env=Wedged, limits=Limits(episode_s=0.05)))
    assert (episode.outcome.stop, episode.reward) == ("timeout:episode", None)


@pytest.mark.parametrize("counts", [False, True])
async def test_what_a_policy_waits_off_the_clock_counts_to_no_limit_and_is_no_time_of_its_own(
    counts: bool,
) -> None:
    clock = LoopClock()
    waits = asyncio.Event()

    async def act(conversation: Conversation) -> str:
        with contextlib.nullcontext() if counts else off_the_clock():
            waits.set()
            await asyncio.sleep(1000.0)
        return "ok"

    limits = Limits(episode_s=20.0, generation_s=10.0)
    playing = asyncio.ensure_future(only(runner(act, limits=limits)))
    await waits.wait()
    await clock.advance(11.0)
    if counts:
        assert ((await playing).outcome.stop, (await playing).reward) == ("timeout:generation", None)
    else:
        assert not playing.done()
        await clock.advance(990.0)
        episode = await playing
        assert (episode.outcome.stop, episode.reward) == ("done", 1.0)
        assert episode.trajectories[0].turns[0].policy_s == 0.0
    assert not CountingEnv.open_envs


async def test_limits_and_context_truncate_and_are_no_errors() -> None:
    episode = await only(runner(lambda c: "ok", limits=Limits(max_turns=2)), turns=5)
    assert (episode.status, episode.outcome.stop, episode.reward) == ("truncated", "max_turns", 1.0)
    episode = await only(runner(lambda c: "ok", limits=Limits(max_sampled_tokens=4)), turns=5)
    assert (episode.status, episode.outcome.stop) == ("truncated", "max_tokens")

    def full(conversation: Conversation) -> str:
        if conversation.turn == 1:
            raise ContextLengthExceeded(9, 8)
        return "ok"

    episode = await only(runner(full), turns=5)
    assert (episode.status, episode.outcome.stop) == ("truncated", "context_length")
    assert "context of 8" in episode.outcome.detail


async def test_stopping_the_consumer_cancels_and_closes_every_episode() -> None:
    async def act(conversation: Conversation) -> str:
        if not conversation.episode_id.startswith("e0-"):
            await asyncio.sleep(60)
        return "ok"

    stream = runner(act, concurrency=8).run([request(i) for i in range(20)])
    async for episode in stream:
        assert episode.id == "e0"
        break
    await stream.aclose()  # type: ignore[attr-defined]
    assert not CountingEnv.open_envs
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_a_blocking_env_does_not_block_the_loop() -> None:
    class Blocking(CountingEnv):
        def score(self, text: str) -> float:
            time.sleep(0.3)
            return 1.0

    class Plain(gymnasium.Env[Any, Any]):
        """A plain synchronous Gymnasium env."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            time.sleep(0.3)
            return {"messages": ({"role": "user", "content": "go"},)}, {}

        def step(self, action: Any) -> Any:
            return {"messages": ()}, 0.75, True, False, {}

    for make_env, reward in ((Blocking, 1.0), (Plain, 0.75)):
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        episode = await only(runner(lambda c: "ok", make_env=make_env))
        ticker.cancel()
        assert episode.reward == reward
        assert ticks >= 10


async def test_each_turn_is_sampled_with_its_own_seed_and_the_envs_stop_strings() -> None:
    class Hints(CountingEnv):
        def stop_strings(self) -> list[str]:
            return [f"<{self.turn}>"]

        def max_tokens(self) -> int:
            return 5 + self.turn

    r = runner(lambda c: "ok", make_env=Hints, sampling=Sampling(max_tokens=6, stop=("!",)))
    await only(r, turns=3)
    samplings = r.policy.samplings  # type: ignore[attr-defined]
    assert [s.stop for s in samplings] == [("!", "<0>"), ("!", "<1>"), ("!", "<2>")]
    assert [s.max_tokens for s in samplings] == [5, 6, 6]
    assert len({s.seed for s in samplings}) == 3


async def test_a_custom_generate_function_plays_the_episode() -> None:
    async def corrects(play: EpisodePlay) -> None:
        await play.reset()
        while not play.done:
            reply = await play.act()
            await play.step(assistant("ok") if reply["content"] == "no" else reply)

    episode = await only(runner(lambda c: "no", generate=corrects), turns=2)
    assert episode.reward == 1.0

    async def gives_up(play: EpisodePlay) -> None:
        await play.reset()

    episode = await only(runner(lambda c: "no", generate=gives_up))
    assert episode.status == "error:env"
    assert "before the episode was over" in episode.outcome.detail


async def test_stuck_episodes_are_reported_with_what_they_await() -> None:
    async def act(conversation: Conversation) -> str:
        await asyncio.sleep(0.05)
        reports.extend(r.stuck(0.01))
        return "ok"

    reports: list[str] = []
    r = runner(act)
    await only(r)
    assert reports == ["e0: generation for 0 s"]
    assert r.stuck(0) == []
