"""The reaper kills what carries its owner's mark, once the owner is gone, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from vime_trainers.ray import reaper


def sleeper(**env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=os.environ | env, start_new_session=True)


def wait_for(process: subprocess.Popen[bytes], mark: str) -> None:
    while process.pid not in reaper.marked(mark):  # between fork and exec the environment is still ours
        time.sleep(0.01)


def test_it_waits_for_the_owners_end_and_kills_only_marked_processes() -> None:
    mark, other = uuid.uuid4().hex, uuid.uuid4().hex
    mine, foreign = sleeper(**{reaper.MARK: mark}), sleeper(**{reaper.MARK: other})
    try:
        wait_for(mine, mark)
        wait_for(foreign, other)
        process = subprocess.Popen(
            [sys.executable, "-IS", str(Path(reaper.__file__)), mark], stdin=subprocess.PIPE
        )
        assert mine.poll() is None
        assert process.poll() is None
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert mine.wait(10) == -9
        assert foreign.poll() is None
    finally:
        for leftover in (mine, foreign):
            leftover.kill()
            leftover.wait()


def test_a_mark_is_matched_whole() -> None:
    process = sleeper(**{reaper.MARK: "abcdef"})
    try:
        wait_for(process, "abcdef")
        assert reaper.marked("abc") == []
    finally:
        process.kill()
        process.wait()
