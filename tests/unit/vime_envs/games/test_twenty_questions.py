"""Twenty questions: the thing stays secret, twenty is twenty, and a useless answerer is nobody's zero."""

from __future__ import annotations

import json

import pytest

from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_envs.games.twenty_questions import ANSWERS, QUESTIONS, THINGS, TwentyQuestions


def begin(task: int = 0) -> TwentyQuestions:
    env = TwentyQuestions()
    env.reset(seed=0, options={"task": task})
    return env


def test_a_guess_wins_for_both_and_counts_as_a_question() -> None:
    env = begin()
    env.step({"guesser": "Is it alive?"})
    assert env.acting == ("answerer",)
    observations, *_ = env.step({"answerer": "It is: YES."})
    assert observations["guesser"]["messages"][0]["content"] == "Yes. 19 questions are left."
    env.step({"guesser": f"guess: An {env.task['thing'].upper()}."})
    assert {a: r.value for a, r in env.results.items()} == {"guesser": 1.0, "answerer": 1.0}
    assert env.results["guesser"].components["questions"] == 2.0


def test_the_twentieth_question_is_answered_by_the_end() -> None:
    env = begin()
    for _ in range(20):
        assert env.acting == ("guesser",)
        env.step({"guesser": "Is it blue?"})
        assert env.acting == ("answerer",)
        env.step({"answerer": "no"})
    assert env.acting == ()
    assert {a: r.value for a, r in env.results.items()} == {"guesser": 0.0, "answerer": 0.0}


def test_only_the_answerer_is_told_the_thing_and_only_a_word_of_it_is_passed_on() -> None:
    env = begin()
    thing = env.task["thing"]
    env.step({"guesser": "What is it?"})
    env.step({"answerer": f"I think of {thing}, so: yes"})
    assert thing in json.dumps(env.messages["answerer"])
    assert thing not in json.dumps(env.messages["guesser"])


def test_naming_several_things_is_a_wrong_guess() -> None:
    env = begin()
    env.step({"guesser": f"GUESS: {' or '.join(THINGS)}"})
    assert env.acting == ("guesser",)
    assert env.messages["guesser"][-1]["content"] == "No, that is not it. 19 questions are left."


@pytest.mark.parametrize("reply", ["", "perhaps", "\x00", "\ud800", "yesno", "x" * 100_000])
def test_an_answerer_who_does_not_answer_leaves_the_guesser_without_a_reward(reply: str) -> None:
    env = begin()
    env.step({"guesser": "Is it alive?"})
    env.step({"answerer": reply})
    assert env.acting == ("answerer",)
    env.step({"answerer": reply})
    assert env.results["answerer"].value == 0.0
    assert (env.results["guesser"].value, env.results["guesser"].status) == (None, "unscorable")


@pytest.mark.parametrize("reply", ["GUESS:", "\x00", "\ud800" * 3, "?" * 100_000])
def test_a_strange_question_is_a_question(reply: str) -> None:
    env = begin()
    observations, *_ = env.step({"guesser": reply})
    assert env.acting == ("answerer",)
    assert len(observations["answerer"]["messages"][0]["content"]) < 1000


def test_the_table_tells_all_things_apart_and_splits_share_none() -> None:
    assert len(set(ANSWERS.values())) == len(ANSWERS) == 20
    assert all(len(row) == len(QUESTIONS) and set(row) <= {"y", "n"} for row in ANSWERS.values())
    split = {s: {t.inputs["thing"] for t in TwentyQuestions(split=s).task_set()} for s in ("train", "test")}
    assert split["train"].isdisjoint(split["test"])
    assert split["train"] | split["test"] == set(THINGS)


async def test_the_gold_answerer_tells_the_truth_to_a_guesser_who_asks_the_tables_questions() -> None:
    env = TwentyQuestions()
    for index in range(len(env.task_set())):
        env.reset(seed=0, options={"task": index})
        heard = ""
        for question in QUESTIONS:
            env.step({"guesser": question})
            said = env.gold("answerer")
            env.step({"answerer": said})
            heard += said[0]
        (only,) = [thing for thing, row in ANSWERS.items() if row == heard]
        assert only == env.task["thing"]


async def test_each_agent_has_its_own_policy() -> None:
    policies = {"guesser": ScriptedPolicy("random"), "answerer": ScriptedPolicy("gold")}
    runner = Runner(TwentyQuestions, policies, env_id="TwentyQuestions-v0")
    task = TwentyQuestions().task_set()[0]
    episode = await runner.play(EpisodeRequest(task=task, group_id="g", episode_id="e", seed=3))
    assert [t.policy for t in episode.trajectories] == ["scripted:random", "scripted:gold"]
    assert all(t.reward.value in (0.0, 1.0) for t in episode.trajectories)
