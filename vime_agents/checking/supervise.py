"""Env id -> Report: runs the checks in a worker process, and a new one for the rest when it hangs or dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vime_agents.checking.catalog import CHECKS, GAME_CHECKS, open_session
from vime_agents.checking.finding import CheckResult, Finding, Report
from vime_agents.checking.kit import Check, chosen_checks
from vime_agents.checking.scale import FULL, Scale
from vime_agents.errors import UnknownIdError

_KEPT_STDERR = 4_000
_MOST_FAULTS = 3
"""Processes that an env may end; then the checks that are left are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCheck:
    """What only the process around the checks can see."""

    promise: str
    fix: str


PROCESS_CHECKS: Mapping[str, ProcessCheck] = {
    "crash": ProcessCheck(
        promise="Nothing that it does ends the process.",
        fix="never call os._exit or sys.exit in a hook; run what can crash in `await self.sandbox()`",
    ),
    "hang": ProcessCheck(
        promise="Nothing that it does blocks the event loop for good.",
        fix="write what may take long as plain `def`, with a bound of its own, or run it in the sandbox",
    ),
}


def all_ids() -> list[str]:
    """Of every check, of envs of one agent and of several."""
    return [*dict.fromkeys([*CHECKS, *GAME_CHECKS]), *PROCESS_CHECKS]


async def run_checks(
    env_id: str,
    *,
    split: str = "train",
    scale: Scale = FULL,
    only: Iterable[str] = (),
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> Report:
    """Check an environment.

    Args:
        env_id: as `registry.env_class` takes it; the module must be importable in a new process.
        split: whose tasks are played.
        scale: how much is tried: `FULL`, `QUICK`, or `dataclasses.replace` of one of them.
        only: ids of checks; those that they stand on are run too. Empty: all.
        on_result: called as each check ends.

    Raises:
        UnknownIdError, ConfigError: no such env or check, or not an AgentEnv.
    """
    only = list(only)
    with contextlib.redirect_stdout(sys.stderr):  # what the author's module prints is no part of a report
        checks = open_session(env_id, split=split).checks  # what is wrong with the id is raised here
    for name in only:
        if name not in checks and name not in PROCESS_CHECKS:
            raise UnknownIdError("check", name, [*checks, *PROCESS_CHECKS])
    run = _Run(env_id=env_id, split=split, scale=scale, checks=checks, on_result=on_result)
    await run.all(chosen_checks((name for name in only if name in checks), checks))
    for name in PROCESS_CHECKS:
        if not only or name in only or run.faults[name]:
            run.add(_process_result(name, run.faults[name]))
    return Report(env_id=env_id, split=split, scale=scale, results=tuple(run.results))


@dataclass(slots=True, kw_only=True)
class _Run:
    env_id: str
    split: str
    scale: Scale
    checks: Mapping[str, Check]
    on_result: Callable[[CheckResult], None]
    results: list[CheckResult] = field(default_factory=list)
    faults: dict[str, list[Finding]] = field(default_factory=lambda: {name: [] for name in PROCESS_CHECKS})

    def add(self, result: CheckResult) -> None:
        self.results.append(result)
        self.on_result(result)

    async def all(self, ids: Sequence[str]) -> None:
        """Each worker takes what the last one left."""
        left = list(ids)
        while left:
            if sum(map(len, self.faults.values())) >= _MOST_FAULTS:
                for name in left:
                    self.add(self._not_run(name, f"{_MOST_FAULTS} processes did not survive other checks"))
                return
            done = len(self.results)
            await self._one_worker(left)
            if len(self.results) == done:  # it did not even begin
                self.add(self._not_run(left[0], "the worker process did not start"))
            finished = {result.id for result in self.results}
            left = [name for name in left if name not in finished]

    async def _one_worker(self, ids: list[str]) -> None:
        reading, writing = os.pipe()
        request = {
            "env": self.env_id,
            "split": self.split,
            "scale": asdict(self.scale),
            "checks": ids,
            "results": [result.to_dict() for result in self.results],
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "vime_agents.checking.worker",
            str(writing),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,  # the author's own printing
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(writing,),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        os.close(writing)
        assert process.stdin is not None
        assert process.stderr is not None
        stderr = asyncio.ensure_future(_tail(process.stderr))
        try:
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            running, stuck = await self._follow(reading)
            if stuck is None and process.returncode is None:
                await _wait_a_little(process)
        finally:
            _kill_group(process)
            await process.wait()
        last_words = await stderr
        if running is not None:
            self._ended_early(running, process.returncode, stuck, last_words)

    async def _follow(self, reading: int) -> tuple[str | None, dict[str, Any] | None]:
        """Read events to the end: (check that was running, what it was stuck in)."""
        reader = asyncio.StreamReader(limit=1 << 26)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, os.fdopen(reading, "rb")
        )
        running: str | None = None
        try:
            while line := await asyncio.wait_for(reader.readline(), self.scale.check_s):
                event = json.loads(line)
                if "begin" in event:
                    running = event["begin"]
                elif "end" in event:
                    running = None
                    self.add(CheckResult.from_dict(event["end"]))
                else:
                    return running, event
        except TimeoutError:
            return running, {"late_s": self.scale.check_s}
        finally:
            transport.close()
        return running, None

    def _ended_early(
        self, check_id: str, status: int | None, stuck: dict[str, Any] | None, last_words: str
    ) -> None:
        fix = None
        if stuck is not None and "late_s" in stuck:
            name, where = "hang", None
            message = f"{check_id} did not end within {stuck['late_s']:g} s"
            fix = "make its episodes shorter, or let it play fewer"
        elif stuck is not None:
            name, where = "hang", stuck["stuck"]
            message = f"while {check_id} ran, the event loop stood still for {stuck['seconds']:g} s"
        else:
            name, where = "crash", None
            how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
            message = f"while {check_id} ran, the process ended with {how}. {last_words}".strip()
        self.faults[name].append(
            Finding(
                id=name,
                severity="error",
                message=message[:600],
                where=where,
                fix=fix or PROCESS_CHECKS[name].fix,
            )
        )
        self.add(self._not_run(check_id, f"the process did not survive it: see {name}"))

    def _not_run(self, check_id: str, reason: str) -> CheckResult:
        known = self.checks[check_id]
        return CheckResult(
            id=check_id, family=known.family, promise=known.promise, state="not run", reason=reason
        )


def _process_result(name: str, found: Sequence[Finding]) -> CheckResult:
    return CheckResult(
        id=name,
        family="process",
        promise=PROCESS_CHECKS[name].promise,
        state="found" if found else "passed",
        findings=tuple(found),
    )


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stream.read(1 << 16):
        kept = (kept + data)[-_KEPT_STDERR:]
    return kept.decode("utf-8", "replace").strip().rpartition("\n")[2]


async def _wait_a_little(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), 5.0)
    except TimeoutError:
        return


def _kill_group(process: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
