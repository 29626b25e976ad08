"""Sandboxes on this machine: one bubblewrap each, with a runner inside that answers in milliseconds.

What holds is in `Sandbox.enforced`: filesystem, network, processes, file_size, open_files, ttl, and memory
(the sum of all processes) or, where no control group can be made, memory_per_process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence

from vime_agents.errors import (
    CommandNotFound,
    ConfigError,
    ContractError,
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
    SandboxPermissionError,
    SandboxTimeout,
    SandboxUnavailable,
)
from vime_agents.sandbox import ExecResult, SandboxSpec
from vime_sandboxes import process, profile, runner
from vime_sandboxes.connection import Call, Connection
from vime_sandboxes.io_thread import on_io_thread, submit

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 15.0
"""How long the runner may take for what is not a command; added to a command's own time."""
MAX_STDIN_BYTES = 16 << 20
CANNOT_EXECUTE = 126
"""Exit status, as in a shell, of a command that exists but cannot be started."""
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class LocalSandbox:
    """One sandbox; see `vime_agents.sandbox.Sandbox`. Works from any event loop."""

    def __init__(self, spec: SandboxSpec, labels: Mapping[str, str], box: process.BoxProcess) -> None:
        self.id = f"local-{box.pid}-{secrets.token_hex(4)}"
        self.spec = spec
        self.labels = dict(labels)
        self.enforced = _enforced(spec, box)
        self._box = box
        self._connection: Connection | None = None
        self._oom_kills = 0
        self._release_task: asyncio.Task[None] | None = None
        self._on_release: Callable[[LocalSandbox], object] = lambda _: None

    # ---------------------------------------------------------------------- what everybody may call

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run a program to its end; see the protocol. `stdin` is a file of at most 16 MiB."""
        if isinstance(command, str) or not command:
            raise ContractError(f"a command is a non-empty list of strings, got {command!r:.200}")
        if len(stdin) > MAX_STDIN_BYTES:
            raise ContractError(f"stdin of {len(stdin)} bytes; above {MAX_STDIN_BYTES} write a file instead")
        pairs = [_encode(part) for item in (env or {}).items() for part in item]
        fields = [
            str(timeout_s).encode(),
            str(max_output).encode(),
            _encode(cwd or profile.WORKDIR),
            stdin,
            runner.pack(_encode(a) for a in command),
            runner.pack(pairs),
        ]
        return await on_io_thread(self._exec(command[0], fields, timeout_s, max_output))

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content; see the protocol."""
        return await on_io_thread(self._read(path, max_bytes))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders; see the protocol."""
        await on_io_thread(self._write(path, data, mode))

    async def alive(self) -> bool:
        """Whether it still answers."""
        try:
            await on_io_thread(self._ask(runner.PING, []))
        except (SandboxDead, SandboxTimeout):
            return False
        return True

    async def close(self) -> None:
        """End it and everything in it. Goes on in the background when the caller is cancelled."""
        await asyncio.shield(asyncio.wrap_future(submit(self._release())))

    # ------------------------------------------------------------------------- on the io thread only

    @classmethod
    async def _create(
        cls, spec: SandboxSpec, labels: Mapping[str, str], on_release: Callable[[LocalSandbox], object]
    ) -> LocalSandbox:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                box = await process.start(spec)
                sandbox = cls(spec, labels, box)
                sandbox._on_release = on_release
                try:
                    await sandbox._connect()
                except BaseException:
                    await asyncio.shield(sandbox._release())
                    raise
        except TimeoutError as error:
            raise SandboxTimeout(f"no sandbox within {START_TIMEOUT_S:g} s") from error
        return sandbox

    async def _connect(self) -> None:
        self._connection = await Connection.open(self._box.channel, self._lost)
        try:
            await self._connection.ready
        except SandboxDead as error:
            raise SandboxUnavailable(
                f"the runner did not start in the sandbox: {error}. {profile.ALTERNATIVES}"
            ) from error
        for path, text in self.spec.files.items():
            await self._write(path, text.encode(), 0o644)

    async def _ask(
        self, kind: int, fields: Sequence[bytes], *, timeout_s: float = 0.0, room: int = 0
    ) -> tuple[int, list[bytes], Call]:
        if self._connection is None:
            raise SandboxDead(f"sandbox {self.id} is closed")
        try:
            return await self._connection.call(
                kind, fields, timeout_s=timeout_s + ANSWER_TIMEOUT_S, room=room
            )
        except SandboxTimeout:
            await self._release()  # whatever it says later cannot be trusted
            raise

    async def _exec(
        self, program: str, fields: Sequence[bytes], timeout_s: float, max_output: int
    ) -> ExecResult:
        kind, answer, call = await self._ask(runner.EXEC, fields, timeout_s=timeout_s, room=2 * max_output)
        if kind == runner.FAILED:
            return _not_started(program, answer)
        code, number, timed_out, out_bytes, err_bytes = (int(f) for f in answer[:5])
        killed = number == 9 or code == 128 + 9
        return ExecResult(
            exit_code=None if number else code,
            stdout=b"".join(call.stdout),
            stderr=b"".join(call.stderr),
            stdout_bytes=out_bytes,
            stderr_bytes=err_bytes,
            duration_s=float(answer[5]),
            signal=number or None,
            timed_out=bool(timed_out),
            oom_killed=killed and not timed_out and self._new_oom_kills(),
        )

    def _new_oom_kills(self) -> bool:
        before, self._oom_kills = self._oom_kills, self._box.group.oom_kills()
        return self._oom_kills > before

    async def _read(self, path: str, max_bytes: int) -> bytes:
        content = bytearray()
        while True:
            fields = [_encode(path), str(len(content)).encode(), str(runner.CHUNK).encode()]
            kind, answer, _ = await self._ask(runner.READ, fields)
            if kind == runner.FAILED:
                raise _file_error(path, answer)
            content += answer[0]
            if len(content) > max_bytes:
                raise SandboxError(f"{path}: more than max_bytes={max_bytes}")
            if len(answer[0]) < runner.CHUNK:
                return bytes(content)

    async def _write(self, path: str, data: bytes, mode: int) -> None:
        for start in range(0, max(len(data), 1), runner.CHUNK):
            piece = data[start : start + runner.CHUNK]
            fields = [_encode(path), str(mode).encode(), b"1" if start else b"0", piece]
            kind, answer, _ = await self._ask(runner.WRITE, fields)
            if kind == runner.FAILED:
                raise _file_error(path, answer)

    def _lost(self, reason: str) -> str:
        kills = self._box.group.oom_kills()
        self._release_task = self._release_task or asyncio.ensure_future(self._end())
        details = [f"sandbox {self.id} is gone: {reason}"]
        details += (
            [f"{kills} processes were killed for lack of memory ({self.spec.memory_mb} MB)"] if kills else []
        )
        text = self._box.error_text()
        return "; ".join([*details, text] if text else details)

    async def _release(self) -> None:
        self._release_task = self._release_task or asyncio.ensure_future(self._end())
        await asyncio.shield(self._release_task)

    async def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        await self._box.end()
        self._on_release(self)


class LocalSandboxProvider:
    """Makes local sandboxes; see `vime_agents.sandbox.SandboxProvider`."""

    name = "local"

    def __init__(self) -> None:
        self._open: dict[str, LocalSandbox] = {}
        self._slots: asyncio.Semaphore | None = None

    async def create(self, spec: SandboxSpec, *, labels: Mapping[str, str] | None = None) -> LocalSandbox:
        """A ready sandbox. When the caller is cancelled, what was begun is finished and closed."""
        _check(spec)
        future = submit(self._create(spec, labels or {}))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(
                lambda f: f.exception() is None and submit(f.result()._release()) and None
            )
            raise

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))

    async def _create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> LocalSandbox:
        # More at once than there are cores would only make each of them slow.
        self._slots = self._slots or asyncio.Semaphore(2 * (os.cpu_count() or 1))
        async with self._slots:
            sandbox = await LocalSandbox._create(spec, labels, lambda s: self._open.pop(s.id, None))
        self._open[sandbox.id] = sandbox
        return sandbox


def _check(spec: SandboxSpec) -> None:
    if spec.image is not None:
        raise SandboxUnavailable(
            f"the local backend runs no images, got image={spec.image!r}; use image=None or another backend"
        )
    if spec.memory_mb < 32:
        raise ConfigError(f"SandboxSpec.memory_mb must be at least 32, got {spec.memory_mb}")
    for name in ("max_processes", "max_file_mb", "ttl_s"):
        if getattr(spec, name) <= 0:
            raise ConfigError(f"SandboxSpec.{name} must be positive, got {getattr(spec, name)}")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"SandboxSpec.env: {name!r}={value!r} cannot be an environment variable")


def _enforced(spec: SandboxSpec, box: process.BoxProcess) -> frozenset[str]:
    found = {"filesystem", "file_size", "open_files", "processes", "ttl"}
    found.add("memory" if "memory" in box.group.controllers else "memory_per_process")
    if not spec.network:
        found.add("network")
    return frozenset(found)


def _not_started(program: str, answer: Sequence[bytes]) -> ExecResult:
    stage, number, text = answer[0].decode(), int(answer[1]), answer[2]
    if stage == "cwd":
        raise _file_error("cwd", answer)
    if stage == "exec" and number in _MISSING:
        raise CommandNotFound(f"no program {program!r} in the sandbox")
    if stage == "exec" and number in _FORBIDDEN:
        raise SandboxPermissionError(number, f"may not run {program!r} in the sandbox")
    # Too many processes, too long arguments: what the inside did, not what the infrastructure did.
    return ExecResult(
        exit_code=CANNOT_EXECUTE,
        stdout=b"",
        stderr=text,
        stdout_bytes=0,
        stderr_bytes=len(text),
        duration_s=0.0,
    )


def _file_error(path: str, answer: Sequence[bytes]) -> SandboxError:
    number, text = int(answer[1]), answer[2].decode(errors="replace")
    if number in _MISSING:
        return SandboxFileNotFound(number, f"{path}: {text} (in the sandbox)")
    if number in _FORBIDDEN:
        return SandboxPermissionError(number, f"{path}: {text} (in the sandbox)")
    return SandboxError(f"{path}: {text} (in the sandbox)")


def _encode(text: str) -> bytes:
    # Any text of a model's must pass, lone surrogates too.
    return text.encode("utf-8", "surrogatepass")
