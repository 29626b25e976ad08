"""reasoning-gym's datasets as envs of one turn: `Sums = reasoning_gym_env("chain_sum", min_terms=3)`.

Every dataset is also an attribute of this module, with the dataset's own settings:
`vime-agents eval vime_envs.connectors.reasoning_gym:chain_sum`.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from vime_agents.caller import caller_module
from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError, ContractError, MissingDependencyError, UnknownIdError
from vime_agents.exact_json import decode, encode
from vime_agents.grading.pool import GraderLimits
from vime_agents.reward import reward
from vime_agents.task import Task, TaskSet

# Not on first use: that would be on the event loop, and again in the process of each grading.
_random_state = random.getstate()  # which reasoning-gym draws from when it is imported
try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ImportError as error:
    raise MissingDependencyError("reasoning-gym", "reasoning-gym", "a dataset of reasoning-gym's") from error
finally:
    random.setstate(_random_state)

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUM_SPLITS = 1000
_ASK = "Give your final answer between <answer> and </answer>."


def graded(text: str, dataset: str, config: Mapping[str, Any], entry: Any) -> float:
    """reasoning-gym's own score of a reply, from 0 to 1. A reply without an answer between its tags has 0.

    Scorers that raise on what they cannot read give 0 for it, if they do score the stored answer.

    Raises:
        Exception: whatever the scorer raises, if the stored answer makes it raise as well or there is none.
    """
    item = decode(entry)
    score_answer = create_dataset(dataset, **{**config, "size": 1, "seed": 0}).score_answer
    found = _ANSWER.findall(text)
    if not found:
        return 0.0
    try:
        return float(score_answer(found[-1].strip(), item))
    except Exception:  # its answer is what a scorer of somebody else's may make anything of
        if item["answer"] is None:
            raise
        score_answer(item["answer"], item)
        return 0.0


class ReasoningGymEnv(AgentEnv):
    """One question of a reasoning-gym dataset. Made by `reasoning_gym_env`."""

    dataset: ClassVar[str] = ""
    config: ClassVar[Mapping[str, Any]] = {}
    max_turns = 1
    correct = reward(name="correct", process=GraderLimits(timeout_s=30.0))(graded)

    def tasks(self) -> TaskSet:
        """The items of this split, each made when it is asked for."""
        return _Items(type(self), self.split, self.task_seed)

    def prompt(self) -> str:
        """The question."""
        return f"{self.task['question'].strip()}\n\n{_ASK}"

    def gold(self) -> str:
        """The stored answer."""
        if self.task["answer"] is None:
            raise ContractError(f"{self.dataset} stores no answers: reasoning-gym can only score them")
        return f"<answer>{self.task['answer']}</answer>"


class _Items:
    """Item i is drawn from the dataset's seed plus i: the seeds of two splits lie further apart than that."""

    def __init__(self, cls: type[ReasoningGymEnv], split: str, task_seed: int) -> None:
        self.name, self._cls, self._split = cls.__name__, cls, split
        part = 0 if split == "train" else 1 + zlib.crc32(split.encode()) % (_NUM_SPLITS - 1)
        seed = (task_seed * _NUM_SPLITS + part) * cls.num_tasks
        self._dataset = create_dataset(cls.dataset, **{**cls.config, "seed": seed, "size": cls.num_tasks})

    def __len__(self) -> int:
        return self._cls.num_tasks

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        item = self._dataset[index]
        return Task(
            id=f"{self._split}-{index}",
            inputs={
                "question": item["question"],
                "answer": item["answer"],
                "dataset": self._cls.dataset,
                "config": dict(self._cls.config),
                "entry": encode(item),
            },
            split=self._split,
        )

    def index_of(self, task_id: str) -> int | None:
        """By what the id says."""
        split, _, index = task_id.rpartition("-")
        known = split == self._split and index.isdecimal() and int(index) < len(self)
        return int(index) if known else None


def reasoning_gym_env(
    dataset: str, *, num_tasks: int = 10_000, name: str = "", **config: Any
) -> type[ReasoningGymEnv]:
    """A class that asks the questions of a dataset.

    Args:
        dataset: in reasoning-gym's registry.
        num_tasks: of each split. A few datasets make all of them at once.
        name: of the class; that of the variable that it is given to, for workers and `vime-agents check`.
        config: of the dataset, without `seed` and `size`.

    Raises:
        UnknownIdError: no such dataset. ConfigError: settings that the dataset refuses.
    """
    if dataset not in DATASETS:
        raise UnknownIdError("dataset of reasoning-gym's", dataset, DATASETS)
    if own := {"seed", "size"} & set(config):
        raise ConfigError(f"{dataset}: {sorted(own)} follow from the env's split, task_seed and num_tasks")
    try:
        create_dataset(dataset, **{**config, "seed": 0, "size": 1})
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{dataset} of reasoning-gym refuses {config}: {error}") from error
    fields = {
        "__doc__": f"{dataset}, of reasoning-gym.",
        "__module__": caller_module(__name__),
        "dataset": dataset,
        "config": config,
        "num_tasks": num_tasks,
    }
    return type(name or dataset, (ReasoningGymEnv,), fields)


@cache
def _by_name(dataset: str) -> type[ReasoningGymEnv]:
    return reasoning_gym_env(dataset)


def __getattr__(name: str) -> type[ReasoningGymEnv]:
    if name in DATASETS:
        return _by_name(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
