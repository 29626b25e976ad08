"""What the shell of an image without Python knows of a process, run by this machine's shell."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

from vime_sandboxes.docker_supervisor import supervisor_source
from vime_sandboxes.runner_tree import EXEC_VARIABLE

NOBODY = 2**22 + 1
"""No process: above the largest pid."""


def look(pid: int, mark: str, times: int) -> list[str]:
    """What `tree` says of one process, time after time: found, unsure or other."""
    functions = supervisor_source().partition("echo ready")[0].replace("/proc/[0-9]*", f"/proc/{pid}")
    script = f"""{functions}
    n=0
    while [ $n -lt {times} ]; do
        n=$((n + 1)) what=other
        tree {mark} {NOBODY}
        [ -z "$unsure" ] || what=unsure
        case $found in *" {pid} "*) what=found ;; esac
        echo $what
    done"""
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_one_that_becomes_another_program_is_found_or_looked_at_again(tmp_path: Path) -> None:
    """In the middle of execve(2), /proc shows neither environment nor arguments."""
    mark, program = uuid.uuid4().hex, tmp_path / "again.sh"
    program.write_text('exec /bin/sh "$0"\n')
    with subprocess.Popen(["/bin/sh", program], env={EXEC_VARIABLE: mark}) as restless:
        try:
            seen = look(restless.pid, mark, 300)
        finally:
            restless.kill()
    assert set(seen) == {"found", "unsure"}


def test_what_has_no_mark_no_environment_or_is_a_zombie_is_none_of_it() -> None:
    mark = uuid.uuid4().hex
    with (
        subprocess.Popen(["sleep", "60"], env={}) as bare,
        subprocess.Popen(["sleep", "60"], env={EXEC_VARIABLE: "another"}) as another,
        subprocess.Popen(["true"]) as zombie,
    ):
        try:
            os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
            for process in (bare, another, zombie):
                assert look(process.pid, mark, 3)[-1] == "other"
        finally:
            bare.kill()
            another.kill()
