"""reasoning-gym's datasets: its own scores, in a process that can be killed; splits that share no item."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError, ContractError, UnknownIdError
from vime_agents.exact_json import decode, encode
from vime_agents.policies.scripted import Script, ScriptedPolicy
from vime_agents.registry import env_class
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner

reasoning_gym = pytest.importorskip("reasoning_gym")
from vime_envs.connectors.reasoning_gym import graded, reasoning_gym_env  # noqa: E402

LegCounting = reasoning_gym_env("leg_counting", num_tasks=50, name="LegCounting", max_animals=4)
MODULE = "vime_envs.connectors.reasoning_gym"


def score(cls: type, task: int, answer: str) -> float:
    inputs = json.loads(json.dumps(cls(split="test").task_set()[task].inputs))
    return graded(answer, inputs["dataset"], inputs["config"], inputs["entry"])


async def test_its_own_answer_has_1_and_another_number_has_less_under_the_runner() -> None:
    task = LegCounting(split="test").task_set()[0]
    expectations: dict[Script, float] = {"gold": 1.0, "wrong": 0.0, "garbage": 0.0}
    for script, expected in expectations.items():
        runner = Runner(lambda: LegCounting(split="test"), ScriptedPolicy(script), env_id="LegCounting")
        episode = await runner.play(EpisodeRequest(task=task, group_id="g", episode_id=script, seed=0))
        assert (episode.outcome.kind, episode.reward) == ("terminated", expected)


def test_the_score_is_the_datasets_own() -> None:
    own = reasoning_gym.create_dataset("leg_counting", seed=5, size=3)
    entry = encode(own[2])
    for answer in (own[2]["answer"], "7", "", "seven legs"):
        assert graded(f"So <answer> {answer} </answer>", "leg_counting", {}, entry) == own.score_answer(
            answer, own[2]
        )


@pytest.mark.parametrize(
    "reply", ["", "12", "<answer>", "</answer>12<answer>", "\x00", "\ud800", "x" * 100_000]
)
def test_a_reply_without_an_answer_between_its_tags_has_nothing(reply: str) -> None:
    assert score(LegCounting, 0, reply) == 0.0


def test_the_last_answer_counts_and_not_the_best() -> None:
    answer = LegCounting(split="test").task_set()[1].inputs["answer"]
    assert score(LegCounting, 1, f"<answer>{answer}</answer>") == 1.0
    assert score(LegCounting, 1, f"<answer>{answer}</answer> or <answer>x</answer>") < 1.0


def test_a_scorer_that_raises_on_an_answer_gives_it_nothing() -> None:
    factors = env_class(f"{MODULE}:prime_factorization")
    dataset = reasoning_gym.create_dataset("prime_factorization", seed=0, size=1)
    with pytest.raises(ValueError, match="invalid literal"):
        dataset.score_answer("I refuse", dataset[0])
    assert score(factors, 0, "<answer>I refuse</answer>") == 0.0
    # But a scorer that cannot even score the stored answer is broken, and must say so.
    broken = encode({**dataset[0], "answer": "I refuse"})
    with pytest.raises(ValueError, match="invalid literal"):
        graded("<answer>I refuse</answer>", "prime_factorization", {}, broken)


def test_items_survive_json_to_the_tuple() -> None:
    grids = env_class(f"{MODULE}:rearc")
    inputs = grids(split="test").task_set()[0].inputs
    assert score(grids, 0, f"<answer>{inputs['answer']}</answer>") == 1.0


def test_splits_and_seeds_share_no_item_and_an_item_is_always_the_same() -> None:
    def questions(split: str, seed: int) -> list[str]:
        tasks = LegCounting(split=split, task_seed=seed).task_set()
        return [tasks[i].inputs["question"] for i in range(len(tasks))]

    train = questions("train", 0)
    assert train == questions("train", 0)
    assert len(train) == 50
    for split, seed in (("test", 0), ("train", 1), ("validation", 0)):
        assert set(train).isdisjoint(questions(split, seed))


def test_settings_reach_the_dataset_and_wrong_ones_are_refused() -> None:
    for i in range(20):
        item = decode(LegCounting().task_set()[i].inputs["entry"])
        assert item["metadata"]["num_animals"] <= 4
    with pytest.raises(UnknownIdError, match="chain_sum"):
        reasoning_gym_env("chain_sun")
    with pytest.raises(ConfigError, match="no_such"):
        reasoning_gym_env("chain_sum", no_such=3)
    with pytest.raises(ConfigError, match="seed"):
        reasoning_gym_env("chain_sum", seed=3)


def test_every_dataset_is_an_id_that_workers_can_unpickle() -> None:
    cls = env_class(f"{MODULE}:chain_sum")
    assert issubclass(cls, AgentEnv)
    assert pickle.loads(pickle.dumps(cls)) is cls
    with pytest.raises(ConfigError, match="no_such_dataset"):
        env_class(f"{MODULE}:no_such_dataset")
    env = env_class(f"{MODULE}:rush_hour")()
    env.task = env.task_set()[0].inputs
    with pytest.raises(ContractError, match="stores no answers"):
        env.gold()


def test_importing_it_leaves_the_generator_of_random_alone() -> None:
    code = f"import random; state = random.getstate(); import {MODULE}; print(state == random.getstate())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"
