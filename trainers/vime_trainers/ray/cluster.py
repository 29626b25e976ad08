"""Joins a Ray cluster, or starts one on this machine that ends with this process."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ray

from vime_agents.errors import ConfigError, ServingError
from vime_trainers.ray.reaper import MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run asks of the cluster."""

    num_trainer_ranks: int
    num_engines: int
    num_gpus_per_engine: int
    num_snapshot_engines: int = 0
    num_gpus_per_snapshot_engine: int = 1

    def num_cpus(self) -> int:
        """One for each trainer rank and engine, one for the runners."""
        return self.num_trainer_ranks + self.num_engines + self.num_snapshot_engines + 1

    def num_gpus(self) -> int:
        """Accelerators of all trainer ranks and engines together."""
        engines = self.num_engines * self.num_gpus_per_engine
        snapshots = self.num_snapshot_engines * self.num_gpus_per_snapshot_engine
        return self.num_trainer_ranks + engines + snapshots


@contextlib.contextmanager
def ray_cluster(address: str | None, needs: Needs, folder: Path) -> Iterator[bool]:
    """Yields whether the cluster has accelerators for the whole run.

    On one machine without an address the CPUs are declared as needed: there the processes take turns. On a
    cluster that was joined, what does not fit is an error now rather than a wait for ever.

    Args:
        address: Of a cluster to join; none: start one.
        needs: What the run asks of it.
        folder: Removed with the cluster that was started, also when this process is killed.

    Raises:
        ConfigError: the cluster cannot be reached, or is too small. ServingError: Ray does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray otherwise counts an actor's memory against a share of the machine that engines need.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    # Future behaviour of Ray, asked for now so that it does not warn.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _reaped(folder) if address is None else contextlib.nullcontext():
        _start(address, needs)
        try:
            yield _check_resources(address, needs)
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _reaped(folder: Path) -> Iterator[None]:
    """Whatever is started inside ends with this process, even by SIGKILL, at the latest on the way out.

    So does the folder.
    """
    mark = os.environ[MARK] = uuid.uuid4().hex
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    reaper = subprocess.Popen(
        [sys.executable, "-IS", str(Path(__file__).with_name("reaper.py")), mark, str(folder)],
        stdin=subprocess.PIPE,
        env=unmarked,
        start_new_session=True,
    )
    try:
        yield
    finally:
        del os.environ[MARK]
        reaper.communicate()


def _start(address: str | None, needs: Needs) -> None:
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init(num_cpus=max(os.cpu_count() or 1, needs.num_cpus()), include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"--ray-address {address}: {error}") from error
    except RuntimeError as error:
        raise ServingError(f"Ray does not start: {error}") from error


def _check_resources(address: str | None, needs: Needs) -> bool:
    resources = ray.cluster_resources()
    num_gpus = int(resources.get("GPU", 0))
    if 0 < num_gpus < needs.num_gpus():
        raise ConfigError(
            f"the run needs {needs.num_gpus()} accelerators ({needs.num_trainer_ranks} trainer ranks, "
            f"{needs.num_engines} engines of {needs.num_gpus_per_engine}{_snapshots(needs)}), the cluster "
            f"has {num_gpus}; lower --actor-num-gpus-per-node, --rollout-num-engines or "
            "--rollout-num-gpus-per-engine"
        )
    if resources.get("CPU", 0) < needs.num_cpus():
        raise ConfigError(
            f"--ray-address {address}: the run needs {needs.num_cpus()} CPUs, the cluster has "
            f"{resources.get('CPU', 0):.0f}"
        )
    return num_gpus > 0


def _snapshots(needs: Needs) -> str:
    if not needs.num_snapshot_engines:
        return ""
    return f", {needs.num_snapshot_engines} engines of {needs.num_gpus_per_snapshot_engine} for snapshots"
