"""Training on a game: the policy plays all agents, or those that `--agents` leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vime_agents.config.train import TrainConfig
from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.evaluation.opponents import OpponentTally
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batch
from vime_agents.messages import assistant
from vime_agents.policy import Conversation, Generation, Sampling, Usage
from vime_agents.rollout.limits import Limits
from vime_agents.token_log import Piece, SampledTokens
from vime_trainers.ray import rollout_actor
from vime_trainers.ray.rollout_actor import RolloutActor, RolloutConfig
from vime_trainers.ray.schedule import frozen_agents, rollout_requests, training_tasks
from vime_trainers.ray.train_loop import agent_rewards


class Checker:
    """Always checks or calls, in two tokens; what an engine with exact tokens gives."""

    exact_tokens = True

    def __init__(self, *, name: str = "policy", trainable: bool = True) -> None:
        self.name, self.trainable = name, trainable

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        asked = conversation.take_new()
        pieces = [Piece(token_ids=(len(m["content"]),), source="user") for m in asked]
        conversation.log.extend(pieces, turn=conversation.turn)
        sampled = SampledTokens(token_ids=(7, 8), logprobs=(-1.0, -2.0), versions=((3, 0, 2),))
        conversation.log.append_sampled(sampled, turn=conversation.turn, trainable=self.trainable)
        text = "call" if "call or" in asked[-1]["content"] else "check"
        usage = Usage(prompt_tokens=1, sampled_tokens=2)
        return Generation(message=assistant(text), finish_reason="stop", usage=usage)

    async def aclose(self) -> None:
        """Nothing to release."""


def config(**settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "env": "KuhnPoker-v0",
        "hf_checkpoint": "model",
        "run_dir": "run",
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 4,
    }
    return TrainConfig(**(defaults | settings))


async def play(monkeypatch: pytest.MonkeyPatch, c: TrainConfig) -> Any:
    """The batch of a rollout, by an actor without Ray and a policy without an engine."""
    monkeypatch.setattr(rollout_actor, "make_renderer", lambda *args, **kwargs: None)

    def checker(*args: Any, max_context_tokens: int, **kwargs: Any) -> Checker:
        return Checker(**kwargs)

    monkeypatch.setattr(rollout_actor, "TokenPolicy", checker)
    actor = RolloutActor(
        RolloutConfig(
            env_id=c.env,
            task_seed=0,
            hf_checkpoint="model",
            renderer="auto",
            max_context_tokens=100,
            concurrency=4,
            limits=Limits(),
            max_retries=0,
            agents=c.agents,
            rotate_seats=c.rotate_seats,
        ),
        "http://127.0.0.1:9",
        "http://127.0.0.1:8" if c.has_snapshots else None,
    )
    actor.name_snapshot(20)
    requests = list(rollout_requests(c, training_tasks(c), 0))
    episodes = [episode async for episode in actor.play(requests, "train", Sampling())]
    await actor.close()
    assert len(episodes) == c.rollout_batch_size * c.n_samples_per_prompt
    for group in {e.group_id for e in episodes}:  # episodes that are compared had the same to deal with
        casts = [[(t.policy, t.policy_of) for t in e.trajectories] for e in episodes if e.group_id == group]
        assert casts == [casts[0]] * c.n_samples_per_prompt
    # Kuhn poker is zero-sum; nobody is left out for being frozen.
    means = agent_rewards(episodes)
    assert set(means) == {"agent_reward/first", "agent_reward/second"}
    chips = sum(t.reward.value or 0.0 for e in episodes for t in e.trajectories if t.agent == "first")
    assert means["agent_reward/first"] == pytest.approx(chips / len(episodes))
    assert means["agent_reward/second"] == pytest.approx(-chips / len(episodes))
    against = OpponentTally(frozen_agents(c))
    for episode in episodes:
        against.add(episode)
    batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0, keep_zero_advantage=True)
    return replace(batch, metrics={**batch.metrics, **against.metrics()})


async def test_without_agents_both_sides_of_a_game_are_trained_each_against_its_own_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = await play(monkeypatch, config())
    samples = {(s.group_id, s.agent) for s in batch.samples}
    assert {agent for _, agent in samples} == {"first", "second"}
    assert len(samples) == 4
    assert len(batch.samples) == 16


async def test_a_frozen_opponent_is_in_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await play(monkeypatch, config(agents="second=scripted:random"))
    assert {s.agent for s in batch.samples} == {"first"}
    assert len(batch.samples) == 8
    assert any(s.advantages.any() for s in batch.samples)  # a random opponent makes episodes differ


async def test_opponents_of_a_pool_and_seats_change_from_group_to_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = config(agents="second=random|gold", rotate_seats=True, rollout_batch_size=4)
    batch = await play(monkeypatch, c)
    assert len(batch.samples) == 16
    # Four groups: both opponents, in both seats; the policy learns from either seat, and from nobody else's.
    agents = {(s.group_id, s.agent) for s in batch.samples}
    assert sorted(agent for _, agent in agents) == ["first", "first", "second", "second"]
    lots = [r.lot for rollout in (0, 1) for r in rollout_requests(c, training_tasks(c), rollout)]
    assert lots == [lot for lot in range(8) for _ in range(4)]


async def test_a_snapshot_plays_under_the_update_that_it_is_of_and_is_in_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = await play(monkeypatch, config(agents="second=snapshots|random", rollout_batch_size=4))
    assert {s.agent for s in batch.samples} == {"first"}
    assert batch.metrics["tokens_lost_to_drift"] == 0
    # Of four groups each opponent has two.
    names = ("snapshot@20", "scripted:random")
    assert [batch.metrics[f"opponent/{name}/episodes"] for name in names] == [8, 8]
    kinds = ("episodes", "reward", "win_rate")
    told = {name for name in batch.metrics if name.startswith("opponent/")}
    assert told == {f"opponent/{name}/{kind}" for name in names for kind in kinds}


def test_who_is_frozen_is_known_before_anything_is_started() -> None:
    assert frozen_agents(config()) == frozenset()
    assert frozen_agents(config(agents="second=scripted:gold")) == {"second"}
    assert frozen_agents(config(agents="second=snapshots|scripted:wrong")) == {"second"}
    solvers = config(env="ProposerSolver-v0", agents="solver=scripted:gold")
    assert frozen_agents(solvers) == {f"solver_{i}" for i in range(4)}


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"agents": "third=scripted:gold"}, UnknownIdError, "third"),
        ({"agents": "first=scripted:gold,second=scripted:gold"}, ConfigError, "nobody is left"),
        ({"agents": "first=vllm:folder"}, ConfigError, "--agents"),
        ({"agents": "first=scripted:gold|scripted:silver"}, ConfigError, "--agents"),
        ({"rotate_seats": True}, ConfigError, "one policy plays them all"),
        ({"agents": "agent=scripted:gold", "env": "KeyLookup-v0"}, ConfigError, "has one agent"),
    ],
)
def test_wrong_agents_are_refused(settings: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        frozen_agents(config(**settings))
