"""What a command started is found, whatever it is doing at the moment."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_sandboxes.runner_tree import EXEC_VARIABLE, kill_tree, tree

NOBODY = 1 << 30
"""No process has this number: what is found is found by its mark."""


@pytest.fixture
def mark() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def restless(mark: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that becomes another program all the time."""
    program = tmp_path / "again.sh"
    program.write_text('exec /bin/sh "$0"\n')
    env = {EXEC_VARIABLE: mark}
    with subprocess.Popen(["/bin/sh", program], env=env, start_new_session=True) as process:
        yield process
        process.kill()


def test_one_that_becomes_another_program_is_found_every_time(
    restless: subprocess.Popen[bytes], mark: str
) -> None:
    """In the middle of execve(2), /proc shows neither environment nor arguments."""
    assert all(tree(NOBODY, mark) == {NOBODY, restless.pid} for _ in range(300))


def test_it_is_killed_with_the_command(restless: subprocess.Popen[bytes], mark: str) -> None:
    kill_tree(NOBODY, mark)
    assert restless.wait(10) == -9


def test_what_has_no_environment_or_is_a_zombie_is_none_of_it(mark: str) -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as bare, subprocess.Popen(["true"]) as zombie:
        try:
            os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
            assert tree(NOBODY, mark) == {NOBODY}
        finally:
            bare.kill()
