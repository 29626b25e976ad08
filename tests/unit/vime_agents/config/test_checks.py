"""Contradictions between settings, and agreement with the parts that the settings configure."""

import dataclasses

import pytest

from vime_agents.config import TrainConfig
from vime_agents.config.checks import ESTIMATORS
from vime_agents.config.fields import options_of
from vime_agents.errors import ConfigError
from vime_agents.learning import advantages, aggregation
from vime_trainers.losses.config import LossConfig
from vime_trainers.megatron.config import MegatronConfig

REQUIRED = {"env": "E", "hf_checkpoint": "m", "run_dir": "r"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"n_samples_per_prompt": 1}, ["--n-samples-per-prompt", "at least 2", "got 1"]),
        (
            {"rollout_top_p": 0.9, "old_logprobs": "rollout"},
            ["--rollout-top-p 0.9", "--old-logprobs rollout"],
        ),
        ({"rollout_top_k": 20, "use_tis": True}, ["--rollout-top-k 20", "--use-tis"]),
        ({"rollout_top_p": 0.9, "rs_upper_bound": 2.0}, ["--rollout-top-p 0.9", "--rs bounds"]),
        ({"advantage_estimator": "dr-grpo"}, ["--advantage-estimator", "'dr-grpo'", "'dr_grpo'"]),
        (
            {"advantage_estimator": "rloo", "disable_grpo_std_normalization": True},
            ["--disable-grpo-std-normalization", "rloo"],
        ),
        (
            {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "actor_num_gpus_per_node": 6},
            ["--tensor-model-parallel-size 2 * --context-parallel-size 2 = 4", "6 trainer ranks"],
        ),
        (
            {"num_layers_per_virtual_pipeline_stage": 2},
            ["--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-size"],
        ),
        (
            {"expert_model_parallel_size": 4, "actor_num_gpus_per_node": 2},
            ["--expert-model-parallel-size 4", "2 ranks of a pipeline stage"],
        ),
        ({"fp8_format": "hybrid"}, ["--fp8-format hybrid", "--bf16", "transformer_engine"]),
        (
            {"fp8_format": "e4m3", "bf16": True, "transformer_impl": "local"},
            ["--fp8-format e4m3", "transformer_engine"],
        ),
        ({"sequence_parallel": True}, ["--sequence-parallel", "--tensor-model-parallel-size"]),
        ({"vllm_router_ip": "h"}, ["--vllm-router-ip", "--vllm-router-port"]),
        (
            {"update_weight_transport": "gloo", "update_weight_disk_dir": "/x"},
            ["--update-weight-disk-dir", "gloo"],
        ),
        ({"snapshot_interval": 5}, ["--snapshot-interval 5", "--agents AGENT=snapshots"]),
        ({"num_snapshots": 8, "agents": "O=random"}, ["--num-snapshots 8", "--agents AGENT=snapshots"]),
        (
            {"snapshot_num_gpus_per_engine": 2, "agents": "snapshots=gold"},
            ["--snapshot-num-gpus-per-engine 2", "--agents AGENT=snapshots"],
        ),
        (
            {"snapshot_num_engines": 2, "agents": "O=gold | snapshots"},
            ["--snapshot-num-engines 2", "--rollout-num-engines 1"],
        ),
        (
            {"loss_type": "sft_loss", "prompt_data": "a.jsonl", "agents": "X=gold,O=snapshots"},
            ["--agents X=gold,O=snapshots", "sft_loss"],
        ),
        ({"rollout_top_k": 0}, ["--rollout-top-k", "got 0"]),
        (
            {"rollout_max_response_len": 128, "rollout_max_context_len": 128},
            ["--rollout-max-response-len 128", "--rollout-max-context-len 128"],
        ),
        (
            {"max_tokens_per_gpu": 1000, "rollout_max_context_len": 2048},
            ["--max-tokens-per-gpu 1000", "2048", "--oversized-rows truncate or drop"],
        ),
        ({"label_key": "answer"}, ["--label-key", "--prompt-data"]),
        ({"tool_key": "tools"}, ["--tool-key", "sft_loss"]),
        ({"loss_type": "sft_loss"}, ["--loss-type sft_loss", "--prompt-data"]),
        (
            {"loss_type": "sft_loss", "prompt_data": "d", "pg_loss_type": "cispo"},
            ["--pg-loss-type cispo", "sft_loss"],
        ),
        (
            {"loss_type": "sft_loss", "prompt_data": "d", "rollout_batch_size": 8, "global_batch_size": 3},
            ["--global-batch-size 3", "--rollout-batch-size 8 = 8"],
        ),
        ({"use_tis": True, "old_logprobs": "rollout"}, ["--use-tis", "--old-logprobs rollout"]),
        (
            {"rollout_batch_size": 4, "n_samples_per_prompt": 8, "global_batch_size": 12},
            ["--global-batch-size 12", "= 32", "multiple of 8"],
        ),
        (
            {
                "rollout_batch_size": 4,
                "n_samples_per_prompt": 8,
                "global_batch_size": 16,
                "num_steps_per_rollout": 4,
            },
            ["--global-batch-size 16", "2 steps", "--num-steps-per-rollout 4"],
        ),
        (
            {"rollout_batch_size": 2, "num_steps_per_rollout": 4, "old_logprobs": "rollout"},
            ["--num-steps-per-rollout 4", "--rollout-batch-size 2"],
        ),
        ({"num_steps_per_rollout": 2}, ["--num-steps-per-rollout 2", "--old-logprobs recompute"]),
        ({"advantage_estimator": "gspo"}, ["--advantage-estimator grpo --pg-loss-type gspo"]),
        ({"advantage_estimator": "rloo", "gamma": 0.9}, ["--gamma 0.9", "rloo"]),
        ({"min_lr": 1e-3, "lr_decay_style": "linear"}, ["--min-lr 0.001", "--lr 1e-06"]),
        ({"min_lr": 1e-7}, ["--min-lr", "--lr-decay-style constant"]),
        ({"lr_decay_iters": 5}, ["--lr-decay-iters", "--lr-decay-style constant"]),
        (
            {"lr_decay_style": "cosine", "num_rollout": 5, "lr_warmup_iters": 5},
            ["--lr-decay-iters 5", "--lr-warmup-iters 5"],
        ),
        ({"lora_alpha": 8.0}, ["--lora-alpha", "--lora-rank"]),
        ({"lora_rank": 8, "freeze_params_name_list": "x"}, ["--lora-rank and --freeze-params-name-list"]),
        ({"lambd": 0.9}, ["--lambd", "--advantage-estimator grpo", "ppo"]),
        ({"critic_lr": 0.0}, ["--critic-lr", "has no critic"]),
        ({"advantage_estimator": "ppo", "num_rollout": 3, "num_critic_only_steps": 3}, ["--num-rollout 3"]),
        ({"advantage_estimator": "gae", "kl_coef": 0.1}, ["--kl-coef 0.1", "--kl-loss-coef"]),
        ({"advantage_estimator": "ppo", "oversized_rows": "drop"}, ["--oversized-rows drop"]),
        ({"rae_decay": 0.9}, ["--rae-decay 0.9", "--advantage-estimator rae"]),
        ({"advantage_estimator": "rae", "use_turn_rewards": True}, ["--use-turn-rewards", "rae"]),
        ({"turn_gamma": 0.9}, ["--turn-gamma 0.9", "--use-turn-rewards"]),
        ({"loss_norm_length": 9}, ["--loss-norm-length 9", "token-mean"]),
        ({"loss_aggregation": "seq-mean-token-sum-norm"}, ["--loss-norm-length None"]),
        ({"loss_type": "custom_loss"}, ["--custom-loss-function-path None", "custom_loss"]),
        ({"custom_loss_function_path": "m:f"}, ["--custom-loss-function-path m:f", "policy_loss"]),
        (
            {"loss_type": "custom_loss", "custom_loss_function_path": "m:f", "kl_coef": 0.1},
            ["--kl-coef", "custom_loss"],
        ),
        ({"pg_loss_type": "cispo", "eps_clip_c": 3.0}, ["--eps-clip-c", "cispo"]),
        ({"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 3.0}, ["--tis-clip-low 3.0", "2.0"]),
        ({"tis_mode": "mask"}, ["--tis-mode", "--use-tis"]),
        ({"kl_coef": 0.1, "kl_loss_coef": 0.2}, ["--kl-coef 0.1", "--kl-loss-coef 0.2"]),
        ({"kl_loss_coef": 0.1, "kl_loss_type": "k1"}, ["--kl-loss-type k1", "gradient", "zero"]),
        (
            {"trainer": "torch", "actor_num_gpus_per_node": 2},
            ["--trainer torch", "--actor-num-gpus-per-node 2"],
        ),
        ({"save_hf_interval": 5}, ["--save-hf-interval", "--save-hf"]),
        ({"save_hf_interval": 5, "save_hf": "out"}, ["--save-hf-interval 5", "out/{update}"]),
        ({"save_hf": "out/{step}"}, ["--save-hf out/{step}", "{update}"]),
        ({"save_hf": "out", "save_hf_shard_size": "5"}, ["--save-hf-shard-size", "'5'", "5GB"]),
        ({"save_hf": "out", "save_hf_shard_size": "0GB"}, ["--save-hf-shard-size", "'0GB'"]),
        ({"trainer": "torch", "async_save": True}, ["--async-save", "--trainer torch", "megatron"]),
        ({"use_unbiased_kl": True, "kl_loss_coef": 0.1}, ["--use-unbiased-kl", "k2"]),
        ({"use_unbiased_kl": True, "kl_loss_type": "k3"}, ["--use-unbiased-kl", "--kl-loss-coef 0"]),
        ({"tis_clip": 5.0}, ["--tis-clip 5.0", "--use-tis"]),
        ({"tis_level": "sequence"}, ["--tis-level sequence", "--use-tis"]),
        ({"ref_load": "m", "kl_reference": "rollout", "kl_coef": 0.1}, ["--ref-load m", "rollout"]),
        ({"ref_load": "m"}, ["--ref-load", "--kl-loss-coef"]),
        ({"kl_reference": "ref"}, ["--kl-reference ref", "--kl-coef"]),
        ({"opd_kl_coef": 0.5}, ["--opd-kl-coef 0.5", "--opd-teacher-load None"]),
        ({"opd_top_k": 8}, ["--opd-top-k 8", "--opd-teacher-load and --opd-kl-coef"]),
        ({"opd_teacher_load": "m"}, ["--opd-kl-coef 0", "--opd-teacher-load m"]),
        ({"overlong_buffer_len": 9}, ["--overlong-buffer-len 9", "--overlong-max-len None"]),
        ({"overlong_buffer_len": 9, "overlong_max_len": 8}, ["--overlong-max-len 8", "not below the buffer"]),
        ({"overlong_max_len": 8}, ["need --overlong-buffer-len"]),
        ({"overlong_penalty_factor": 2.0}, ["need --overlong-buffer-len"]),
    ],
)
def test_a_contradiction_names_the_flags_and_their_values(settings, told):
    """Plan 31."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**REQUIRED, **settings)
    for part in told:
        assert part in str(caught.value)


def test_context_parallel_ranks_share_a_row_so_the_limit_counts_once_for_each():
    shared = {"max_tokens_per_gpu": 1024, "rollout_max_context_len": 2048}
    config = TrainConfig(**REQUIRED, **shared, context_parallel_size=2, actor_num_gpus_per_node=2)
    assert config.data_parallel_size == 1


@pytest.mark.parametrize("choice", ["truncate", "drop"])
def test_conversations_may_be_longer_than_a_micro_batch_where_it_is_said_what_happens_to_them(choice):
    limits = {"max_tokens_per_gpu": 1000, "rollout_max_context_len": 2048}
    assert TrainConfig(**REQUIRED, **limits, oversized_rows=choice).max_tokens_per_gpu == 1000


def test_ranks_and_data_parallel_size_follow_from_the_layout():
    config = TrainConfig(
        **REQUIRED,
        actor_num_nodes=2,
        actor_num_gpus_per_node=8,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        context_parallel_size=2,
    )
    assert config.num_trainer_ranks == 16
    assert config.data_parallel_size == 2


def test_the_upper_clip_follows_the_lower_one_unless_given():
    assert TrainConfig(**REQUIRED, eps_clip=0.3).upper_clip == 0.3
    assert TrainConfig(**REQUIRED, eps_clip=0.3, eps_clip_high=0.0).upper_clip == 0.0


def test_reinforce_plus_plus_compares_nothing_so_one_episode_of_a_task_is_enough():
    config = TrainConfig(**REQUIRED, advantage_estimator="reinforce_plus_plus", n_samples_per_prompt=1)
    assert config.gamma == 1.0


def test_a_critic_needs_no_group_and_discounts_tokens():
    config = TrainConfig(**REQUIRED, advantage_estimator="ppo", n_samples_per_prompt=1, gamma=0.99)
    assert config.has_critic


def test_the_critic_decays_over_the_rollouts_that_the_policy_does_not_learn_from_too():
    config = TrainConfig(
        **REQUIRED,
        advantage_estimator="ppo",
        lr_decay_style="linear",
        num_rollout=10,
        num_critic_only_steps=4,
    )
    assert (config.decay_steps, config.critic_decay_steps) == (6, 10)


def test_a_baseline_of_each_role_needs_no_group_either():
    assert TrainConfig(**REQUIRED, advantage_estimator="rae", n_samples_per_prompt=1).rae_decay == 0.95


def test_names_of_estimators_and_aggregations_are_those_of_learning():
    assert sorted(ESTIMATORS) == sorted(advantages.NAMES)
    assert options_of(TrainConfig)["loss_aggregation"].choices == aggregation.AGGREGATIONS


def test_every_setting_of_the_trainer_and_its_loss_has_a_flag_with_the_same_default():
    options = options_of(TrainConfig)
    defaults = {
        f.name: f.default
        for f in dataclasses.fields(MegatronConfig)
        if f.name not in ("loss", "critic", "lora")
    }
    defaults |= {f.name: f.default for f in dataclasses.fields(LossConfig)}
    # `seed` is the run's; the two clips depend on a second flag.
    # A run's reference follows from --ref-load.
    differ = {"hf_checkpoint", "seed", "eps_clip_high", "tis_clip", "kl_reference"}
    assert sorted(set(defaults) - set(options)) == []
    assert {n: options[n].default for n in defaults if n not in differ} == {
        n: d for n, d in defaults.items() if n not in differ
    }
