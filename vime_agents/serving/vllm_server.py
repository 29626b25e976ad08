"""One vLLM server process: its command line, its start, its health, its end.

The process is started through `supervisor.py`, so that nothing of it outlives the owner. It is spoken to
over HTTP only (`engine_client.py`); this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    """CPU only. More than one is slower as soon as anything else runs on the machine."""
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
    return [*command, *config.extra_args]


def server_environment(config: VllmServerConfig, *, device: EngineDevice) -> dict[str, str]:
    """The environment of the server: this process's and what vLLM needs."""
    import importlib.util

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
        env["VLLM_CPU_OMP_THREADS_BIND"] = config.cpu_cores
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    elif config.cuda_visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices
    return env
