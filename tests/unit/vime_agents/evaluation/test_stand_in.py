"""An env that was never played grades an episode that another one played, or refuses what it cannot know."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import vime_agents as vime
from vime_agents.episode import Episode
from vime_agents.errors import GraderError
from vime_agents.evaluation.stand_in import Refused, Regraded, regrade
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.reward import reward
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.task import Task
from vime_agents.wrappers import FewShot

TASK = Task(id="t", inputs={"word": "sun"})


class Hunt(vime.ToolEnv):
    """Look twice, then say the word."""

    reward_range = (0.0, 3.0)
    bonus = 0.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.looked: list[str] = []
        self.visits: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.library = ["word"] * 5000
        self.notes = ["note"] * 5000

    def tasks(self):
        return [TASK]

    def prompt(self):
        return "Go."

    def setup(self):
        self.limit = 2

    @vime.tool
    def look(self, where: str) -> str:
        """Look somewhere.

        Args:
            where: any place.
        """
        self.looked.append(where)
        self.seen.add(where)
        self.visits[where] += 1
        self.notes.append(where)
        self.give(0.25)
        if where == "sky":
            self.bonus = 1.0
        return "Nothing."

    @vime.tool
    def say(self, word: str) -> str:
        """Say the word.

        Args:
            word: the word.
        """
        self.finish(word)
        return "Said."

    def score(self, text):
        return float(text == self.task["word"])

    def gold(self):
        calls = [vime.messages.tool_call("look", {"where": w}, w) for w in ("sky", "sea")]
        done = vime.messages.tool_call("say", {"word": "sun"}, "say")
        return [vime.messages.assistant("", calls), vime.messages.assistant("I know", [done])]


async def played(make_env: Callable[[], Any] = Hunt, **options: Any) -> Episode:
    runner = Runner(make_env, ScriptedPolicy("gold"), env_id="Hunt", keep_graded=True, **options)
    return await runner.play(EpisodeRequest(task=TASK, group_id="t", episode_id="e", seed=1))


async def graded_by(env_class: type[vime.AgentEnv], episode: Episode, **keep: float) -> Regraded:
    assert episode.graded is not None
    return await regrade(env_class(), TASK, episode.trajectories[0], episode.graded, keep)


async def test_the_same_graders_give_the_same_reward():
    episode = await played()
    found = await graded_by(Hunt, episode)
    assert found.reward == episode.trajectories[0].reward
    assert found.reward.components == {"score": 1.0, "steps": 0.5}
    assert found.counters == {"tool_calls": 3}


async def test_graders_see_the_answer_the_messages_the_turns_and_the_state():
    class Now(Hunt):
        def score(self, text):
            roles = [m["role"] for m in self.messages]
            assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]
            assert (text, self.turn, self.counters["tool_calls"], self.task_id) == ("sun", 2, 3, "t")
            assert (self.looked, self.limit, self.bonus) == (["sky", "sea"], 2, 1.0)
            assert self.seen == {"sky", "sea"}
            assert len(self.library) == 5000  # too large to be stored, but any env has it
            self.count("graded")
            return {"looked": len(self.looked), "metric": (7.0, 0.0)}

    found = await graded_by(Now, await played())
    assert found.reward.components == {"looked": 2.0, "metric": 7.0, "steps": 0.5}
    assert found.reward.value == 2.5
    assert found.counters == {"tool_calls": 3, "graded": 1}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("visits", r"self\.visits \(a Counter, which JSON does not have\)"),
        ("notes", r"self\.notes \(40014 bytes; at most 8192 are stored\)"),
        ("np_random", "the state of `np_random`"),
        ("tools", "the state of the episode's tools"),
        ("sandbox", "the episode's sandbox"),
        ("secret", r"self\.secret \(the env that was played had none\)"),
    ],
)
@pytest.mark.parametrize("swallow", [False, True])
async def test_what_is_not_stored_is_refused_even_where_the_grader_swallows_it(name, told, swallow):
    class Now(Hunt):
        def score(self, text):
            if not swallow:
                return float(bool(getattr(self, name)))
            try:
                return float(bool(getattr(self, name)))
            except Exception:  # noqa: BLE001 - as an author might
                return 0.0

    with pytest.raises(Refused, match=f"^score needs {told}$"):
        await graded_by(Now, await played())


async def test_what_is_refused_is_nowhere_else_either():
    class Now(Hunt):
        def score(self, text):
            assert "looked" in vars(self)
            return float("visits" in self.__dict__)

    assert (await graded_by(Now, await played())).reward.components["score"] == 0.0


async def test_what_new_code_would_have_noted_in_play_is_refused_whatever_its_default():
    class Now(Hunt):
        found = False

        @vime.tool
        def look(self, where: str) -> str:
            """Look somewhere.

            Args:
                where: any place.
            """
            self.found = True
            return ""

        def score(self, text):
            return float(getattr(self, "found", False))

    with pytest.raises(Refused, match=r"self\.found \(the env that was played had none\)"):
        await graded_by(Now, await played())


async def test_what_a_constructor_sets_is_as_the_new_one_sets_it():
    class Now(Hunt):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.library = ["other"]
            self.tolerance = 0.5
            self.pattern = re.compile("s.n")
            self.synonyms = {"sun": ["star"]}

        def score(self, text):
            assert self.library == ["other"]  # nothing that was played had changed it
            return self.tolerance * bool(self.pattern.fullmatch(text))

    class Mutable(Now):
        def score(self, text):
            return float(text in self.synonyms)

    episode = await played()
    assert (await graded_by(Now, episode)).reward.components["score"] == 0.5
    with pytest.raises(Refused, match=r"self\.synonyms \(the env that was played had none\)"):
        await graded_by(Mutable, episode)


async def test_what_the_played_env_would_have_noted_and_did_not_is_known():
    class Sometimes(Hunt):
        def teardown(self):
            self.late = True

        def score(self, text):
            return float(not hasattr(self, "late"))

    assert (await graded_by(Sometimes, await played(Sometimes))).reward.components["score"] == 1.0


class Parts(Hunt):
    """With components."""

    score = vime.AgentEnv.score

    @reward
    def right(self, text, word):
        return text == word

    @reward(weight=0.5)
    def many(self):
        return len(self.visits) > 1

    @reward(weight=0)
    async def boxed(self, env):
        return float(await env.sandbox() is not None)


async def test_each_component_that_cannot_be_computed_is_named():
    episode = await played()
    with pytest.raises(Refused) as refused:
        await graded_by(Parts, episode)
    assert refused.value.needs == {
        "many": "self.visits (a Counter, which JSON does not have)",
        "boxed": "the episode's sandbox",
    }
    found = await graded_by(Parts, episode, many=0.0, boxed=1.0)
    assert found.reward.components == {"right": 1.0, "many": 0.0, "boxed": 1.0, "steps": 0.5}
    assert found.reward.weights == {"right": 1.0, "many": 0.5, "boxed": 0.0, "steps": 1.0}
    assert found.reward.value == 1.5


async def test_a_grader_that_fails_or_leaves_its_range_fails_as_in_play():
    class Broken(Hunt):
        def score(self, text):
            raise ValueError("no")

    class High(Hunt):
        def score(self, text):
            return 9.0

    episode = await played()
    for env_class in (Broken, High):
        with pytest.raises(GraderError):
            await graded_by(env_class, episode)


async def test_nobody_can_say_stays_a_status():
    class Open(Hunt):
        def score(self, text):
            raise vime.Unscorable("no key")

    found = await graded_by(Open, await played())
    assert (found.reward.status, found.reward.value) == ("unscorable", None)


async def test_a_wrappers_messages_are_not_the_envs():
    examples = [vime.messages.user("before"), vime.messages.assistant("so")]
    episode = await played(lambda: FewShot(Hunt(), examples=examples))
    assert episode.trajectories[0].turns[0].messages[0]["content"] == "before"
    assert episode.graded is not None
    assert episode.graded.messages is not None
    assert episode.graded.messages[0]["content"] == "Go."

    class Now(Hunt):
        def score(self, text):
            return float(self.messages[0]["content"] == "Go." and len(self.messages) == 6)

    assert (await graded_by(Now, episode)).reward.components["score"] == 1.0


async def test_a_limit_that_cut_it_is_known_also_where_its_grading_failed():
    class Broken(Hunt):
        def score(self, text):
            raise ValueError("no")

    episode = await played(Broken, limits=Limits(max_turns=1))
    assert episode.status == "error:grader"
    assert episode.graded is not None
    assert (episode.graded.stop, episode.graded.terminated, episode.graded.answer) == (
        "max_turns",
        False,
        None,
    )
    found = await graded_by(Hunt, episode)
    assert found.reward.components == {"score": 0.0, "steps": 0.5}


async def test_without_asking_nothing_is_kept():
    runner = Runner(Hunt, ScriptedPolicy("gold"), env_id="Hunt")
    episode = await runner.play(EpisodeRequest(task=TASK, group_id="t", episode_id="e", seed=1))
    assert episode.graded is None
