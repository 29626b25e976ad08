"""Sandboxes beside the same work by hand: commands, boots, trees, load, what killed owners leave."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.measure import percentile, report_percentiles
from benchmarks.sandbox_arms import leaks, load, raw
from vime_agents import registry
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_sandboxes.pool import SandboxPool

TREE_MB = 100
TREE_FILES = 20
Arm = Callable[[], Awaitable[float]]
Rows = dict[str, list[float]]


async def _timed(work: Awaitable[object]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1000


async def _blocking(work: Callable[[], object]) -> float:
    """Milliseconds of what blocks, on this thread: a hop to another would be measured too."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


async def _in_turns(arms: Mapping[str, Arm], repeats: int, rows: Rows) -> None:
    """Every arm `repeats` times, in alternating order, after one that does not count."""
    order = list(arms)
    for number in range(-1, repeats):
        for name in order:
            value = await arms[name]()
            if number >= 0:
                rows.setdefault(name, []).append(value)
        order.reverse()


async def _commands(name: str, box: Sandbox, by_hand: Callable[[], None], repeats: int, rows: Rows) -> None:
    await _in_turns(
        {
            f"{name}: exec true": lambda: _timed(box.exec(["true"])),
            f"{name}, by hand: exec true": lambda: _blocking(by_hand),
        },
        repeats,
        rows,
    )


async def _boots(
    name: str,
    provider: SandboxProvider,
    spec: SandboxSpec,
    by_hand: Mapping[str, Callable[[], float]],
    repeats: int,
    rows: Rows,
) -> None:
    async def ours() -> float:
        started = time.perf_counter()
        box = await provider.create(spec)
        elapsed_ms = (time.perf_counter() - started) * 1000
        await box.close()
        return elapsed_ms

    def theirs(boot: Callable[[], float]) -> Arm:
        async def arm() -> float:
            return boot()

        return arm

    arms = {f"{name}, {how}: boot": theirs(boot) for how, boot in by_hand.items()}
    await _in_turns({f"{name}: boot": ours, **arms}, repeats, rows)


async def _hand_outs(spec: SandboxSpec, repeats: int, rows: Rows) -> None:
    pool = SandboxPool(size=4)
    try:
        await pool.prefill(spec, 4)
        for _ in range(repeats):
            started = time.perf_counter()
            box = await pool.create(spec)
            rows.setdefault(f"{spec.backend}: warm hand-out", []).append(
                (time.perf_counter() - started) * 1000
            )
            await box.close()
            await pool.prefill(spec, 4)
    finally:
        await pool.aclose()


async def _trees(
    name: str, box: Sandbox, tree: Path, folder: Path, docker: raw.RawDocker | None, repeats: int, rows: Rows
) -> None:
    async def clear() -> None:
        await box.exec(["sh", "-c", "rm -rf in"])
        if docker is not None:
            docker.box.exec_run(["sh", "-c", "rm -rf /work/*"])
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    async def upload() -> float:
        await clear()
        return await _timed(box.upload(tree, "in"))

    async def upload_by_hand() -> float:
        await clear()
        return raw.pipe_tar(tree, folder / "raw-in", unpack=docker.tar_in() if docker else None)

    async def download() -> float:
        await clear()
        await box.upload(tree, "in")
        return await _timed(box.download("in", folder / "out"))

    async def download_by_hand() -> float:
        await clear()
        if docker is not None:
            raw.pipe_tar(tree, folder / "unused", unpack=docker.tar_in())
        return raw.pipe_tar(tree, folder / "raw-out", pack=docker.tar_out() if docker else None)

    arms = {
        f"{name}: upload 100 MB": upload,
        f"{name}, by hand: upload 100 MB": upload_by_hand,
        f"{name}: download 100 MB": download,
        f"{name}, by hand: download 100 MB": download_by_hand,
    }
    await _in_turns(arms, repeats, rows)


@contextlib.asynccontextmanager
async def _opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    box = await provider.create(spec)
    try:
        yield box
    finally:
        await box.close()


async def _backend(
    spec: SandboxSpec, docker: raw.RawDocker | None, scale: float, folder: Path, rows: Rows
) -> dict[str, float]:
    """Every arm of one backend; its load."""

    def repeats(full: int) -> int:
        return max(3, round(full * scale))

    name, provider = spec.backend, registry.sandbox_provider(spec.backend)
    pipe = raw.PipeRunner() if docker is None else None
    try:
        async with _opened(provider, spec) as box:
            by_hand = pipe.run if pipe is not None else docker.run if docker is not None else None
            assert by_hand is not None
            await _commands(name, box, by_hand, repeats(200), rows)
        by_hand_boots: dict[str, Callable[[], float]]
        if docker is None:
            as_user = partial(raw.boot_bwrap, as_user=True)
            by_hand_boots = {"by hand": raw.boot_bwrap, "by hand and as another user": as_user}
        else:
            by_hand_boots = {"by hand": docker.boot}
        await _boots(name, provider, spec, by_hand_boots, repeats(40), rows)
        await _hand_outs(spec, repeats(40), rows)
        roomy = SandboxSpec(backend=name, image=spec.image, memory_mb=1024, max_file_mb=256)
        async with _opened(provider, roomy) as box:
            await _trees(name, box, folder / "tree", folder / name, docker, repeats(8), rows)
        count = 64 if docker is None else 8
        return await load.measure(provider, spec, max(4, round(count * min(1.0, scale * 4))), repeats(20))
    finally:
        if pipe is not None:
            pipe.close()
        await provider.aclose()


def _ratios(rows: Rows) -> dict[str, float]:
    p50 = {label: statistics.median(values) for label, values in rows.items()}
    found: dict[str, float] = {}
    for label, value in p50.items():
        backend, _, what = label.partition(": ")
        as_user = p50.get(f"{backend}, by hand and as another user: {what}")
        if as_user is not None:
            found[f"{backend}: time of {what}, of by hand's as another user"] = value / as_user
        by_hand = p50.get(f"{backend}, by hand: {what}")
        if by_hand is not None and what.endswith("100 MB"):
            found[f"{backend}: speed of {what}, of tar's"] = by_hand / value
        elif by_hand is not None:
            found[f"{backend}: time of {what}, of by hand's"] = value / by_hand
        if what == "warm hand-out":
            found[f"{backend}: warm hand-out p95, ms"] = percentile(rows[label], 0.95)
    return found


def _tree(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(TREE_FILES):
        (folder / f"{number}.bin").write_bytes(os.urandom((TREE_MB << 20) // TREE_FILES))


@contextlib.contextmanager
def _docker(wanted: bool):
    """Host and image of a private daemon; None, and why, where there is none."""
    if not wanted or shutil.which("dockerd") is None:
        why = "not asked for" if not wanted else "no dockerd here (Debian: apt-get install docker.io)"
        print(f"without Docker: {why}")
        yield None
        return
    from tests.integration.sandboxes import docker_daemon

    with docker_daemon.running_daemon() as daemon:
        daemon.import_image(docker_daemon.python_root_tar(), docker_daemon.PYTHON_IMAGE)
        os.environ["DOCKER_HOST"] = daemon.host
        yield daemon.host, docker_daemon.PYTHON_IMAGE


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks sandboxes", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of repeats")
    parser.add_argument("--no-docker", action="store_true", help="the local backend alone")
    parser.add_argument("--cycles", type=int, default=1000, help="create-exec-close cycles of killed owners")
    flags = parser.parse_args()
    rows: Rows = {}
    results: dict[str, object] = {}
    # In memory, as the working directory inside is.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="vime-bench-", dir=place) as folder,
        _docker(not flags.no_docker) as found,
    ):
        _tree(Path(folder, "tree"))
        specs: list[tuple[SandboxSpec, raw.RawDocker | None]] = [(SandboxSpec(), None)]
        if found is not None:
            host, image = found
            specs.append((SandboxSpec(backend="docker", image=image), raw.RawDocker(host, image)))
        for spec, docker in specs:
            results[f"{spec.backend}: at once"] = asyncio.run(
                _backend(spec, docker, flags.scale, Path(folder), rows)
            )
            if docker is not None:
                docker.close()
            cycles = flags.cycles if docker is None else flags.cycles // 10
            results[f"{spec.backend}: killed owners"] = leaks.measure(spec, cycles)
    report_percentiles("sandboxes", rows, "ms", {**_ratios(rows), **results})


if __name__ == "__main__":
    main()
