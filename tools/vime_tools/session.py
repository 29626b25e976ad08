"""A program that stays in a sandbox and answers one request after the other: a shell, a Python session.

request bytes -> its standard input; its output up to a line that begins with the request's marker -> Answer.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from vime_agents.errors import SandboxError
from vime_agents.sandbox import Sandbox, SandboxProcess

KEPT_BYTES = 1 << 16
"""So much of the beginning, and so much of the end of an answer is kept."""
MAX_ANSWER_BYTES = 64 << 20
"""A program that writes more is ended."""
GRACE_S = 1.0
"""For a program that was interrupted or killed to say its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request."""

    text: str
    """Its output. What was cut out of the middle is said there."""
    status: str
    """What the program wrote behind the marker; empty when it ended first."""
    timed_out: bool = False
    ended: str | None = None
    """Why the program has ended; None: it goes on. The next request starts a new one."""
    lost: str | None = None
    """Why the program before this one had ended, when nobody has been told yet."""


def told(answer: Answer, *, program: str, request: str, timeout_s: float, state: str) -> str:
    """What the model reads of an answer: its text, and in brackets what became of the program.

    Args:
        answer: of a session.
        program: what the session runs, in the model's words.
        request: what the model gave it.
        timeout_s: what the request was given.
        state: what is lost with a program.
    """
    notes = []
    if answer.lost is not None:
        notes.append(f"[This is a new {program}: {answer.lost}. Its {state} were lost.]")
    if answer.timed_out and answer.ended is None:
        notes.append(f"[The {request} took longer than {timeout_s:g} s and was interrupted.]")
    elif answer.timed_out:
        notes.append(f"[The {request} took longer than {timeout_s:g} s. The {program} was ended with it.]")
    elif answer.ended is not None:
        notes.append(f"[The {program} has ended: {answer.ended}.]")
    if answer.ended is not None:
        notes.append(f"[The next call starts a new {program}: the {state} are lost.]")
    text = answer.text.removesuffix("\n")
    return "\n".join([text, *notes] if text else notes) or "[no output]"


class Session:
    """One such program; started by the first request, and anew by the one after its end.

    Requests are served one at a time, in order.
    """

    def __init__(
        self,
        sandbox: Callable[[], Awaitable[Sandbox]],
        command: Sequence[str],
        *,
        prelude: Callable[[], bytes] = lambda: b"",
        interruptible: bool = False,
    ) -> None:
        """Start nothing yet.

        Args:
            sandbox: gives the sandbox.
            command: the program; both of its streams belong to the answers.
            prelude: written to each new program first.
            interruptible: SIGINT ends a request and not the program.
        """
        self._sandbox, self._command, self._prelude = sandbox, command, prelude
        self._interruptible = interruptible
        self._process: SandboxProcess | None = None
        self._pieces: AsyncIterator[tuple[str, bytes]] | None = None
        self._reading: asyncio.Future[bytes | None] | None = None
        self._first = b""  # what the program must be told before its first request
        self._surplus = b""  # came behind the last marker: programs in the background
        self._lost: str | None = None
        self._busy = asyncio.Lock()

    async def run(self, request: Callable[[str], bytes], *, timeout_s: float) -> Answer:
        """Send `request(marker)`, and read until the program writes a line `<marker> <status>`.

        A program that takes longer is interrupted or ended; that, and its own end, is an answer.

        Raises:
            SandboxError: infrastructure.
        """
        async with self._busy:
            marker = secrets.token_hex(16)
            content = request(marker)
            try:
                return await self._answer(marker, content, timeout_s)
            except BaseException:
                self._lost = "the call before was cut off"
                await asyncio.shield(self._end())
                raise

    async def aclose(self) -> None:
        """End the program. Idempotent."""
        await asyncio.shield(self._end())

    async def _answer(self, marker: str, request: bytes, timeout_s: float) -> Answer:
        clock = asyncio.get_running_loop().time
        if self._process is None:  # its start is not the request's time
            await self._start()
        deadline = clock() + timeout_s
        process = await self._send(request, deadline)
        lost, self._lost = self._lost, None
        output = _Output(marker, self._surplus)
        ended = await self._read(output, deadline)
        timed_out = ended == "time limit"
        if timed_out and self._interruptible:
            await process.kill(2)
            ended = await self._read(output, clock() + GRACE_S)
        if ended is None:
            self._surplus = output.surplus
        else:
            await process.kill()
            await self._read(output, clock() + GRACE_S)
            await self._end()
        return Answer(text=output.text(), status=output.status, timed_out=timed_out, ended=ended, lost=lost)

    async def _send(self, request: bytes, deadline: float) -> SandboxProcess:
        """Write the request, to a new program when the one before has ended meanwhile."""
        process = self._process or await self._start()
        if not await self._write(process, request, deadline):
            process = await self._start()
            if not await self._write(process, request, deadline):
                raise SandboxError(f"{self._command[0]!r} ends at once: {self._lost}")
        return process

    async def _write(self, process: SandboxProcess, request: bytes, deadline: float) -> bool:
        """Whether the program was there."""
        try:
            async with asyncio.timeout_at(deadline):
                await process.write(self._first + request)
        except BrokenPipeError:
            self._lost = await _how_it_ended(process)
            await self._end()
            return False
        except SandboxError:  # among them a TimeoutError
            raise
        except TimeoutError:
            return True  # it does not read: who waits for its answer will find it too slow
        self._first = b""
        return True

    async def _start(self) -> SandboxProcess:
        box = await self._sandbox()
        self._process = await box.spawn(self._command)
        self._pieces, self._first = self._process.output(), self._prelude()
        return self._process

    async def _read(self, output: _Output, deadline: float) -> str | None:
        """Read on to the marker: None. Otherwise why it did not come."""
        while output.num_bytes <= MAX_ANSWER_BYTES:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._next_piece())
            # A wait, not a time-out: whoever is cancelled while it reads has lost the stream.
            left_s = deadline - asyncio.get_running_loop().time()
            await asyncio.wait({self._reading}, timeout=max(left_s, 0))
            if not self._reading.done():
                return "time limit"
            piece = self._reading.result()
            if piece is None:  # the future stays: it has ended for good
                return await _how_it_ended(self._process)
            self._reading = None
            if output.add(piece):
                return None
        return f"more than {MAX_ANSWER_BYTES >> 20} MiB of output"

    async def _next_piece(self) -> bytes | None:
        assert self._pieces is not None
        async for _, piece in self._pieces:
            return piece
        return None

    async def _end(self) -> None:
        process, self._process = self._process, None
        reading, self._reading = self._reading, None
        self._pieces, self._surplus = None, b""
        if process is not None:
            with contextlib.suppress(SandboxError):  # it is gone with the sandbox
                await process.kill()
                await _how_it_ended(process)
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # whatever it is, somebody else learns it from the sandbox


async def _how_it_ended(process: SandboxProcess | None) -> str:
    if process is None:
        return "it was ended"
    try:
        async with asyncio.timeout(GRACE_S):
            return (await process.wait()).ended_by
    except SandboxError:  # among them a TimeoutError
        raise
    except TimeoutError:
        return "its output was closed"


class _Output:
    """The beginning and the end of an answer, and the marker behind it."""

    def __init__(self, marker: str, before: bytes) -> None:
        """`before` came already."""
        self.num_bytes = len(before)
        self.status = ""
        self.surplus = b""
        self._marker = f"\n{marker} ".encode()
        self._head, self._tail = bytearray(), bytearray(before)
        self._dropped = 0

    def add(self, piece: bytes) -> bool:
        """Take a piece; whether the marker's line has come."""
        self.num_bytes += len(piece)
        start = max(0, len(self._tail) - 4096 - len(self._marker))  # the marker's line may come in pieces
        self._tail += piece
        at = self._tail.find(self._marker, start)
        end = self._tail.find(b"\n", at + len(self._marker)) if at >= 0 else -1
        if end >= 0:
            self.status = self._tail[at + len(self._marker) : end].decode(errors="replace")
            self.surplus = bytes(self._tail[end + 1 :])
            del self._tail[at:]
        room = KEPT_BYTES - len(self._head)
        if room > 0 and len(self._tail) > 2 * KEPT_BYTES:
            self._head += self._tail[:room]
            del self._tail[:room]
        if len(self._tail) > 2 * KEPT_BYTES:
            self._dropped += len(self._tail) - KEPT_BYTES
            del self._tail[:-KEPT_BYTES]
        return end >= 0

    def text(self) -> str:
        """As UTF-8; the cut does not split a character."""
        if not self._dropped:
            return bytes(self._head + self._tail).decode(errors="replace")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = decoder.decode(bytes(self._head))  # half of a character at its end stays in the decoder
        first = bytes(self._tail[:3]).lstrip(bytes(range(0x80, 0xC0)))
        tail = first + bytes(self._tail[3:])
        dropped = self._dropped + len(decoder.getstate()[0]) + len(self._tail) - len(tail)
        return f"{head}\n[... {dropped} bytes were cut ...]\n{tail.decode(errors='replace')}"
