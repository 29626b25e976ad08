"""A model's answers in a SQLite file, so that the same request of the same episode is not paid for twice.

Whatever goes wrong with the file after it was opened costs the answers that it could have held, and nothing
else: no lookup and no store raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vime_agents.errors import ConfigError, ContractError
from vime_agents.messages import check_message
from vime_agents.policy import Generation, Usage

SCHEMA = 1
"""Of the table, of the answers in it and of what their keys are made of."""
_APPLICATION_ID = 0x56494D45
"""SQLite keeps it in the file's header, so that no other program's database is taken for one of ours."""
_IDENTITY = """
SELECT (SELECT application_id FROM pragma_application_id),
       (SELECT user_version FROM pragma_user_version),
       (SELECT count(*) FROM sqlite_master)
"""
"""In one statement, lest another process makes the file in between."""
_TABLE = "CREATE TABLE answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)"
_HEADER_BYTES = 100  # https://www.sqlite.org/fileformat.html, section 1.3
_CHECKED_BYTES = 256 << 20
"""Larger files are not read through when they are opened."""
_CHECKSUM_BYTES = 8
"""In front of each answer: SQLite itself sees no flipped bit in one."""
_OPEN_S, _LOOKUP_S, _READ_BUSY_S = 10.0, 5.0, 0.1


class ResponseCache:
    """Key -> answer; any number of processes may have the file open.

    Guarantees: an answer that was stored comes back exactly, whatever is in its text, or not at all; the
    event loop never waits for the disk; of two answers for one key the first one stays.
    """

    def __init__(
        self, path: str | Path, *, busy_s: float = 5.0, on_trouble: Callable[[str], None] | None = None
    ) -> None:
        """Open the file, or make it and its folder.

        Args:
            path: the file; SQLite puts `-wal` and `-shm` beside it while it is open.
            busy_s: seconds that a store waits while another process writes.
            on_trouble: is told once, in words, the first time that the file cannot be read or written; on
                any thread.

        Raises:
            ConfigError: it cannot be opened, or is no cache of this release.
        """
        self.path = Path(path).absolute()  # so that SQLite takes no name for something else, as ":memory:"
        self.failures = 0
        """Answers that could not be looked up or stored."""
        self._on_trouble = on_trouble
        self._closed = False
        self._lock = threading.Lock()
        self._pending: list[tuple[bytes, bytes]] = []
        self._writes = _opened(self.path, busy_s)
        self._reads = sqlite3.connect(
            self.path, timeout=_READ_BUSY_S, isolation_level=None, check_same_thread=False
        )
        # One thread each: a store that waits for another process must not hold up the lookups.
        self._reader = ThreadPoolExecutor(1, "response-cache-reader")
        self._writer = ThreadPoolExecutor(1, "response-cache-writer")

    async def get(self, key: bytes) -> Generation | None:
        """The answer; None: there is none, or it could not be read."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_S):
                data = await loop.run_in_executor(self._reader, self._read, key)
            return None if data is None else _decoded(data)
        except (sqlite3.Error, ValueError, ContractError, TimeoutError) as error:
            self._failed(1, str(error) or f"no answer within {_LOOKUP_S:g} s")
            return None

    def put(self, key: bytes, generation: Generation) -> None:
        """Store an answer soon, and at the latest in `close`."""
        with self._lock:
            self._pending.append((key, _encoded(generation)))
        self._writer.submit(self._flush)

    def close(self) -> None:
        """Store what is left and free the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._writer.shutdown()
        closed = self._reader.submit(self._reads.close)
        self._reader.shutdown(wait=False)
        with contextlib.suppress(TimeoutError):  # a disk that does not answer: its thread closes it, if ever
            closed.result(_LOOKUP_S)
        self._writes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, key: bytes) -> bytes | None:
        row = self._reads.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def _flush(self) -> None:
        """Everything that came meanwhile goes in one transaction."""
        with self._lock:
            batch, self._pending = self._pending, []
        if not batch:
            return
        try:
            with _transaction(self._writes):
                self._writes.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", batch)
        except sqlite3.Error as error:
            self._failed(len(batch), str(error))

    def _failed(self, num: int, problem: str) -> None:
        with self._lock:
            tell = not self.failures
            self.failures += num
        if tell and self._on_trouble is not None:
            self._on_trouble(f"{self.path}: {problem}")


def check_cache_file(path: str | Path) -> None:
    """Raises ConfigError: the file is there, and no cache of this release. Changes and makes nothing."""
    path = Path(path)
    if not path.exists():
        return
    _check_writable(path)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise ConfigError(f"--cache: cannot read {path}: {error.strerror}") from error
    # Not by SQLite: of a file that another process writes to, it may see half of a change.
    if header and (len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0")):
        raise _unusable(path, sqlite3.DatabaseError("file is not a database"))
    if header:
        schema, version, application = (int.from_bytes(header[at : at + 4], "big") for at in (40, 60, 68))
        _check_identity(path, application, version, schema)


def _opened(path: Path, busy_s: float) -> sqlite3.Connection:
    """A connection to write with. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--cache: cannot make the folder {path.parent}: {error.strerror}") from error
    if path.exists():
        _check_writable(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=_OPEN_S, isolation_level=None, check_same_thread=False)
        _make(connection, path)
        connection.execute(f"PRAGMA busy_timeout = {round(busy_s * 1000)}")
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise _unusable(path, error) from error
        raise
    return connection


def _make(connection: sqlite3.Connection, path: Path) -> None:
    _is_ours(connection, path)  # before anything is written to what is somebody else's
    _begin_wal(connection)
    # A power cut may lose the last answers, but never the file; that spares a sync for each of them.
    connection.execute("PRAGMA synchronous = NORMAL")
    with _transaction(connection):
        if not _is_ours(connection, path):
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
    if path.stat().st_size <= _CHECKED_BYTES:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found.replace("\n", " "))


def _begin_wal(connection: sqlite3.Connection) -> None:
    """Readers and a writer side by side. SQLite's own wait for others does not cover this switch."""
    deadline = time.monotonic() + _OPEN_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it is a cache of this release; False: it is empty. Raises ConfigError: something else."""
    return _check_identity(path, *connection.execute(_IDENTITY).fetchone())


def _check_identity(path: Path, application: int, version: int, tables: int) -> bool:
    """As `_is_ours`; `tables`: 0 when there are none."""
    if not (application or version or tables):
        return False
    if application != _APPLICATION_ID:
        raise ConfigError(f"--cache: {path} is a SQLite database of something else; give another file")
    if version != SCHEMA:
        raise ConfigError(
            f"--cache: {path} has schema version {version}, and this release reads and writes {SCHEMA}; "
            "give another file"
        )
    return True


def _check_writable(path: Path) -> None:
    """Raises ConfigError. SQLite would open it, and leave files beside it that keep its owner out."""
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--cache: {path} cannot be written; make it writable, or give another file")


def _unusable(path: Path, error: sqlite3.Error) -> ConfigError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return ConfigError(f"--cache: another process holds {path} ({error}); try again")
    return ConfigError(f"--cache: {path} cannot be used ({error}); give another file, or delete it")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # of some errors SQLite rolls back by itself
            connection.rollback()
        raise


def exact_bytes(value: Any) -> bytes:
    """Compact JSON, keys in their order. Half a surrogate pair, which is no UTF-8, comes back as it was."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _encoded(generation: Generation) -> bytes:
    usage = asdict(generation.usage)
    data = exact_bytes([generation.message, generation.finish_reason, usage])
    return _checksum(data) + data


def _decoded(data: bytes) -> Generation:
    """The inverse of `_encoded`. Raises ValueError, ContractError: it is none."""
    checksum, data = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if checksum != _checksum(data):
        raise ValueError("an answer is damaged")
    try:
        message, finish_reason, usage = json.loads(data.decode("utf-8", "surrogatepass"))
        return Generation(message=check_message(message), finish_reason=finish_reason, usage=Usage(**usage))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not an answer: {error}") from error


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECKSUM_BYTES]
