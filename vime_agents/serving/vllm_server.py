"""One vLLM server process: its command line, its start, its health, its end.

The process is started through `supervisor.py`, so that nothing of it outlives the owner. It is spoken to
over HTTP only (`engine_client.py`); this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from vime_agents.errors import EngineError, ServingError
from vime_agents.policy import Sampling
from vime_agents.serving.device import EngineDevice, engine_device
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.hf_folder import check_hf_folder
from vime_agents.serving.server_log import explain

WORKER_EXTENSION = "vime_trainers.sync.worker_extension.WeightSyncExtension"
"""Loaded inside vLLM's workers; registers the weight transfers of this project."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_GRACE_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerConfig:
    """How to start one server. What is None is chosen for the device that the installed vLLM runs on."""

    model: Path
    """A Hugging Face folder."""
    served_model_name: str = "policy"
    host: str = "127.0.0.1"
    """The server also takes new weights without asking who sends them: never an open interface."""
    port: int = 0
    """0: a free one."""
    dtype: str | None = None
    """None: float32 on CPU (log-probs equal the trainer's to 1e-5), bfloat16 on GPU."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None: what the model's config allows."""
    seed: int = 0
    kv_cache_bytes: int | None = None
    """None: 512 MiB on CPU; on GPU what vLLM takes by itself."""
    omp_num_threads: int = 1
    """CPU only. Two gained nothing at 32 requests at once and lost a quarter at one (135M parameters,
    float32): most of a decoding step on CPU is not in the kernels."""
    cpu_cores: str = "nobind"
    """CPU only: cores to pin to, `0` or `0-1`; `nobind`: none."""
    cuda_visible_devices: str | None = None
    """None: as in this process."""
    weight_transfer: str = "file"
    """How new weights arrive: `file`, or a backend of vLLM (`nccl`, `ipc`)."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM's server, as they are; of a flag given twice the later one counts."""
    startup_timeout_s: float = 300.0
    log_path: Path | None = None
    """None: a file in the folder of temporary files."""


def server_command(config: VllmServerConfig, *, port: int, device: EngineDevice) -> list[str]:
    """The command line of the server."""
    # The `vllm` script fails on CPU builds (their distribution has another name); the module never does.
    # -P: the current folder must not shadow packages.
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    options: dict[str, object] = {
        "model": config.model,
        "served-model-name": config.served_model_name,
        "host": config.host,
        "port": port,
        "seed": config.seed,
        "dtype": config.dtype or ("float32" if device == "cpu" else "bfloat16"),
        "logprobs-mode": "processed_logprobs",
        "worker-extension-cls": WORKER_EXTENSION,
        "weight-transfer-config": json.dumps({"backend": config.weight_transfer}),
    }
    if config.max_model_len is not None:
        options["max-model-len"] = config.max_model_len
    kv_cache_bytes = config.kv_cache_bytes or (512 * 2**20 if device == "cpu" else None)
    if kv_cache_bytes is not None:
        options["kv-cache-memory-bytes"] = kv_cache_bytes
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    command += ["--enable-scale-out", "--disable-uvicorn-access-log", "--no-enable-log-requests"]
    if device == "cpu":
        command.append("--enforce-eager")  # compiling takes two minutes at every start
        # vLLM 0.32 dies on a seeded request whose prompt it splits: it rewinds the request's generator,
        # which torch cannot do on a CPU. Whole prompts are never split, given room for the longest one.
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(_prefill_room(config))]
    return [*command, *config.extra_args]


def _prefill_room(config: VllmServerConfig) -> int:
    """Tokens of one engine step: the longest prompt that can be, and no fewer than vLLM's own default."""
    longest = config.max_model_len or check_hf_folder(config.model).max_context_tokens or 0
    return max(2048, longest)


def server_environment(config: VllmServerConfig, *, device: EngineDevice) -> dict[str, str]:
    """The environment of the server: this process's and what vLLM needs."""
    env = dict(os.environ)
    env |= {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume and weight updates
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # The client keeps connections for less than this: it never writes to one that is being closed.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "PYTHONUNBUFFERED": "1",
    }
    spec = importlib.util.find_spec("vime_trainers")
    if spec is not None and spec.submodule_search_locations:
        folder = str(Path(next(iter(spec.submodule_search_locations))).parent)
        env["PYTHONPATH"] = os.pathsep.join(
            [folder, str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")]
        )
    if device == "cpu":
        env["OMP_NUM_THREADS"] = str(config.omp_num_threads)
        # Threads that spin while they wait make the engine ten times slower as soon as anything else runs.
        env["OMP_WAIT_POLICY"] = "PASSIVE"
        env["GOMP_SPINCOUNT"] = "0"
        env["VLLM_CPU_OMP_THREADS_BIND"] = config.cpu_cores
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    elif config.cuda_visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices
    return env


class VllmServer:
    """One server process. Not bound to an event loop: start it in one, stop it in another.

    ```python
    async with VllmServer(VllmServerConfig(model=folder)) as server:
        client = EngineClient(server.url)
    ```
    """

    def __init__(self, config: VllmServerConfig) -> None:
        self.config = config
        self.log_path = config.log_path or Path(tempfile.gettempdir()) / f"vllm-{os.urandom(4).hex()}.log"
        self.startup_s: float | None = None
        """How long `start` took."""
        self._process: subprocess.Popen[bytes] | None = None
        self._port = config.port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens: `http://127.0.0.1:8000`."""
        if self._process is None:
            raise ServingError("the server has no address yet: call start() first")
        return f"http://{self.config.host}:{self._port}"

    def alive(self) -> bool:
        """Whether the process runs; says nothing about its health."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the process; returns when it has answered a first request and its weights are version 0.

        Raises:
            ConfigError: the model's folder is not complete.
            ServingError: the port is taken, the process died (with the reason out of its log), or the time
                is up. Nothing is left running.
        """
        if self._process is not None:
            raise ServingError(f"the server at {self.url} was started already")
        started = time.monotonic()
        device = engine_device()
        check_hf_folder(self.config.model)
        self._port = _claim_port(self.config.host, self.config.port)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = server_command(self.config, port=self._port, device=device)
        supervisor = [sys.executable, "-IS", str(_SUPERVISOR), "--log", str(self.log_path)]
        self._process = subprocess.Popen(  # noqa: ASYNC220 - forking takes milliseconds
            [*supervisor, "--grace-s", str(_GRACE_S), "--", *command],
            stdin=subprocess.PIPE,
            env=server_environment(self.config, device=device),
            start_new_session=True,
        )
        try:
            await self._until_ready(started + self.config.startup_timeout_s)
        except BaseException:
            await self.stop()
            raise
        self.startup_s = time.monotonic() - started

    async def stop(self) -> None:
        """End the process and everything below it; returns when they are gone."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()  # the supervisor takes it from here
        deadline = time.monotonic() + _GRACE_S + 10.0
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise ServingError(
                    f"the server's supervisor (pid {process.pid}) does not end; log: {self.log_path}"
                )
            await asyncio.sleep(0.02)

    async def _until_ready(self, deadline: float) -> None:
        client = EngineClient(self.url)
        try:
            while not await self._ready(client, deadline):
                if not self.alive():
                    raise ServingError(f"the vLLM server died while starting: {explain(self.log_path)}")
                if time.monotonic() > deadline:
                    limit = self.config.startup_timeout_s
                    reason = explain(self.log_path)
                    raise ServingError(
                        f"the vLLM server was not ready after {limit} s (startup_timeout_s): {reason}"
                    )
                await asyncio.sleep(_POLL_S)
        finally:
            await client.aclose()

    async def _ready(self, client: EngineClient, deadline: float) -> bool:
        if not await client.health():
            return False
        # The first request takes seconds (imports, buffers); afterwards all are alike.
        remaining_s = max(1.0, deadline - time.monotonic())
        with contextlib.suppress(EngineError, TimeoutError):
            await client.generate([1], Sampling(max_tokens=2), timeout_s=remaining_s)
            await client.set_weight_version(0)
            return True
        return False


def _claim_port(host: str, port: int) -> int:
    """`port` if it is free, a free one for 0."""
    if port == 0:
        return _quiet_port(host)
    error = _bind_error(host, port)
    if error is not None:
        raise ServingError(
            f"cannot listen on {host}:{port} ({error}). Fix: set VllmServerConfig.port to another port, or "
            "to 0 to take a free one"
        )
    return port


def _quiet_port(host: str) -> int:
    """A free port that stays free while the server takes its time to start.

    The kernel hands out the ports of its own range to every connection on the machine; below it a port is
    only taken by whoever asks for it.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for candidate in random.SystemRandom().sample(range(10_240, max(low, 10_341)), 100):
        if _bind_error(host, candidate) is None:
            return candidate
    raise ServingError(f"no free port on {host} between 10240 and {low}; set VllmServerConfig.port")


def _bind_error(host: str, port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None
