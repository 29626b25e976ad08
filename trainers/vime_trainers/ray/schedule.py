"""Which episodes a rollout plays: a pure function of the config and the rollout's number."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from vime_agents.config.train import SNAPSHOTS, TrainConfig
from vime_agents.evaluation.evaluate import cast_of, env_maker
from vime_agents.policies.named import agent_policies
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.task import Task, TaskSet, shuffled_indices
from vime_agents.tasks import MappedTaskSet, load_tasks


def training_tasks(config: TrainConfig) -> TaskSet:
    """The env's own tasks of the split `train`, or the rows of `--prompt-data`.

    Raises:
        UnknownIdError: no such env. ConfigError, DatasetError: no tasks, or a bad row.
    """
    if config.prompt_data is None:
        env = env_maker(config.env, split="train", seed=config.seed)()
        try:
            return env.task_set()
        finally:
            env.close()
    required = [key for key in (config.input_key, config.label_key) if key is not None]
    rows = load_tasks(config.prompt_data, required=required)
    return MappedTaskSet(rows, lambda task: _with_named_fields(task, config))


def frozen_agents(config: TrainConfig) -> frozenset[str]:
    """The agents that `--agents` gives to others than the policy that is trained.

    Raises:
        UnknownIdError: no such agent or role. ConfigError: no such model, nobody is left to train, or nobody
            to change seats with.
    """
    anybody = ScriptedPolicy("wrong")  # in place of the one that is trained, which there is not yet
    others = agent_policies(config.agents, present={SNAPSHOTS: anybody})
    _, frozen = cast_of(config.env, anybody, others, rotate_seats=config.rotate_seats)
    return frozen


def rollout_requests(config: TrainConfig, tasks: TaskSet, rollout: int) -> Iterator[EpisodeRequest]:
    """The episodes of one rollout, group by group, each against one opponent. A resumed run gets the same."""
    for place, (group_id, task) in enumerate(rollout_tasks(config, tasks, rollout)):
        for sample in range(config.n_samples_per_prompt):
            yield EpisodeRequest(
                task=task,
                group_id=group_id,
                episode_id=f"{group_id}-{sample}",
                seed=_seed(config.rollout_seed, rollout, place, sample),
                lot=rollout * config.rollout_batch_size + place,
            )


def rollout_tasks(config: TrainConfig, tasks: TaskSet, rollout: int) -> Iterator[tuple[str, Task]]:
    """The tasks of one rollout in order, each with the id of its group in the run."""
    start = rollout * config.rollout_batch_size
    order = shuffled_indices(len(tasks), seed=config.seed, start=start)
    for place, index in enumerate(islice(order, config.rollout_batch_size)):
        task = tasks[index]
        yield f"r{rollout:06d}-{place:04d}-{task.id}", task


def _with_named_fields(task: Task, config: TrainConfig) -> Task:
    inputs = dict(task.inputs)
    inputs["prompt"] = inputs[config.input_key]
    if config.label_key is not None:
        inputs["label"] = inputs[config.label_key]
    return Task(id=task.id, inputs=inputs, split=task.split, metadata=task.metadata)


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
