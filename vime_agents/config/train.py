"""Settings of `vime-agents train`. Names are vime's and Megatron's where those have the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vime_agents.config.checks import check_train
from vime_agents.config.fields import (
    Bounds,
    MayChange,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
)
from vime_agents.config.options import Options
from vime_agents.config.vllm_flags import OWNED

SNAPSHOTS = "snapshots"
"""In `--agents`: earlier states of the policy that is trained."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Run."""

    run_dir: Annotated[str, MayChange()]
    """Folder of this run: config, metrics, episodes, checkpoints. The same command again resumes it."""
    resume: Annotated[Literal["auto", "never", "must"], MayChange()] = "auto"
    """auto: go on from the last checkpoint if there is one; never: the folder must be new; must: it must
    hold a checkpoint."""
    num_rollout: Annotated[int, Bounds(1), MayChange()] = 100
    """Rollouts to do, and so updates of the engines: each rollout is one."""
    save_interval: Annotated[NonNegativeInt, MayChange()] = 10
    """Updates between checkpoints; 0: only the last one."""
    keep_checkpoints: Annotated[NonNegativeInt, MayChange()] = 2
    """Newest checkpoints to keep; 0: all."""
    async_save: Annotated[bool, MayChange()] = False
    """Write checkpoints while training goes on (--trainer megatron): it waits for the copy alone."""
    save_hf: Annotated[str, MayChange()] | None = None
    """Folder for the final weights in Hugging Face format; `{update}` is replaced."""
    save_hf_interval: Annotated[NonNegativeInt, MayChange()] = 0
    """Updates between such folders; 0: only the last one. Needs `{update}` in --save-hf."""
    save_hf_shard_size: Annotated[str, MayChange()] = "50GB"
    """Most bytes of one of its files (500MB, 5GB, ...); several files come with an index."""
    seed: NonNegativeInt = 1234
    """Seed of the trainer and of the order of tasks."""
    ray_address: Annotated[str | None, MayChange()] = None
    """Ray cluster to join, `auto` or HOST:PORT; none starts one on this machine."""
    dry_run: Annotated[bool, MayChange()] = False
    """Print the resolved config and stop."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Environment and tasks."""

    env: str
    """Id (`Calculator-v0`) or `module:Class` of the environment."""
    agents: str = ""
    """Who plays a game with the policy that is trained, as AGENT=MODEL,...; an agent's name or a role, and
    scripted:random, scripted:gold, http://HOST:PORT/v1#NAME or snapshots (earlier states of the policy).
    These are frozen: they are in no loss. All other agents are the policy's, which learns from each of them:
    without this flag, self-play. AGENT='MODEL|MODEL|...' is a pool: each group meets one of them, all
    equally often."""
    snapshot_interval: PositiveInt = 10
    """Updates between snapshots of the policy (--agents AGENT=snapshots); the first are the weights as they
    came."""
    num_snapshots: PositiveInt = 5
    """Newest snapshots to draw from, one for each rollout; evaluations meet the weights as they came."""
    rotate_seats: bool = False
    """The policy and those of --agents change seats from group to group, among agents of one role or of
    none."""
    prompt_data: str | None = None
    """Tasks instead of the environment's own: a .jsonl, .csv, .tsv or .parquet file, or a folder of them;
    `path@[a:b]` is a slice. The environment sees each row as its task. With --loss-type sft_loss: the
    conversations to learn."""
    input_key: str = "input"
    """Key of the prompt in a row of --prompt-data; the environment finds it as `prompt`. With --loss-type
    sft_loss: text or messages; a whole conversation where there is no --label-key."""
    label_key: str | None = None
    """Key of the answer in a row of --prompt-data; the environment finds it as `label`. With --loss-type
    sft_loss: the assistant's reply to the prompt."""
    tool_key: str | None = None
    """Key of the tools' schemas in a row of --prompt-data (--loss-type sft_loss only)."""
    custom_generate_function_path: str | None = None
    """`module:function` that plays an episode instead of the turn loop: `async def generate(play:
    EpisodePlay) -> None`, which calls play.reset(), play.act() and play.step() until play.done."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """Rollout."""

    rollout_batch_size: PositiveInt = 32
    """Tasks in a rollout."""
    n_samples_per_prompt: PositiveInt = 8
    """Episodes of each task: the group that is compared."""
    num_steps_per_rollout: PositiveInt = 1
    """Optimizer steps that a rollout is cut into, by whole groups; the engines get the last one's weights."""
    global_batch_size: PositiveInt | None = None
    """Episodes (--loss-type sft_loss: rows) of one optimizer step, instead of --num-steps-per-rollout."""
    rollout_temperature: PositiveFloat = 1.0
    """Sampling temperature; the trainer's log-probs are taken at it too."""
    rollout_top_p: Probability = 1.0
    """Nucleus sampling; below 1 the trainer cannot follow the sampler exactly."""
    rollout_top_k: Annotated[int, Bounds(-1)] = -1
    """Sample from the k likeliest tokens; -1: all."""
    rollout_max_response_len: PositiveInt = 256
    """Most tokens sampled in one turn."""
    rollout_max_context_len: PositiveInt = 2048
    """Most tokens of a whole conversation: the engine's context."""
    rollout_concurrency: Annotated[PositiveInt, MayChange()] = 64
    """Episodes in flight."""
    rollout_seed: NonNegativeInt = 42
    """Seed of the episodes and of sampling."""
    episode_timeout: Annotated[PositiveFloat, MayChange()] = 600.0
    """Seconds that one episode may take."""
    turn_timeout: Annotated[PositiveFloat, MayChange()] = 120.0
    """Seconds that one policy call, or one answer of the environment, may take."""
    max_retries: Annotated[NonNegativeInt, MayChange()] = 2
    """Fresh attempts at an episode whose infrastructure failed."""
    sandbox_pool_size: Annotated[NonNegativeInt, MayChange()] = 4
    """Sandboxes of each player (one for each engine) to keep ready before an episode asks; 0: none."""
    max_sandboxes: Annotated[int, Bounds(1), MayChange()] | None = None
    """Sandboxes of each player open at once; more episodes wait. None: as many as its host has room for,
    shared with the other players there."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engines (vLLM)."""

    hf_checkpoint: str
    """Hugging Face folder of the model: weights, config, tokenizer."""
    renderer: str = "auto"
    """How chat messages become tokens: auto, the model's own chat template; or a renderer of the package
    `renderers` by name (qwen3, ...)."""
    rollout_num_engines: PositiveInt = 1
    """vLLM servers to start."""
    rollout_num_gpus_per_engine: PositiveInt = 1
    """Accelerators of one server: its tensor parallel size. Without accelerators: 1."""
    snapshot_num_engines: PositiveInt = 1
    """vLLM servers to start beside those, for --agents AGENT=snapshots: each holds one snapshot."""
    snapshot_num_gpus_per_engine: PositiveInt | None = None
    """Accelerators of one of them; none: --rollout-num-gpus-per-engine."""
    vllm_router_ip: str | None = None
    """Host of a running engine to use instead of starting one."""
    vllm_router_port: Annotated[int, Bounds(1, 65535)] | None = None
    """Its port."""


@dataclass(frozen=True, kw_only=True)
class WeightSyncOptions:
    """Weight sync."""

    update_weight_transport: Literal["disk", "gloo"] = "disk"
    """How weights travel to the engines. disk: a file in memory or on a disk that all hosts see; gloo: a
    broadcast over TCP, for several hosts without one."""
    update_weight_disk_dir: str | None = None
    """Folder of the file; none: memory of this machine (/dev/shm)."""
    sync_probe_tolerance: PositiveFloat | None = None
    """Largest difference (nats) between the log-probs of trainer and engine on a fixed prompt after each
    sync; a larger one ends the run. None: 0.001 without accelerators (float32), 0.5 with them (bfloat16)."""


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Trainer ranks (Megatron)."""

    trainer: Literal["megatron", "torch"] = "megatron"
    """megatron; or torch: a transformers model in one process, float32, for people without Megatron."""
    actor_num_nodes: PositiveInt = 1
    """Nodes that train."""
    actor_num_gpus_per_node: PositiveInt = 1
    """Trainer ranks on each node: one accelerator each, or one process each without accelerators."""
    tensor_model_parallel_size: PositiveInt = 1
    """Ranks that share each layer."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Ranks that share the stack of layers."""
    num_layers_per_virtual_pipeline_stage: PositiveInt | None = None
    """Cut each pipeline stage into parts of so many layers, which take turns: shorter waits. None: one."""
    context_parallel_size: PositiveInt = 1
    """Ranks that share each sequence."""
    expert_model_parallel_size: PositiveInt = 1
    """Ranks that share the experts of a layer, out of all that have the layer: no further ranks."""
    expert_tensor_parallel_size: PositiveInt | None = None
    """Ranks that share each expert; none: --tensor-model-parallel-size."""
    sequence_parallel: bool = False
    """Split activations between the tensor parallel ranks."""
    use_distributed_optimizer: bool = False
    """Split the optimizer's state between the data parallel ranks."""
    bf16: bool = False
    """Train in bfloat16 with float32 master weights; off: float32."""
    max_tokens_per_gpu: PositiveInt = 4096
    """Most tokens of one micro-batch: what bounds memory. Never changes the gradient."""
    oversized_rows: Literal["error", "truncate", "drop"] = "error"
    """A conversation that is longer than a micro-batch may be. error: the run does not start when
    --rollout-max-context-len allows one; truncate: cut what is beyond (its reward belongs to what is left);
    drop: do not train on it, but keep its reward in the baseline. Cut and dropped tokens are counted."""
    log_probs_chunk_size: PositiveInt = 1024
    """Tokens whose logits exist at the same time: bounds memory too."""
    peak_tflops: PositiveFloat | None = None
    """What one rank's device can do, 10^12 operations a second, for the metric `mfu`; none: as a table of
    accelerators knows it, and no `mfu` where it does not."""
    recompute_granularity: Literal["full"] | None = None
    """full: compute each layer again in the backward pass, to hold less."""
    moe_aux_loss_coeff: NonNegativeFloat = 0.0
    """Weight of the loss that keeps the experts of a layer equally busy, of each token row by itself."""
    transformer_impl: Literal["auto", "local", "transformer_engine"] = "auto"
    """Layers. local: plain torch; transformer_engine: fused, on accelerators; auto: fused if they can be."""
    fp8_format: Literal["e4m3", "hybrid"] | None = None
    """Matrix products in 8 bits: needs --bf16 and Transformer Engine. Not measured yet."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Optimizer (Megatron)."""

    lr: NonNegativeFloat = 1e-6
    """Learning rate."""
    min_lr: NonNegativeFloat = 0.0
    """Rate that --lr-decay-style ends at."""
    lr_warmup_iters: NonNegativeInt = 0
    """Optimizer steps over which the learning rate rises to --lr."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"
    """How the learning rate goes on after the warm-up."""
    lr_decay_iters: Annotated[PositiveInt, MayChange()] | None = None
    """Optimizer steps until the rate is --min-lr, warm-up included; none: all steps of --num-rollout. To
    lengthen a run, give the number that it was started with."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay."""
    adam_beta1: Annotated[float, Bounds(0, 1)] = 0.9
    """First moment's decay."""
    adam_beta2: Annotated[float, Bounds(0, 1)] = 0.999
    """Second moment's decay."""
    adam_eps: PositiveFloat = 1e-8
    """Added to the denominator."""
    clip_grad: NonNegativeFloat = 1.0
    """Largest gradient norm; 0: no clipping."""


@dataclass(frozen=True, kw_only=True)
class TrainableOptions:
    """Trained parameters."""

    lora_rank: NonNegativeInt = 0
    """Train adapters of this rank beside frozen weights, and give the engines the sum; 0: the weights
    themselves."""
    lora_alpha: PositiveFloat = 32.0
    """The adapters' product is multiplied by this over the rank."""
    lora_target_modules: str = "all-linear"
    """Layers that get an adapter, with commas between: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
    down_proj; all-linear: all of them."""
    save_lora: str | None = None
    """Folder for the final adapters in PEFT's format; `{update}` is replaced."""
    only_train_params_name_list: str | None = None
    """Regular expressions with spaces between, searched for in Hugging Face and megatron-core names: the
    parameters that are trained. None: all."""
    freeze_params_name_list: str | None = None
    """Likewise, those that are not."""


@dataclass(frozen=True, kw_only=True)
class CriticOptions:
    """Critic (with --advantage-estimator ppo)."""

    critic_load: str | None = None
    """Hugging Face folder of the critic, with the policy's tokenizer; its head is `score.weight`, as reward
    models have, or else begins at 0. None: the policy's folder."""
    critic_lr: NonNegativeFloat | None = None
    """Its learning rate; none: --lr. Its decay is the policy's."""
    critic_lr_warmup_iters: NonNegativeInt = 0
    """Optimizer steps over which that rises."""
    num_critic_only_steps: NonNegativeInt = 0
    """Rollouts at the start from which the critic alone learns."""
    lambd: Probability = 1.0
    """Lambda of generalised advantage estimation. 1: returns minus values; 0: one-step errors."""
    value_clip: NonNegativeFloat = 0.2
    """How far an optimizer step may move a value from what it was before the rollout's first; 0: anywhere."""
    bootstrap_truncated: bool = False
    """What would have followed an episode that was cut is worth what the critic says; otherwise nothing."""


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """Advantages and loss."""

    advantage_estimator: str = "grpo"
    """How rewards become advantages, within a group of episodes of one task: grpo, dr_grpo, rloo, maxrl, opo,
    pass_at_k, lite_ppo, reinforce_plus_plus (no group: the whole batch), reinforce_plus_plus_baseline, rae
    (no group: a baseline of each role, for self-play), ppo or gae (no group: a critic), or `module:function`
    (rewards of a group -> its advantages)."""
    rae_decay: Annotated[float, Bounds(0, 1)] = 0.95
    """How slowly a role's baseline follows its rewards (rae only)."""
    disable_grpo_std_normalization: bool = False
    """Do not divide by the group's standard deviation (grpo only)."""
    normalize_advantages: bool = False
    """Give the advantages of all trainable tokens of a rollout mean 0 and variance 1. Always on for
    reinforce_plus_plus and reinforce_plus_plus_baseline."""
    gamma: Probability = 1.0
    """Discount from a token to the next (ppo and reinforce_plus_plus only)."""
    use_turn_rewards: bool = False
    """A token answers only for the rewards of its own turn and of later ones, compared with the same turn of
    the other episodes."""
    turn_gamma: Probability = 1.0
    """Discount from a turn to the next."""
    overlong_filter: bool = False
    """Episodes that ran into a limit of tokens stay in the baseline and out of the loss."""
    overlong_buffer_len: NonNegativeInt = 0
    """Tokens before --overlong-max-len over which a penalty grows from 0 (DAPO). It is added to an episode's
    reward before that becomes an advantage; 0: none. Reported rewards are without it."""
    overlong_max_len: PositiveInt | None = None
    """Tokens that an agent may sample in an episode, over all its turns: where the penalty is
    --overlong-penalty-factor."""
    overlong_penalty_factor: PositiveFloat = 1.0
    """That penalty; beyond it goes on growing."""
    loss_aggregation: Literal[
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "episode-mean",
        "prompt-mean",
    ] = "token-mean"
    """A token's share of the loss. token-mean: all tokens alike; seq-mean-token-mean: all token rows alike;
    seq-mean-token-sum: 1 / rows; seq-mean-token-sum-norm: that over --loss-norm-length; episode-mean: all
    episodes alike; prompt-mean: all tasks alike."""
    loss_norm_length: PositiveInt | None = None
    """Constant length of seq-mean-token-sum-norm, such as the most tokens that an episode may sample."""
    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    """sft_loss: no rollouts, but the likelihood of what assistants say in --prompt-data; a rollout is then
    --rollout-batch-size rows. custom_loss: the function at --custom-loss-function-path."""
    custom_loss_function_path: str | None = None
    """`module:function`: `loss(args, batch, logits, sum_of_sample_mean) -> (loss, {name: tensor})`."""
    pg_loss_type: Literal["ppo", "reinforce", "gspo", "cispo"] = "ppo"
    """Clipped probability ratio of each token, plain policy gradient, clipped ratio of each row, or clipped
    ratio as a weight. With --old-logprobs current they are all the same."""
    old_logprobs: Literal["current", "rollout", "recompute"] = "current"
    """What the ratio is taken against. current: the trainer's own log-probs (ratio 1); rollout: the engine's;
    recompute: the trainer's before the first of several steps, at the cost of one more forward pass."""
    eps_clip: Annotated[float, Bounds(0, 1)] = 0.2
    """Lower clip range of the ratio; 1: no lower clip."""
    eps_clip_high: NonNegativeFloat | None = None
    """Upper clip range; none: the same as --eps-clip."""
    eps_clip_c: Annotated[float, Bounds(1, above_low=True)] | None = None
    """Dual clip: upper bound of the loss at negative advantages, in units of the advantage; none: off."""
    use_tis: bool = False
    """Weigh the policy loss by the trainer's over the engine's probability, cut at --tis-clip."""
    tis_clip: PositiveFloat = 2.0
    """Largest such weight."""
    tis_clip_low: NonNegativeFloat = 0.0
    """Smallest such weight."""
    tis_level: Literal["token", "sequence"] = "token"
    """Of each token, or the product over a row."""
    tis_mode: Literal["truncate", "mask"] = "truncate"
    """Outside the two bounds: the bound, or 0 (mask: IcePop)."""
    rs_lower_bound: Annotated[float, Bounds(0, 1, above_low=True)] | None = None
    """Take rows out of the loss whose geometric mean of that ratio is below this; none: off."""
    rs_upper_bound: Annotated[float, Bounds(1)] | None = None
    """Likewise above this."""
    rs_veto_threshold: Annotated[float, Bounds(0, 1, above_low=True)] | None = None
    """Take rows out of the loss that have one token with a ratio below this, such as 1e-4; none: off."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    kl_loss_coef: NonNegativeFloat = 0.0
    """Weight in the loss of the KL divergence from --kl-reference."""
    kl_loss_type: Literal["k1", "k2", "k3", "k3+"] = "k2"
    """How that divergence is estimated; k1 needs --use-unbiased-kl."""
    use_unbiased_kl: bool = False
    """Multiply the estimate, k1 or k3, by the differentiable probability ratio."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight in the reward, token by token, of the same divergence."""
    kl_reference: Literal["rollout", "ref"] | None = None
    """What the divergence is from: rollout, the policy that sampled; ref, a frozen model. None: ref if
    --ref-load is given, else rollout."""
    ref_load: str | None = None
    """Hugging Face folder of the frozen reference; none: the model that the run begins with."""
    opd_kl_coef: NonNegativeFloat = 0.0
    """On-policy distillation: weight of the reverse KL divergence from --opd-teacher-load, token by token."""
    opd_top_k: NonNegativeInt = 0
    """Above 0, take that divergence over all tokens instead of the sampled one, with so many of the teacher's
    likeliest one by one and all others together, and put it into the loss; 64 to 256 hold nearly all."""
    opd_teacher_load: str | None = None
    """Hugging Face folder of the teacher; any size of a known family, with the policy's tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TrainEvalOptions:
    """Evaluation."""

    eval_interval: Annotated[NonNegativeInt, MayChange()] = 0
    """Updates between evaluations on the test split; 0: never."""
    n_eval_tasks: PositiveInt = 64
    """Tasks of an evaluation."""
    n_samples_per_eval_prompt: PositiveInt = 1
    """Episodes of each task."""
    eval_temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0: greedy."""
    skip_eval_before_train: bool = False
    """Do not evaluate the weights as they came."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    Options,
    RunOptions,
    TaskOptions,
    RolloutOptions,
    EngineOptions,
    WeightSyncOptions,
    ParallelOptions,
    OptimizerOptions,
    TrainableOptions,
    CriticOptions,
    LossOptions,
    TrainEvalOptions,
):
    """Everything that a training run depends on."""

    program: ClassVar[str] = "vime-agents train"
    summary: ClassVar[str] = (
        "Train a model on an environment: rollouts from vLLM, updates by Megatron, exact weights back into "
        "the running vLLM, placed by Ray."
    )

    owned_vllm_flags: ClassVar[Mapping[str, str]] = {
        **OWNED,
        "model": "give --hf-checkpoint",
        "max-model-len": "give --rollout-max-context-len",
        "tensor-parallel-size": "give --rollout-num-gpus-per-engine",
        "seed": "give --rollout-seed",
        "weight-transfer-config": "give --update-weight-transport",
    }

    def check(self) -> None:
        """Raises ConfigError where settings contradict each other."""
        check_train(self)

    @property
    def num_trainer_ranks(self) -> int:
        """Trainer processes of the run."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

    def hf_folder(self, update: int) -> str | None:
        """Where --save-hf puts the weights after `update` updates; None: nowhere."""
        due = update == self.num_rollout or (self.save_hf_interval and not update % self.save_hf_interval)
        return self.save_hf.format(update=update) if self.save_hf is not None and due else None

    @property
    def reference(self) -> str | None:
        """Folder of the frozen reference; None: the policy that sampled is the reference."""
        if (self.kl_reference or ("ref" if self.ref_load else "rollout")) == "rollout":
            return None
        return self.ref_load or self.hf_checkpoint

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps of a rollout, whichever flag says so."""
        if self.global_batch_size is None:
            return self.num_steps_per_rollout
        return self.rollout_batch_size * self.samples_per_task // self.global_batch_size

    @property
    def samples_per_task(self) -> int:
        """What a rollout takes of each task: episodes, or the row itself."""
        return 1 if self.loss_type == "sft_loss" else self.n_samples_per_prompt

    @property
    def uses_engines(self) -> bool:
        """Whether anything is sampled in the run."""
        return self.loss_type != "sft_loss" or self.eval_interval > 0

    @property
    def has_snapshots(self) -> bool:
        """Whether earlier states of the policy play."""
        models = (model for part in self.agents.split(",") for model in part.partition("=")[2].split("|"))
        return any(model.strip() == SNAPSHOTS for model in models)

    @property
    def num_policy_engines(self) -> int:
        """Engines to start that sample from the trainer's weights."""
        return self.rollout_num_engines if self.uses_engines and self.vllm_router_ip is None else 0

    @property
    def num_snapshot_engines(self) -> int:
        """Engines to start that snapshots play from."""
        return self.snapshot_num_engines if self.has_snapshots else 0

    @property
    def snapshot_gpus_per_engine(self) -> int:
        """Accelerators of each of these."""
        return self.snapshot_num_gpus_per_engine or self.rollout_num_gpus_per_engine

    @property
    def decay_steps(self) -> int | None:
        """Optimizer steps until the learning rate is at its lowest; None: it does not decay."""
        if self.lr_decay_style == "constant":
            return None
        trained = self.num_rollout - self.num_critic_only_steps
        return self.lr_decay_iters or trained * self.steps_per_rollout

    @property
    def critic_decay_steps(self) -> int | None:
        """The same of the critic's."""
        if self.decay_steps is None or self.lr_decay_iters is not None:
            return self.decay_steps
        return self.num_rollout * self.steps_per_rollout

    @property
    def has_critic(self) -> bool:
        """Whether advantages are against a critic's values."""
        return self.advantage_estimator in ("ppo", "gae")

    @property
    def upper_clip(self) -> float:
        """The upper clip range that holds."""
        return self.eps_clip if self.eps_clip_high is None else self.eps_clip_high

    @property
    def data_parallel_size(self) -> int:
        """Copies of the model that train."""
        model = self.tensor_model_parallel_size * self.pipeline_model_parallel_size
        return self.num_trainer_ranks // (model * self.context_parallel_size)
