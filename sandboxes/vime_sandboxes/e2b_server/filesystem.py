"""Folders and files inside one sandbox: E2B's Connect-RPC service `filesystem.Filesystem`.

What the contract does not offer is done by a small program inside, with the sandbox's own rights.
"""

from __future__ import annotations

import json
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.filesystem import filesystem_pb
from e2b.envd.filesystem.filesystem_connect import Filesystem
from protobuf.wkt import Timestamp

from vime_agents.errors import SandboxError
from vime_sandboxes.e2b_server.boxes import Boxes
from vime_sandboxes.e2b_server.processes import box_of, resolve, rpc_error, user_of

MAX_LISTING_BYTES = 16 << 20
_CODES = {
    "FileNotFoundError": Code.NOT_FOUND,
    "NotADirectoryError": Code.INVALID_ARGUMENT,
    "FileExistsError": Code.ALREADY_EXISTS,
    "PermissionError": Code.PERMISSION_DENIED,
}
_PROGRAM = """\
import grp, json, os, pwd, shutil, stat, sys

def name(find, number):
    try:
        return find(number)[0]
    except KeyError:
        return str(number)

def entry(path):
    own = os.lstat(path)
    link = stat.S_ISLNK(own.st_mode)
    try:
        seen = os.stat(path)
    except OSError:  # a link to nothing
        seen = own
    mode = seen.st_mode
    kind = "file" if stat.S_ISREG(mode) else "dir" if stat.S_ISDIR(mode) else ""
    return {"name": os.path.basename(path), "path": path, "kind": kind, "size": seen.st_size,
            "mode": stat.S_IMODE(mode), "permissions": stat.filemode(own.st_mode),
            "owner": name(pwd.getpwuid, own.st_uid), "group": name(grp.getgrgid, own.st_gid),
            "modified": own.st_mtime, "target": os.path.realpath(path) if link else None}

def listed(top, depth):
    found = []
    for item in sorted(os.listdir(top)):
        path = os.path.join(top, item)
        found.append(entry(path))
        if depth > 1 and os.path.isdir(path) and not os.path.islink(path):
            found += listed(path, depth - 1)
    return found

def stat_(path):
    return [entry(path)]

def make(path):
    os.makedirs(path)
    return [entry(path)]

def move(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(source, target)
    return [entry(target)]

def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
    return []

def list_(path, depth):
    return listed(path, int(depth))

actions = {"stat": stat_, "list": list_, "make": make, "move": move, "remove": remove}
try:
    print(json.dumps({"entries": actions[sys.argv[1]](*sys.argv[2:])}))
except OSError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


class FilesystemService(Filesystem):
    """The service; which sandbox is meant comes in a header. Watching folders is not offered."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def stat(self, request: filesystem_pb.StatRequest, ctx: Any, /) -> filesystem_pb.StatResponse:  # noqa: D102
        (entry,) = await self._do(ctx, "stat", request.path)
        return filesystem_pb.StatResponse(entry=entry)

    async def make_dir(  # noqa: D102
        self, request: filesystem_pb.MakeDirRequest, ctx: Any, /
    ) -> filesystem_pb.MakeDirResponse:
        (entry,) = await self._do(ctx, "make", request.path)
        return filesystem_pb.MakeDirResponse(entry=entry)

    async def move(self, request: filesystem_pb.MoveRequest, ctx: Any, /) -> filesystem_pb.MoveResponse:  # noqa: D102
        (entry,) = await self._do(ctx, "move", request.source, request.destination)
        return filesystem_pb.MoveResponse(entry=entry)

    async def list_dir(  # noqa: D102
        self, request: filesystem_pb.ListDirRequest, ctx: Any, /
    ) -> filesystem_pb.ListDirResponse:
        entries = await self._do(ctx, "list", request.path, depth=max(request.depth, 1))
        return filesystem_pb.ListDirResponse(entries=entries)

    async def remove(self, request: filesystem_pb.RemoveRequest, ctx: Any, /) -> filesystem_pb.RemoveResponse:  # noqa: D102
        await self._do(ctx, "remove", request.path)
        return filesystem_pb.RemoveResponse()

    async def _do(
        self, ctx: Any, action: str, *paths: str, depth: int | None = None
    ) -> list[filesystem_pb.EntryInfo]:
        box, user = box_of(self._boxes, ctx), user_of(ctx)
        assert box.sandbox is not None
        more = [] if depth is None else [str(depth)]
        command = [
            "python3",
            "-IS",
            "-c",
            _PROGRAM,
            action,
            *(resolve(box, p) for p in paths),
            *more,
        ]
        try:
            result = await box.sandbox.exec(command, user=user, max_output=MAX_LISTING_BYTES)
        except SandboxError as error:
            raise rpc_error(error, user) from error
        if not result.ok or result.truncated:
            what = "too many entries" if result.truncated else result.stderr.decode(errors="replace")
            raise ConnectError(Code.INTERNAL, f"{action} {paths}: {what}")
        answer = json.loads(result.stdout)
        if "error" in answer:
            raise ConnectError(_CODES.get(answer["error"], Code.INTERNAL), answer["text"])
        return [_entry(e) for e in answer["entries"]]


def _entry(found: dict[str, Any]) -> filesystem_pb.EntryInfo:
    kinds = {"file": filesystem_pb.FileType.FILE, "dir": filesystem_pb.FileType.DIRECTORY}
    return filesystem_pb.EntryInfo(
        name=found["name"],
        path=found["path"],
        type=kinds.get(found["kind"], filesystem_pb.FileType.UNSPECIFIED),
        size=found["size"],
        mode=found["mode"],
        permissions=found["permissions"],
        owner=found["owner"],
        group=found["group"],
        modified_time=Timestamp(seconds=int(found["modified"])),
        symlink_target=found["target"],
        is_symlink=found["target"] is not None,
    )
