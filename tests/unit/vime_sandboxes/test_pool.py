"""Over real local sandboxes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vime_agents.errors import (
    ConfigError,
    SandboxDead,
    SandboxNotReady,
    SandboxUnavailable,
    SandboxUnsupported,
    UnknownIdError,
)
from vime_agents.sandbox import Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS
from vime_sandboxes import local_snapshot
from vime_sandboxes.admission import Admission
from vime_sandboxes.ledger import Ledger
from vime_sandboxes.local import LocalSandboxProvider
from vime_sandboxes.managed import ManagedProvider
from vime_sandboxes.ownership import RUN
from vime_sandboxes.pool import SandboxPool
from vime_sandboxes.pool_stats import PoolStats, percentile

SPEC = SandboxSpec(memory_mb=64, env={"GIVEN": "by the spec"})
OTHER = replace(SPEC, env={})
MakePool = Callable[..., SandboxPool]


@pytest.fixture
async def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakePool]:
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path / "state"))
    made: list[SandboxPool] = []

    def make(**settings: object) -> SandboxPool:
        made.append(
            SandboxPool(
                make_provider=lambda _: ManagedProvider(
                    LocalSandboxProvider(), run=str(tmp_path), ledger=Ledger(tmp_path / "ledger")
                ),
                **settings,  # pyright: ignore[reportArgumentType]
            )
        )
        return made[-1]

    yield make
    for pool in made:
        await pool.aclose()
    assert Ledger(tmp_path / "ledger").read() == ([], {})
    assert await ours(tmp_path) == []


async def ours(tmp_path: Path) -> list[SandboxInfo]:
    return [i for i in await LocalSandboxProvider().list() if i.labels.get(RUN) == str(tmp_path)]


async def until(pool: SandboxPool, condition: Callable[[PoolStats], bool]) -> PoolStats:
    async with asyncio.timeout(60):
        while not condition(stats := await pool.stats()):
            await asyncio.sleep(0.01)
    return stats


async def test_what_is_lent_is_ended_and_a_new_one_waits(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(size=1)
    assert isinstance(pool, SandboxProvider)
    first = await pool.create(SPEC, labels={"episode": "e1"})
    assert isinstance(first, Sandbox)
    assert first.labels.items() >= {"episode": "e1", RUN: str(tmp_path)}.items()
    assert (await first.info()).labels == first.labels
    await first.close()
    await first.close()
    assert not await first.alive()
    with pytest.raises(SandboxDead):
        await first.exec(["true"])
    assert (await pool.stats()).open == 0  # one use: nothing is kept for a second
    second = await pool.create(SPEC)
    assert (await pool.stats()).open == 1
    third = await pool.create(SPEC)
    await until(pool, lambda s: s.warm == 1)
    fourth = await pool.create(SPEC)
    stats = await pool.stats()
    assert (stats.hand_outs, stats.warm_hand_outs, stats.lent) == (4, 1, 3)
    assert 0 < stats.hand_out_p50_s <= stats.hand_out_p95_s
    assert 0 < stats.boot_p50_s <= stats.boot_p95_s
    assert 0 < stats.wait_p50_s <= stats.wait_p95_s
    assert len({first.id, second.id, third.id, fourth.id}) == 4
    assert "episode" not in fourth.labels


LEFT_BEHIND = """
import os, pathlib, subprocess
for folder in ("/work", "/tmp", "/dev/shm"):
    pathlib.Path(folder, "mine").write_text("secret")
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.symlink("/etc", "/work/link")
"""
LOOK = """
import os
left = [f for folder in ("/work", "/tmp", "/dev/shm") for f in os.listdir(folder)]
lines = [open(f"/proc/{p}/cmdline").read() for p in os.listdir("/proc") if p.isdigit()]
print(sorted(left), [l for l in lines if l.startswith("sleep")], os.environ.get("MINE"), os.environ["GIVEN"])
"""


async def test_nothing_of_the_last_user_is_seen(make_pool: MakePool) -> None:
    pool = make_pool(size=1, max_sandboxes=1)
    for _ in range(4):
        sandbox = await pool.create(SPEC)
        seen = await sandbox.exec(["python3", "-c", LOOK])
        assert seen.text == "[] [] None by the spec\n", seen
        assert (await sandbox.exec(["python3", "-c", LEFT_BEHIND], env={"MINE": "secret"})).ok
        await sandbox.close()
    assert (await pool.stats()).hand_outs == 4


async def test_a_handle_of_the_last_user_reaches_nobody_else(make_pool: MakePool) -> None:
    pool = make_pool(size=1, max_sandboxes=1)
    old = await pool.create(SPEC)
    program = await old.spawn(["cat"])
    running = asyncio.ensure_future(old.exec(["sleep", "600"], timeout_s=600))
    await old.exec(["true"])
    await old.close()
    new = await pool.create(SPEC)
    with pytest.raises(SandboxDead):
        await running
    with pytest.raises((SandboxDead, BrokenPipeError)):
        await program.write(b"x")
    with pytest.raises(SandboxDead):
        await old.write("mine", b"x")
    assert (await new.exec(["ls", "-A"])).text == ""


async def test_a_dead_warm_one_is_not_lent(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(size=1)
    await pool.prefill(SPEC, 1)
    (info,) = await ours(tmp_path)
    await pool.remove(info.id)
    sandbox = await pool.create(SPEC)
    assert sandbox.id != info.id
    assert (await sandbox.exec(["echo", "hi"])).text == "hi\n"
    assert (await pool.stats()).failures == {"dead": 1}


async def test_a_warm_one_has_its_whole_time_before_it(make_pool: MakePool) -> None:
    pool = make_pool(size=1)
    await pool.prefill(SPEC, 1)
    ready = time.time()
    sandbox = await pool.create(SPEC)
    expires = (await sandbox.info()).expires_at
    assert expires is not None
    assert expires >= ready + SPEC.ttl_s
    assert (await pool.stats()).warm_hand_outs == 1


async def test_setup_is_done_once_where_its_files_are_all(make_pool: MakePool) -> None:
    setup = (("sh", "-c", "date +%s%N > made"),)
    pool = make_pool(size=1)
    spec = replace(SPEC, setup=setup, files={"given": "text"})
    made = []
    for _ in range(6):
        sandbox = await pool.create(spec)
        assert await sandbox.read("given") == b"text"
        made.append(await sandbox.read("made"))
        await sandbox.write("made", b"changed")
        await until(pool, lambda s: s.warm == 1 or s.hand_outs == 1)
        await sandbox.close()
    assert len(set(made[3:])) == 1  # the first three were begun before there was a snapshot
    (snapshot,) = local_snapshot.folder().iterdir()
    await pool.aclose()
    assert not snapshot.exists()


@pytest.mark.parametrize("leaves", ["touch /tmp/x", "touch /dev/shm/x", "(sleep 600 >/dev/null 2>&1 &)"])
async def test_setup_is_done_each_time_where_it_leaves_more(make_pool: MakePool, leaves: str) -> None:
    pool = make_pool(size=1)
    spec = replace(SPEC, setup=(("sh", "-c", leaves),))
    for _ in range(3):
        sandbox = await pool.create(spec)
        left = "ls -A /tmp /dev/shm; cat /proc/[0-9]*/cmdline"
        seen = (await sandbox.exec(["sh", "-c", left])).text
        assert "x\n" in seen or "sleep" in seen
        await sandbox.close()
    assert not local_snapshot.folder().exists()


# --------------------------------------------------------------------------------- room and turns


async def test_what_can_never_fit_is_refused_at_once_with_the_numbers(make_pool: MakePool) -> None:
    pool = make_pool(memory_mb=100, max_processes=100)
    with pytest.raises(SandboxUnsupported, match=r"memory_mb is 101, .* 100 MB: it can never fit"):
        await pool.create(replace(SPEC, memory_mb=101))
    with pytest.raises(SandboxUnsupported, match=r"max_processes is 101, .* 100 processes"):
        await pool.create(replace(SPEC, max_processes=101))
    assert (await pool.stats()).open == 0


def test_several_that_are_needed_at_once_must_fit_together(make_pool: MakePool) -> None:
    pool = make_pool(memory_mb=200, max_processes=10_000, max_sandboxes=3)
    pool.check_room(SPEC, 3)
    with pytest.raises(SandboxUnsupported, match=r"memory_mb is 101, 2 times at once, .* 200 MB"):
        pool.check_room(replace(SPEC, memory_mb=101), 2)
    with pytest.raises(SandboxUnsupported, match=r"4 sandboxes are needed at once, .* may have 3"):
        pool.check_room(replace(SPEC, memory_mb=50), 4)


def test_only_what_runs_here_takes_room_here() -> None:
    admission = Admission(memory_mb=100, max_processes=100, max_sandboxes=3)
    elsewhere = replace(SPEC, backend="e2b", memory_mb=10_000)
    admission.check(elsewhere)
    admission.take(elsewhere)
    admission.take(SPEC)
    assert (admission.fits(SPEC), admission.fits(elsewhere)) == (False, True)
    admission.take(elsewhere)
    assert not admission.fits(elsewhere)
    admission.free(SPEC)
    assert admission.fits(SPEC)
    assert Admission().memory_mb > 64


async def test_no_more_are_open_than_fit_and_all_are_served(make_pool: MakePool) -> None:
    pool = make_pool(size=2, memory_mb=3 * 64)
    most = 0

    async def use() -> None:
        nonlocal most
        sandbox = await pool.create(SPEC)
        most = max(most, (await pool.stats()).open)
        assert (await sandbox.exec(["true"])).ok
        await sandbox.close()

    await asyncio.gather(*(use() for _ in range(12)))
    assert most <= 3
    assert (await pool.stats()).hand_outs == 12


async def test_specs_are_served_in_turn(make_pool: MakePool) -> None:
    pool = make_pool(size=0, max_sandboxes=1)
    order: list[str] = []
    holder = await pool.create(SPEC)

    async def use(name: str, spec: SandboxSpec) -> None:
        sandbox = await pool.create(spec)
        order.append(name)
        await sandbox.close()

    many = [asyncio.ensure_future(use("many", SPEC)) for _ in range(4)]
    await until(pool, lambda s: s.waiting == 4)
    few = asyncio.ensure_future(use("few", OTHER))
    await until(pool, lambda s: s.waiting == 5)
    await holder.close()
    await asyncio.gather(*many, few)
    assert order.index("few") <= 1
    assert len(order) == 5


async def test_a_warm_one_of_another_spec_makes_room(make_pool: MakePool) -> None:
    pool = make_pool(size=2, max_sandboxes=2)
    await pool.prefill(SPEC, 2)
    sandbox = await pool.create(OTHER)
    assert (await sandbox.exec(["true"])).ok
    assert (await pool.stats()).open <= 2


async def test_an_idle_one_is_ended(make_pool: MakePool) -> None:
    pool = make_pool(size=1, idle_s=0.1)
    await pool.prefill(SPEC, 1)
    await until(pool, lambda s: s.open == 0)


# ------------------------------------------------------------------------------ failures and ends


async def test_failures_are_the_backends_own_and_counted(make_pool: MakePool) -> None:
    pool = make_pool()
    bad = replace(SPEC, setup=(("false",),))
    answers = await asyncio.gather(*(pool.create(bad) for _ in range(3)), return_exceptions=True)
    assert [type(a) for a in answers] == [SandboxNotReady] * 3
    with pytest.raises(ConfigError):
        await pool.create(replace(SPEC, memory_mb=1))
    with pytest.raises(SandboxNotReady):
        await pool.prefill(bad, 1)
    stats = await until(pool, lambda s: s.open == 0)
    assert stats.failures == {"SandboxNotReady": 4, "ConfigError": 1}
    assert math.isnan(stats.boot_p50_s)
    assert (await pool.create(SPEC)).id.startswith("local-")


async def test_an_unknown_backend_is_named() -> None:
    pool = SandboxPool()
    with pytest.raises(UnknownIdError, match="Did you mean 'local'"):
        await pool.create(SandboxSpec(backend="locl"))
    await pool.aclose()


async def test_callers_that_are_cancelled_take_nothing(make_pool: MakePool) -> None:
    pool = make_pool(size=1, max_sandboxes=3)
    for pause_s in (0.0, 0.001, 0.01, 0.03, 0.06, 0.1, 0.2):
        calls = [asyncio.ensure_future(pool.create(SPEC)) for _ in range(5)]
        await asyncio.sleep(pause_s)
        for call in calls:
            call.cancel()
        for sandbox in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(sandbox, Sandbox):
                await sandbox.close()
    stats = await until(pool, lambda s: s.lent == 0 and s.waiting == 0 and s.open == s.warm)
    assert stats.warm <= 1


async def test_closing_the_pool_ends_all_and_tells_who_waits(make_pool: MakePool) -> None:
    pool = make_pool(size=1, max_sandboxes=2)
    lent = [await pool.create(SPEC), await pool.create(SPEC)]
    waiting = asyncio.ensure_future(pool.create(SPEC))
    await until(pool, lambda s: s.waiting == 1)
    await asyncio.gather(pool.aclose(), pool.aclose())
    with pytest.raises(SandboxUnavailable, match="closed"):
        await waiting
    assert [await s.alive() for s in lent] == [False, False]
    with pytest.raises(SandboxUnavailable, match="closed"):
        await pool.create(SPEC)


async def test_it_serves_several_event_loops(make_pool: MakePool) -> None:
    pool = make_pool(size=1)
    said: list[str] = []

    async def use() -> None:
        for _ in range(3):
            sandbox = await pool.create(SPEC)
            said.append((await sandbox.exec(["echo", "hi"])).text)
            await sandbox.close()

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    await use()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert said == ["hi\n"] * 12


@pytest.mark.parametrize("check", CHECKS)
async def test_it_keeps_a_backends_promises(check: str) -> None:
    pool = SandboxPool(size=1, make_provider=lambda _: LocalSandboxProvider())
    pool.name = "local"  # that `info` names
    try:
        await pool.prefill(SandboxSpec(), 1)
        await CHECKS[check](pool, SandboxSpec())
    finally:
        await pool.aclose()


def test_percentiles() -> None:
    assert [percentile(range(1, 101), p) for p in (50, 95, 100)] == [50, 95, 100]
    assert percentile([7.0], 95) == 7.0
    assert math.isnan(percentile([], 50))
