"""Write the members of an untrusted archive below one folder, and never anywhere else.

Two rules make that easy to see. Nothing is opened through a link: every folder on the way is opened by
itself, relative to the one before, and must be a folder. And a link may be left behind only when whoever
follows it later stays inside, which is checked when everything is there.
"""

from __future__ import annotations

import contextlib
import os
import stat

from vime_agents.errors import SandboxError, SandboxOutputTooLarge
from vime_sandboxes.tar_read import Entry

MAX_ENTRIES = 1_000_000
MAX_DEPTH = 200
"""Most folders inside each other."""
_MAX_HOPS = 40
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Parts = tuple[bytes, ...]


class TreeWriter:
    """A `tar_read.Sink` that writes below the folder that `root` is open on; `root` must be empty.

    Raises (every method):
        SandboxError: a member leads out, or is there twice. SandboxOutputTooLarge: more than `max_bytes`.
    """

    def __init__(self, root: int, *, max_bytes: int) -> None:
        self.single: bytes | None = None
        """The name of the file, when the archive holds one file and not a folder's content."""
        self._root = root
        self._max_bytes, self._bytes, self._entries = max_bytes, 0, 0
        self._links: list[tuple[Parts, bytes]] = []
        self._parent: tuple[Parts, int] | None = None
        """The folder of the last member, left open: the next one is likely in it too."""
        self._file: int | None = None

    def entry(self, entry: Entry) -> None:
        """Begin a member."""
        self._end_file()
        parts = _parts(entry.path)
        self._count(entry, parts)
        if entry.kind == "folder":
            self._folder(parts, entry.mode)
            return
        parent, name = self._open_parent(parts), parts[-1]
        try:
            if entry.kind == "file":
                self._file = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
                os.fchmod(self._file, entry.mode & 0o755 | 0o600)
            elif entry.kind == "link":
                os.symlink(entry.link, name, dir_fd=parent)
                self._links.append((parts, entry.link))
            else:
                self._hard_link(parts, _parts(entry.link))
        except FileExistsError as error:
            raise SandboxError(f"{entry.path!r:.300} is there twice") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"cannot write {entry.path!r:.300}: {error}") from error

    def content(self, piece: memoryview) -> None:
        """Some content of the last member."""
        assert self._file is not None
        try:
            while piece:
                piece = piece[os.write(self._file, piece) :]
        except OSError as error:
            raise SandboxError(f"cannot write what was downloaded: {error}") from error

    def close(self) -> None:
        """Close every open file."""
        self._end_file()
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def check_links(self, existing: int | None) -> None:
        """Refuse links that lead out; `existing`: the open folder that the tree will be merged into."""
        roots = (self._root,) if existing is None else (self._root, existing)
        for parts, link in self._links:
            if _leads_out(roots, parts, link):
                raise SandboxError(f"the link {b'/'.join(parts)!r:.300} -> {link!r:.300} leads out")

    def _count(self, entry: Entry, parts: Parts) -> None:
        self._entries += 1
        self._bytes += entry.size
        if self._bytes > self._max_bytes:
            raise SandboxOutputTooLarge(f"more than max_bytes={self._max_bytes}")
        if self._entries > MAX_ENTRIES:
            raise SandboxOutputTooLarge(f"more than {MAX_ENTRIES} files")
        if self._entries == 1 and parts and entry.kind == "file":
            self.single = parts[-1]
        elif self.single is not None or (not parts and entry.kind != "folder"):
            raise SandboxError(f"{entry.path!r:.300} is not what was asked for")

    def _end_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _folder(self, parts: Parts, mode: int) -> None:
        folder = _open_folder(self._open_parent(parts), parts[-1]) if parts else os.dup(self._root)
        os.fchmod(folder, mode & 0o755 | 0o700)
        os.close(folder)

    def _hard_link(self, parts: Parts, earlier: Parts) -> None:
        if not earlier:
            raise SandboxError(f"{b'/'.join(parts)!r:.300} is a hard link to nothing")
        source = self._open_parent(earlier, create=False)
        if not stat.S_ISREG(os.lstat(earlier[-1], dir_fd=source).st_mode):
            raise SandboxError(f"{b'/'.join(parts)!r:.300} is a hard link to what is not a file")
        source = os.dup(source)
        try:
            target = self._open_parent(parts)
            os.link(earlier[-1], parts[-1], src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        finally:
            os.close(source)

    def _open_parent(self, parts: Parts, *, create: bool = True) -> int:
        """The folder of a member, made where it is missing. It stays ours to close."""
        parent = parts[:-1]
        if self._parent is not None and self._parent[0] == parent:
            return self._parent[1]
        folder = os.dup(self._root)
        try:
            for name in parent:
                inner = _open_folder(folder, name, create=create)
                os.close(folder)
                folder = inner
        except BaseException:
            os.close(folder)
            raise
        if self._parent is not None:
            os.close(self._parent[1])
        self._parent = parent, folder
        return folder


def _parts(path: bytes) -> Parts:
    parts = tuple(p for p in path.split(b"/") if p not in (b"", b"."))
    if path.startswith(b"/") or b".." in parts or b"\0" in path:
        raise SandboxError(f"{path!r:.300} leads out")
    if len(parts) > MAX_DEPTH:
        raise SandboxError(f"{path!r:.300} is more than {MAX_DEPTH} folders deep")
    return parts


def _open_folder(parent: int, name: bytes, *, create: bool = True) -> int:
    try:
        if create:
            with contextlib.suppress(FileExistsError):  # it is opened below, if it is a folder
                os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except OSError as error:
        raise SandboxError(f"{name!r:.300} is no folder to write into: {error}") from error


def _leads_out(roots: tuple[int, ...], place: Parts, link: bytes) -> bool:
    """Whether following `link`, which lies at `place`, could end up outside; walks as the kernel does."""
    position = list(place[:-1])
    todo, hops = link.split(b"/")[::-1], 1
    if link.startswith(b"/"):
        return True
    while todo:
        part = todo.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            # Of something that is not there yet, nobody knows what is above it.
            if not position or not _is_folder(roots, position):
                return True
            position.pop()
            continue
        position.append(part)
        further = _link_at(roots, position)
        if further is not None:
            hops += 1
            if further.startswith(b"/") or hops > _MAX_HOPS:
                return True
            position.pop()
            todo += further.split(b"/")[::-1]
    return False


def _link_at(roots: tuple[int, ...], position: list[bytes]) -> bytes | None:
    for root in roots:
        try:
            if stat.S_ISLNK(os.lstat(b"/".join(position), dir_fd=root).st_mode):
                return os.readlink(b"/".join(position), dir_fd=root)
            return None
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def _is_folder(roots: tuple[int, ...], position: list[bytes]) -> bool:
    for root in roots:
        try:
            return stat.S_ISDIR(os.lstat(b"/".join(position), dir_fd=root).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return False


def merge(source: int, target: int) -> None:
    """Move what is in one open folder into another; files and links replace files and links.

    Raises:
        SandboxError: a folder would replace something else, or something else a folder.
    """
    for name in os.listdir(source):
        name = os.fsencode(name)
        seen = os.lstat(name, dir_fd=source)
        if not stat.S_ISDIR(seen.st_mode):
            try:
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            except OSError as error:
                raise SandboxError(f"cannot put {name!r:.300} into place: {error}") from error
            continue
        outer = _open_folder(target, name)
        try:
            inner = os.open(name, _OPEN_FOLDER, dir_fd=source)
            try:
                merge(inner, outer)
            finally:
                os.close(inner)
        finally:
            os.close(outer)
