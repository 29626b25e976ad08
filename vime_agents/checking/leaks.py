"""Checks that many episodes leave nothing behind: played once, then looked at for each kind of thing."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime_agents.checking.kit import CannotRun, DoesNotApply, Session, check
from vime_agents.checking.policies import FixedReplies
from vime_agents.checking.replies import broken_replies

MOST_BYTES = 8_000
"""Of memory that an episode may leave; what Python itself keeps is some hundred."""
_WARM_UP = 8
_MOST_KEPT = 10
"""Things that even very many episodes may leave: a pool fills up, and a leak does not."""
_POOLS = ("vime-hook", "asyncio_", "ThreadPoolExecutor", "vime-env-loop")


@dataclass(slots=True)
class Held:
    """What this process holds at one moment: kind -> name of each thing."""

    files: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Leaks:
    """What many episodes left."""

    num_episodes: int
    before: Held
    after: Held
    bytes_per_episode: float
    line: str | None
    """That allocated most of them."""


async def measure(session: Session) -> Leaks:
    """Play many episodes, a quarter of them abandoned; once for all checks that ask.

    Raises:
        CannotRun: this is not Linux.
    """
    if session.leaks is None:
        if not sys.platform.startswith("linux"):
            raise CannotRun("it reads /proc, which only Linux has")
        own = tempfile.mkdtemp(prefix="vime-check-")
        usual, usual_variable = tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir = os.environ["TMPDIR"] = own
        gc.freeze()  # what was there before cannot be a leak, and takes most of a collection's time
        try:
            session.leaks = await _measure(session, Path(own))
        finally:
            gc.unfreeze()
            tempfile.tempdir = usual
            os.environ.pop("TMPDIR")
            if usual_variable is not None:
                os.environ["TMPDIR"] = usual_variable
            shutil.rmtree(own, ignore_errors=True)
    return session.leaks


async def _measure(session: Session, folder: Path) -> Leaks:
    reused = session.make()
    num = session.scale.num_leak_episodes
    for index in range(_WARM_UP):
        await _episode(session, index, reused)
    before = await _held(session, folder)
    half = num // 2
    for index in range(num - half):
        await _episode(session, index, reused)
    tracemalloc.start(8)
    try:
        for index in range(_WARM_UP):  # what is allocated once must not count
            await _episode(session, index, reused)
        gc.collect()
        first = tracemalloc.take_snapshot()
        for index in range(half):
            await _episode(session, index, reused)
        gc.collect()
        second = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    after = await _held(session, folder)
    for _ in range(round(session.scale.settle_s / 0.1)):
        if all(len(getattr(after, kind)) <= len(getattr(before, kind)) for kind in Held.__slots__):
            break
        await asyncio.sleep(0.1)
        after = await _held(session, folder)
    await session.close(reused)
    growth, line = _growth(session, first, second)
    return Leaks(
        num_episodes=num + _WARM_UP,
        before=before,
        after=after,
        bytes_per_episode=growth / half,
        line=line,
    )


async def _episode(session: Session, index: int, reused: Any) -> None:
    policies = list(session.policies().values())
    env = reused if index % 2 else None
    if index % 4 == 3:
        call = broken_replies()["a call of a tool that is not there"]
        trace = await session.play(FixedReplies([call]), seed=index, task=None, env=env, max_steps=1)
    else:
        policy = policies[(index + index // 4) % len(policies)]  # each, on a new env and on the reused one
        trace = await session.play(policy, seed=index, task=None, env=env)
    session.must_be_possible(trace)


async def _held(session: Session, folder: Path) -> Held:
    gc.collect()
    return Held(
        files=list(_open_files()),
        processes=list(_children(os.getpid())),
        threads=[t.name for t in threading.enumerate() if not t.name.startswith(_POOLS)],
        tasks=[str(t.get_coro()) for t in asyncio.all_tasks() if t is not asyncio.current_task()],
        folders=os.listdir(folder),
        sandboxes=["sandbox"] * await session.sandboxes.num_open(),
    )


def _open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that listed the folder
            continue


def _children(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text(encoding="ascii").split()
        except FileNotFoundError:  # a thread that has just ended
            continue
        for child in children:
            try:
                command = (
                    Path(f"/proc/{child}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode("utf-8", "replace")
                )
            except FileNotFoundError:  # a process that has just ended
                continue
            yield command.strip() or "a zombie"
            try:
                yield from _children(int(child))
            except FileNotFoundError:
                continue


def _growth(
    session: Session, first: tracemalloc.Snapshot, second: tracemalloc.Snapshot
) -> tuple[int, str | None]:
    differences = second.compare_to(first, "traceback")
    total = sum(d.size_diff for d in differences)
    for difference in sorted(differences, key=lambda d: -d.size_diff)[:20]:
        for frame in reversed(difference.traceback):
            line = session.author.line_in(frame.filename, frame.lineno)
            if line is not None:
                return total, line
    return total, None


async def _compare(session: Session, kind: str, what: str) -> None:
    leaks = await measure(session)
    before: list[str] = list(getattr(leaks.before, kind))
    after: list[str] = list(getattr(leaks.after, kind))
    grown = len(after) - len(before)
    session.measure(f"{kind}_left", grown)
    if grown < max(2, min(leaks.num_episodes // 20, _MOST_KEPT)):
        return
    for name in before:
        if name in after:
            after.remove(name)
    examples = ", ".join(list(dict.fromkeys(after))[:3])
    session.find(f"{leaks.num_episodes} episodes left {grown} {what}: {examples}"[:400])


@check(
    "leak-sandboxes",
    family="leaks",
    fix="use `await self.sandbox()`, which the env closes; close in `teardown` what you make yourself",
)
async def leak_sandboxes(session: Session) -> None:
    """No sandbox is open after its episode."""
    if session.cls.sandbox_spec is None:
        raise DoesNotApply("the env declares no `sandbox_spec`")
    await _compare(session, "sandboxes", "sandboxes open")


@check(
    "leak-processes",
    family="leaks",
    explained_by=("leak-sandboxes",),
    fix="end in `teardown` what `setup` or a tool started, and wait for it; better, run it in the sandbox",
)
async def leak_processes(session: Session) -> None:
    """No process runs on after its episode, nor does a zombie stay."""
    await _compare(session, "processes", "processes")


@check(
    "leak-files",
    family="leaks",
    explained_by=("leak-sandboxes", "leak-processes"),
    fix="close files and sockets with `with`, or in `teardown`",
)
async def leak_files(session: Session) -> None:
    """No file, pipe or socket stays open after its episode."""
    await _compare(session, "files", "open files")


@check(
    "leak-threads",
    family="leaks",
    fix="end and join in `teardown` the threads that `setup` or a tool started; close executors",
)
async def leak_threads(session: Session) -> None:
    """No thread runs on after its episode."""
    await _compare(session, "threads", "threads")


@check(
    "leak-tasks",
    family="leaks",
    fix="await or cancel in `teardown` what asyncio.create_task started; better, use asyncio.TaskGroup",
)
async def leak_tasks(session: Session) -> None:
    """No asyncio task runs on after its episode."""
    await _compare(session, "tasks", "asyncio tasks")


@check(
    "leak-folders",
    family="leaks",
    explained_by=("leak-sandboxes", "leak-processes"),
    fix="use `with tempfile.TemporaryDirectory()`, or clean it up in `teardown`",
)
async def leak_folders(session: Session) -> None:
    """No temporary file or folder stays after its episode."""
    await _compare(session, "folders", "temporary files or folders")


@check(
    "leak-memory",
    family="leaks",
    explained_by=("leak-sandboxes", "leak-processes", "leak-files", "leak-threads", "leak-tasks"),
    fix="keep nothing of an episode in a module, a class, a default argument or a cache without a bound",
)
async def leak_memory(session: Session) -> None:
    """Memory does not grow with the number of episodes."""
    leaks = await measure(session)
    session.measure("bytes_left_per_episode", leaks.bytes_per_episode)
    if leaks.bytes_per_episode > MOST_BYTES:
        session.find(f"each episode leaves {leaks.bytes_per_episode / 1000:.0f} kB", where=leaks.line)
