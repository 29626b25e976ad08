"""The checks of a training config that need more than one setting. All in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_agents.errors import ConfigError, nearest

if TYPE_CHECKING:
    from vime_agents.config.train import TrainConfig


ESTIMATORS = ("grpo", "dr_grpo", "rloo")
"""Advantage estimators by name; `learning.advantages` has their formulas."""


def check_train(config: TrainConfig) -> None:
    """Raise ConfigError for the first contradiction, naming the flags and a fix."""
    _check_groups(config)
    _check_parallel(config)
    _check_engines(config)
    _check_sampling(config)
    _check_loss(config)


def _check_groups(config: TrainConfig) -> None:
    estimator = config.advantage_estimator
    if estimator not in ESTIMATORS and ":" not in estimator:
        close = nearest(estimator, ESTIMATORS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ConfigError(
            f"--advantage-estimator: must be {', '.join(ESTIMATORS)} or module:function, got {estimator!r}."
            f"{hint}"
        )
    if config.n_samples_per_prompt < 2:
        raise ConfigError(
            f"--n-samples-per-prompt: {estimator} compares the episodes of a task with each "
            f"other, so at least 2 are needed, got {config.n_samples_per_prompt}"
        )
    if config.disable_grpo_std_normalization and estimator != "grpo":
        raise ConfigError(
            f"--disable-grpo-std-normalization: --advantage-estimator {estimator} does not "
            "divide by the standard deviation; drop the flag"
        )


def _check_parallel(config: TrainConfig) -> None:
    sizes = {
        "--tensor-model-parallel-size": config.tensor_model_parallel_size,
        "--pipeline-model-parallel-size": config.pipeline_model_parallel_size,
        "--context-parallel-size": config.context_parallel_size,
    }
    product = 1
    for size in sizes.values():
        product *= size
    if config.num_trainer_ranks % product:
        named = " * ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)
        raise ConfigError(
            f"{named} = {product} does not divide the {config.num_trainer_ranks} trainer ranks "
            f"(--actor-num-nodes {config.actor_num_nodes} * --actor-num-gpus-per-node "
            f"{config.actor_num_gpus_per_node})"
        )
    if config.sequence_parallel and config.tensor_model_parallel_size == 1:
        raise ConfigError("--sequence-parallel: needs --tensor-model-parallel-size >= 2, got 1")


def _check_engines(config: TrainConfig) -> None:
    if (config.vllm_router_ip is None) != (config.vllm_router_port is None):
        raise ConfigError("--vllm-router-ip and --vllm-router-port: give both, or neither to start engines")
    if config.update_weight_transport != "disk" and config.update_weight_disk_dir is not None:
        raise ConfigError(
            f"--update-weight-disk-dir: --update-weight-transport {config.update_weight_transport} writes no "
            "file; drop one of the two"
        )


def _check_sampling(config: TrainConfig) -> None:
    if config.rollout_top_k == 0:
        raise ConfigError("--rollout-top-k: must be -1 (all tokens) or >= 1, got 0")
    if config.rollout_max_response_len >= config.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-response-len {config.rollout_max_response_len} leaves no room for a prompt in "
            f"--rollout-max-context-len {config.rollout_max_context_len}"
        )
    if config.rollout_max_context_len > config.max_tokens_per_gpu * config.context_parallel_size:
        raise ConfigError(
            f"--max-tokens-per-gpu {config.max_tokens_per_gpu}: a conversation may have "
            f"--rollout-max-context-len {config.rollout_max_context_len} tokens and must fit into one "
            "micro-batch"
        )
    if config.label_key is not None and config.prompt_data is None:
        raise ConfigError("--label-key: only rows of --prompt-data have keys; give --prompt-data or drop it")


def _check_loss(config: TrainConfig) -> None:
    if config.use_tis and config.old_logprobs == "rollout":
        raise ConfigError(
            "--use-tis: --old-logprobs rollout corrects for the same mismatch already; drop one of the two"
        )
