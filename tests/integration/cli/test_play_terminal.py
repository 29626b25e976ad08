"""`vime-agents play` at a terminal: completion, colour, Ctrl-C, Ctrl-D."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *flags: str) -> None:
        self.fd, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vime_agents", "play", *flags],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
        )
        os.close(inside)
        self.seen = ""

    def type(self, text: str) -> None:
        """As if on the keyboard."""
        os.write(self.fd, text.encode())

    def until(self, text: str) -> None:
        """Read until the text is seen; what was seen before it is dropped."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError as error:  # the other side is closed
                raise AssertionError(f"{text!r} never came: {self.seen!r}") from error
        self.seen = self.seen.partition(text)[2]


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A person plays Calculator-v0."""
    opened = Terminal("Calculator-v0")
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.fd)


def test_tab_completes_a_call_and_control_d_ends_with_what_was_reached(terminal: Terminal) -> None:
    terminal.until("\x1b[1;36m[user]\x1b[0m What is")
    terminal.until("> ")
    terminal.type("/cal\t")
    terminal.until("/calculator ")
    terminal.type("exp\t")
    terminal.until("expression=")
    terminal.type("6*7\n")
    terminal.until("[tool calculator]\x1b[0m 42")
    terminal.until("> ")
    terminal.type("\x04")
    terminal.until("end: cut: cancelled: the player left")
    terminal.until("reward 0 = score 0")
    assert terminal.process.wait(30) == 0


def test_control_c_ends_cleanly_at_the_prompt(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("/cal\t")
    terminal.until("/calculator ")  # readline is at work
    # Python's readline misses a signal that comes in the instant before it waits for a key.
    time.sleep(0.5)
    terminal.type("\x03")
    terminal.until("interrupted")
    assert terminal.process.wait(30) == 130
    assert "Traceback" not in terminal.seen
