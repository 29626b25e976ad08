"""What every backend asks of a `SandboxSpec`, and of the setup commands in it."""

from __future__ import annotations

from collections.abc import Sequence

from vime_agents.errors import ConfigError, SandboxNotReady
from vime_agents.sandbox import ExecResult, SandboxSpec

MIN_MEMORY_MB = 32
"""Of backends that hold the limit themselves: the runner must fit in."""
_SHOWN_OUTPUT = 2000


def check_positive(spec: SandboxSpec, *names: str) -> None:
    """Refuse limits that nothing fits in; None is no limit. Raises ConfigError."""
    for name in names:
        value = getattr(spec, name)
        if value is not None and value <= 0:
            raise ConfigError(f"SandboxSpec.{name} must be positive, got {value}")


def check_memory(spec: SandboxSpec) -> None:
    """Refuse less than a runner takes. Raises ConfigError."""
    if spec.memory_mb < MIN_MEMORY_MB:
        raise ConfigError(f"SandboxSpec.memory_mb must be at least {MIN_MEMORY_MB}, got {spec.memory_mb}")


def check_env(spec: SandboxSpec) -> None:
    """Refuse what no process can have in its environment. Raises ConfigError."""
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"SandboxSpec.env: {name!r}={value!r} cannot be an environment variable")


def check_setup(command: Sequence[str], result: ExecResult) -> None:
    """Raises SandboxNotReady, with the end of what a setup command said, when it failed."""
    if not result.ok:
        said = (result.stdout + result.stderr)[-_SHOWN_OUTPUT:].decode(errors="replace").strip()
        raise SandboxNotReady(f"the setup command {list(command)} ended with {result.ended_by}: {said}")
