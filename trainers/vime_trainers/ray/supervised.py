"""Where the batches of `--loss-type sft_loss` come from."""

from __future__ import annotations

from dataclasses import replace

from vime_agents.config.train import TrainConfig
from vime_agents.learning.row_limit import RowLimit
from vime_agents.learning.supervised import conversation_of, supervised_batches
from vime_agents.registry import env_class
from vime_agents.rendering.load import make_renderer
from vime_agents.task import TaskSet
from vime_agents.trainer import Batch
from vime_trainers.ray.schedule import rollout_tasks


class SupervisedRows:
    """The rows of --prompt-data as conversations, in the form that the environment's prompts have."""

    def __init__(self, config: TrainConfig, tasks: TaskSet, row_limit: RowLimit | None = None) -> None:
        self.config, self.tasks = config, tasks
        self.max_tokens = config.rollout_max_context_len if row_limit is None else row_limit.max_tokens
        style = env_class(config.env).prompt_style
        self.renderer = make_renderer(config.hf_checkpoint, prompt_style=style, renderer=config.renderer)

    def batches(self, rollout: int) -> list[Batch]:
        """What update `rollout + 1` learns from: a pure function of config, data and number.

        Raises:
            DatasetError: a row is no conversation, or too long.
        """
        config = self.config
        conversations = [
            replace(conversation_of(task, tool_key=config.tool_key), id=name)
            for name, task in rollout_tasks(config, self.tasks, rollout)
        ]
        return supervised_batches(
            conversations,
            self.renderer,
            num_steps=config.steps_per_rollout,
            max_tokens=self.max_tokens,
            on_excess=config.oversized_rows,
            aggregation=config.loss_aggregation,
            norm_length=config.loss_norm_length,
        )
