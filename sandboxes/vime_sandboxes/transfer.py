"""Move files and trees between this machine and a sandbox, over nothing but `Sandbox.spawn`.

Or over a pipe to the program inside, where the sandbox is on this machine: see `transfer_pipe`.

Inside, the sandbox's `tar` does the work, or python3 where there is none. What comes out is never trusted:
see `tar_read` and `tree_write`. Modes are kept but for set-user, set-group and (coming out) write access of
others; owners are not, times only on the way in. Nothing is held in memory but a few pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from vime_agents.errors import (
    CommandNotFound,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult, Sandbox, SandboxProcess
from vime_sandboxes.download_folder import DownloadFolder
from vime_sandboxes.tar_read import TarReader
from vime_sandboxes.tar_write import BLOCK_BYTES, archive
from vime_sandboxes.transfer_pipe import PipeEnd
from vime_sandboxes.tree_write import TreeWriter

T = TypeVar("T")
Piece = bytes | memoryview
Blocks = Generator[bytes, None, None]
Spawn = Callable[[Sequence[str]], Awaitable[SandboxProcess]]
_MISSING = 44
"""Exit status of our programs inside: there is no such path."""
_MAX_COMPLAINT_BYTES = 4096
_LAST_WORDS_S = 1.0
_BATCH_PIECES = 1000

# $1: where, $2: the Python program that does the same. GNU tar, which alone heeds TAR_OPTIONS, then moves
# 64 KiB at a time instead of 10. Its complaints are read below, so they are to be in English.
_SET = "export TAR_OPTIONS=--blocking-factor=128 LC_ALL=C; "
_UNPACK = (
    _SET + 'mkdir -p -- "$1" || exit; command -v tar >/dev/null 2>&1 || exec python3 -IS -c "$2" "$1"; '
    'exec tar -xpof - -C "$1"'
)
_UNPACK_PYTHON = """\
import os, sys, tarfile
tarfile.TarFile.chown = lambda *_, **__: None
os.makedirs(sys.argv[1], exist_ok=True)
try:
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        keep = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        tar.extractall(sys.argv[1], **keep)
except OSError as error:
    sys.exit(str(error))
"""
_PACK = (
    _SET
    + f'[ -e "$1" ] || exit {_MISSING}; command -v tar >/dev/null 2>&1 || exec python3 -IS -c "$2" "$1"; '
    'if [ -d "$1" ]; then exec tar -cf - -C "$1" .; fi; '
    'exec tar -chf - -C "$(dirname -- "$1")" -- "$(basename -- "$1")"'
)
_PACK_PYTHON = f"""\
import os, sys, tarfile
def copy(source, target, length, *_, **__):
    while length:
        size = min(length, {1 << 16})
        piece = source.read(size) or bytes(size)  # it shrank meanwhile
        target.write(piece)
        length -= len(piece)
tarfile.copyfileobj = copy
def add(path, name):
    try:
        tar.add(path, name, recursive=False)
        inside = os.listdir(path) if os.path.isdir(path) and not os.path.islink(path) else ()
    except FileNotFoundError:
        return  # it went meanwhile
    for entry in inside:
        add(os.path.join(path, entry), name + "/" + entry)
path = os.path.realpath(sys.argv[1])
if not os.path.exists(path):
    sys.exit({_MISSING})
try:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        add(path, "." if os.path.isdir(path) else os.path.basename(path))
except OSError as error:
    sys.exit(str(error))
"""
# GNU tar ends with status 1 for these: the archive is whole, a file in it was written to meanwhile. Nobody
# inside can so keep the files from being taken, by writing to one all the time. Some begin with a capital.
_HARMLESS = (
    "file changed as we read it",
    "file removed before we read it",
    "padding with zeros",  # it shrank
    "socket ignored",
)


@runtime_checkable
class TakesFiles(Protocol):
    """A sandbox on this machine."""

    async def spawn_on(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> SandboxProcess:
        """As `Sandbox.spawn`, with open files of this process as standard streams of the program."""
        ...


async def upload(sandbox: Sandbox, source: Path, target: str) -> None:
    """Copy the file `source` to the path `target`, or the content of the folder `source` into the folder.

    What is there already and has another name stays; missing folders are made.

    Raises:
        SandboxError: `source` has something that is neither file, folder nor link, or cannot be read.
        SandboxDiskFull: no room inside, or a file larger than `max_file_mb`. SandboxPermissionError: no
        access inside.
    """
    is_folder = await in_thread(source.is_dir)
    folder, name = (target, None) if is_folder else posixpath.split(target.rstrip("/"))
    try:
        blocks = archive(source, name)
        await _feed(sandbox, blocks, folder or ".", f"upload of {str(source)!r} to {target!r}")
    except SandboxError:
        raise
    except OSError as error:
        raise SandboxError(f"cannot upload {str(source)!r}: {error}") from error


async def download(sandbox: Sandbox, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
    """Copy the file `source` to the path `target`, or the content of the folder `source` into the folder.

    A new `target` appears whole or not at all. In a folder that exists, nothing changes before everything has
    arrived and been checked; then each file comes whole, and replaces a file or link of its name.

    Raises:
        SandboxFileNotFound, SandboxPermissionError: inside.
        SandboxOutputTooLarge: more than `max_bytes` of content.
        SandboxError: a member is a device, or would lead out of `target`; or `target` cannot be written.
    """
    what = f"download of {source!r}"
    try:
        async with DownloadFolder.opened(target, in_thread) as folder:
            writer = TreeWriter(folder.fd, max_bytes=max_bytes)
            try:
                reader = TarReader(writer)
                await _drain(sandbox, source, what, reader.feed)
                reader.close()
                await in_thread(writer.check_links, folder.existing)
            finally:
                writer.close()
            await in_thread(folder.publish, writer.single)
    except SandboxOutputTooLarge as error:
        raise SandboxOutputTooLarge(f"{what}: {error}") from error


async def pack(sandbox: Sandbox, path: str, file: Path, *, max_bytes: int = 1 << 34) -> int:
    """Keep the folder `path` of the sandbox as the tar file `file`, which appears whole; its size in bytes.

    The file is not checked: give it to nothing but `unpack`. Raises as `download` does.
    """
    size, part = 0, file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        with part.open("xb") as output:

            def keep(piece: Piece) -> None:
                nonlocal size
                size += len(piece)
                if size > max_bytes:
                    raise SandboxOutputTooLarge(f"packing of {path!r}: more than max_bytes={max_bytes}")
                output.write(piece)

            await _drain(sandbox, path, f"packing of {path!r}", keep)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return size


async def unpack(sandbox: Sandbox, file: Path, path: str) -> None:
    """Put what `pack` kept into the folder `path`. What is there already stays. Raises as `upload` does."""
    await _feed(sandbox, _blocks(file), path, f"unpacking into {path!r}")


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a short blocking function off the loop.

    Its end is waited for, also when the caller is cancelled: nobody may take away what it works on.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settle(task)
        raise


async def _feed(sandbox: Sandbox, blocks: Blocks, folder: str, what: str) -> None:
    """Unpack a tar stream inside."""
    with contextlib.closing(blocks):
        if isinstance(sandbox, TakesFiles):
            result, said = await _feed_pipe(sandbox, blocks, folder)
        else:
            result, said = await _feed_frames(sandbox, blocks, folder)
    _check(result, said, what, folder)


async def _feed_pipe(sandbox: TakesFiles, blocks: Blocks, folder: str) -> tuple[ExecResult, bytearray]:
    pipe = PipeEnd(to_read=False)

    def send() -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended early: its status says why
            pipe.write(blocks)

    return await _on_pipe(sandbox, pipe, send, _UNPACK, _UNPACK_PYTHON, folder)


async def _feed_frames(sandbox: Sandbox, blocks: Blocks, folder: str) -> tuple[ExecResult, bytearray]:
    async with _started(sandbox.spawn, _UNPACK, _UNPACK_PYTHON, folder) as process:
        said = bytearray()
        saying = asyncio.ensure_future(_complaints(process, said))
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended early: its status says why
                async with contextlib.aclosing(_ahead(blocks)) as ready:
                    async for block in ready:
                        await process.write(block)
                await process.close_stdin()
            return await _ended(process.wait(), saying), said
        finally:
            saying.cancel()
            await _settle(saying)


async def _drain(sandbox: Sandbox, path: str, what: str, use: Callable[[Piece], object]) -> None:
    """Pack a path inside, and give every piece of the tar stream to `use`, in a thread."""
    if not isinstance(sandbox, TakesFiles):
        await _consume(_packed(sandbox, path, what), use)
        return
    pipe = PipeEnd(to_read=True)

    def receive() -> None:
        for piece in pipe.pieces():
            use(piece)

    _check(*await _on_pipe(sandbox, pipe, receive, _PACK, _PACK_PYTHON, path), what, path)


async def _on_pipe(
    sandbox: TakesFiles, pipe: PipeEnd, work: Callable[[], None], script: str, program: str, path: str
) -> tuple[ExecResult, bytearray]:
    """Run a program inside on a pipe, and `work` at our end; how it ended, and what it complained of."""
    # A thread for itself: it may have to wait for what is inside, and the others must not wait with it.
    thread = ThreadPoolExecutor(1, "vime-transfer")
    try:
        async with _started(
            partial(sandbox.spawn_on, **{pipe.stream: pipe.other}), script, program, path
        ) as process:
            pipe.close_other()
            said = bytearray()
            saying = asyncio.ensure_future(_complaints(process, said))
            ending = asyncio.ensure_future(process.wait())
            ending.add_done_callback(lambda _: pipe.program_ended())
            working = asyncio.get_running_loop().run_in_executor(thread, work)
            try:
                await asyncio.shield(working)
                return await _ended(ending, saying), said
            finally:
                pipe.give_up()
                saying.cancel()
                ending.cancel()
                for work_left in (working, saying, ending):
                    await _settle(work_left)
    finally:
        thread.shutdown(wait=False)
        pipe.close()


async def _ahead(blocks: Blocks) -> AsyncGenerator[bytes, None]:
    """The blocks; the next one is read while the last one is sent."""
    coming = asyncio.ensure_future(in_thread(lambda: next(blocks, b"")))
    try:
        while block := await coming:
            coming = asyncio.ensure_future(in_thread(lambda: next(blocks, b"")))
            yield block
    finally:
        await _settle(coming)


async def _consume(batches: AsyncGenerator[list[bytes], None], use: Callable[[Piece], object]) -> None:
    """Give every piece to `use`, in a thread; the next ones are received meanwhile."""

    def use_all(batch: list[bytes]) -> None:
        for piece in batch:
            use(piece)

    using: asyncio.Future[None] | None = None
    try:
        async with contextlib.aclosing(batches):
            async for batch in batches:
                if using is not None:
                    await using
                using = asyncio.ensure_future(in_thread(use_all, batch))
        if using is not None:
            await using
    finally:
        if using is not None:
            await _settle(using)


async def _settle(work: asyncio.Future[Any]) -> None:
    """Wait for the end of what was begun, whatever it is, and however often the caller is cancelled."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            cancelled = True
    if not work.cancelled():
        work.exception()  # told already, or nobody wants to know
    if cancelled:
        raise asyncio.CancelledError


async def _packed(sandbox: Sandbox, path: str, what: str) -> AsyncGenerator[list[bytes], None]:
    """A path inside as a tar stream, in batches of about BLOCK_BYTES or less."""
    async with _started(sandbox.spawn, _PACK, _PACK_PYTHON, path) as process:
        batch: list[bytes] = []
        size, said = 0, b""
        async for stream, piece in process.output():
            if stream == "stderr":
                said = (said + piece)[-_MAX_COMPLAINT_BYTES:]
                continue
            batch.append(piece)
            size += len(piece)
            if size >= BLOCK_BYTES or len(batch) == _BATCH_PIECES:
                yield batch
                batch, size = [], 0
        _check(await process.wait(), said, what, path)
        yield batch


async def _complaints(process: SandboxProcess, said: bytearray) -> None:
    async for _, piece in process.output():
        said += piece
        del said[:-_MAX_COMPLAINT_BYTES]


async def _ended(ending: Awaitable[ExecResult], saying: asyncio.Future[None]) -> ExecResult:
    """Wait for a program's end, but for its streams' only a moment: others inside may hold them."""
    result = await ending
    await asyncio.wait({saying}, timeout=_LAST_WORDS_S)
    if saying.done():
        saying.result()
    return result


@contextlib.asynccontextmanager
async def _started(spawn: Spawn, script: str, program: str, path: str) -> AsyncIterator[SandboxProcess]:
    """The program inside; killed at the end when it has not ended by itself."""
    if not path.startswith("/"):
        path = f"./{path}"  # not an option, whatever it begins with
    commands: Sequence[Sequence[str]] = (
        ("sh", "-c", script, "sh", path, program),
        ("python3", "-IS", "-c", program, path),
    )
    for command in commands:
        try:
            process = await spawn(command)
            break
        except CommandNotFound:
            continue
    else:
        raise SandboxUnsupported("moving files needs sh and tar, or python3, in the sandbox")
    try:
        yield process
    finally:
        with contextlib.suppress(SandboxError):  # the sandbox is gone, and the program with it
            await asyncio.shield(process.kill())


def _check(result: ExecResult, said: bytes | bytearray, what: str, path: str) -> None:
    """Raise when a program of ours inside did not do its work."""
    if result.ok:
        return
    text = said.decode(errors="replace").strip()
    lines = text.splitlines()
    if result.exit_code == 1 and lines and all(line.lower().endswith(_HARMLESS) for line in lines):
        return
    if result.exit_code == _MISSING:
        raise SandboxFileNotFound(f"{what}: no {path!r} in the sandbox")
    if result.signal == signal.SIGXFSZ or "File too large" in text:
        raise SandboxDiskFull(f"{what}: a file is larger than max_file_mb allows. {text}")
    if "No space left" in text:
        raise SandboxDiskFull(f"{what}: {text}")
    if "Permission denied" in text or "Read-only file system" in text:
        raise SandboxPermissionError(f"{what}: {text}")
    raise SandboxError(f"{what}: the program inside ended with {result.ended_by}. {text}")


def _blocks(file: Path) -> Blocks:
    with file.open("rb", buffering=0) as source:
        while block := source.read(BLOCK_BYTES):
            yield block
