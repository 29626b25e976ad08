"""Runs commands as a user does, and finds what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT, *(ROOT / name for name in ("envs", "tools", "sandboxes", "trainers")))
MARK = "VIME_AGENTS_TEST_MARK"


class Command:
    """A command in its own session; all its descendants carry a mark in their environment."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.mark, self.log = uuid.uuid4().hex, log
        env = os.environ | {MARK: self.mark, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
        self._output = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vime_agents", *arguments],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
            cwd=ROOT,
        )

    def wait(self, timeout_s: float) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self._output.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's main process alone."""
        self.process.send_signal(number)

    def survivors(self) -> dict[int, str]:
        """Processes with the mark that still run: pid -> command line."""
        return marked_processes(self.mark)

    def shared_memory(self) -> set[Path]:
        """Files in /dev/shm that these processes have in their memory."""
        found = set()
        for pid in self.survivors():
            try:
                maps = Path(f"/proc/{pid}/maps").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found |= {Path(path) for path in re.findall(r" (/dev/shm/[^\n]+)$", maps, re.MULTILINE)}
        return {path for path in found if path.exists()}

    def until(self, condition: Callable[[], Any], timeout_s: float, what: str) -> None:
        """Wait for a condition; fails when the command ends first or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self, num_bytes: int = 4000) -> str:
        """The end of what the command printed."""
        return self.log.read_text(errors="replace")[-num_bytes:]

    def kill(self) -> None:
        """End everything with the mark, for a test that failed."""
        for pid in self.survivors():
            os.kill(pid, signal.SIGKILL)


def marked_processes(mark: str) -> dict[int, str]:
    """Running processes whose environment carries the mark."""
    found = {}
    needle = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if needle in (folder / "environ").read_bytes() and "Z" not in _state(folder):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def nothing_survives(command: Command, timeout_s: float = 90.0) -> None:
    """Fails when a process of the command still runs after the time.

    A minute is Ray's own: an agent of a Ray that was killed may first try that long to tell its dead server.
    """
    deadline = time.monotonic() + timeout_s
    while left := command.survivors():
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {left}")
        time.sleep(0.2)


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Events of metrics.jsonl; a line that is being written counts as not there."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [row for row in rows if row["kind"] == kind]


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]
