"""Checks of whole trees: upload, download, snapshot, restore."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from vime_agents.errors import (
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxUnsupported,
)
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec, Snapshot
from vime_agents.testing.sandbox_kit import check, expect, opened, processes_with, raises


def _tree(folder: Path) -> dict[str, tuple[bytes | str, int]]:
    """Path -> content and mode, or where a link leads to."""
    found: dict[str, tuple[bytes | str, int]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = (os.readlink(path), 0)
        else:
            found[name] = (path.read_bytes() if path.is_file() else "folder", path.stat().st_mode & 0o777)
    return found


@check
async def trees_round_trip(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A tree with links, empty folders, odd names and modes comes back as it went in; a single file too."""
    with tempfile.TemporaryDirectory() as place:
        source, back = Path(place, "source"), Path(place, "back")
        (source / "deep/er").mkdir(parents=True)
        (source / "empty").mkdir()
        (source / "deep/er/data.bin").write_bytes(os.urandom(3 << 20))
        (source / "deep/-odd näme\n").write_bytes(b"odd")
        (source / "none").write_bytes(b"")
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("deep/er/data.bin")
        async with opened(provider, spec) as sandbox:
            await sandbox.upload(source, "project")
            result = await sandbox.exec(["./run.sh"], cwd="project")
            expect(result.stdout == b"ran\n", "what was uploaded can be run", result)
            await sandbox.download("project", back)
            expect(_tree(back) == _tree(source), "the same tree", sorted(_tree(back)))
            await sandbox.upload(source / "run.sh", "other/name.sh")
            await sandbox.download("other/name.sh", back / "name.sh")
            expect((back / "name.sh").read_text() == "#!/bin/sh\necho ran\n", "the same file", None)


@check
async def downloads_are_bounded_and_stay_inside(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Too large, missing, and links that lead out are errors, after which nothing was written."""
    with tempfile.TemporaryDirectory() as place:
        target = Path(place, "target")
        async with opened(provider, spec) as sandbox:
            await sandbox.exec(["sh", "-c", "mkdir big out && head -c 3000000 /dev/zero > big/file"])
            too_large = sandbox.download("big", target, max_bytes=1_000_000)
            await raises(SandboxOutputTooLarge, "a download of 3 MB with max_bytes=1 MB", too_large)
            await raises(SandboxFileNotFound, "a missing source", sandbox.download("no/such", target))
            for link in ("/etc/passwd", "../../../../etc/passwd"):
                await sandbox.exec(["ln", "-sfn", link, "out/link"])
                await raises(SandboxError, f"a link to {link}", sandbox.download("out", target))
            left = sorted(_files_below(Path(place)))
            expect(left == [], "nothing written", left)


@check
async def a_full_sandbox_says_so(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Writing more than fits is SandboxDiskFull where the space is bounded; room can be made again."""
    async with opened(provider, spec) as sandbox:
        if "disk" not in sandbox.enforced:
            return
        piece = b"x" * (spec.max_file_mb << 20)

        async def fill() -> None:
            for number in range(spec.memory_mb // spec.max_file_mb + 2):
                await sandbox.write(f"full-{number}", piece)

        await raises(SandboxDiskFull, "more than fits", fill())
        await sandbox.exec(["sh", "-c", "rm -f full-*"])
        await sandbox.write("small", b"x")
        expect(await sandbox.read("small") == b"x", "room again", None)


@contextlib.asynccontextmanager
async def _taken(provider: SandboxProvider, sandbox: Sandbox) -> AsyncIterator[Snapshot | None]:
    """A snapshot, deleted at the end; None where the backend has none and says so."""
    try:
        snapshot = await sandbox.snapshot()
    except SandboxUnsupported:
        yield None
        return
    try:
        yield snapshot
    finally:
        await provider.delete_snapshot(snapshot)
        await provider.delete_snapshot(snapshot)  # twice is fine


@check
async def restoring_brings_the_files_back(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Files changed, made and removed since are as they were; programs are dead; id and limits stay."""
    async with opened(provider, spec) as sandbox:
        await sandbox.write("kept/file.txt", b"before")
        await sandbox.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        async with _taken(provider, sandbox) as snapshot:
            if snapshot is None:
                return
            name, enforced, mark = sandbox.id, sandbox.enforced, "600.4711"
            program = await sandbox.spawn(["sleep", mark])
            change = "echo after > kept/file.txt; rm run.sh; echo x > new; echo x > /tmp/new"
            await sandbox.exec(["sh", "-c", change])
            await sandbox.restore(snapshot)
            expect(await sandbox.read("kept/file.txt") == b"before", "the content of before", None)
            result = await sandbox.exec(["./run.sh"])
            expect(result.stdout == b"ran\n", "the mode of before", result)
            seen = await sandbox.exec(["ls", "-A"])
            expect(seen.text.split() == ["kept", "run.sh"], "nothing made since", seen)
            expect(await processes_with(sandbox, mark) == 0, "no program of before", mark)
            expect((sandbox.id, sandbox.enforced) == (name, enforced), "the same id and limits", sandbox.id)
            (ended,) = await asyncio.gather(program.wait(), return_exceptions=True)
            killed = isinstance(ended, SandboxDead) or getattr(ended, "exit_code", 0) is None
            expect(killed, "the program of before was killed", ended)
            await sandbox.restore(snapshot)
            expect(await sandbox.read("kept/file.txt") == b"before", "as often as wanted", None)


@check
async def snapshots_make_new_sandboxes(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`create` with a snapshot is a fork: the same files, then independent. A deleted one is an error."""
    async with opened(provider, spec) as sandbox:
        await sandbox.write("given.txt", b"1")
        async with _taken(provider, sandbox) as snapshot:
            if snapshot is None:
                return
            await sandbox.close()  # the snapshot does not need it
            forks = [await provider.create(spec, snapshot=snapshot) for _ in range(2)]
            try:
                await forks[0].write("given.txt", b"2")
                seen = [await fork.read("given.txt") for fork in forks]
                expect(seen == [b"2", b"1"], "the same files, then each its own", seen)
            finally:
                await asyncio.gather(*(fork.close() for fork in forks))
        await raises(SandboxError, "a deleted snapshot", provider.create(spec, snapshot=snapshot))


def _files_below(folder: Path) -> list[str]:
    return [str(p) for p in folder.rglob("*") if p.is_file() or p.is_symlink()]
