"""A vector env's sandboxes end with it: at `close`, and at Ctrl-C in the middle of a step."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
_OWNER = """
import sys
import gymnasium
from vime_agents import messages as msg
mark, how = sys.argv[1:]
def bash(command):
    return msg.assistant("", [msg.tool_call("bash", {"command": command}, "1")])
envs = gymnasium.make_vec("vime_agents/Coding-v0", num_envs=2)
envs.reset(seed=0)
observations, *_ = envs.step([bash(f"setsid sleep {mark} >/dev/null 2>&1 & echo {i}") for i in range(2)])
print([messages[0]["content"].strip() for messages in observations["messages"]], flush=True)
if how == "interrupt":
    envs.step([bash(f"sleep {mark}")] * 2)
sys.stdin.readline()
envs.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def num_sleepers(mark: str) -> int:
    """Processes of this machine that are `sleep MARK`."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += file.read_bytes() == f"sleep\0{mark}\0".encode()
        except OSError:  # it ended
            continue
    return found


def wait_for_sleepers(mark: str, expected: int) -> None:
    end = time.monotonic() + 20
    while (found := num_sleepers(mark)) != expected:
        assert time.monotonic() < end, f"{found} processes, not {expected}"
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["close", "interrupt"])
def test_nothing_is_left(how: str) -> None:
    mark = f"600.{random.randrange(1 << 60)}"
    command = [sys.executable, "-c", _OWNER, mark, how]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == "['0', '1']\n"
            if how == "close":
                wait_for_sleepers(mark, 2)
                owner.stdin.write("\n")
                owner.stdin.flush()
                assert owner.stdout.readline() == "closed\n"
                assert num_sleepers(mark) == 0
                owner.communicate("\n", timeout=20)
                assert owner.returncode == 0
            else:
                wait_for_sleepers(mark, 4)
                owner.send_signal(signal.SIGINT)
                _, stderr = owner.communicate(timeout=20)
                assert stderr.endswith("KeyboardInterrupt\n")
                wait_for_sleepers(mark, 0)
        finally:
            owner.kill()
