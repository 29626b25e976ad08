"""The checks of a training config that need more than one setting. All in one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vime_agents.config.sizes import bytes_of
from vime_agents.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from vime_agents.config.train import TrainConfig


ESTIMATORS = (
    "grpo",
    "dr_grpo",
    "rloo",
    "maxrl",
    "opo",
    "pass_at_k",
    "lite_ppo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rae",
    "ppo",
    "gae",
)
"""Advantage estimators by name; `learning.advantages` has their formulas."""

_ALONE = ("reinforce_plus_plus", "rae", "ppo", "gae")
"""Those that do not compare the episodes of a task with each other."""

_LOSSES = ("gspo", "cispo")
"""What vime calls advantage estimators and is a policy loss here: their advantages are grpo's."""


def check_train(config: TrainConfig) -> None:
    """Raise ConfigError for the first contradiction, naming the flags and a fix."""
    if config.loss_type == "sft_loss":
        _check_supervised(config)
    else:
        _check_groups(config)
    _check_length_penalty(config)
    _check_steps(config)
    _check_exports(config)
    _check_trainable(config)
    _check_critic(config)
    _check_schedule(config)
    _check_parallel(config)
    _check_engines(config)
    _check_snapshots(config)
    _check_sampling(config)
    _check_loss(config)


_NOT_SUPERVISED = (
    "n_samples_per_prompt",
    "rollout_temperature",
    "rollout_top_p",
    "rollout_top_k",
    "custom_generate_function_path",
    "advantage_estimator",
    "disable_grpo_std_normalization",
    "normalize_advantages",
    "gamma",
    "use_turn_rewards",
    "turn_gamma",
    "overlong_filter",
    "overlong_buffer_len",
    "overlong_max_len",
    "overlong_penalty_factor",
    "rae_decay",
    "pg_loss_type",
    "old_logprobs",
    "eps_clip",
    "eps_clip_high",
    "eps_clip_c",
    "use_tis",
    "tis_clip",
    "rs_lower_bound",
    "rs_upper_bound",
    "rs_veto_threshold",
    "kl_loss_coef",
    "kl_loss_type",
    "use_unbiased_kl",
    "kl_coef",
)
"""Settings of sampling, advantages and policy losses, which a likelihood has no place for."""


def _check_supervised(config: TrainConfig) -> None:
    if config.prompt_data is None:
        raise ConfigError("--loss-type sft_loss: needs conversations to learn; give --prompt-data")
    for given in _changed(config, _NOT_SUPERVISED):
        raise ConfigError(f"{given}: has no part in --loss-type sft_loss; drop it")


def _changed(config: TrainConfig, names: Iterable[str]) -> Iterator[str]:
    """`--flag value` of each of these settings that is not as it is by default."""
    for name in names:
        value, default = getattr(config, name), type(config).__dataclass_fields__[name].default
        if value != default:
            yield f"--{name.replace('_', '-')} {value}"


def _check_groups(config: TrainConfig) -> None:
    estimator = config.advantage_estimator
    if estimator not in ESTIMATORS and ":" not in estimator:
        if estimator in _LOSSES:
            raise ConfigError(
                f"--advantage-estimator {estimator}: its advantages are those of grpo, its loss is "
                f"--pg-loss-type {estimator}; give --advantage-estimator grpo --pg-loss-type {estimator}"
            )
        hint = did_you_mean(estimator, ESTIMATORS)
        raise ConfigError(
            f"--advantage-estimator: must be {', '.join(ESTIMATORS)} or module:function, got {estimator!r}."
            f"{hint}"
        )
    if config.n_samples_per_prompt < 2 and estimator not in _ALONE:
        raise ConfigError(
            f"--n-samples-per-prompt: {estimator} compares the episodes of a task with each "
            f"other, so at least 2 are needed, got {config.n_samples_per_prompt}"
        )
    if config.disable_grpo_std_normalization and estimator != "grpo":
        raise ConfigError(
            f"--disable-grpo-std-normalization: --advantage-estimator {estimator} does not "
            "divide by the standard deviation; drop the flag"
        )
    if config.gamma != 1 and estimator != "reinforce_plus_plus" and not config.has_critic:
        raise ConfigError(
            f"--gamma {config.gamma}: --advantage-estimator {estimator} gives every token of an episode the "
            "same advantage; drop it, or use reinforce_plus_plus or ppo"
        )
    if config.rae_decay != 0.95 and estimator != "rae":
        raise ConfigError(f"--rae-decay {config.rae_decay}: needs --advantage-estimator rae; drop it")
    if config.use_turn_rewards and estimator in ("rae", "opo"):
        raise ConfigError(
            f"--use-turn-rewards: --advantage-estimator {estimator} takes the reward of a whole episode; "
            "drop one of the two"
        )
    if config.turn_gamma != 1 and not config.use_turn_rewards:
        raise ConfigError(f"--turn-gamma {config.turn_gamma}: needs --use-turn-rewards")


def _check_steps(config: TrainConfig) -> None:
    group, size = config.samples_per_task, config.global_batch_size
    episodes = config.rollout_batch_size * group
    shape = f"--rollout-batch-size {config.rollout_batch_size}"
    if config.loss_type != "sft_loss":
        shape += f" * --n-samples-per-prompt {group}"
    if size is not None and (episodes % size or size % group):
        raise ConfigError(
            f"--global-batch-size {size}: steps are whole groups of one size, so it must divide {shape} = "
            f"{episodes} and be a multiple of {group}"
        )
    if size is not None and config.num_steps_per_rollout not in (1, episodes // size):
        raise ConfigError(
            f"--global-batch-size {size} of {shape} makes {episodes // size} steps, "
            f"--num-steps-per-rollout {config.num_steps_per_rollout} says otherwise; drop one of the two"
        )
    if config.steps_per_rollout > config.rollout_batch_size:
        raise ConfigError(
            f"--num-steps-per-rollout {config.steps_per_rollout}: a step needs at least one group, and "
            f"there are --rollout-batch-size {config.rollout_batch_size}"
        )
    bounded = config.loss_type == "policy_loss" and config.pg_loss_type != "reinforce"
    if config.steps_per_rollout > 1 and bounded and config.old_logprobs == "current":
        raise ConfigError(
            f"--num-steps-per-rollout {config.steps_per_rollout} with --old-logprobs current: the ratio of "
            f"--pg-loss-type {config.pg_loss_type} would be 1 in every step, so that nothing bounds the "
            "later ones; give --old-logprobs recompute or rollout"
        )


def _check_exports(config: TrainConfig) -> None:
    try:
        bytes_of(config.save_hf_shard_size)
    except ValueError as error:
        raise ConfigError(f"--save-hf-shard-size: {error}") from error
    if config.save_hf is None:
        if config.save_hf_interval or config.save_hf_shard_size != type(config).save_hf_shard_size:
            raise ConfigError("--save-hf-interval, --save-hf-shard-size: need --save-hf")
        return
    try:
        first, second = (config.save_hf.format(update=update) for update in (1, 2))
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"--save-hf {config.save_hf}: only {{update}} can stand in braces; double other braces"
        ) from error
    if config.save_hf_interval and first == second:
        raise ConfigError(
            f"--save-hf-interval {config.save_hf_interval}: every folder would be {first}; put {{update}} "
            f"into --save-hf, as in {config.save_hf}/{{update}}"
        )


def _check_trainable(config: TrainConfig) -> None:
    given = {
        "--lora-rank": config.lora_rank > 0,
        "--only-train-params-name-list": config.only_train_params_name_list is not None,
        "--freeze-params-name-list": config.freeze_params_name_list is not None,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise ConfigError(f"{' and '.join(flags)}: each says what is trained; give one of them")
    adapters = (config.lora_alpha, config.lora_target_modules, config.save_lora)
    if not config.lora_rank and adapters != (32.0, "all-linear", None):
        raise ConfigError("--lora-alpha, --lora-target-modules, --save-lora: need --lora-rank")


def _check_critic(config: TrainConfig) -> None:
    if not config.has_critic:
        unused = {
            "--critic-load": config.critic_load is not None,
            "--critic-lr": config.critic_lr is not None,
            "--critic-lr-warmup-iters": config.critic_lr_warmup_iters > 0,
            "--num-critic-only-steps": config.num_critic_only_steps > 0,
            "--lambd": config.lambd != 1,
            "--value-clip": config.value_clip != 0.2,
            "--bootstrap-truncated": config.bootstrap_truncated,
        }
        for flag, given in unused.items():
            if given:
                raise ConfigError(
                    f"{flag}: --advantage-estimator {config.advantage_estimator} has no critic; give ppo, or "
                    "drop the flag"
                )
        return
    if config.loss_type == "sft_loss":
        raise ConfigError("--advantage-estimator ppo: --loss-type sft_loss has no advantages; drop it")
    if config.num_critic_only_steps >= config.num_rollout:
        raise ConfigError(
            f"--num-critic-only-steps {config.num_critic_only_steps}: the policy would never learn in "
            f"--num-rollout {config.num_rollout}"
        )
    if config.kl_coef:
        raise ConfigError(
            f"--kl-coef {config.kl_coef}: its part of the reward comes after the critic's advantages were "
            "made; give --kl-loss-coef"
        )
    if config.oversized_rows != "error":
        raise ConfigError(
            f"--oversized-rows {config.oversized_rows}: a critic values whole rows; raise "
            "--max-tokens-per-gpu"
        )


def _check_schedule(config: TrainConfig) -> None:
    if config.min_lr > config.lr:
        raise ConfigError(f"--min-lr {config.min_lr}: the rate cannot decay to more than --lr {config.lr}")
    if config.decay_steps is None:
        if config.min_lr or config.lr_decay_iters is not None:
            raise ConfigError(
                "--min-lr, --lr-decay-iters: --lr-decay-style constant does not decay; give linear, cosine "
                "or inverse-square-root, or drop them"
            )
    elif config.decay_steps <= config.lr_warmup_iters:
        raise ConfigError(
            f"--lr-decay-iters {config.decay_steps}: --lr-warmup-iters {config.lr_warmup_iters} leaves no "
            "step for the decay"
        )


def _check_parallel(config: TrainConfig) -> None:
    if config.trainer == "torch" and config.num_trainer_ranks > 1:
        raise ConfigError(
            f"--trainer torch is one process: drop --actor-num-nodes {config.actor_num_nodes} and "
            f"--actor-num-gpus-per-node {config.actor_num_gpus_per_node}, or use megatron"
        )
    if config.trainer == "torch" and config.async_save:
        raise ConfigError("--async-save: --trainer torch writes at once; drop the flag, or use megatron")
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
    if config.num_layers_per_virtual_pipeline_stage and config.pipeline_model_parallel_size == 1:
        raise ConfigError(
            "--num-layers-per-virtual-pipeline-stage: needs --pipeline-model-parallel-size >= 2, got 1"
        )
    stage = config.num_trainer_ranks // config.pipeline_model_parallel_size
    tensor = config.expert_tensor_parallel_size or config.tensor_model_parallel_size
    if stage % (config.expert_model_parallel_size * tensor):
        raise ConfigError(
            f"--expert-model-parallel-size {config.expert_model_parallel_size} * "
            f"--expert-tensor-parallel-size {tensor} does not divide the {stage} ranks of a pipeline stage"
        )
    if config.fp8_format is not None and (config.transformer_impl == "local" or not config.bf16):
        raise ConfigError(
            f"--fp8-format {config.fp8_format}: needs --bf16 and --transformer-impl transformer_engine"
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


def _check_snapshots(config: TrainConfig) -> None:
    if config.has_snapshots:
        if config.loss_type == "sft_loss":
            raise ConfigError(
                f"--agents {config.agents}: --loss-type sft_loss plays no rollouts that snapshots could be "
                "opponents in; name others"
            )
        if config.snapshot_num_engines > config.rollout_num_engines:
            raise ConfigError(
                f"--snapshot-num-engines {config.snapshot_num_engines}: there is a player for each of "
                f"--rollout-num-engines {config.rollout_num_engines}, and each uses one of them; give no more"
            )
        return
    names = ("snapshot_interval", "num_snapshots", "snapshot_num_engines", "snapshot_num_gpus_per_engine")
    for given in _changed(config, names):
        raise ConfigError(
            f"{given}: nobody in --agents plays snapshots of the policy; give --agents AGENT=snapshots, or "
            "drop the flag"
        )


def _check_sampling(config: TrainConfig) -> None:
    if config.rollout_top_k == 0:
        raise ConfigError("--rollout-top-k: must be -1 (all tokens) or >= 1, got 0")
    if config.rollout_max_response_len >= config.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-response-len {config.rollout_max_response_len} leaves no room for a prompt in "
            f"--rollout-max-context-len {config.rollout_max_context_len}"
        )
    most = config.max_tokens_per_gpu * config.context_parallel_size
    if config.rollout_max_context_len > most and config.oversized_rows == "error":
        raise ConfigError(
            f"--max-tokens-per-gpu {config.max_tokens_per_gpu}: a conversation may have "
            f"--rollout-max-context-len {config.rollout_max_context_len} tokens and must fit into one "
            "micro-batch; change one of them, or say by --oversized-rows truncate or drop what happens to "
            "those that do not"
        )
    if config.label_key is not None and config.prompt_data is None:
        raise ConfigError("--label-key: only rows of --prompt-data have keys; give --prompt-data or drop it")
    if config.tool_key is not None and config.loss_type != "sft_loss":
        raise ConfigError(
            "--tool-key: environments announce their own tools; only sft_loss reads it; drop it"
        )


def _check_length_penalty(config: TrainConfig) -> None:
    buffer, longest = config.overlong_buffer_len, config.overlong_max_len
    if not buffer:
        if longest is not None or config.overlong_penalty_factor != 1:
            raise ConfigError("--overlong-max-len, --overlong-penalty-factor: need --overlong-buffer-len")
    elif longest is None or buffer > longest:
        raise ConfigError(
            f"--overlong-buffer-len {buffer} with --overlong-max-len {longest}: the penalty grows over the "
            "last tokens of that length; give one that is not below the buffer"
        )


def _check_loss(config: TrainConfig) -> None:
    if (config.loss_norm_length is not None) != (config.loss_aggregation == "seq-mean-token-sum-norm"):
        raise ConfigError(
            f"--loss-norm-length {config.loss_norm_length} with --loss-aggregation {config.loss_aggregation}"
            ": seq-mean-token-sum-norm needs a length, and no other aggregation uses one"
        )
    if (config.custom_loss_function_path is not None) != (config.loss_type == "custom_loss"):
        raise ConfigError(
            f"--custom-loss-function-path {config.custom_loss_function_path} with --loss-type "
            f"{config.loss_type}: give --loss-type custom_loss and a path, or neither"
        )
    if config.loss_type == "custom_loss":
        _check_custom_loss(config)
    if config.eps_clip_c is not None and config.pg_loss_type not in ("ppo", "gspo"):
        raise ConfigError(f"--eps-clip-c: --pg-loss-type {config.pg_loss_type} has no dual clip; drop it")
    if config.use_tis and config.old_logprobs == "rollout":
        raise ConfigError(
            "--use-tis: --old-logprobs rollout corrects for the same mismatch already; drop one of the two"
        )
    _check_truncated_sampling(config)
    if config.tis_clip_low > config.tis_clip:
        raise ConfigError(f"--tis-clip-low {config.tis_clip_low} is above --tis-clip {config.tis_clip}")
    if not config.use_tis:
        for given in _changed(config, ("tis_clip", "tis_clip_low", "tis_level", "tis_mode")):
            raise ConfigError(f"{given}: has no effect without --use-tis")
    _check_kl(config)
    _check_frozen_models(config)


def _check_truncated_sampling(config: TrainConfig) -> None:
    # huggingface/trl#6789: of the tokens kept, the engine's log-probs are larger by the log of their mass.
    if config.rollout_top_p == 1 and config.rollout_top_k == -1:
        return
    bounds = (config.rs_lower_bound, config.rs_upper_bound, config.rs_veto_threshold)
    if config.old_logprobs == "rollout" or config.use_tis or any(bound is not None for bound in bounds):
        raise ConfigError(
            f"--rollout-top-p {config.rollout_top_p:g} --rollout-top-k {config.rollout_top_k}: the engine's "
            "log-probs are then of the tokens that are kept, and no ratio with them says how far the trainer "
            "is; sample from all (1 and -1), or drop --old-logprobs rollout, --use-tis and the --rs bounds"
        )


def _check_custom_loss(config: TrainConfig) -> None:
    unused = {
        "--use-tis": config.use_tis,
        "--rs-lower-bound": config.rs_lower_bound,
        "--rs-upper-bound": config.rs_upper_bound,
        "--rs-veto-threshold": config.rs_veto_threshold,
        "--entropy-coef": config.entropy_coef,
        "--kl-loss-coef": config.kl_loss_coef,
        "--kl-coef": config.kl_coef,
        "--opd-kl-coef": config.opd_kl_coef,
    }
    for flag, value in unused.items():
        if value:
            raise ConfigError(f"{flag}: has no part in --loss-type custom_loss; do it in the function")


def _check_frozen_models(config: TrainConfig) -> None:
    if config.ref_load is not None and config.kl_reference == "rollout":
        raise ConfigError(
            f"--ref-load {config.ref_load} with --kl-reference rollout: nothing would read it; drop "
            "one of the two"
        )
    if config.reference is not None and not (config.kl_coef or config.kl_loss_coef):
        flag = "--ref-load" if config.ref_load else "--kl-reference ref"
        raise ConfigError(
            f"{flag}: needs --kl-loss-coef or --kl-coef above 0, which weigh the divergence from it"
        )
    if (config.opd_teacher_load is not None) != (config.opd_kl_coef > 0):
        raise ConfigError(
            f"--opd-kl-coef {config.opd_kl_coef:g} with --opd-teacher-load {config.opd_teacher_load}: "
            "distillation needs a teacher and a weight above 0; give both or neither"
        )
    if config.opd_top_k and not config.opd_kl_coef:
        raise ConfigError(
            f"--opd-top-k {config.opd_top_k}: nothing is distilled; give --opd-teacher-load and "
            "--opd-kl-coef too, or drop it"
        )


def _check_kl(config: TrainConfig) -> None:
    if config.kl_coef and config.kl_loss_coef:
        raise ConfigError(
            f"--kl-coef {config.kl_coef} and --kl-loss-coef {config.kl_loss_coef} penalise the same "
            "divergence twice, in the reward and in the loss; drop one of the two"
        )
    if config.kl_loss_coef and config.kl_loss_type == "k1" and not config.use_unbiased_kl:
        raise ConfigError(
            "--kl-loss-type k1: the expected gradient of k1 in the loss is zero, the reference drops out of "
            "it; use k2 or k3+, add --use-unbiased-kl, or put it into the reward with --kl-coef"
        )
    if config.use_unbiased_kl and not config.kl_loss_coef:
        raise ConfigError("--use-unbiased-kl: has no effect with --kl-loss-coef 0; give a weight or drop it")
    if config.use_unbiased_kl and config.kl_loss_type not in ("k1", "k3"):
        raise ConfigError(
            f"--use-unbiased-kl: with --kl-loss-type {config.kl_loss_type} the gradient would be wrong; give "
            "k1 or k3, or drop the flag"
        )
