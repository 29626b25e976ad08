"""Ends the sandboxes that nobody will end: their owner is dead, or gave up on them while they were made.

A living owner's sandbox is never touched, nor is one of another host's before its time is up: whether its
owner lives cannot be seen from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vime_agents import registry
from vime_agents.errors import MissingDependencyError, SandboxError, SandboxUnavailable, VimeAgentsError
from vime_agents.sandbox import SandboxInfo, SandboxProvider
from vime_sandboxes import limits
from vime_sandboxes.io_thread import submit
from vime_sandboxes.ledger import ABANDONED, OPEN, Entry, Ledger
from vime_sandboxes.ownership import KEY, OWNER, owner_alive, owner_pid

LIST_TIMEOUT_S = 30.0
REMOVE_TIMEOUT_S = 30.0
PARALLEL = 8
LATE_S = 600.0
"""How long a backend may take to make what was asked for: until then an entry without a sandbox stays."""
GRACE_S = 60.0
"""By how much the time of another host's sandbox must be over: its clock is not ours."""
INTERVAL_S = 300.0
"""Between two rounds in the background."""


@dataclass(frozen=True, slots=True)
class Found:
    """One sandbox, whoever made it."""

    info: SandboxInfo
    owner_alive: bool | None
    """None: it cannot be seen from here."""
    reason: str | None
    """Why it is to be removed; None: it stays."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is."""

    found: list[Found]
    unavailable: dict[str, str]
    """Backend -> why it could not be asked."""
    damaged: dict[Path, str]
    """Files of the ledger that cannot be understood, and why."""


@dataclass(slots=True)
class ReapReport:
    """What a round did."""

    removed: list[Found] = field(default_factory=list)
    """With `dry_run`: what would have been."""
    failed: list[tuple[Found, str]] = field(default_factory=list)
    kept: list[Found] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)


async def survey(backends: Sequence[str] | None = None, *, ledger: Ledger | None = None) -> Survey:
    """Every sandbox on `backends` (None: all that are installed), of any owner.

    Raises:
        UnknownIdError: no such backend.
    """
    providers, unavailable = _providers(backends)
    try:
        return await _survey(providers, unavailable, ledger or Ledger())
    finally:
        await _close(providers.values())


async def reap(
    *, backends: Sequence[str] | None = None, dry_run: bool = False, ledger: Ledger | None = None
) -> ReapReport:
    """One round. Bounded in time; what fails is in the report and does not keep the rest from being removed.

    Raises:
        UnknownIdError: no such backend.
    """
    ledger = ledger or Ledger()
    providers, unavailable = _providers(backends)
    try:
        seen = await _survey(providers, unavailable, ledger)
        report = ReapReport(unavailable=seen.unavailable, damaged=seen.damaged)
        report.kept = [f for f in seen.found if f.reason is None]
        doomed = [f for f in seen.found if f.reason is not None]
        if dry_run:
            report.removed = doomed
            return report
        slots = asyncio.Semaphore(PARALLEL)
        problems = await asyncio.gather(*(_remove(providers[f.info.backend], f, slots) for f in doomed))
        for found, problem in zip(doomed, problems, strict=True):
            if problem is None:
                report.removed.append(found)
            else:
                report.failed.append((found, problem))
        _forget(ledger, [n for n in providers if n not in seen.unavailable], report)
        if "local" in providers:  # its sandboxes end with their owner; their empty control groups stay
            await asyncio.to_thread(limits.remove_orphans)
    finally:
        await _close(providers.values())
    return report


_in_background: set[str] = set()


def start_in_background(backend: str, ledger: Ledger) -> None:
    """Reap `backend` now and every five minutes, as long as this process lives; the first call counts."""
    if backend not in _in_background:
        _in_background.add(backend)
        submit(_for_ever(backend, ledger))


async def _for_ever(backend: str, ledger: Ledger) -> None:
    while True:
        # Its report has no reader here: what fails is tried again in the next round, and by `sandboxes reap`.
        await reap(backends=[backend], ledger=ledger)
        await asyncio.sleep(INTERVAL_S)


def _providers(backends: Sequence[str] | None) -> tuple[dict[str, SandboxProvider], dict[str, str]]:
    providers: dict[str, SandboxProvider] = {}
    unavailable: dict[str, str] = {}
    names = sorted(registry.entry_points(registry.SANDBOXES_GROUP)) if backends is None else backends
    for name in names:
        try:
            providers[name] = registry.sandbox_provider(name)
        except (ImportError, MissingDependencyError, SandboxUnavailable) as error:
            unavailable[name] = str(error)
    return providers, unavailable


async def _survey(
    providers: Mapping[str, SandboxProvider], unavailable: dict[str, str], ledger: Ledger
) -> Survey:
    answers = await asyncio.gather(*(_list(p) for p in providers.values()))
    entries, damaged = ledger.read()
    by_key = {entry.key: entry for entry in entries}
    found: list[Found] = []
    for name, answer in zip(providers, answers, strict=True):
        if isinstance(answer, str):
            unavailable[name] = answer
        else:
            found += [_judge(info, by_key.get(info.labels.get(KEY, ""))) for info in answer]
    return Survey(found, unavailable, damaged)


def _judge(info: SandboxInfo, entry: Entry | None) -> Found:
    owner = info.labels.get(OWNER, "")
    alive = owner_alive(owner)
    if info.expires_at is None and entry is not None and entry.stage == OPEN:
        info = replace(info, expires_at=entry.expires_at)  # local ones do not tell
    reason = None
    if alive is False:
        reason = f"its owner, process {owner_pid(owner)}, is dead"
    elif entry is not None and entry.stage == ABANDONED:
        reason = "its owner gave up on it while it was made"
    elif alive is None and info.expires_at is not None and time.time() > info.expires_at + GRACE_S:
        reason = "its time is up, and its owner is not on this host"
    return Found(info, alive, reason)


async def _list(provider: SandboxProvider) -> Sequence[SandboxInfo] | str:
    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            return await provider.list()
    except (VimeAgentsError, OSError, ImportError) as error:  # TimeoutError is an OSError
        return str(error) or f"no answer within {LIST_TIMEOUT_S:g} s"


async def _remove(provider: SandboxProvider, found: Found, slots: asyncio.Semaphore) -> str | None:
    """What went wrong; None: it is gone."""
    async with slots:
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT_S):
                await provider.remove(found.info.id)
        except (SandboxError, OSError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def _forget(ledger: Ledger, backends: Sequence[str], report: ReapReport) -> None:
    """Remove the entries of dead owners' sandboxes that are gone, or that never came."""
    left = {f.info.labels.get(KEY) for f in (*report.kept, *(f for f, _ in report.failed))}
    for entry in ledger.read()[0]:
        dead = owner_alive(entry.owner) is False or entry.stage == ABANDONED
        if dead and entry.backend in backends and entry.key not in left:
            known = entry.sandbox_id is not None
            if known or time.time() > entry.created_at + LATE_S:
                ledger.remove(entry)


async def _close(providers: Iterable[SandboxProvider]) -> None:
    await asyncio.gather(*(p.aclose() for p in providers), return_exceptions=True)
