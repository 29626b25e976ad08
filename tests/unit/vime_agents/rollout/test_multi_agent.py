"""Several agents under the runner: a policy and a token stream for each, and one who fails breaks no game."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.vime_agents.multi_agent.games import LastOneOut, Nim
from vime_agents.episode import Episode, Trajectory, episode_from_json, episode_to_json
from vime_agents.errors import ConfigError, EngineError, ModelError, UnknownIdError
from vime_agents.messages import Message, assistant
from vime_agents.multi_agent import MultiAgentEnv
from vime_agents.multi_agent.assign import assign
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policies.tokens import TokenPolicy
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Policy, Sampling, Usage
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.multi_agent import MultiAgentPlay
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.task import Task
from vime_agents.token_log import Piece, SampledTokens
from vime_envs.games.tic_tac_toe import TicTacToe


class Player:
    """Plays what a function returns, two tokens `mark` each time; a prompt is the lengths of its messages."""

    exact_tokens = True

    def __init__(self, name: str, function: Callable[[Conversation], Any], mark: int = 7) -> None:
        self.name, self.function, self.mark = name, function, mark
        self.samplings: list[tuple[str, Sampling]] = []

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        self.samplings.append((conversation.agent, sampling))
        text = self.function(conversation)
        text = await text if asyncio.iscoroutine(text) else text
        pieces = [
            Piece(token_ids=(1000 + len(m["content"]),), source="user") for m in conversation.take_new()
        ]
        conversation.log.extend(pieces, turn=conversation.turn)
        sampled = SampledTokens(
            token_ids=(self.mark, self.mark), logprobs=(-1.0, -2.0), versions=((3, 0, 2),)
        )
        conversation.log.append_sampled(
            sampled, turn=conversation.turn, trainable=getattr(self, "trainable", True)
        )
        usage = Usage(prompt_tokens=1, sampled_tokens=2)
        return Generation(message=assistant(text), finish_reason="stop", usage=usage)

    async def aclose(self) -> None:
        """Nothing to release."""


class Frozen(Player):
    trainable = False


async def played(
    make_env: Callable[[], MultiAgentEnv], policy: Policy | Mapping[str, Policy], **kwargs: Any
) -> Episode:
    runner = Runner(make_env, policy, env_id="test", retry_backoff_s=0.001, **kwargs)
    request = EpisodeRequest(task=Task(id="t", inputs={"seed": 5}), group_id="g", episode_id="e", seed=1)
    (episode,) = [e async for e in runner.run([request])]
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode
    return episode


async def test_a_record_of_an_earlier_release_is_read() -> None:
    data = episode_to_json(await played(Nim, Player("p", lambda c: "1")))
    for trajectory in data["trajectories"]:
        del trajectory["outcome"], trajectory["frozen"]
    assert [(t.outcome, t.frozen) for t in episode_from_json(data).trajectories] == [(None, False)] * 2


def by_agent(episode: Episode) -> dict[str, Trajectory]:
    return {t.agent: t for t in episode.trajectories}


async def test_each_agent_has_its_own_tokens_turns_reward_and_outcome() -> None:
    policies = {
        "first": Player("one", lambda c: "2", mark=1),
        "second": Frozen("two", lambda c: "1", mark=2),
    }
    episode = await played(Nim, policies)
    first, second = by_agent(episode)["first"], by_agent(episode)["second"]
    assert (episode.status, episode.outcome.stop, episode.reward) == ("ok", "done", None)
    assert (first.reward.value, second.reward.value) == (1.0, -1.0)
    assert (first.policy, second.policy, first.frozen, second.frozen) == ("one", "two", False, True)
    assert [t.reply["content"] for t in first.turns] == ["2", "2"]
    assert [t.messages[0]["content"] for t in second.turns] == ["3 sticks are left. Take 1 or 2."]
    (tokens,), (others,) = first.segments, second.segments
    ask = 1000 + len("5 sticks are left. Take 1 or 2.")
    assert tokens.token_ids.tolist() == [ask, 1, 1, ask, 1, 1]
    assert tokens.loss_mask.tolist() == [False, True, True, False, True, True]
    assert others.token_ids.tolist() == [ask, 2, 2]
    assert not others.loss_mask.any()
    assert [t.reward for t in first.turns] == [0.0, 1.0]
    assert [t.reward for t in second.turns] == [-1.0]
    assert first.outcome is not None
    assert first.outcome.stop == "done"


class Characters:
    """A renderer whose tokens are characters."""

    def initial(self, messages: Sequence[Message], tools: Any) -> list[Piece]:
        return [Piece(token_ids=tuple(map(ord, m["content"])), source="user") for m in messages]

    def extend(self, previous_ids: Any, new_messages: Sequence[Message], tools: Any) -> list[Piece]:
        return self.initial(new_messages, tools)

    def written(self, messages: Sequence[Message], tools: Any) -> list[int]:
        raise NotImplementedError

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        return assistant("".join(map(chr, sampled_ids)))


@dataclass
class Answer:
    sampled: SampledTokens
    finish_reason: str = "stop"


class TakesOne:
    """An engine that always samples the same text, and remembers what it read for whom."""

    def __init__(self) -> None:
        self.read: dict[str, list[str]] = {}

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, session_id: str, timeout_s: float | None
    ) -> Answer:
        self.read.setdefault(session_id, []).append("".join(map(chr, token_ids)))
        return Answer(SampledTokens(token_ids=tuple(b"<1>"), logprobs=(-0.5,) * 3, versions=((4, 0, 3),)))

    async def aclose(self) -> None:
        """Nothing to release."""


async def test_one_engine_plays_both_seats_and_mixes_no_tokens_of_theirs() -> None:
    engine = TakesOne()

    def policy(trainable: bool) -> TokenPolicy:
        return TokenPolicy(engine, Characters(), max_context_tokens=500, trainable=trainable)  # type: ignore[arg-type]

    episode = await played(Nim, {"first": policy(True), "second": policy(False)})
    asks = [f"{n} sticks are left. Take 1 or 2." for n in (5, 4, 3, 2, 1)]
    for trajectory, seen, frozen in zip(
        episode.trajectories, (asks[::2], asks[1::2]), (False, True), strict=True
    ):
        (segment,) = trajectory.segments
        text = "".join(map(chr, segment.token_ids))
        assert text == "".join(f"{ask}<1>" for ask in seen)
        sampled = "".join(c for c, m in zip(text, segment.loss_mask, strict=True) if m)
        assert sampled == ("" if frozen else "<1>" * len(seen))
        assert (trajectory.frozen, trajectory.weight_versions) == (frozen, (4,))
    assert engine.read["e-a0-second"] == [asks[1], f"{asks[1]}<1>{asks[3]}"]


async def test_those_who_act_at_once_are_sampled_at_once_with_seeds_of_their_own() -> None:
    together = asyncio.Barrier(3)
    numbers = {"a": "1", "b": "2", "c": "2"}

    async def act(conversation: Conversation) -> str:
        if conversation.turn == 0:
            await together.wait()
        return numbers[conversation.agent]

    policy = Player("self", act)
    episode = await asyncio.wait_for(played(LastOneOut, policy), 10)
    trajectories = by_agent(episode)
    assert [len(trajectories[a].turns) for a in "abc"] == [1, 2, 2]
    assert trajectories["a"].outcome is not None
    assert trajectories["a"].outcome.stop == "out"
    assert [m["content"] for m in trajectories["a"].final_messages] == ["You are out."]
    assert [trajectories[a].reward.value for a in "abc"] == [0.0, 1.5, 2.5]
    assert [t.reward for t in trajectories["b"].turns] == [0.5, 1.0]
    assert len({sampling.seed for _, sampling in policy.samplings}) == 5
    conversations = {t.segments[0].token_ids.tolist()[0] for t in episode.trajectories}
    assert len(conversations) == 1


def test_policies_are_assigned_by_agent_then_role_then_to_anybody() -> None:
    agents, roles = ("judge", "a", "b"), {"a": "player", "b": "player"}
    one, two, three = (Player(n, str) for n in ("one", "two", "three"))
    assert assign(agents, roles, one) == {"judge": one, "a": one, "b": one}
    assert assign(agents, roles, {"b": one, "player": two, "*": three}) == {
        "judge": three,
        "a": two,
        "b": one,
    }
    with pytest.raises(ConfigError, match="nobody plays 'judge'"):
        assign(agents, roles, {"player": two})
    with pytest.raises(UnknownIdError, match=r"unknown agent or role 'palyer'\. Did you mean 'player'"):
        assign(agents, roles, {"palyer": two, "*": one})


@pytest.mark.parametrize("script", ["garbage", "wrong"])
async def test_an_agent_that_talks_nonsense_forfeits_and_the_other_wins(script: Any) -> None:
    policies = {"second": ScriptedPolicy(script), "first": ScriptedPolicy("random")}
    episode = await played(Nim, policies)
    trajectories = by_agent(episode)
    assert (episode.status, episode.outcome.stop) == ("ok", "forfeit")
    assert trajectories["second"].outcome is not None
    assert trajectories["second"].outcome.stop == "illegal_move"
    assert [t.reward.value for t in episode.trajectories] == [1.0, -1.0]
    assert len(trajectories["second"].turns) == 2
    assert "not a legal move" in trajectories["second"].turns[1].messages[0]["content"]
    assert episode.metrics["illegal_moves/second"] == 2


async def test_a_model_that_fails_has_no_reward_and_one_whose_context_is_full_has_lost() -> None:
    def fails(error: Exception) -> Callable[[Conversation], str]:
        def act(conversation: Conversation) -> str:
            raise error

        return act

    for error, value, status, stop in (
        (ModelError("empty"), None, "error", "error"),
        (ContextLengthExceeded(9, 8), -1.0, "ok", "context_length"),
    ):
        episode = await played(
            Nim, {"first": Player("good", lambda c: "2"), "second": Player("bad", fails(error))}
        )
        first, second = episode.trajectories
        assert (episode.status, episode.outcome.stop) == ("ok", "forfeit")
        assert (first.reward.value, second.reward.value, second.reward.status) == (1.0, value, status)
        assert second.outcome is not None
        assert second.outcome.stop == stop
        assert second.turns == ()


async def test_infrastructure_ends_the_episode_for_all_and_is_tried_again() -> None:
    def fails_once(conversation: Conversation) -> str:
        if conversation.agent == "second" and "-a0-" in conversation.episode_id:
            raise EngineError("502")
        return "1"

    episode = await played(Nim, Player("p", fails_once))
    assert (episode.status, episode.attempt) == ("ok", 1)
    assert sum(len(t.turns) for t in episode.trajectories) == 5
    episode = await played(Nim, Player("p", fails_once), max_retries=0)
    assert (episode.status, episode.outcome.cause) == ("error:engine", "engine")
    assert [t.reward.status for t in episode.trajectories] == ["error", "error"]


async def test_a_limit_of_the_run_scores_what_stands_or_nothing() -> None:
    class Standing(Nim):
        def standing(self) -> dict[str, float]:
            return {"first": 0.25, "second": -0.25}

    for make_env, values in ((Standing, [0.25, -0.25]), (Nim, [None, None])):
        episode = await played(make_env, Player("p", lambda c: "1"), limits=Limits(max_turns=3))
        assert (episode.status, episode.outcome.stop) == ("truncated", "max_turns")
        assert [t.reward.value for t in episode.trajectories] == values
        assert [t.outcome.stop for t in episode.trajectories if t.outcome] == ["max_turns", "max_turns"]
    episode = await played(Nim, Player("p", lambda c: "1"), limits=Limits(max_sampled_tokens=4))
    assert (episode.status, episode.outcome.stop) == ("truncated", "max_tokens")


async def test_an_engine_that_hangs_is_cut_and_nobody_has_a_reward() -> None:
    async def hangs(conversation: Conversation) -> str:
        if conversation.agent == "b":
            await asyncio.sleep(60)
        return "5"

    episode = await played(LastOneOut, Player("p", hangs), limits=Limits(generation_s=0.05))
    assert (episode.status, episode.outcome.stop) == ("truncated", "timeout:generation")
    assert [t.reward.value for t in episode.trajectories] == [None, None, None]
    assert [len(t.turns) for t in episode.trajectories] == [1, 0, 1]
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_an_author_who_breaks_the_contract_fails_the_episode() -> None:
    class Broken(Nim):
        def move(self, me: str, taken: int) -> str:
            return "nobody"

    class Raises(Nim):
        def view(self, me: str) -> str:
            raise ZeroDivisionError("oops")

    for make_env, detail in ((Broken, "gives the turn to {'nobody'}"), (Raises, "Raises.view")):
        episode = await played(make_env, Player("p", lambda c: "1"))
        assert episode.status == "error:env"
        assert detail in episode.outcome.detail
        assert [t.reward.value for t in episode.trajectories] == [None, None]


async def test_a_game_that_is_cancelled_is_closed() -> None:
    closed = []

    class Closing(Nim):
        def teardown(self) -> None:
            closed.append(self)

    async def hangs(conversation: Conversation) -> str:
        await asyncio.sleep(60)
        return "1"

    task = asyncio.create_task(played(Closing, Player("p", hangs)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(closed) == 1


async def test_a_custom_generate_function_may_change_what_is_said() -> None:
    async def generate(play: MultiAgentPlay) -> None:
        await play.reset()
        while not play.done:
            replies = await play.act()
            await play.step({agent: assistant("1") for agent in replies})

    episode = await played(Nim, Player("p", lambda c: "nonsense"), generate=generate)
    assert [t.reward.value for t in episode.trajectories] == [1.0, -1.0]
    assert [t.reply["content"] for t in episode.trajectories[0].turns] == ["1", "1", "1"]


async def test_policies_by_agent_need_an_env_of_several() -> None:
    from vime_envs.games.guess_number import GuessNumber

    with pytest.raises(ConfigError, match="GuessNumber is an env of one agent"):
        await played(GuessNumber, {"*": Player("p", lambda c: "1")})  # type: ignore[arg-type]


async def test_many_games_of_random_players_all_end_and_sum_to_zero() -> None:
    requests = [
        EpisodeRequest(
            task=Task(id=f"t{i}", inputs={"seed": i}), group_id=f"g{i}", episode_id=f"e{i}", seed=i
        )
        for i in range(60)
    ]
    policies = {"X": ScriptedPolicy("random"), "O": ScriptedPolicy("gold")}
    runner = Runner(TicTacToe, policies, env_id="test", concurrency=20)
    episodes = [e async for e in runner.run(requests)]
    assert {e.outcome.stop for e in episodes} == {"done"}
    rewards = [[t.reward.value or 0.0 for t in e.trajectories] for e in episodes]
    assert all(sum(pair) == 0 for pair in rewards)
    assert all(o >= 0 for _, o in rewards)  # nobody beats the perfect player
    assert len({tuple(t.reply["content"] for t in e.trajectories[0].turns) for e in episodes}) > 20
