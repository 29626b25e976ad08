from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vime_sandboxes.ownership import owner, owner_alive, owner_pid


def test_this_process_lives() -> None:
    assert owner_alive(owner()) is True
    assert owner_pid(owner()) == os.getpid()


def test_a_process_lives_until_it_ends_even_while_nobody_has_waited_for_it() -> None:
    program = "from vime_sandboxes.ownership import owner; print(owner(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert owner_pid(name) == process.pid
    assert owner_alive(name) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but still in the table
    assert owner_alive(name) is False
    process.communicate()
    assert owner_alive(name) is False


def test_another_process_of_the_same_number_is_not_the_owner() -> None:
    host, boot, pid, start = owner().split(":")
    assert owner_alive(f"{host}:{boot}:{pid}:{int(start) + 1}") is False
    assert owner_alive(f"{host}:another-boot:{pid}:{start}") is False


@pytest.mark.parametrize("text", ["", "x", "elsewhere:boot:1:1", ":::", "a:b:c:d"])
def test_nothing_is_known_of_other_hosts_or_of_nonsense(text: str) -> None:
    assert owner_alive(text) is None
