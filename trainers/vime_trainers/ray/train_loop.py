"""The training loop: rollout -> batches -> update -> weight sync, again and again; readable top to bottom.

Synchronous: a rollout is played by the weights of the update before it, so every token is on-policy in the
first optimizer step, and its weight version is the number of updates done. An update is all optimizer steps
of a rollout. With `--loss-type sft_loss` the batches come from a data set, and the engines, if any, get the
weights when they are to be evaluated.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from vime_agents.config.sizes import bytes_of
from vime_agents.config.train import TrainConfig
from vime_agents.episode import Episode
from vime_agents.errors import TrainerError, WeightSyncError
from vime_agents.evaluation.evaluate import env_maker, eval_requests, first_tasks
from vime_agents.evaluation.opponents import OpponentTally
from vime_agents.evaluation.report import Tally
from vime_agents.learning.advantages import (
    BATCH_SCALED,
    WHITENED,
    Estimator,
    RoleBaselines,
    dr_grpo,
    get_estimator,
    overlong_penalty,
)
from vime_agents.learning.credit import Credit, CriticEstimator
from vime_agents.learning.group_rewards import add_group_rewards
from vime_agents.learning.row_limit import RowLimit
from vime_agents.learning.samples import build_batches
from vime_agents.learning.staleness import staleness
from vime_agents.policy import Sampling
from vime_agents.registry import env_class
from vime_agents.reward import GroupReward
from vime_agents.serving.hf_folder import HFModelInfo, check_hf_folder
from vime_agents.storage.run_directory import RunDirectory
from vime_agents.task import Task, TaskSet
from vime_agents.trainer import Batch, CriticTrainer
from vime_trainers.batching.plan import alignment, longest_row
from vime_trainers.megatron.families import FLOAT32_TENSORS
from vime_trainers.ray.alarms import Alarms
from vime_trainers.ray.checkpoints import Checkpoints
from vime_trainers.ray.cluster import Needs, ray_cluster
from vime_trainers.ray.curve import plot_curve
from vime_trainers.ray.hf_export import check_hf_target, save_hf_folder
from vime_trainers.ray.processes import Processes, megatron_config, start_processes, weights_folder
from vime_trainers.ray.progress import TrainProgress
from vime_trainers.ray.run_state import Stateful, load_run_state
from vime_trainers.ray.schedule import frozen_agents, rollout_requests, training_tasks
from vime_trainers.ray.snapshots import STATE, SnapshotPlayers
from vime_trainers.ray.steps import critic_values, run_steps
from vime_trainers.ray.summary import summarise
from vime_trainers.ray.supervised import SupervisedRows
from vime_trainers.ray.trainer_group import Dtype
from vime_trainers.sync.publisher import SyncReport
from vime_trainers.torch_settings import refuse_megatron_settings


def train(config: TrainConfig) -> int:
    """Run, or resume, a training run; returns the exit code.

    Raises:
        VimeAgentsError: the run cannot start or cannot go on. Nothing is left running.
    """
    frozen_agents(config)  # what is wrong with --agents is said before anything is started
    model = check_hf_folder(config.hf_checkpoint)
    if config.trainer == "torch":
        refuse_megatron_settings(megatron_config(config))
    tasks = training_tasks(config)
    eval_tasks: list[Task] = []
    if config.uses_engines:
        eval_tasks = first_tasks(env_maker(config.env, split="test", seed=config.seed), config.n_eval_tasks)
    needs = Needs(
        num_trainer_ranks=config.num_trainer_ranks,
        num_engines=config.num_policy_engines,
        num_gpus_per_engine=config.rollout_num_gpus_per_engine,
        num_snapshot_engines=config.num_snapshot_engines,
        num_gpus_per_snapshot_engine=config.snapshot_gpus_per_engine,
    )
    with RunDirectory.create_or_resume(config.run_dir, config) as run, TrainProgress(config, run) as progress:
        for update in range(run.resume_update + 1, config.num_rollout + 1):
            if (target := config.hf_folder(update)) is not None:
                check_hf_target(Path(target), run.path)
        if run.resume_update < config.num_rollout:
            with (
                weights_folder(config) as folder,
                ray_cluster(config.ray_address, needs, folder) as gpus,
            ):
                asyncio.run(_run(config, run, progress, model, tasks, eval_tasks, folder, gpus=gpus))
        summary = summarise(run)
        run.write_summary(summary)
        plot_curve(run)
        progress.finish(summary)
    return 0


async def _run(
    config: TrainConfig,
    run: RunDirectory,
    progress: TrainProgress,
    model: HFModelInfo,
    tasks: TaskSet,
    eval_tasks: list[Task],
    weights_dir: Path,
    *,
    gpus: bool,
) -> None:
    _cancel_on_sigterm()
    started = time.monotonic()
    progress.say("starting the trainer" + (" and the engines" if config.uses_engines else ""))
    async with start_processes(config, model, gpus=gpus, logs=run.logs, weights_dir=weights_dir) as processes:
        loop = _Loop(config, run, progress, processes, tasks, eval_tasks)
        await loop.complete(startup_s=time.monotonic() - started)


def _cancel_on_sigterm() -> None:
    """SIGTERM ends the run as Ctrl-C does: everything is stopped in order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


class _Loop:
    """One run's loop over its processes."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        progress: TrainProgress,
        processes: Processes,
        tasks: TaskSet,
        eval_tasks: list[Task],
    ) -> None:
        self.config, self.run, self.progress, self.processes = config, run, progress, processes
        self.tasks, self.eval_tasks = tasks, eval_tasks
        self.checkpoints = Checkpoints(
            run, processes.trainer, background=config.async_save, keep=config.keep_checkpoints
        )
        self.supervised = None
        if config.loss_type == "sft_loss":
            self.supervised = SupervisedRows(config, tasks, row_limit(config))
        self.opponents = frozen_agents(config)
        self.baselines = RoleBaselines(config.rae_decay)
        self.state: dict[str, Stateful] = {"role_baselines": self.baselines}
        """What a checkpoint holds beside the trainer."""
        self.estimator = self._estimator()
        self.credit = Credit(
            use_turn_rewards=config.use_turn_rewards, gamma=config.gamma, turn_gamma=config.turn_gamma
        )
        self.sampling = Sampling(
            temperature=config.rollout_temperature,
            top_p=config.rollout_top_p,
            top_k=config.rollout_top_k,
            max_tokens=config.rollout_max_response_len,
        )
        self.dtype: Dtype = "bfloat16" if config.bf16 else "float32"
        """Of the weights on their way to the engines."""
        self.group_rewards: Sequence[GroupReward] = getattr(env_class(config.env), "group_rewards", ())
        self.snapshots: SnapshotPlayers | None = None
        if config.has_snapshots:
            self.snapshots = SnapshotPlayers(config, run.path, processes, self.dtype)
            self.state[STATE] = self.snapshots.snapshots
        self.seconds: dict[str, float] = {}
        self.alarms = Alarms()

    def _estimator(self) -> Estimator | RoleBaselines:
        config = self.config
        if config.has_critic:
            return CriticEstimator(values={})  # each rollout has its own
        if config.advantage_estimator == "rae":
            return self.baselines
        return dr_grpo if config.disable_grpo_std_normalization else get_estimator(config.advantage_estimator)

    async def complete(self, *, startup_s: float) -> None:
        """All of the run that is left."""
        config = self.config
        await self.begin(startup_s=startup_s)
        async with self.checkpoints:
            for rollout in range(self.run.resume_update, config.num_rollout):
                await self.rollout_and_update(rollout)
        if config.save_lora is not None:
            await self.save_lora()

    async def begin(self, *, startup_s: float) -> None:
        """Bring trainer and engines to the same weights, and evaluate them as they came."""
        config, update = self.config, self.run.resume_update
        self.seconds = {"startup": startup_s}
        if update:
            self.progress.say(f"resuming after update {update}")
            folder = self.run.checkpoint(update)
            await asyncio.to_thread(self.processes.trainer.load, folder)
            load_run_state(folder, self.state)
            if self.snapshots is not None:
                await self.snapshots.resume()
        sync: dict[str, Any] = {}
        if update and self.supervised is None:
            sync = await self.sync(update)
        elif config.uses_engines and not update:
            with self.phase("sync"):
                logprobs = await self.probe_logprobs()
                probe = await self.processes.publisher.probe(logprobs)
            sync = {"max_probe_logprob_diff": probe}
            await self.take_snapshot(0, logprobs)
        self.run.log("start", update, sync | self.seconds_metrics())
        if not update and config.eval_interval and not config.skip_eval_before_train:
            await self.evaluate(0)

    async def rollout_and_update(self, rollout: int) -> None:
        """One turn of the loop: rollout r makes update r + 1."""
        config, update = self.config, rollout + 1
        self.seconds = {}
        batches, metrics = await self.batches(rollout)
        with self.phase("train"):
            trained = await asyncio.to_thread(
                run_steps,
                self.processes.trainer,
                batches,
                recompute_old=config.old_logprobs == "recompute",
                critic=config.has_critic,
                policy=rollout >= config.num_critic_only_steps,
            )
        last = update == config.num_rollout
        evaluates = (last and config.eval_interval > 0) or _due(update, config.eval_interval)
        sync = await self.sync(update) if self.supervised is None or evaluates else {}
        if self.snapshots is not None and self.snapshots.snapshots.due(update):
            await self.take_snapshot(update, await self.probe_logprobs())
        metrics |= {**trained, **sync, "weight_version": update}
        metrics |= await self.processes.sandbox_metrics()
        self.run.log("train", update, metrics | self.seconds_metrics())
        self.progress.updated(update, metrics, self.seconds)
        for alarm in self.alarms.of(metrics):
            self.progress.say(f"  look at this: {alarm}")
        if evaluates:
            await self.evaluate(update)
        await self.save_hf(update)
        self.checkpoints.check()
        # The checkpoint comes last: a run that resumes from it finds every event up to it.
        if last or _due(update, config.save_interval):
            await self.checkpoints.save(update, self.state)

    async def batches(self, rollout: int) -> tuple[list[Batch], dict[str, float]]:
        """What the optimizer steps of a rollout learn from, and how that came about."""
        config, played = self.config, {}
        if self.snapshots is not None:
            played["snapshot"] = self.snapshots.snapshots.drawn(rollout)
            await self.let_play(played["snapshot"])
        with self.phase("rollout"):
            if self.supervised is not None:
                batches = await asyncio.to_thread(self.supervised.batches, rollout)
                return batches, dict(batches[0].metrics)
            episodes = await self.collect(rollout)
        if config.has_critic:
            with self.phase("values"):
                self.estimator = await self.critic_estimator(episodes)
        batches = build_batches(
            episodes,
            num_steps=config.steps_per_rollout,
            estimator=self.estimator,
            credit=self.credit,
            whitened=config.normalize_advantages or config.advantage_estimator in WHITENED,
            batch_scaled=config.advantage_estimator in BATCH_SCALED,
            aggregation=config.loss_aggregation,
            norm_length=config.loss_norm_length,
            length_penalty=length_penalty(config),
            overlong_filter=config.overlong_filter,
            row_limit=row_limit(config),
            temperature=config.rollout_temperature,
            # A custom loss may do with them what it likes.
            keep_zero_advantage=config.loss_type == "custom_loss"
            or any((config.entropy_coef, config.kl_coef, config.kl_loss_coef, config.opd_kl_coef)),
        )
        age = staleness(batches, version=rollout)
        return batches, {**batches[0].metrics, **age, **self.played(episodes), **played}

    def played(self, episodes: list[Episode]) -> dict[str, float]:
        """What the policy got, part by part, agent by agent and opponent by opponent."""
        against = OpponentTally(self.opponents)
        for episode in episodes:
            against.add(episode)
        return _components(episodes) | agent_rewards(episodes) | against.metrics()

    async def critic_estimator(self, episodes: list[Episode]) -> CriticEstimator:
        """Advantages against what the critic says of these episodes before it learns from them."""
        config = self.config
        trainer = cast(CriticTrainer, self.processes.trainer)
        values = await asyncio.to_thread(critic_values, trainer, episodes, ends=config.bootstrap_truncated)
        return CriticEstimator(
            values=values, lambd=config.lambd, bootstrap_truncated=config.bootstrap_truncated
        )

    async def collect(self, rollout: int) -> list[Episode]:
        """Play a rollout's episodes; each is on the disk as soon as its reward is known."""
        requests = list(rollout_requests(self.config, self.tasks, rollout))
        episodes: list[Episode] = []
        with self.run.rollout_episodes(rollout) as writer:

            def finished(episode: Episode) -> None:
                if not self.group_rewards:
                    writer.append(episode)
                episodes.append(episode)
                self.progress.episode(f"rollout {rollout + 1}", episodes, len(requests))

            await self.processes.play(requests, split="train", sampling=self.sampling, on_episode=finished)
            if self.group_rewards:
                episodes = await add_group_rewards(episodes, self.group_rewards)
                for episode in episodes:
                    writer.append(episode)
        await self.refuse_all_failed(episodes, f"rollout {rollout}")
        return episodes

    async def sync(self, update: int) -> dict[str, Any]:
        """Put the trainer's weights into every engine, and prove it."""
        by_file = self.config.update_weight_transport == "disk"
        transfer = self._sync_by_file if by_file else self._sync_by_broadcast
        with self.phase("sync"):
            logprobs = await self.probe_logprobs()
            try:
                report, seconds = await transfer(update, logprobs)
            except WeightSyncError:
                await self.processes.await_death()  # a dead engine is the better explanation
                raise
        return {
            "max_probe_logprob_diff": report.max_probe_logprob_diff,
            **{f"sync_seconds/{name}": s for name, s in (seconds | dict(report.seconds)).items()},
        }

    async def _sync_by_file(self, update: int, logprobs: list[float]) -> tuple[SyncReport, dict[str, float]]:
        processes = self.processes
        path = processes.weights_dir / "weights.safetensors"
        export = await asyncio.to_thread(processes.trainer.export, path, self.dtype, version=update)
        info = {"path": str(export.path), "version": str(update)}
        report = await processes.publisher.publish(info, update, trainer_logprobs=logprobs)
        return report, {"export": export.seconds}

    async def _sync_by_broadcast(
        self, update: int, logprobs: list[float]
    ) -> tuple[SyncReport, dict[str, float]]:
        trainer = self.processes.trainer
        shapes = await asyncio.to_thread(trainer.weight_shapes)
        info = {
            "names": list(shapes),
            "shapes": [list(shape) for shape in shapes.values()],
            "dtype_names": ["float32" if name.endswith(FLOAT32_TENSORS) else self.dtype for name in shapes],
        }

        async def send() -> None:
            await asyncio.to_thread(trainer.broadcast, self.dtype)

        publish = self.processes.publisher.publish
        return await publish(info, update, trainer_logprobs=logprobs, send=send), {}

    async def probe_logprobs(self) -> list[float]:
        """The trainer's log-probs of the probe's tokens."""
        tokens = np.asarray(self.processes.probe, dtype=np.int32)
        rows = await asyncio.to_thread(self.processes.trainer.logprobs, [tokens], temperature=1.0)
        return [float(x) for x in rows[0]]

    async def take_snapshot(self, update: int, logprobs: Sequence[float]) -> None:
        """Keep the weights after `update` updates to play against, if that is asked for."""
        if self.snapshots is not None:
            with self.phase("snapshot"):
                await self.snapshots.take(update, logprobs)

    async def let_play(self, update: int) -> None:
        """Let the snapshot of `update` play from now on, where snapshots do."""
        if self.snapshots is not None:
            with self.phase("snapshot"):
                await self.snapshots.play(update)

    async def evaluate(self, update: int) -> None:
        """Play the held-out tasks and log the mean reward with its interval."""
        config, tally = self.config, Tally(opponents=self.opponents)
        requests = list(eval_requests(self.eval_tasks, config.n_samples_per_eval_prompt, config.rollout_seed))
        sampling = Sampling(temperature=config.eval_temperature, max_tokens=config.rollout_max_response_len)
        self.seconds = {}
        episodes: list[Episode] = []
        await self.let_play(0)  # always the same opponent, so that evaluations can be compared
        with self.phase("eval"), self.run.eval_episodes(update) as writer:

            def finished(episode: Episode) -> None:
                writer.append(episode)
                tally.add(episode)
                episodes.append(episode)
                self.progress.episode("evaluation", episodes, len(requests))

            await self.processes.play(requests, split="test", sampling=sampling, on_episode=finished)
        await self.refuse_all_failed(episodes, f"the evaluation after update {update}")
        report = tally.report(
            env_id=config.env,
            policy="policy",
            split="test",
            seed=config.rollout_seed,
            num_tasks=len(self.eval_tasks),
            samples_per_task=config.n_samples_per_eval_prompt,
            duration_s=self.seconds["eval"],
        )
        self.run.log("eval", update, report.to_dict() | _components(episodes) | self.seconds_metrics())
        self.progress.evaluated(update, report)

    async def refuse_all_failed(self, episodes: list[Episode], what: str) -> None:
        """One bad episode never ends a run; a rollout without a single good one is a broken setup."""
        if not episodes or any(e.outcome.kind != "failed" for e in episodes):
            return
        if all(e.outcome.cause == "engine" for e in episodes):
            await self.processes.await_death()
        (example, count), *_ = Counter(e.outcome.detail for e in episodes).most_common(1)
        raise TrainerError(f"all {len(episodes)} episodes of {what} failed; {count} of them with: {example}")

    async def save_hf(self, update: int) -> None:
        """Write the weights as a Hugging Face folder, where one is due."""
        target = self.config.hf_folder(update)
        if target is None:
            return
        self.seconds = {}
        source = Path(self.config.hf_checkpoint).expanduser()  # noqa: ASYNC240
        with self.phase("save_hf"):
            await asyncio.to_thread(
                save_hf_folder,
                self.processes.trainer,
                source,
                Path(target),
                run_dir=self.run.path,
                update=update,
                dtype=self.dtype,
                shard_size=bytes_of(self.config.save_hf_shard_size),
            )
        self.run.log("save_hf", update, {"path": target} | self.seconds_metrics())
        self.progress.say(f"weights: {target}")

    async def save_lora(self) -> None:
        """Write the final adapters as PEFT does."""
        target = Path(str(self.config.save_lora).format(update=self.config.num_rollout))
        await asyncio.to_thread(self.processes.trainer.save_adapter, target)
        self.progress.say(f"final adapters: {target}")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def seconds_metrics(self) -> dict[str, float]:
        """The phases' seconds, under the names that they have in metrics.jsonl."""
        return {f"seconds/{name}": value for name, value in self.seconds.items()}


def row_limit(config: TrainConfig) -> RowLimit | None:
    """What `--oversized-rows` says, for the trainer's micro-batches; None: the trainer refuses them."""
    if config.oversized_rows == "error":
        return None
    cp_size = config.context_parallel_size
    longest = longest_row(config.max_tokens_per_gpu * cp_size, alignment(cp_size))
    return RowLimit(max_tokens=longest, on_excess=config.oversized_rows)


def length_penalty(config: TrainConfig) -> Callable[[int], float] | None:
    """What `--overlong-buffer-len` adds to a reward, by the tokens that an agent sampled; None: nothing."""
    if config.overlong_max_len is None:
        return None
    return partial(
        overlong_penalty,
        max_length=config.overlong_max_len,
        buffer=config.overlong_buffer_len,
        factor=config.overlong_penalty_factor,
    )


def _due(update: int, interval: int) -> bool:
    return interval > 0 and update % interval == 0


def _components(episodes: list[Episode]) -> dict[str, float]:
    """Mean of each reward component over the trajectories of the trained policy that have one."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for episode in episodes:
        for trajectory in (t for t in episode.trajectories if not t.frozen):
            for name, value in trajectory.reward.components.items():
                total[name] += value  # type: ignore[assignment]
                count[name] += 1
    return {f"reward/{name}": total[name] / count[name] for name in sorted(total)}


def agent_rewards(episodes: list[Episode]) -> dict[str, float]:
    """Mean reward of each agent of an env of several, frozen ones too, over the episodes where it has one."""
    rewards: dict[str, list[float]] = {}
    for trajectory in (t for e in episodes if len(e.trajectories) > 1 for t in e.trajectories):
        if trajectory.reward.value is not None:
            rewards.setdefault(trajectory.agent, []).append(trajectory.reward.value)
    return {f"agent_reward/{agent}": sum(r) / len(r) for agent, r in sorted(rewards.items())}
