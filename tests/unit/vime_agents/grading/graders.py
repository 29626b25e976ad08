"""Graders for the tests: good ones, and every kind of bad one."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from vime_agents.errors import Unscorable
from vime_agents.grading import GraderLimits, before_grading
from vime_agents.reward import reward


def add(a: float, b: float = 0.0) -> float:
    return a + b


async def add_later(a: float, b: float) -> float:
    await asyncio.sleep(0.001)
    return a + b


def give(value: str) -> Any:
    return {"numpy": np.float32(0.5), "nested": {"a": [1, None, True]}, "set": {1}, "long": "x" * 3_000_000}[
        value
    ]


def loop() -> None:
    os.write(1, b"round and round")
    while True:
        pass


def loop_deaf() -> None:
    """Does not listen to anything that can be ignored, and leaves its session."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            continue
    if os.fork() == 0:
        os.setsid()
    while True:
        time.sleep(1)


def fork_without_end(path: str) -> None:
    while True:
        if os.fork() == 0:
            with open(path, "a") as file:
                file.write(f"{os.getpid()}\n")


def fork_and_answer() -> float:
    """Both copies return: only one of them is the grader."""
    return 0.25 if os.fork() else 0.75


def leave_a_child(path: str) -> float:
    """Starts a process that outlives its parent, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        with open(path, "w") as file:
            file.write(str(child))
        os._exit(0)
    os.wait()
    return 1.0


def segfault() -> None:
    ctypes.string_at(0)


def leave(code: int) -> None:
    os.write(2, b"leaving")
    os._exit(code)


def exit_politely() -> None:
    sys.exit("done")


def kill_keeper(path: str) -> None:
    """The worst that it can do to the one who watches, with a child in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(1000)
    while not os.path.exists(path) or not os.path.getsize(path):
        time.sleep(0.001)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def eat(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


def raise_error(text: str) -> None:
    raise ValueError(text)


def no_key() -> None:
    raise Unscorable("the task has no answer")


def forge(text: str) -> None:
    """Write to what looks like the way back, and go."""
    os.write(3, len(text).to_bytes(4, "big") + text.encode())
    os._exit(0)


def forge_a_kind() -> None:
    forge(json.dumps({"kind": "timeout"}))


def shell(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


def print_a_lot() -> float:
    sys.stdout.write("x" * 10_000_000)
    return 1.0


def touch_and_wait(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)


remembered = 0
prepared: list[str] = []
before_grading(lambda: prepared.append("broken") or 1 / 0)
before_grading(lambda: prepared.append("once"))


def remember() -> int:
    global remembered
    remembered += 1
    return remembered


def what_is_prepared() -> list[str]:
    return prepared


class Graders:
    @staticmethod
    def twice(x: float) -> float:
        return 2 * x


@reward(process=GraderLimits(timeout_s=1.5, memory_mb=256))
def obeys(text: str, path: str) -> float:
    """Does what the agent's message says, as a grader that a hostile answer has taken over would."""
    match text:
        case "loop":
            loop()
        case "fork":
            fork_without_end(path)
        case "crash":
            segfault()
        case "leave":
            os._exit(0)
        case "eat":
            eat(4000)
        case "raise":
            raise_error("no")
        case "no key":
            no_key()
    return float(text == "right")
