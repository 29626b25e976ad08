"""Run hidden tests: the author's tests in one sandbox, the agent's code in another.

Code in the process of its tests can end it with status 0, print what a passing run prints, patch the
runner, or read the expected values off the stack. Here the two share neither process nor file system: a
test's call of the solution becomes one line of JSON, and so does what it returns. All that the solution can
do is to return values; the verdict comes from the tests' own sandbox, where nothing of the agent's runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from vime_agents.errors import ContractError, GraderCrashed, GraderError, GraderTimeout, SandboxError
from vime_agents.hidden_tests import programs
from vime_agents.sandbox import Sandbox, SandboxProcess

MAX_LINE = 1 << 20
"""Bytes of a call or an answer."""
START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTestResult:
    """What became of one test."""

    name: str
    """`test_file.py::test_function`."""
    failure: str | None
    """Why it failed; None: it passed."""

    @property
    def passed(self) -> bool:
        """Whether it did."""
        return self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTestReport:
    """What became of all tests."""

    results: tuple[HiddenTestResult, ...]
    """In the order of the files and of what they define; at least one."""

    @property
    def fraction(self) -> float:
        """The share of the tests that passed."""
        return sum(result.passed for result in self.results) / len(self.results)

    @property
    def all_passed(self) -> bool:
        """Whether no test failed."""
        return all(result.passed for result in self.results)


async def run_hidden_tests(
    judge: Sandbox,
    solution: Sandbox,
    tests: Mapping[str, str],
    *,
    modules: Sequence[str],
    call_timeout_s: float = 5.0,
    timeout_s: float = 60.0,
) -> HiddenTestReport:
    """Run every function `test*` of the files, with the solution's modules standing for what they call.

    Args:
        judge: a sandbox with `python3` that nothing of the agent's ever was in.
        solution: one with `python3` that holds the agent's files.
        tests: name -> text of Python files; those whose name begins with `test` hold tests.
        modules: names that the tests import, and that are the agent's.
        call_timeout_s: of one call of the solution; a slower one fails the test.
        timeout_s: of all calls together; and of what the tests do between two calls.

    Raises:
        ContractError: no test file. GraderError: the tests themselves are broken. SandboxError.
    """
    names = [name for name in tests if Path(name).name.startswith("test") and name.endswith(".py")]
    if not names:
        raise ContractError(f"no file of {sorted(tests)} is called test*.py")
    for name, text in tests.items():
        await judge.write(name, text.encode())
    async with _running(judge, "judge") as program:
        code = _Solution(solution, call_timeout_s, timeout_s)
        try:
            with contextlib.suppress(BrokenPipeError):  # what it says then tells why
                await program.send(json.dumps([names, list(modules)]))
            return await _converse(program, code, timeout_s)
        finally:
            await code.aclose()


async def _converse(program: _Program, code: _Solution, timeout_s: float) -> HiddenTestReport:
    names: list[str] = []
    failures: dict[str, str | None] = {}
    while True:
        kind, *rest = json.loads(await _next_line(program, timeout_s))
        if kind == "tests":
            names = rest[0]
            if not names:
                raise GraderError("the hidden test files define no function called test*")
        elif kind == "call":
            with contextlib.suppress(BrokenPipeError):  # the next line says why
                await program.send(await code.answer(json.dumps(rest[0])))
        elif kind == "end":
            failures[rest[0]] = rest[1]
        elif kind == "done":
            return HiddenTestReport(
                results=tuple(HiddenTestResult(name=name, failure=failures[name]) for name in names)
            )


async def _next_line(program: _Program, timeout_s: float) -> str:
    """What the tests say."""
    try:
        async with asyncio.timeout(timeout_s):
            line = await program.line()
    except TimeoutError as error:
        raise GraderTimeout(f"the hidden tests took longer than {timeout_s:g} s without a call") from error
    except _TooLong as error:
        raise GraderError(f"the hidden tests make a call of more than {MAX_LINE} bytes") from error
    if line is None:
        raise GraderCrashed(f"the hidden tests ended ({await program.ended()}): {program.said}")
    return line


class _Solution:
    """The agent's code, in a process that is started again after each death."""

    def __init__(self, sandbox: Sandbox, call_timeout_s: float, timeout_s: float) -> None:
        self._sandbox, self._call_timeout_s, self._left_s = sandbox, call_timeout_s, timeout_s
        self._program: _Program | None = None
        self._started = False
        """Whether it ever was: all that then goes wrong may be its own doing."""
        self._stack = contextlib.AsyncExitStack()

    async def answer(self, call: str) -> str:
        """A line of the solution's, or one that says why there is none."""
        if self._left_s <= 0:
            return _gone("the time for all calls is used up")
        if self._program is None and (why := await self._start()):
            return _gone(why)
        assert self._program is not None
        program, begin = self._program, time.monotonic()
        limit_s = min(self._call_timeout_s, self._left_s)
        try:
            async with asyncio.timeout(limit_s):
                await program.send(call)
                line = await program.line()
        except TimeoutError:
            why = f"no answer within {limit_s:.3g} s"
        except BrokenPipeError:
            why = f"the solution ended: {await program.ended()}"
        except _TooLong as error:
            why = str(error)
        else:
            if line is not None:
                self._left_s -= time.monotonic() - begin
                return line
            why = f"the solution ended: {await program.ended()}"
        self._left_s -= time.monotonic() - begin
        await self.aclose()
        return _gone(why)

    async def _start(self) -> str | None:
        """Start it, which is not timed as a call; why it cannot be, after what it did before."""
        program = None
        try:
            program = await self._stack.enter_async_context(_running(self._sandbox, "solve"))
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await program.line() is not None
        except SandboxError:
            if not self._started or not await self._sandbox.alive():
                raise
            ready = False
        except TimeoutError as error:
            if not self._started:
                raise GraderTimeout(f"python3 did not start within {START_TIMEOUT_S:g} s") from error
            ready = False
        if not ready and not self._started:
            raise GraderCrashed("python3 does not start in the solution's sandbox")
        if program is None or not ready:
            await self.aclose()
            return "the solution cannot be started again"
        self._program, self._started = program, True
        return None

    async def aclose(self) -> None:
        """End it; the next call starts it anew."""
        self._program = None
        await self._stack.aclose()


class _TooLong(Exception):
    """A line that does not end."""


class _Program:
    """A program that speaks in lines."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process, self._output = process, process.output()
        self._held, self._said = bytearray(), bytearray()

    @property
    def said(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._said.decode(errors="replace").strip()[-1000:]

    async def send(self, line: str) -> None:
        """Raises BrokenPipeError: it ended."""
        await self._process.write(line.encode() + b"\n")

    async def line(self) -> str | None:
        """The next one; None: there will be none. Raises _TooLong."""
        while b"\n" not in self._held:
            piece = await anext(self._output, None)
            if piece is None:
                return None
            self._take(*piece)
        line, _, rest = bytes(self._held).partition(b"\n")
        self._held[:] = rest
        return line.decode(errors="replace")

    def _take(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if stream == "stderr":
            self._said += data
            del self._said[:-4000]
            return
        self._held += data
        if len(self._held) > MAX_LINE:
            raise _TooLong(f"an answer of more than {MAX_LINE} bytes")

    async def ended(self) -> str:
        """How it ended, where it has; it is killed otherwise: nobody listens to it any more."""
        await self._process.kill()
        return (await self._process.wait()).ended_by


@contextlib.asynccontextmanager
async def _running(sandbox: Sandbox, program: str) -> AsyncIterator[_Program]:
    process = await sandbox.spawn(["python3", "-I", "-c", f"{_programs()}\n\n{program}()\n"])
    try:
        yield _Program(process)
    finally:
        await asyncio.shield(process.kill())


@cache
def _programs() -> str:
    return Path(programs.__file__).read_text(encoding="utf-8")


def _gone(why: str) -> str:
    return json.dumps(["gone", why])


def module_of(path: str) -> str:
    """`a/b.py` -> `a.b`. Raises ContractError: no Python file."""
    file = Path(path)
    if file.suffix != ".py" or not all(part.isidentifier() for part in (*file.parts[:-1], file.stem)):
        raise ContractError(f"{path!r} is no Python module; write it like solution.py")
    return ".".join((*file.parts[:-1], file.stem))
