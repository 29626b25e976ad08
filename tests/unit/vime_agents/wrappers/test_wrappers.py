"""What wrappers do to an episode, on both faces, under Gymnasium's own and under the Runner."""

from __future__ import annotations

import asyncio
import json
import warnings

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

import vime_agents as vime
from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.errors import ConfigError, ContractError
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.messages import assistant, system, tool_call, user
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Generation
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.sandbox import SandboxSpec
from vime_agents.wrappers import (
    AgentWrapper,
    FewShot,
    ObservationLimit,
    TextToolCalls,
    TokenBudget,
    TranscriptRecorder,
    TurnLimit,
)


class Count(ToolEnv):
    """Half a point for each call of `up`, at most two."""

    max_turns = 5

    def make_task(self, rng):
        return {"n": int(rng.integers(1000))}

    def prompt(self):
        return f"Task {self.task['n']}: call up twice."

    def setup(self):
        self.ups = 0

    @vime.tool
    def up(self, by: int) -> str:
        """Count.

        Args:
            by: how far.
        """
        self.ups += by
        self.give(0.25)
        return f"{self.ups} so far"

    def score(self, text):
        return min(self.ups, 2) / 4

    def gold(self):
        call = tool_call("up", {"by": 1}, "gold")
        return [assistant("", [call]), assistant("", [call]), "done"]


UP = assistant("", [tool_call("up", {"by": 1}, "a")])
LIMIT_2 = TurnLimit.wrapper_spec(max_turns=2)
ALL = (
    TextToolCalls.wrapper_spec(style="xml"),
    FewShot.wrapper_spec(examples=[user("2 + 2?"), assistant("4")]),
    ObservationLimit.wrapper_spec(max_characters=5_000),
    TokenBudget.wrapper_spec(max_tokens=1_000, count_tokens="vime_agents.wrappers.limits:estimated_tokens"),
    TurnLimit.wrapper_spec(max_turns=3),
)


def spec(*wrappers, **kwargs):
    return EnvSpec("WrappedCount-v0", entry_point=f"{__name__}:Count", additional_wrappers=wrappers, **kwargs)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Gymnasium imports a spec's entry point by name."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module():
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


async def play(env, replies, face):
    """(observations, rewards, last info) on one of the faces."""
    if face == "sync":
        return await asyncio.to_thread(_play_sync, env, replies)
    observation, info = await env.areset(seed=1)
    seen, rewards = [observation], []
    for reply in replies:
        observation, reward, terminated, truncated, info = await env.astep(reply)
        seen.append(observation)
        rewards.append(reward)
    await env.aclose()
    return seen, rewards, (terminated, truncated, info)


def _play_sync(env, replies):
    observation, info = env.reset(seed=1)
    seen, rewards = [observation], []
    for reply in replies:
        observation, reward, terminated, truncated, info = env.step(reply)
        seen.append(observation)
        rewards.append(reward)
    env.close()
    return seen, rewards, (terminated, truncated, info)


def inside(which):
    """The env that a wrapper goes around: bare, or under Gymnasium's wrappers."""
    return Count() if which == "bare" else RecordEpisodeStatistics(TimeLimit(OrderEnforcing(Count()), 4))


BOTH = pytest.mark.parametrize("face", ["sync", "async"])
INSIDE = pytest.mark.parametrize("which", ["bare", "gymnasium's"])


# ------------------------------------------------------------------------------------------- the limits


@BOTH
@INSIDE
async def test_the_turn_limit_cuts_and_scores_and_the_rewards_sum_to_the_score(face, which):
    _, rewards, (terminated, truncated, info) = await play(
        TurnLimit(inside(which), max_turns=2), [UP, UP], face
    )
    assert (terminated, truncated, info["stop"]) == (False, True, "max_turns")
    assert info["reward_result"].value == 2 / 4 + 2 * 0.25
    assert info["reward_result"].components == {"score": 0.5, "steps": 0.5}
    assert rewards == [0.25, 0.75]


@BOTH
async def test_an_env_that_ends_with_the_last_turn_is_not_cut(face):
    _, rewards, (terminated, truncated, info) = await play(
        TurnLimit(Count(), max_turns=2), [UP, "done"], face
    )
    assert (terminated, truncated, info["stop"], rewards) == (True, False, "done", [0.25, 0.25])


async def test_each_episode_has_all_its_turns():
    env = TurnLimit(Count(), max_turns=2)
    for _ in range(2):
        await env.areset(seed=0)
        assert [(await env.astep(UP))[3] for _ in range(2)] == [False, True]
    with pytest.raises(ContractError, match="after the episode ended"):
        await env.astep(UP)
    await env.aclose()


@BOTH
async def test_the_token_budget_counts_text_and_calls_and_tells_what_is_left(face):
    env = TokenBudget(Count(), max_tokens=10, count_tokens=len)
    # "up" and '{"by": 1}' are 2 and 9 characters
    _, _, (_, truncated, info) = await play(env, [UP], face)
    assert (truncated, info["stop"], info["reward_result"].value) == (True, "max_tokens", 0.5)
    env = TokenBudget(Count(), max_tokens=30, count_tokens=len)
    _, info = await env.areset(seed=0)
    assert info["max_tokens"] == 30
    assert (await env.astep(UP))[4]["max_tokens"] == 30 - 11
    await env.aclose()


def test_the_estimate_is_a_token_for_four_bytes():
    from vime_agents.wrappers.limits import estimated_tokens

    assert [estimated_tokens(t) for t in ("", "a", "abcd", "abcde", "🙂", "\ud800")] == [0, 1, 1, 2, 1, 1]


@BOTH
async def test_long_messages_are_cut_in_the_middle_and_counted(face):
    class Long(AgentEnv):
        def make_task(self, rng):
            return {}

        def prompt(self):
            return [system("s" * 10), user("a" * 50 + "b" * 50)]

        def score(self, text):
            return 1.0

    env = ObservationLimit(Long(), max_characters=20)
    seen, _, _ = await play(env, ["x"], face)
    first, second = seen[0]["messages"]
    assert first == system("s" * 10)
    assert second["content"] == f"{'a' * 10}\n[... 80 of 100 characters were cut ...]\n{'b' * 10}"
    assert env.counters["observations_cut"] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: TurnLimit(e, max_turns=0), "max_turns must be at least 1, got 0"),
        (lambda e: TokenBudget(e, max_tokens=-1), "max_tokens must be at least 1"),
        (lambda e: TokenBudget(e, max_tokens=1, count_tokens="nowhere:f"), "no module named 'nowhere'"),
        (lambda e: ObservationLimit(e, max_characters=0), "max_characters"),
        (lambda e: TextToolCalls(e, style="yaml"), "xml, json, fenced, got 'yaml'"),
        (lambda e: FewShot(e, examples=[]), "no message at all"),
        (lambda e: FewShot(e, examples=[user("q")]), "the roles user"),
        (lambda e: FewShot(e, examples=[system("s"), user("q"), assistant("a")]), "system"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make(Count())


# ---------------------------------------------------------------------------------- prompts and records


@BOTH
async def test_examples_stand_before_the_prompt_and_cannot_be_changed_from_outside(face):
    examples = [user("Task 0"), assistant("", [tool_call("up", {"by": 2}, "e")])]
    env = FewShot(Count(), examples=examples)
    seen, _, _ = await play(env, ["x"], face)
    *shown, prompt = seen[0]["messages"]
    assert shown == examples
    assert prompt["content"].startswith("Task ")
    shown[1]["tool_calls"][0]["function"]["name"] = "spoiled"
    observation, _ = await env.areset(seed=1)
    assert observation["messages"][1] == examples[1]
    assert examples[1]["tool_calls"][0]["function"]["name"] == "up"


async def test_examples_come_after_the_system_message():
    class WithSystem(Count):
        def prompt(self):
            return [system("Be brief."), user("go")]

    env = FewShot(WithSystem(), examples=[user("q"), assistant("a")])
    observation, _ = await env.areset(seed=0)
    assert [m["content"] for m in observation["messages"]] == ["Be brief.", "q", "a", "go"]
    await env.aclose()


@BOTH
async def test_a_transcript_has_a_line_for_each_episode_also_for_one_that_was_left(face, tmp_path):
    path = tmp_path / "deep" / "transcripts.jsonl"
    for replies in ([UP, "\u2028 done \ud800"], [UP]):
        env = TranscriptRecorder(Count(), path=str(path))
        await play(env, replies, face)
    whole, left = map(json.loads, path.read_bytes().splitlines())
    assert [m["role"] for m in whole["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert whole["messages"][1] == UP
    assert whole["messages"][3]["content"] == "\u2028 done \ud800"
    assert (whole["rewards"], whole["stop"], whole["reward"]) == ([0.25, 0.25], "done", 0.5)
    assert whole["components"] == {"score": 0.25, "steps": 0.25}
    assert (left["rewards"], left["stop"], left["reward"]) == ([0.25], None, None)


# -------------------------------------------------------------------------------------- gymnasium's rules


@pytest.mark.parametrize("wrapper", [*ALL, LIMIT_2], ids=lambda w: w.name)
def test_gymnasium_finds_nothing_to_say_about_a_wrapped_env(wrapper):
    env = gymnasium.make(spec(wrapper), render_mode="ansi")
    inner = env
    while not isinstance(inner, AgentWrapper):
        inner = inner.env
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        check_env(inner, skip_render_check=True)
    env.close()
    # It says of every wrapper that it is one.
    assert ["different from the unwrapped version" in str(w.message) for w in warned] == [True]


def test_a_spec_with_wrappers_survives_json_and_makes_the_same_env():
    made = gymnasium.make(spec(*ALL))
    read = EnvSpec.from_json(made.spec.to_json())
    assert [w.name for w in read.additional_wrappers] == [w.name for w in ALL]
    again = gymnasium.make(read)
    assert made.reset(seed=3) == again.reset(seed=3)
    for reply in ('<tool_call>{"name": "up", "arguments": {"by": 1}}</tool_call>', "x"):
        one, other = made.step(reply), again.step(reply)
        assert one[:4] == other[:4]
    assert one[2]
    made.close()
    again.close()


def test_gymnasiums_own_wrappers_go_around_an_env_unchanged():
    env = RecordEpisodeStatistics(TimeLimit(OrderEnforcing(PassiveEnvChecker(Count())), 2))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    assert not env.step(UP)[3]
    *_, truncated, info = env.step(UP)
    assert truncated
    assert info["episode"]["l"] == 2
    assert info["episode"]["r"] == 0.5  # the step rewards: TimeLimit asks for no score
    env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_make_vec_gives_what_single_envs_give(mode):
    gymnasium.register("WrappedCount-v0", entry_point=Count, additional_wrappers=(LIMIT_2,))
    try:
        # Text has no fixed length, as Gymnasium's own Sequence has none: shared memory is not for it.
        own = {"vector_kwargs": {"shared_memory": False}} if mode == "async" else {}
        vec = gymnasium.make_vec("WrappedCount-v0", num_envs=2, vectorization_mode=mode, **own)
        observations, _ = vec.reset(seed=[5, 6])
        single = TurnLimit(Count(), max_turns=2)
        for index, seed in enumerate((5, 6)):
            expected, _ = single.reset(seed=seed)
            assert _of_env(observations, index) == list(expected["messages"])
        ends = [vec.step(("x y", "x y"))[1:4] for _ in range(1)]
        assert [list(map(bool, part)) for part in ends[0][1:]] == [[True, True], [False, False]]
        assert list(ends[0][0]) == [0.0, 0.0]
        vec.close()
        single.close()
    finally:
        gymnasium.registry.pop("WrappedCount-v0")


def _of_env(observations, index):
    return list(observations["messages"][index])


# ---------------------------------------------------------------------------------------- under the Runner


class Says:
    """Says the same things in each episode, and remembers which tools it was told of."""

    name, exact_tokens = "says", False

    def __init__(self, *replies):
        self.replies, self.tools, self.max_tokens = replies, [], []

    async def act(self, conversation, *, sampling, timeout_s=None):
        self.tools.append([s["function"]["name"] for s in conversation.tools])
        self.max_tokens.append(sampling.max_tokens)
        reply = self.replies[min(conversation.turn, len(self.replies) - 1)]
        return Generation(message=assistant(reply) if isinstance(reply, str) else reply, finish_reason="stop")

    async def aclose(self):
        pass


async def episode_of(make_env, policy, **kwargs):
    task = Count().task_set()[0]
    request = EpisodeRequest(task=task, group_id="g", episode_id="e", seed=1)
    return await Runner(make_env, policy, env_id="Count", max_retries=0, **kwargs).play(request)


@INSIDE
async def test_the_runner_honours_a_wrapper(which):
    episode = await episode_of(lambda: TurnLimit(inside(which), max_turns=2), Says(UP))
    assert (episode.outcome.kind, episode.outcome.stop) == ("truncated", "max_turns")
    assert len(episode.trajectories[0].turns) == 2
    assert episode.trajectories[0].reward.value == 1.0
    assert episode.metrics["tool_calls"] == 2


async def test_the_runner_tells_the_policy_what_the_wrapped_env_has():
    policy = Says(UP)
    await episode_of(lambda: TimeLimit(Count(), 1), policy)
    await episode_of(lambda: TextToolCalls(TimeLimit(Count(), 1)), policy)
    await episode_of(lambda: TokenBudget(Count(), max_tokens=3), policy)
    assert policy.tools == [["up"], [], ["up"]]
    assert policy.max_tokens[2] == 3


@pytest.mark.parametrize(
    "make", [lambda: TurnLimit(Count(), max_turns=4), lambda: TimeLimit(Count(), 4)], ids=["ours", "theirs"]
)
async def test_a_limit_of_the_runners_is_scored_through_the_wrappers(make):
    episode = await episode_of(make, Says(UP), limits=Limits(max_turns=1))
    assert (episode.outcome.stop, episode.trajectories[0].reward.value) == ("max_turns", 0.5)


async def test_an_evaluation_plays_an_id_as_it_was_registered():
    gymnasium.register(
        "Limited-v0", entry_point=f"{__name__}:Count", additional_wrappers=ALL[:1], max_episode_steps=2
    )
    try:
        episodes = []
        await evaluate("Limited-v0", Says(UP), num_tasks=2, on_episode=episodes.append)
    finally:
        gymnasium.registry.pop("Limited-v0")
    assert len(episodes) == 2
    assert {e.outcome.stop for e in episodes} == {"max_turns"}
    assert {e.trajectories[0].reward.value for e in episodes} == {1.0}
    assert {e.trajectories[0].turns[0].messages[0]["role"] for e in episodes} == {"system"}


async def test_gold_goes_through_every_wrapper():
    episode = await episode_of(lambda: gymnasium.make(spec(*ALL[:-1])), ScriptedPolicy("gold"))
    assert (episode.outcome.stop, episode.trajectories[0].reward.value) == ("done", 1.0)


async def test_sandboxes_are_lent_through_wrappers_where_the_event_loop_is_the_same():
    class Boxed(Count):
        sandbox_spec = SandboxSpec()

    lent = object()
    env = Boxed()
    TurnLimit(FewShot(env, examples=[user("q"), assistant("a")]), max_turns=2).use_sandboxes(lent)
    assert env._provider is lent
    env = Boxed()
    TurnLimit(TimeLimit(env, 3), max_turns=2).use_sandboxes(lent)
    assert env._provider is None
