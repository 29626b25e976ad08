from __future__ import annotations

import pytest

from tests.unit.vime_tools.hosts import Host
from vime_agents.errors import CommandNotFound, SandboxError
from vime_tools.session import Session

# Answers each line with its second word, in the pieces and at the pace that the third and further words say.
ECHO = r"""
import sys, time
for line in sys.stdin.buffer:
    marker, text, *cuts = line.split()
    whole, start = text + b"\n" + marker + b" well done\n", 0
    for end in [*map(int, cuts), len(whole)]:
        sys.stdout.buffer.write(whole[start:end])
        sys.stdout.buffer.flush()
        time.sleep(0.02)
        start = end
"""


@pytest.mark.parametrize("cuts", ["", "1", "5", "6", "7", "20 30", "37 38 39 40", "47"])
async def test_a_marker_that_comes_in_pieces_is_found(host: Host, cuts: str) -> None:
    session = Session(host.sandbox, ["python3", "-c", ECHO])
    for text in ("hello", "again"):
        answer = await session.run(lambda m, text=text: f"{m} {text} {cuts}\n".encode(), timeout_s=20.0)
        assert (answer.text, answer.status, answer.ended) == (text, "well done", None)
    await session.aclose()
    await session.aclose()


async def test_a_program_that_does_not_stay_is_told(host: Host) -> None:
    session = Session(host.sandbox, ["sh", "-c", "exit 3"])
    with pytest.raises(SandboxError, match="'sh' ends at once: exit 3"):
        await session.run(lambda _: b"x" * (8 << 20), timeout_s=20.0)
    with pytest.raises(CommandNotFound):
        await Session(host.sandbox, ["no-such-program"]).run(str.encode, timeout_s=20.0)


async def test_a_program_that_does_not_read_is_ended(host: Host) -> None:
    session = Session(host.sandbox, ["sleep", "600"])
    answer = await session.run(lambda _: b"x" * (8 << 20), timeout_s=0.5)
    assert (answer.timed_out, answer.ended) == (True, "time limit")
    await session.aclose()
