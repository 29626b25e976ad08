"""Starts the processes of a training run under Ray, and ends every one of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from vime_agents.config.train import TrainConfig
from vime_agents.episode import Episode
from vime_agents.errors import ServingError, VimeAgentsError
from vime_agents.policy import Sampling
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.sandboxes import merged_metrics
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.hf_folder import HFModelInfo
from vime_agents.serving.vllm_server import VllmServerConfig
from vime_trainers.losses.config import LossConfig
from vime_trainers.megatron.config import CriticConfig, LoraConfig, MegatronConfig
from vime_trainers.ray.engine_actor import create_engine
from vime_trainers.ray.rollout_actor import RolloutConfig, create_player
from vime_trainers.ray.trainer_group import TrainerGroup
from vime_trainers.sync.broadcast import form_group
from vime_trainers.sync.probe import BF16_TOLERANCE, FP32_TOLERANCE, NUM_TOKENS, probe_tokens
from vime_trainers.sync.publisher import WeightPublisher

_STOP_S = 30.0


@dataclass(slots=True, kw_only=True)
class Processes:
    """Everything that a run has running."""

    trainer: TrainerGroup
    engines: list[Any]
    """Ray handles of EngineActor, those for snapshots too; none for engines of somebody else's."""
    players: list[Any]
    """Ray handles of RolloutActor, one for each engine."""
    publisher: WeightPublisher
    snapshot_publisher: WeightPublisher
    """Of the engines that snapshots play from."""
    probe: tuple[int, ...]
    weights_dir: Path
    """Where weight files go on their way to the engines."""
    startup_s: dict[str, float] = field(default_factory=dict)

    async def play(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        split: str,
        sampling: Sampling,
        on_episode: Callable[[Episode], None],
    ) -> None:
        """Play all requests over all players; a group stays with one engine.

        Raises:
            ServingError: an engine died; finished episodes were handed to `on_episode` before.
        """
        shares: list[list[EpisodeRequest]] = [[] for _ in self.players]
        groups = {group: n for n, group in enumerate(dict.fromkeys(r.group_id for r in requests))}
        for request in requests:
            shares[groups[request.group_id] % len(shares)].append(request)

        async def drain(player: Any, share: list[EpisodeRequest]) -> None:
            stream = player.play.options(num_returns="streaming").remote(share, split, sampling)
            async for reference in stream:
                on_episode(await reference)

        work = [asyncio.ensure_future(drain(p, s)) for p, s in zip(self.players, shares, strict=True) if s]
        watch = asyncio.ensure_future(self._watch_engines())
        try:
            await _first_failure(work, watch)
        finally:
            for task in (*work, watch):
                task.cancel()
            await asyncio.gather(*work, watch, return_exceptions=True)

    async def sandbox_metrics(self) -> dict[str, float]:
        """What the players' pools of sandboxes did so far, as of one."""
        return merged_metrics(await asyncio.gather(*(p.sandbox_metrics.remote() for p in self.players)))

    async def _watch_engines(self, every_s: float = 1.0) -> None:
        """Never returns; raises when an engine died."""
        while True:
            await self.check_engines()
            await asyncio.sleep(every_s)

    async def await_death(self, timeout_s: float = 15.0) -> None:
        """Give an engine that stopped answering the time to be seen dead; raises ServingError if it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._watch_engines(every_s=0.25)

    async def check_engines(self) -> None:
        """Raises ServingError when an engine died, with the reason out of its log."""
        for engine in self.engines:
            reason = await engine.death.remote()
            if reason is not None:
                raise ServingError(f"a vLLM engine died during the run: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engines:
    actors: list[Any]
    urls: list[str]
    """Of those that sample from the trainer's weights."""
    snapshot_urls: list[str]
    startup_s: float


async def _open_sandboxes(players: Sequence[Any]) -> None:
    """Players on one host share its room."""
    hosts = await asyncio.gather(*(player.host.remote() for player in players))
    opening = [
        player.open_sandboxes.remote(hosts.count(host)) for player, host in zip(players, hosts, strict=True)
    ]
    await asyncio.gather(*opening)


async def _first_failure(work: Sequence[asyncio.Future[None]], watch: asyncio.Future[None]) -> None:
    """Wait for all of `work`, or for the first that raises; `watch` only ever raises."""
    pending = {*work, watch}
    while pending != {watch} or watch.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


@contextlib.asynccontextmanager
async def start_processes(
    config: TrainConfig, model: HFModelInfo, *, gpus: bool, logs: Path, weights_dir: Path
) -> AsyncIterator[Processes]:
    """Start trainer, engines and players (at the same time), and stop them whatever happens."""
    async with contextlib.AsyncExitStack() as stack:
        trainer, engines = await _both(
            asyncio.to_thread(_start_trainer, config, gpus),
            _start_engines(config, gpus=gpus, logs=logs, stack=stack),
            stack,
        )
        snapshot_urls = engines.snapshot_urls or [None]
        players = [
            create_player(_rollout_config(config), url, snapshot_urls[n % len(snapshot_urls)])
            for n, url in enumerate(engines.urls)
        ]
        stack.push_async_callback(_stop, players, "close")
        await _open_sandboxes(players)
        clients = [EngineClient(url) for url in engines.urls]
        snapshot_clients = [EngineClient(url) for url in engines.snapshot_urls]
        for client in (*clients, *snapshot_clients):
            stack.push_async_callback(client.aclose)
        if clients and config.update_weight_transport == "gloo":
            await _join_broadcast(trainer, clients, config.rollout_num_gpus_per_engine)
        # The engine wants room for one more token behind the probe.
        probe = probe_tokens(model.vocab_size, num_tokens=min(NUM_TOKENS, config.rollout_max_context_len - 1))
        tolerance = config.sync_probe_tolerance or (BF16_TOLERANCE if gpus else FP32_TOLERANCE)
        yield Processes(
            trainer=trainer,
            engines=engines.actors,
            players=players,
            publisher=WeightPublisher(clients, probe_tokens=probe, tolerance=tolerance),
            snapshot_publisher=WeightPublisher(snapshot_clients, probe_tokens=probe, tolerance=tolerance),
            probe=probe,
            weights_dir=weights_dir,
            startup_s={"engines": engines.startup_s},
        )


async def _join_broadcast(
    trainer: TrainerGroup, clients: Sequence[EngineClient], workers_per_engine: int
) -> None:
    address, port = await asyncio.to_thread(trainer.address)

    async def join(world_size: int) -> None:
        await asyncio.to_thread(trainer.join_broadcast, address, port, world_size)

    place = {"master_address": address, "master_port": port}
    await form_group(clients, join, place, workers_per_engine=workers_per_engine)


async def _both(
    trainer: Awaitable[TrainerGroup],
    engines: Awaitable[_Engines],
    stack: contextlib.AsyncExitStack,
) -> tuple[TrainerGroup, _Engines]:
    """Await both; when one fails the other is still awaited, so that nothing is left half-started."""
    results = await asyncio.gather(trainer, engines, return_exceptions=True)
    if isinstance(results[0], TrainerGroup):
        stack.callback(results[0].shutdown)
    for result in results:
        if isinstance(result, BaseException):
            raise _unwrapped(result)
    return results  # type: ignore[return-value]


def _start_trainer(config: TrainConfig, gpus: bool) -> TrainerGroup:
    return TrainerGroup(
        megatron_config(config),
        num_ranks=config.num_trainer_ranks,
        trainer=config.trainer,
        num_cpus_per_rank=1,
        num_gpus_per_rank=1 if gpus else 0,
        env={} if gpus or config.ray_address is not None else _all_cores(config.num_trainer_ranks),
    )


def _all_cores(num_ranks: int) -> dict[str, str]:
    """On one machine trainer and engines take turns, so the ranks share every core while they train."""
    threads = max(1, (os.cpu_count() or 1) // num_ranks)
    # Threads that wait must sleep: spinning would steal the cores from the engines.
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


async def _start_engines(
    config: TrainConfig, *, gpus: bool, logs: Path, stack: contextlib.AsyncExitStack
) -> _Engines:
    policy = [
        create_engine(
            engine_config(config, log_path=logs / f"vllm-{n}.log"),
            num_gpus=config.rollout_num_gpus_per_engine if gpus else 0,
        )
        for n in range(config.num_policy_engines)
    ]
    snapshots = [
        create_engine(
            snapshot_engine_config(config, log_path=logs / f"vllm-snapshot-{n}.log"),
            num_gpus=config.snapshot_gpus_per_engine if gpus else 0,
        )
        for n in range(config.num_snapshot_engines)
    ]
    actors = [*policy, *snapshots]
    # Killing the actor closes the pipe that the server's supervisor watches: it ends the server.
    stack.push_async_callback(_stop, actors, "stop")
    started = await asyncio.gather(*(e.start.remote() for e in actors), return_exceptions=True)
    for result in started:
        if isinstance(result, BaseException):
            raise result
    urls = [url for url, _ in started]
    running = []
    if config.uses_engines and config.vllm_router_ip is not None:
        running = [f"http://{config.vllm_router_ip}:{config.vllm_router_port}"]
    return _Engines(
        actors=actors,
        urls=running or urls[: len(policy)],
        snapshot_urls=urls[len(policy) :],
        startup_s=max((seconds for _, seconds in started), default=0.0),
    )


async def _stop(actors: Sequence[Any], method: str) -> None:
    """Let actors end by themselves; those that do not are killed."""
    stops = [getattr(actor, method).remote() for actor in actors]
    try:
        async with asyncio.timeout(_STOP_S):
            await asyncio.gather(*stops, return_exceptions=True)
    except TimeoutError:
        for actor in actors:
            ray.kill(actor)


def _unwrapped(error: BaseException) -> BaseException:
    """The error that an actor raised, instead of Ray's wrapper with a remote traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, VimeAgentsError) else error


@contextlib.contextmanager
def weights_folder(config: TrainConfig) -> Iterator[Path]:
    """An own folder for weight files, for as long as the block runs."""
    parent = Path(config.update_weight_disk_dir or "/dev/shm")
    if config.update_weight_disk_dir is None and not parent.is_dir():
        parent = Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="vime-weights-", dir=parent)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def megatron_config(config: TrainConfig) -> MegatronConfig:
    """The trainer's part of the config; the loss has its own names."""
    special = {
        "eps_clip_high": config.upper_clip,
        "tis_clip": config.tis_clip if config.use_tis else None,
        # The samples get the recomputed ones.
        "old_logprobs": "sample" if config.old_logprobs == "recompute" else config.old_logprobs,
        "kl_reference": "rollout" if config.reference is None else "sample",
    }
    same = set(LossConfig.__dataclass_fields__) - set(special)
    loss = LossConfig(**special, **{name: getattr(config, name) for name in same})
    lora = None
    if config.lora_rank:
        targets = tuple(config.lora_target_modules.replace(",", " ").split())
        lora = LoraConfig(rank=config.lora_rank, alpha=config.lora_alpha, target_modules=targets)
    critic = None
    if config.has_critic:
        critic = CriticConfig(
            load=config.critic_load,
            lr=config.critic_lr,
            lr_warmup_iters=config.critic_lr_warmup_iters,
            lr_decay_iters=config.critic_decay_steps,
            value_clip=config.value_clip,
        )
    special = {
        "loss": loss,
        "lora": lora,
        "critic": critic,
        "ref_load": config.reference,
        "lr_decay_iters": config.decay_steps,
    }
    shared = set(MegatronConfig.__dataclass_fields__) - set(special)
    return MegatronConfig(**special, **{name: getattr(config, name) for name in shared})


def engine_config(config: TrainConfig, *, log_path: Path) -> VllmServerConfig:
    """How to start one engine."""
    return VllmServerConfig(
        model=Path(config.hf_checkpoint).expanduser(),
        max_model_len=config.rollout_max_context_len,
        seed=config.seed,
        weight_transfer="file" if config.update_weight_transport == "disk" else "gloo",
        extra_args=(*_tensor_parallel(config.rollout_num_gpus_per_engine), *config.vllm_argv),
        log_path=log_path.resolve(),
    )


def snapshot_engine_config(config: TrainConfig, *, log_path: Path) -> VllmServerConfig:
    """How to start one that snapshots play from: they are files."""
    num_gpus = config.snapshot_gpus_per_engine
    return replace(
        engine_config(config, log_path=log_path),
        weight_transfer="file",
        extra_args=(*_tensor_parallel(num_gpus), *config.vllm_argv),
    )


def _tensor_parallel(num_gpus: int) -> tuple[str, ...]:
    return ("--tensor-parallel-size", str(num_gpus)) if num_gpus > 1 else ()


def _rollout_config(config: TrainConfig) -> RolloutConfig:
    return RolloutConfig(
        env_id=config.env,
        task_seed=config.seed,
        hf_checkpoint=str(Path(config.hf_checkpoint).expanduser()),
        renderer=config.renderer,
        max_context_tokens=config.rollout_max_context_len,
        concurrency=config.rollout_concurrency,
        limits=Limits(
            episode_s=config.episode_timeout,
            generation_s=config.turn_timeout,
            env_s=config.turn_timeout,
        ),
        max_retries=config.max_retries,
        sandbox_pool_size=config.sandbox_pool_size,
        max_sandboxes=config.max_sandboxes,
        run=Path(config.run_dir).name,
        agents=config.agents,
        rotate_seats=config.rotate_seats,
        generate_path=config.custom_generate_function_path,
    )
