"""Flags, YAML files and precedence, on the training config."""

import dataclasses
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.config import EvalConfig, TrainConfig
from vime_agents.config.fields import options_of
from vime_agents.errors import ConfigError

REQUIRED = {"env": "Calculator-v0", "hf_checkpoint": "models/m", "run_dir": "runs/a"}
REQUIRED_FLAGS = ["--env", "Calculator-v0", "--hf-checkpoint", "models/m", "--run-dir", "runs/a"]

# One line for each setting: what is typed -> what is read. A second flag where one needs another.
TRAIN_EXAMPLES = {
    "run_dir": ("--run-dir runs/b", "runs/b"),
    "resume": ("--resume must", "must"),
    "num_rollout": ("--num-rollout 7", 7),
    "save_interval": ("--save-interval 0", 0),
    "keep_checkpoints": ("--keep-checkpoints 0", 0),
    "async_save": ("--async-save", True),
    "save_hf": ("--save-hf out/hf", "out/hf"),
    "save_hf_interval": ("--save-hf-interval 5 --save-hf out/{update}", 5),
    "save_hf_shard_size": ("--save-hf-shard-size 500MB --save-hf out/hf", "500MB"),
    "seed": ("--seed 9", 9),
    "ray_address": ("--ray-address auto", "auto"),
    "dry_run": ("--dry-run", True),
    "env": ("--env my.module:Env", "my.module:Env"),
    "agents": ("--agents O=scripted:random", "O=scripted:random"),
    "rotate_seats": ("--rotate-seats", True),
    "snapshot_interval": ("--snapshot-interval 5 --agents O=snapshots", 5),
    "num_snapshots": ("--num-snapshots 8 --agents O=snapshots", 8),
    "snapshot_num_engines": ("--snapshot-num-engines 2 --rollout-num-engines 2 --agents O=snapshots", 2),
    "snapshot_num_gpus_per_engine": ("--snapshot-num-gpus-per-engine 2 --agents O=snapshots", 2),
    "prompt_data": ("--prompt-data a.jsonl", "a.jsonl"),
    "input_key": ("--input-key question", "question"),
    "label_key": ("--label-key answer --prompt-data a.jsonl", "answer"),
    "custom_generate_function_path": ("--custom-generate-function-path m:f", "m:f"),
    "rollout_batch_size": ("--rollout-batch-size 4", 4),
    "n_samples_per_prompt": ("--n-samples-per-prompt 16", 16),
    "rollout_temperature": ("--rollout-temperature 0.7", 0.7),
    "rollout_top_p": ("--rollout-top-p 0.9", 0.9),
    "rollout_top_k": ("--rollout-top-k 20", 20),
    "rollout_max_response_len": ("--rollout-max-response-len 12", 12),
    "rollout_max_context_len": ("--rollout-max-context-len 512", 512),
    "rollout_concurrency": ("--rollout-concurrency 8", 8),
    "rollout_seed": ("--rollout-seed 3", 3),
    "episode_timeout": ("--episode-timeout 60", 60.0),
    "turn_timeout": ("--turn-timeout 5.5", 5.5),
    "max_retries": ("--max-retries 0", 0),
    "sandbox_pool_size": ("--sandbox-pool-size 0", 0),
    "max_sandboxes": ("--max-sandboxes 8", 8),
    "hf_checkpoint": ("--hf-checkpoint other", "other"),
    "renderer": ("--renderer qwen3", "qwen3"),
    "rollout_num_engines": ("--rollout-num-engines 2", 2),
    "rollout_num_gpus_per_engine": ("--rollout-num-gpus-per-engine 4", 4),
    "vllm_router_ip": ("--vllm-router-ip 10.0.0.1 --vllm-router-port 80", "10.0.0.1"),
    "vllm_router_port": ("--vllm-router-port 8000 --vllm-router-ip h", 8000),
    "update_weight_transport": ("--update-weight-transport gloo", "gloo"),
    "update_weight_disk_dir": ("--update-weight-disk-dir /shared", "/shared"),
    "sync_probe_tolerance": ("--sync-probe-tolerance 0.3", 0.3),
    "actor_num_nodes": ("--actor-num-nodes 2", 2),
    "actor_num_gpus_per_node": ("--actor-num-gpus-per-node=8", 8),
    "trainer": ("--trainer torch", "torch"),
    "tensor_model_parallel_size": ("--tensor-model-parallel-size 2 --actor-num-gpus-per-node 2", 2),
    "pipeline_model_parallel_size": ("--pipeline-model-parallel-size 2 --actor-num-nodes 2", 2),
    "num_layers_per_virtual_pipeline_stage": (
        "--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 2 --actor-num-nodes 2",
        2,
    ),
    "expert_model_parallel_size": ("--expert-model-parallel-size 4 --actor-num-gpus-per-node 8", 4),
    "expert_tensor_parallel_size": ("--expert-tensor-parallel-size 1", 1),
    "moe_aux_loss_coeff": ("--moe-aux-loss-coeff 1e-3", 1e-3),
    "transformer_impl": ("--transformer-impl local", "local"),
    "fp8_format": ("--fp8-format hybrid --bf16", "hybrid"),
    "context_parallel_size": ("--context-parallel-size 2 --actor-num-gpus-per-node 4", 2),
    "sequence_parallel": (
        "--sequence-parallel --tensor-model-parallel-size 2 --actor-num-gpus-per-node 2",
        True,
    ),
    "use_distributed_optimizer": ("--use-distributed-optimizer", True),
    "bf16": ("--bf16", True),
    "max_tokens_per_gpu": ("--max-tokens-per-gpu 9000", 9000),
    "oversized_rows": ("--oversized-rows drop", "drop"),
    "log_probs_chunk_size": ("--log-probs-chunk-size 256", 256),
    "peak_tflops": ("--peak-tflops 989", 989.0),
    "recompute_granularity": ("--recompute-granularity full", "full"),
    "lr": ("--lr 2e-5", 2e-5),
    "min_lr": ("--min-lr 1e-7 --lr-decay-style linear", 1e-7),
    "lr_warmup_iters": ("--lr-warmup-iters 5", 5),
    "lr_decay_style": ("--lr-decay-style inverse-square-root", "inverse-square-root"),
    "lr_decay_iters": ("--lr-decay-iters 30 --lr-decay-style cosine", 30),
    "weight_decay": ("--weight-decay 0.1", 0.1),
    "adam_beta1": ("--adam-beta1 0.8", 0.8),
    "adam_beta2": ("--adam-beta2 0.95", 0.95),
    "adam_eps": ("--adam-eps 1e-6", 1e-6),
    "clip_grad": ("--clip-grad 0", 0.0),
    "advantage_estimator": ("--advantage-estimator rloo", "rloo"),
    "lora_rank": ("--lora-rank 8", 8),
    "lora_alpha": ("--lora-alpha 16 --lora-rank 8", 16.0),
    "lora_target_modules": ("--lora-target-modules q_proj,v_proj --lora-rank 8", "q_proj,v_proj"),
    "save_lora": ("--save-lora out --lora-rank 8", "out"),
    "only_train_params_name_list": ("--only-train-params-name-list mlp", "mlp"),
    "freeze_params_name_list": ("--freeze-params-name-list embed", "embed"),
    "critic_load": ("--critic-load rm --advantage-estimator ppo", "rm"),
    "critic_lr": ("--critic-lr 1e-5 --advantage-estimator ppo", 1e-5),
    "critic_lr_warmup_iters": ("--critic-lr-warmup-iters 9 --advantage-estimator ppo", 9),
    "num_critic_only_steps": ("--num-critic-only-steps 2 --advantage-estimator ppo", 2),
    "lambd": ("--lambd 0.95 --advantage-estimator gae", 0.95),
    "value_clip": ("--value-clip 0 --advantage-estimator ppo", 0.0),
    "bootstrap_truncated": ("--bootstrap-truncated --advantage-estimator ppo", True),
    "rae_decay": ("--rae-decay 0.9 --advantage-estimator rae", 0.9),
    "disable_grpo_std_normalization": ("--disable-grpo-std-normalization", True),
    "normalize_advantages": ("--normalize-advantages", True),
    "gamma": ("--gamma 0.9 --advantage-estimator reinforce_plus_plus", 0.9),
    "use_turn_rewards": ("--use-turn-rewards", True),
    "tool_key": ("--tool-key tools --loss-type sft_loss --prompt-data a.jsonl", "tools"),
    "turn_gamma": ("--turn-gamma 0.9 --use-turn-rewards", 0.9),
    "overlong_filter": ("--overlong-filter", True),
    "overlong_buffer_len": ("--overlong-buffer-len 256 --overlong-max-len 512", 256),
    "overlong_max_len": ("--overlong-max-len 1024 --overlong-buffer-len 256", 1024),
    "overlong_penalty_factor": (
        "--overlong-penalty-factor 0.5 --overlong-max-len 512 --overlong-buffer-len 256",
        0.5,
    ),
    "loss_aggregation": ("--loss-aggregation episode-mean", "episode-mean"),
    "loss_norm_length": ("--loss-norm-length 512 --loss-aggregation seq-mean-token-sum-norm", 512),
    "loss_type": ("--loss-type custom_loss --custom-loss-function-path m:f", "custom_loss"),
    "custom_loss_function_path": ("--loss-type custom_loss --custom-loss-function-path m:f", "m:f"),
    "pg_loss_type": ("--pg-loss-type gspo", "gspo"),
    "num_steps_per_rollout": ("--num-steps-per-rollout 2 --old-logprobs rollout", 2),
    "global_batch_size": ("--global-batch-size 256", 256),
    "old_logprobs": ("--old-logprobs rollout", "rollout"),
    "kl_reference": ("--kl-reference ref --kl-coef 0.1", "ref"),
    "ref_load": ("--ref-load other --kl-coef 0.1", "other"),
    "opd_kl_coef": ("--opd-kl-coef 0.5 --opd-teacher-load m", 0.5),
    "opd_top_k": ("--opd-top-k 64 --opd-kl-coef 0.5 --opd-teacher-load m", 64),
    "opd_teacher_load": ("--opd-kl-coef 0.5 --opd-teacher-load m", "m"),
    "eps_clip": ("--eps-clip 0.1", 0.1),
    "eps_clip_high": ("--eps-clip-high 0.28", 0.28),
    "eps_clip_c": ("--eps-clip-c 3", 3.0),
    "use_tis": ("--use-tis", True),
    "tis_clip": ("--tis-clip 5 --use-tis", 5.0),
    "tis_clip_low": ("--tis-clip-low 0.5 --use-tis", 0.5),
    "tis_level": ("--tis-level sequence --use-tis", "sequence"),
    "tis_mode": ("--tis-mode mask --use-tis", "mask"),
    "rs_lower_bound": ("--rs-lower-bound 0.99", 0.99),
    "rs_upper_bound": ("--rs-upper-bound 1.01", 1.01),
    "rs_veto_threshold": ("--rs-veto-threshold 1e-4", 1e-4),
    "entropy_coef": ("--entropy-coef 0.01", 0.01),
    "kl_loss_coef": ("--kl-loss-coef 0.02", 0.02),
    "kl_loss_type": ("--kl-loss-type k3+", "k3+"),
    "use_unbiased_kl": ("--use-unbiased-kl --kl-loss-type k1 --kl-loss-coef 0.1", True),
    "kl_coef": ("--kl-coef 0.02", 0.02),
    "eval_interval": ("--eval-interval 5", 5),
    "n_eval_tasks": ("--n-eval-tasks 10", 10),
    "n_samples_per_eval_prompt": ("--n-samples-per-eval-prompt 4", 4),
    "eval_temperature": ("--eval-temperature 0.6", 0.6),
    "skip_eval_before_train": ("--skip-eval-before-train", True),
}


def train(*flags: str) -> TrainConfig:
    return TrainConfig.from_argv([*REQUIRED_FLAGS, *flags])


def test_every_setting_has_an_example_here():
    assert sorted(TRAIN_EXAMPLES) == sorted(options_of(TrainConfig))


@pytest.mark.parametrize("name", sorted(TRAIN_EXAMPLES))
def test_every_flag_is_read_differs_from_its_default_and_survives_yaml(name):
    text, expected = TRAIN_EXAMPLES[name]
    config = train(*text.split())
    value = getattr(config, name)
    assert value == expected
    assert type(value) is type(expected)
    assert value != options_of(TrainConfig)[name].default
    assert TrainConfig.from_yaml(config.to_yaml()) == config
    assert yaml.safe_load(config.to_yaml())[name] == expected


def test_defaults_yield_to_files_files_to_later_files_and_all_to_flags(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("lr: 1e-6\nseed: 1\nnum_rollout: 11\nbf16: true\n")
    second.write_text("seed: 2\nnum_rollout: 12\n")
    config = train("--config", str(first), str(second), "--num-rollout", "13", "--no-bf16")
    assert (config.lr, config.seed, config.num_rollout, config.bf16) == (1e-6, 2, 13, False)
    assert config.weight_decay == 0.0
    again = train("--config", str(second), "--config", str(first), "--num-rollout", "13")
    assert (again.seed, again.bf16) == (1, True)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--lrr 1", ["unknown flag --lrr", "Did you mean --lr?"]),
        ("--rollout-batchsize=4", ["unknown flag --rollout-batchsize", "--rollout-batch-size"]),
        ("--rollout-batch 4", ["unknown flag --rollout-batch", "--rollout-batch-size"]),
        ("--no-bf-16", ["unknown flag --no-bf-16", "--no-bf16"]),
        ("--zzzz 4", ["unknown flag --zzzz"]),
        ("stray", ["unexpected argument 'stray'"]),
        ("--lr", ["--lr", "expected one argument"]),
        ("--lr fast", ["--lr", "'fast'", "a number"]),
        ("--lr nan", ["--lr", "'nan'", "a number"]),
        ("--lr -1", ["--lr", "'-1'", ">= 0"]),
        ("--rollout-temperature 0", ["--rollout-temperature", "'0'", "> 0"]),
        ("--rollout-top-p 1.5", ["--rollout-top-p", "'1.5'", "> 0 and <= 1"]),
        ("--num-rollout 2.5", ["--num-rollout", "'2.5'", "a whole number"]),
        ("--num-rollout 0", ["--num-rollout", "'0'", ">= 1"]),
        ("--resume maybe", ["--resume", "'maybe'", "auto, never, must"]),
        ("--vllm-router-port 70000 --vllm-router-ip h", ["--vllm-router-port", "'70000'", "<= 65535"]),
        ("--config missing.yaml", ["--config", "missing.yaml", "No such file"]),
    ],
)
def test_a_wrong_flag_says_which_what_was_seen_and_what_is_allowed(flags, told):
    with pytest.raises(ConfigError) as caught:
        train(*flags.split())
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learning_rate: 1", ["unknown setting 'learning_rate'"]),
        ("rollout-batch-size: 1", ["unknown setting 'rollout-batch-size'", "'rollout_batch_size'"]),
        ("num_rollout: true", ["--num-rollout", "True"]),
        ("num_rollout: 2.5", ["--num-rollout", "2.5"]),
        ("bf16: 1", ["--bf16", "true or false", "1"]),
        ("bf16: 'yes'", ["--bf16", "true or false", "'yes'"]),
        ("seed: null", ["--seed", "None"]),
        ("env: 3", ["--env", "quote it"]),
        ("lr: [1]", ["--lr", "[1]"]),
        ("- lr", ["must be a mapping"]),
        ("lr: {", ["not YAML"]),
        ("1: 2", ["must be a mapping"]),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, told):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        train("--config", str(file))
    for part in [str(file), *told]:
        assert part in str(caught.value)


def test_a_number_that_yaml_reads_as_text_is_still_a_number():
    # YAML 1.1 wants a dot in front of the exponent.
    assert yaml.safe_load("1e-6") == "1e-6"
    assert TrainConfig.from_yaml(yaml.safe_dump(REQUIRED) + "lr: 1e-6").lr == 1e-6


def test_all_missing_required_settings_are_named_at_once():
    with pytest.raises(ConfigError, match=r"--run-dir, --hf-checkpoint: required"):
        TrainConfig.from_argv(["--env", "Calculator-v0"])


def test_a_config_made_in_code_is_checked_like_one_from_flags():
    with pytest.raises(ConfigError, match=r"--lr: must be a number >= 0, got -1"):
        TrainConfig(**REQUIRED, lr=-1)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig(**REQUIRED).lr = 1.0


@given(
    lr=st.floats(min_value=0, max_value=1e300),
    seed=st.integers(min_value=0, max_value=2**64),
    env=st.text(min_size=1),
    save_hf=st.none() | st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"])),
)
def test_any_value_survives_yaml(lr, seed, env, save_hf):
    config = TrainConfig(**REQUIRED | {"env": env}, lr=lr, seed=seed, save_hf=save_hf)
    assert TrainConfig.from_yaml(config.to_yaml()) == config


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_help_has_every_flag_with_text_and_default_within_100_columns(cls):
    text = cls.parser().format_help()
    assert max(len(line) for line in text.splitlines()) <= 100
    for option in options_of(cls).values():
        assert f"{option.flag}" in text
        assert option.help, f"{option.flag} has no docstring"
        assert option.help.split()[0] in text
    assert "(default: 1.0)" in text
    assert "(required)" in text


def test_help_groups_flags_by_section():
    text = TrainConfig.parser().format_help()
    order = ["Run:", "Environment and tasks:", "Rollout:", "Engines (vLLM):", "Optimizer (Megatron):"]
    positions = [text.index(title) for title in order]
    assert positions == sorted(positions)
    assert (
        text.index("Optimizer (Megatron):") < text.index("--adam-beta1") < text.index("Advantages and loss:")
    )


def test_eval_settings_survive_yaml_and_have_short_flags():
    flags = "--env E -m http://h/v1#m -n 200 -k 4 -c 32 --temperature 1 --split train --json --out o"
    config = EvalConfig.from_argv(flags.split())
    assert (config.num_tasks, config.samples_per_task, config.concurrency) == (200, 4, 32)
    assert EvalConfig.from_yaml(config.to_yaml()) == config


def test_greedy_samples_of_a_task_are_refused():
    with pytest.raises(ConfigError, match=r"--samples-per-task 4: greedy .* --temperature"):
        EvalConfig(env="E", model="http://h/v1#m", samples_per_task=4)


def test_config_loads_neither_torch_nor_engines_nor_http():
    code = (
        "import sys, vime_agents.config as c; c.TrainConfig.parser().format_help(); "
        "print([m for m in ('torch', 'vllm', 'ray', 'megatron', 'aiohttp', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
