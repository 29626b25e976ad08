"""Trees of `sleep` under the supervisor: whoever dies, everything below dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vime_agents.serving

SUPERVISOR = Path(vime_agents.serving.__file__).with_name("supervisor.py")


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command under the supervisor; its output goes to `tmp_path / "log"`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, grace_s: float = 5.0) -> subprocess.Popen[bytes]:
        options = ["--log", str(tmp_path / "log"), "--grace-s", str(grace_s)]
        argv = [sys.executable, "-IS", str(SUPERVISOR), *options, "--", *command]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        end(process)


def end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(timeout=20)


def pids_in(log: Path, count: int) -> list[int]:
    """The process ids that the command printed, once there are `count`."""
    for _ in range(400):
        words = log.read_text().split() if log.exists() else []
        if len(words) >= count:
            return [int(w) for w in words]
        time.sleep(0.025)
    raise AssertionError(f"{count} pids expected in {words}")


def gone(pid: int) -> bool:
    """Not there, or a zombie that nobody has collected yet."""
    for _ in range(400):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.025)
    return False


def test_the_exit_status_is_that_of_the_command(supervise):
    assert supervise("sh", "-c", "exit 7").wait(timeout=20) == 7


def test_death_by_a_signal_is_128_and_its_number(supervise):
    assert supervise("sh", "-c", "kill -SEGV $$").wait(timeout=20) == 128 + signal.SIGSEGV


def test_output_goes_to_the_log(supervise, tmp_path: Path):
    supervise("sh", "-c", "echo out; echo err >&2").wait(timeout=20)
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_a_closed_pipe_ends_the_command(supervise, tmp_path: Path):
    process = supervise("sh", "-c", "echo $$; exec sleep 300")
    (pid,) = pids_in(tmp_path / "log", 1)
    assert end(process) == 128 + signal.SIGTERM
    assert gone(pid)


def test_processes_in_sessions_of_their_own_are_ended_too(supervise, tmp_path: Path):
    script = "setsid sh -c 'echo $$; exec sleep 300' & setsid sh -c 'echo $$; exec sleep 300' & echo $$; wait"
    process = supervise("sh", "-c", script)
    pids = pids_in(tmp_path / "log", 3)
    end(process)
    assert all(gone(pid) for pid in pids)


def test_orphans_of_a_command_that_was_killed_are_ended(supervise, tmp_path: Path):
    process = supervise("sh", "-c", "echo $$; setsid sh -c 'echo $$; exec sleep 300' & wait")
    command, orphan = pids_in(tmp_path / "log", 2)
    os.kill(command, signal.SIGKILL)
    assert process.wait(timeout=20) == 128 + signal.SIGKILL
    assert gone(orphan)


def test_a_command_that_does_not_exist_is_127_and_said_in_the_log(supervise, tmp_path: Path):
    assert supervise("/no/such/program").wait(timeout=20) == 127
    assert "/no/such/program" in (tmp_path / "log").read_text()


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(supervise, tmp_path: Path):
    script = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    process = supervise("sh", "-c", script, grace_s=0.3)
    (pid,) = pids_in(tmp_path / "log", 1)
    assert end(process) == 128 + signal.SIGKILL
    assert gone(pid)


def test_sigterm_to_the_supervisor_ends_the_command(supervise, tmp_path: Path):
    process = supervise("sh", "-c", "echo $$; exec sleep 300")
    (pid,) = pids_in(tmp_path / "log", 1)
    process.terminate()
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert gone(pid)


def test_sigkill_of_the_supervisor_still_stops_the_command(supervise, tmp_path: Path):
    process = supervise("sh", "-c", "echo $$; exec sleep 300")
    (pid,) = pids_in(tmp_path / "log", 1)
    process.kill()
    process.wait()
    assert gone(pid)


@pytest.mark.parametrize("fork_holds_the_pipe", [False, True])
def test_sigkill_of_the_owner_ends_everything(tmp_path: Path, fork_holds_the_pipe: bool):
    # A process forked off the owner keeps the pipe's write end open: the supervisor must not wait for it.
    owner = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-IS", {str(SUPERVISOR)!r}, "--log", {str(tmp_path / "log")!r}, "--",
                  "sh", "-c", "echo $$; exec sleep 300"], stdin=subprocess.PIPE, start_new_session=True)
if {fork_holds_the_pipe} and os.fork() == 0:
    time.sleep(30)
    os._exit(0)
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", owner], start_new_session=True)
    (pid,) = pids_in(tmp_path / "log", 1)
    process.kill()
    process.wait()
    assert gone(pid)
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the fork
    except ProcessLookupError:
        assert not fork_holds_the_pipe
