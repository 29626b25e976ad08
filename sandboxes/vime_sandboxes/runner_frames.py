"""What the owner of a sandbox and the runner inside say to each other.

frame   = payload length (u32), request id (u32), kind (u8), payload
payload = fields, each a length (u32) and that many bytes
"""

from __future__ import annotations

import _struct as struct  # `struct` is the same, for one more file to load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    B = TypeVar("B", bytes, memoryview)

HEADER = struct.Struct("!IIB")
LENGTH = struct.Struct("!I")

EXEC, KILL, READ, WRITE, PING, SPAWN, STDIN, CREDIT, SIGNAL, EXTEND, FILES = range(1, 12)
"""Requests. EXEC: timeout_s, max_output, cwd, stdin, packed arguments, packed environment (name, value, ...).
KILL: id of an EXEC or SPAWN; no answer. READ: path, offset, length. WRITE: path, mode, append, data. PING:
nothing. SPAWN: timeout_s, cwd, packed arguments, packed environment, then which of its streams (b"0", b"1")
FILES are for. For one SPAWN, by its id: STDIN: data (none: end of file), no answer. CREDIT: bytes of output
that may come on top (-1: drop what comes), no answer. SIGNAL: number; 9 is for its whole tree. EXTEND:
seconds until the end. FILES, over a Unix socket only: nothing, no answer; a byte that carries open files
follows the frame, and then the SPAWN."""
READY, STDOUT, STDERR, EXITED, DATA, DONE, FAILED, BYE, STARTED, TAKEN, REFUSED, ENDED = range(16, 28)
"""Answers. STDOUT, STDERR: a piece of output. EXITED: status, signal, timed_out, bytes of stdout, bytes of
stderr, duration_s. DATA: a piece of a file. FAILED: stage, errno, text. BYE: why it ends. For a SPAWN:
STARTED: process id. TAKEN: bytes of input that its pipe took. REFUSED: nobody reads its input. ENDED: both of
its streams ended."""

CHUNK = 1 << 20
"""Most bytes of one field that the runner sends."""
WINDOW = 1 << 22
"""Output of a SPAWN that the runner sends before the owner has taken any; and input that the owner sends."""
MIN_COST = 512
"""What a piece of output takes of the WINDOW at least: to keep it costs memory, however short it is."""
PIPE_BYTES = 1 << 18
"""What a pipe to or from a SPAWN holds, where the kernel allows it."""


def pack(fields: Iterable[bytes]) -> bytes:
    """Fields -> payload."""
    return b"".join(LENGTH.pack(len(f)) + f for f in fields)


def unpack(payload: B) -> list[B]:
    """Payload -> fields. Raises ValueError when the lengths do not add up."""
    fields, position = [], 0
    while position < len(payload):
        if position + 4 > len(payload):
            raise ValueError("truncated length")
        (size,) = LENGTH.unpack_from(payload, position)
        position += 4
        if position + size > len(payload):
            raise ValueError("truncated field")
        fields.append(payload[position : position + size])
        position += size
    return fields
