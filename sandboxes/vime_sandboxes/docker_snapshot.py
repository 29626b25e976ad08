"""Snapshots: an image made of the sandbox's own, with one more file that holds the working directory.

Nothing else can differ: the root is read-only, and /tmp and /dev/shm are nobody's to keep. What is in memory
is not seen by a commit, hence the file; a new sandbox unpacks it by itself, so a fork moves no data.
"""

from __future__ import annotations

import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vime_agents.errors import ConfigError, SandboxDiskFull, SandboxError, SandboxUnavailable
from vime_agents.sandbox import Sandbox, Snapshot
from vime_sandboxes import transfer
from vime_sandboxes.docker_container import WORKDIR, Image, read_image
from vime_sandboxes.docker_engine import ApiError, Engine
from vime_sandboxes.docker_remove import Remover
from vime_sandboxes.io_thread import on_io_thread

if TYPE_CHECKING:
    from docker import APIClient

REPOSITORY = "vime-snapshot"
BASE_LABEL, SNAPSHOT_LABEL = "vime.base", "vime.snapshot"
_FILE = ".vime/work.tar"
_PIECE = 1 << 20
_UNPACK_TIMEOUT_S = 600.0
_HARMLESS = (b"tar: .: Cannot utime", b"tar: .: Cannot change mode", b"tar: Exiting with failure status")
_FULL = ("No space left", "File too large", "Wrote only")
_UNPACK = f"""\
if command -v tar >/dev/null 2>&1; then exec tar -xpf /{_FILE} -C {WORKDIR}; fi
exec python3 -IS -c 'import tarfile
tarfile.TarFile.chown = lambda *_: None
with tarfile.open("/{_FILE}") as tar:
    keep = dict(filter="fully_trusted") if hasattr(tarfile, "fully_trusted_filter") else dict()
    tar.extractall("{WORKDIR}", **keep)'
"""


async def take(
    engine: Engine,
    remover: Remover,
    sandbox: Sandbox,
    image: Image,
    labels: Mapping[str, str],
) -> Snapshot:
    """Keep the working directory of `sandbox`, whose image is `image`. Raises as `Sandbox.download` does."""
    number = secrets.token_hex(8)
    base = (image.labels or {}).get(BASE_LABEL, image.id)
    with tempfile.TemporaryDirectory(prefix="vime-snapshot-") as folder:
        file = Path(folder, "work.tar")
        size = await transfer.pack(sandbox, WORKDIR, file)

        async def commit() -> None:
            helper = f"vime-{number}-snapshot"
            try:
                await engine.call(
                    f"taking a snapshot of {sandbox.id}",
                    lambda client: _commit(client, base, helper, number, file, labels),
                )
            finally:
                await remover.remove(helper)

        await on_io_thread(commit())
    return Snapshot(id=f"{REPOSITORY}:{number}", spec=sandbox.spec, size_bytes=size)


async def find(engine: Engine, snapshot: Snapshot) -> Image:
    """The image of a snapshot. Raises SandboxUnavailable when it is gone, ConfigError when it is not ours."""
    if not snapshot.id.startswith(f"{REPOSITORY}:"):
        raise ConfigError(f"{snapshot.id!r} is a snapshot of another backend ({snapshot.spec.backend})")
    try:
        return await engine.call(f"snapshot {snapshot.id}", lambda client: read_image(client, snapshot.id))
    except ApiError as error:
        if error.status == 404:
            raise SandboxUnavailable(f"snapshot {snapshot.id} is not on this Docker daemon") from error
        raise


async def unpack(sandbox: Sandbox) -> None:
    """Put the kept files into the working directory of a sandbox of such an image."""
    result = await sandbox.exec(["sh", "-c", _UNPACK], timeout_s=_UNPACK_TIMEOUT_S)
    # Where the working directory itself is root's (a user by name, Podman), its time and mode stay.
    complaints = [line for line in result.stderr.splitlines() if not line.startswith(_HARMLESS)]
    if result.ok or (result.exit_code is not None and result.stderr and not complaints):
        return
    said = result.stderr.decode(errors="replace")[-400:]
    if any(word in said for word in _FULL):
        raise SandboxDiskFull(28, f"the snapshot does not fit into the sandbox: {said}")
    raise SandboxError(f"the snapshot cannot be unpacked ({result.ended_by}): {said}")


async def delete(engine: Engine, snapshot_id: str) -> None:
    """Remove a snapshot's image. While a sandbox runs from it, its space is freed by the next deletion."""
    try:
        await engine.call(
            f"deleting {snapshot_id}", lambda client: client.remove_image(snapshot_id, force=True)
        )
    except ApiError as error:
        if error.status != 404:
            raise
    await engine.call(
        "deleting snapshots",
        lambda client: client.prune_images({"dangling": True, "label": SNAPSHOT_LABEL}),
    )


def _commit(
    client: APIClient, base: str, helper: str, number: str, file: Path, labels: Mapping[str, str]
) -> None:
    marks = {**labels, BASE_LABEL: base, SNAPSHOT_LABEL: number}
    client.create_container(base, command=["-"], entrypoint=["-"], name=helper, labels=marks)
    client.put_archive(helper, "/", _wrapped(file))
    client.commit(helper, repository=REPOSITORY, tag=number)


def _wrapped(file: Path) -> Iterator[bytes]:
    """A tar archive with `file` as its only file."""
    folder = tarfile.TarInfo(_FILE.split("/", maxsplit=1)[0])
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    entry = tarfile.TarInfo(_FILE)
    entry.size, entry.mode = file.stat().st_size, 0o644
    yield folder.tobuf() + entry.tobuf()
    with file.open("rb") as content:
        while piece := content.read(_PIECE):
            yield piece
    yield b"\0" * (-entry.size % 512 + 1024)
