"""Checks of how long a sandbox lives, who can see it, and what it begins with."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

from vime_agents.errors import SandboxDead, SandboxNotReady, SandboxUnsupported
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_agents.testing.sandbox_kit import check, expect, opened, python, raises

_POLL_LIMIT_S = 30.0


async def _until_dead(sandbox: Sandbox) -> None:
    async with asyncio.timeout(_POLL_LIMIT_S):
        while await sandbox.alive():  # noqa: ASYNC110 - nobody else can tell
            await asyncio.sleep(0.05)


@check
async def the_end_can_be_moved(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`extend` moves the end away, and nearer; `info` says where it is."""
    async with opened(provider, replace(spec, ttl_s=5.0)) as sandbox:
        end = time.monotonic() + 5.5
        await sandbox.extend(600.0)
        expires = (await sandbox.info()).expires_at
        expect(expires is None or 500 < expires - time.time() < 700, "an end in 600 s", expires)
        await asyncio.sleep(end - time.monotonic())
        expect((await sandbox.exec(["true"])).ok, "alive after its first end", False)
        await sandbox.extend(1.0)
        await _until_dead(sandbox)
        await raises(SandboxDead, "a command after the end", sandbox.exec(["true"]))


@check
async def info_says_what_was_used(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Id, backend, times and labels are right; counts are numbers or None, and grow."""
    labels = {"vime.run": "r1", "purpose": "check"}
    sandbox = await provider.create(spec, labels=labels)
    try:
        await python(sandbox, "x = bytearray(b'x') * (32 << 20); [n * n for n in range(1000000)]")
        process = await sandbox.spawn(["sleep", "600"])
        info = await sandbox.info()
        expect((info.id, info.backend, info.state) == (sandbox.id, provider.name, "running"), "itself", info)
        expect(labels.items() <= dict(info.labels).items(), "the labels that were given", info.labels)
        expect(labels.items() <= dict(sandbox.labels).items(), "the labels that were given", sandbox.labels)
        expect(info.created_at is None or abs(time.time() - info.created_at) < 600, "created now", info)
        peak = info.memory_peak_bytes
        expect(peak is None or peak > 32 << 20, "a memory peak of more than 32 MB", info)
        expect(info.cpu_s is None or info.cpu_s > 0, "processor time", info)
        expect(info.processes is None or info.processes >= 1, "a process", info)
        expect(not info.oom_kills, "nothing was killed for lack of memory", info)
        await process.kill()
    finally:
        await sandbox.close()


@check
async def anybody_can_list_and_remove(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`list` has it while it lives, and only then; `remove` ends it by its id, and twice is fine."""
    first = await provider.create(spec, labels={"vime.run": "r1"})
    async with opened(provider, spec) as second:
        found = {info.id: info for info in await provider.list()}
        expect({first.id, second.id} <= found.keys(), "both listed", sorted(found))
        expect(found[first.id].labels.get("vime.run") == "r1", "the run's label", found[first.id])
        expect(found[first.id].backend == provider.name, "the backend", found[first.id])
        running = asyncio.create_task(first.exec(["sleep", "600"], timeout_s=600))
        await first.exec(["true"])
        await provider.remove(first.id)
        await raises(SandboxDead, "a command under way when it is removed", running)
        await _until_dead(first)
        await provider.remove(first.id)
        await provider.remove("no-such-sandbox")
        left = [info.id for info in await provider.list()]
        expect(first.id not in left and second.id in left, "only the other one listed", left)
        expect((await second.exec(["true"])).ok, "the other one works", False)
        await first.close()


@check
async def setup_commands_come_first(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """They run in order, once the files are there; a failure is SandboxNotReady, and nothing is left."""
    files = {"input.txt": "given\n"}
    good = replace(spec, files=files, setup=(("cp", "input.txt", "a"), ("sh", "-c", "cat a a > b")))
    async with opened(provider, good) as sandbox:
        expect(await sandbox.read("b") == b"given\ngiven\n", "what the setup made", None)
    run = secrets.token_hex(8)
    bad = replace(spec, setup=(("true",), ("sh", "-c", "echo why >&2; exit 5")))
    try:
        seen: object = await provider.create(bad, labels={"vime.run": run})
    except SandboxNotReady as error:
        seen = str(error)
    expect(isinstance(seen, str) and "why" in seen, "SandboxNotReady with the command's own words", seen)
    left = [info.id for info in await provider.list() if info.labels.get("vime.run") == run]
    expect(left == [], "nothing left", left)


@check
async def users_are_as_asked_or_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A command runs as the user it was asked to run as, or not at all; the default has a name inside."""
    async with opened(provider, spec) as sandbox:
        own = (await sandbox.exec(["id", "-u"])).text.strip()
        expect(own not in ("", "0"), "an unprivileged user", own)
        same = await sandbox.exec(["id", "-u"], user=own)
        expect(same.text.strip() == own, "the default user, by number", same)
        try:
            seen = (await sandbox.exec(["id", "-u"], user="root")).text.strip()
        except SandboxUnsupported:
            return
        expect(seen == "0", "root, or SandboxUnsupported", seen)


@check
async def processor_time_is_bounded(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """With `cpus`, no more processor time than that is used; or it is refused."""
    program = (
        "import resource, time\n"
        "begin = time.monotonic()\n"
        "while time.monotonic() < begin + 2: pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print((used.ru_utime + used.ru_stime) / (time.monotonic() - begin))\n"
    )
    try:
        sandbox = await provider.create(replace(spec, cpus=0.25))
    except SandboxUnsupported:
        return
    try:
        expect("cpus" in sandbox.enforced, "'cpus' in enforced", sandbox.enforced)
        result = await python(sandbox, program)
        expect(float(result.text) < 0.4, "about a quarter", result)
    finally:
        await sandbox.close()


@check
async def preflight_passes_where_sandboxes_work(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`preflight` says nothing when sandboxes can be made."""
    await (await provider.create(spec)).close()
    await provider.preflight()
