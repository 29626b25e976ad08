"""An environment of one question and one reply, out of functions instead of a class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vime_agents.caller import caller_module
from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError
from vime_agents.messages import Message
from vime_agents.reward import Reward, reward
from vime_agents.task import ListTaskSet, Task, TaskSet
from vime_agents.tasks import load_tasks, split_by_id

Rows = Iterable[Mapping[str, Any] | Task] | TaskSet


def single_turn(
    name: str,
    *,
    prompt: str | Callable[[Mapping[str, Any]], str | Sequence[Message]],
    score: Callable[..., Any] | Sequence[Reward],
    tasks: str | Path | Rows | Callable[[], Rows] | None = None,
    make_task: Callable[[np.random.Generator], Mapping[str, Any]] | None = None,
    gold: str | Callable[[Mapping[str, Any]], str] | None = None,
    test_share: float = 0.1,
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> type[AgentEnv]:
    """An `AgentEnv` class whose episodes are one turn long.

    ```
    Sums = vime.single_turn(
        "Sums",
        tasks=[{"question": f"{a} + {b}", "answer": a + b} for a in range(9) for b in range(9)],
        prompt="What is {question}?",
        score=lambda text, answer: vime.match_number(text, answer),
        gold="answer",
    )
    ```

    Args:
        name: of the class; give it to the variable too, so that `module:Sums` is found.
        prompt: text with fields in braces that the task's keys fill, or a function of the task.
        score: a function that gets what its parameters name (`text`, or keys of the task) and returns a
            number, or several `@reward` components.
        tasks: rows, a function that gives them, or the path of a file or folder (see `load_tasks`).
            A folder has files for its splits; all else is parted by the tasks' ids.
        make_task: one task from `rng` alone, instead of `tasks`.
        gold: key of the task that holds the best reply, or a function of the task.
        test_share: of the rows, about; they are never seen in training.
        reward_range: of the sum.

    Raises:
        ConfigError: neither or both of `tasks` and `make_task`, or a name that no class can have.
    """
    if not name.isidentifier():
        raise ConfigError(f"single_turn: {name!r} is no name of a class; write it like Sums")
    if (tasks is None) == (make_task is None):
        raise ConfigError(f"single_turn {name!r}: give either `tasks` or `make_task`")
    if not 0 < test_share < 1:
        raise ConfigError(f"single_turn {name!r}: test_share is between 0 and 1, got {test_share!r}")
    if tasks is not None and not (callable(tasks) or isinstance(tasks, (str, Path, TaskSet))):
        tasks = list(tasks)  # every instance reads them
    members: dict[str, Any] = {
        "__module__": caller_module(__name__),
        "__doc__": f"{name}: one question, one reply.",
        "max_turns": 1,
        "reward_range": reward_range,
        "prompt": _prompt(prompt),
        **_components(score),
    }
    if make_task is not None:
        members["make_task"] = lambda self, rng: make_task(rng)
    if tasks is not None:
        members["tasks"] = lambda self: _tasks_of_split(tasks, name, self.split, test_share)
    if gold is not None:
        members["gold"] = lambda self: str(self.task[gold]) if isinstance(gold, str) else gold(self.task)
    return type(name, (AgentEnv,), members)


def _prompt(prompt: str | Callable[[Mapping[str, Any]], Any]) -> Callable[[AgentEnv], Any]:
    if isinstance(prompt, str):
        return lambda self: prompt.format_map(self.task)
    return lambda self: prompt(self.task)


def _components(score: Callable[..., Any] | Sequence[Reward]) -> dict[str, Reward]:
    if isinstance(score, Reward):
        return {score.name: score}
    if callable(score):
        return {"score_component": reward(name="score", range=(-np.inf, np.inf))(score)}
    return {f"component_{part.name}": part for part in score}


def _tasks_of_split(source: Any, name: str, split: str, test_share: float) -> TaskSet:
    if isinstance(source, (str, Path)):
        if Path(source).is_dir():
            return load_tasks(source, split=split)
        rows: Any = load_tasks(source)
    else:
        rows = source() if callable(source) else source
    tasks = rows if isinstance(rows, TaskSet) else ListTaskSet(rows, name=name, split="train")
    parts = split_by_id(tasks, {"train": 1 - test_share, "test": test_share})
    if split not in parts:
        raise ConfigError(f"{name} has no split {split!r}; there are train and test")
    return parts[split]
