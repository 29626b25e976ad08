"""Images: by name, or built once from a folder and named after the folder's content."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from vime_agents.errors import ConfigError, SandboxUnavailable
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.docker_container import Image, read_image
from vime_sandboxes.docker_engine import ApiError, Engine

if TYPE_CHECKING:
    from docker import APIClient

DEFAULT_IMAGE = "python:3.12-slim"
"""What `SandboxSpec.image=None` means."""
_LOG_LINES = 40
_LOCK_POLL_S = 0.2


async def find_image(engine: Engine, spec: SandboxSpec) -> Image:
    """The image that `spec` asks for, built or fetched if the spec says so.

    Raises:
        ConfigError: a folder without a Dockerfile. SandboxUnavailable: there is no such image, or it cannot
        be built; with how to get it.
    """
    if spec.build is not None:
        if spec.image is not None:
            raise ConfigError(f"SandboxSpec: image={spec.image!r} or build={spec.build!r}, not both")
        return await _build(engine, Path(spec.build))
    name = spec.image or DEFAULT_IMAGE
    if found := await _read(engine, name):
        return found
    if spec.options.get("pull") != "missing":
        raise SandboxUnavailable(
            f"there is no image {name!r} on this Docker daemon. Fetch it (`docker pull {name}`, or "
            "SandboxSpec.options={'pull': 'missing'}), or name a folder with a Dockerfile in "
            "SandboxSpec.build"
        )
    try:
        await engine.call(f"pulling {name}", lambda client: client.pull(*_name_and_tag(name)))
    except ApiError as error:
        raise SandboxUnavailable(f"image {name!r} cannot be fetched: {error}") from error
    return await _require(engine, name)


def content_tag(folder: Path) -> str:
    """`vime/<folder's name>:<sha256>` over the names, kinds, modes and contents of what a build would see.

    Raises:
        ConfigError: no folder, or no Dockerfile in it.
    """
    import docker.utils

    if not (folder / "Dockerfile").is_file():
        raise ConfigError(f"SandboxSpec.build: there is no Dockerfile in {folder}")
    digest = hashlib.sha256()
    for relative in sorted(docker.utils.exclude_paths(str(folder), _ignored(folder))):
        path = folder / relative
        mode = path.lstat().st_mode
        digest.update(f"{relative}\0{stat.S_IFMT(mode)}\0{mode & 0o111}\0".encode())
        if stat.S_ISLNK(mode):
            content = os.readlink(path).encode()
        else:
            content = path.read_bytes() if stat.S_ISREG(mode) else b""
        digest.update(f"{len(content)}\0".encode() + content)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "image"
    return f"vime/{name}:{digest.hexdigest()}"


async def _build(engine: Engine, folder: Path) -> Image:
    tag = await asyncio.to_thread(content_tag, folder)
    if found := await _read(engine, tag):
        return found
    async with _one_at_a_time(tag):
        if found := await _read(engine, tag):  # somebody else built it meanwhile
            return found
        await engine.call(f"building {folder}", lambda client: _run_build(client, folder, tag))
        return await _require(engine, tag)


def _run_build(client: APIClient, folder: Path, tag: str) -> None:
    log: list[str] = []
    error: str | None = None
    # Read to its end, also after an error: only then the connection is free.
    for line in client.build(
        path=str(folder), tag=tag, rm=True, forcerm=True, decode=True, labels={"vime.build": folder.name}
    ):
        log.append(str(line.get("stream") or line.get("status") or ""))
        error = error or line.get("error")
    if error is not None:
        tail = "\n".join("".join(log).splitlines()[-_LOG_LINES:])
        raise SandboxUnavailable(f"the image of {folder} cannot be built: {error}\n{tail}")


async def _read(engine: Engine, name: str) -> Image | None:
    try:
        return await engine.call(f"image {name}", lambda client: read_image(client, name))
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def _require(engine: Engine, name: str) -> Image:
    found = await _read(engine, name)
    if found is None:
        raise SandboxUnavailable(f"image {name!r} was removed while it was needed")
    return found


@contextlib.asynccontextmanager
async def _one_at_a_time(tag: str) -> AsyncIterator[None]:
    """Hold the right to build `tag` on this machine, over all processes."""
    folder = Path(os.environ.get("VIME_AGENTS_CACHE") or Path.home() / ".cache" / "vime-agents") / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / tag.replace("/", "-").replace(":", "-"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _ignored(folder: Path) -> list[str]:
    file = folder / ".dockerignore"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [s for line in lines if (s := line.strip()) and not s.startswith("#")]


def _name_and_tag(name: str) -> tuple[str, str | None]:
    if "@" in name or ":" in name.rpartition("/")[2]:
        return name, None
    return name, "latest"
