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


HOLDS_SHARED_MEMORY = """
from multiprocessing.shared_memory import SharedMemory
import time
memory = SharedMemory(create=True, size=4096)
print(memory.name, flush=True)
time.sleep(60)
"""


def tracker_comes_up(mark: str) -> bool:
    """Its holder may go on before the tracker, which it forked, has become the program that it is."""
    deadline = time.monotonic() + 30
    while not any(reaper.is_tracker(pid) for pid in reaper.marked(mark)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_nothing_is_left_of_the_shared_memory_and_the_folders_of_what_it_killed(tmp_path: Path) -> None:
    mark, folder = uuid.uuid4().hex, tmp_path / "weights"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"0")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_SHARED_MEMORY],
        stdout=subprocess.PIPE,
        env=os.environ | {reaper.MARK: mark},
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        memory = Path("/dev/shm") / holder.stdout.readline().decode().strip()
        assert memory.exists()
        assert tracker_comes_up(mark)
        arguments = ["-IS", str(Path(reaper.__file__)), mark, str(folder), str(tmp_path / "never-was")]
        process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert holder.wait(10) == -9
        assert not memory.exists()
        assert list(tmp_path.iterdir()) == []
    finally:
        holder.kill()
        holder.communicate()


def test_a_mark_is_matched_whole() -> None:
    process = sleeper(**{reaper.MARK: "abcdef"})
    try:
        wait_for(process, "abcdef")
        assert reaper.marked("abc") == []
    finally:
        process.kill()
        process.wait()


def test_one_that_becomes_another_program_is_found_every_time(tmp_path: Path) -> None:
    """In the middle of execve(2), /proc shows neither environment nor arguments."""
    mark, program = uuid.uuid4().hex, tmp_path / "again.sh"
    program.write_text('exec /bin/sh "$0"\n')
    with subprocess.Popen(["/bin/sh", program], env={reaper.MARK: mark}) as process:
        try:
            assert all(reaper.marked(mark) == [process.pid] for _ in range(100))
        finally:
            process.kill()
