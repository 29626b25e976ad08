from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from pathlib import Path

import pytest

from vime_sandboxes.thread_user import possible, thread_user

pytestmark = pytest.mark.skipif(
    not possible(), reason="only root, on a known processor, can be somebody else"
)
UID = 1234567


def status(text: str) -> dict[str, list[str]]:
    """Of /proc/PID/status, what says who a process is and what it may."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.split() for name, _, value in lines if name[:3] in ("Uid", "Gid", "Gro", "Cap")}


def test_what_is_started_is_the_other_user_and_nothing_more() -> None:
    with thread_user(UID):
        program = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    found = status(program.stdout)
    assert (found["Uid"], found["Gid"], found["Groups"]) == ([str(UID)] * 4, [str(UID)] * 4, [])
    assert {n: int(v[0], 16) for n, v in found.items() if n in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {
        "CapInh": 0,
        "CapPrm": 0,
        "CapEff": 0,
        "CapAmb": 0,
    }


def test_other_threads_stay_who_they_are() -> None:
    inside, outside = threading.Event(), threading.Event()

    def be_another() -> None:
        with thread_user(UID):
            inside.set()
            outside.wait(10)

    thread = threading.Thread(target=be_another)
    thread.start()
    assert inside.wait(10)
    before = status(Path("/proc/thread-self/status").read_text())
    outside.set()
    thread.join()
    assert before["Uid"] == ["0"] * 4
    assert before == status(Path("/proc/thread-self/status").read_text())


def test_the_thread_is_itself_again_whatever_happened_inside() -> None:
    prctl = ctypes.CDLL(None).prctl
    before = (Path("/proc/thread-self/status").read_text(), os.getgroups(), prctl(3, 0, 0, 0, 0))
    with pytest.raises(FileNotFoundError), thread_user(UID):
        subprocess.run(["/no/such/program"], check=True)
    after = (Path("/proc/thread-self/status").read_text(), os.getgroups(), prctl(3, 0, 0, 0, 0))
    assert status(after[0]) == status(before[0])
    assert after[1:] == before[1:]
