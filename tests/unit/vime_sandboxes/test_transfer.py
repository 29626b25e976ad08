from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.vime_sandboxes.host_box import HostBox, HostBoxOnFiles
from vime_agents.errors import (
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxUnsupported,
)
from vime_agents.sandbox import Sandbox, SandboxSpec
from vime_sandboxes import transfer
from vime_sandboxes.download_folder import PREFIX
from vime_sandboxes.local import LocalSandboxProvider

TAR = ("sh", "tar", "mkdir", "dirname", "basename")
BOXES = {
    "tar": (HostBox, TAR),
    "no tar": (HostBox, ("sh", "mkdir")),
    "python": (HostBox, ()),
    "tar on files": (HostBoxOnFiles, TAR),
    "python on files": (HostBoxOnFiles, ()),
}


@pytest.fixture(params=list(BOXES))
def box(tmp_path: Path, request: pytest.FixtureRequest) -> HostBox:
    """With tar; with a shell but no tar; with python3 alone."""
    kind, tools = BOXES[request.param]
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (*tools, "python3"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "box").mkdir()
    return kind(tmp_path / "box", str(programs))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a" / "empty").mkdir(parents=True)
    (root / "a" / "data").write_bytes(bytes(range(256)) * 9000)
    (root / "a" / "link").symlink_to("../run.sh")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / ("é" * 120)).write_text("a long name")
    (root / os.fsdecode(b"\xff -n\n")).write_text("not UTF-8")
    return root


def contents(root: Path) -> dict[str, object]:
    return {
        str(p.relative_to(root)): os.readlink(p)
        if p.is_symlink()
        else p.read_bytes()
        if p.is_file()
        else None
        for p in root.rglob("*")
    }


async def test_a_tree_goes_in_and_comes_out_as_it_was(box: HostBox, tree: Path, tmp_path: Path) -> None:
    await transfer.upload(box, tree, "in/side")
    assert contents(box.folder / "in/side") == contents(tree)
    await transfer.download(box, "in/side", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tree)
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not list(tmp_path.glob(f"{PREFIX}*"))


async def test_one_file_goes_in_and_comes_out(box: HostBox, tree: Path, tmp_path: Path) -> None:
    await transfer.upload(box, tree / "a" / "data", "-x/new name")
    assert (box.folder / "-x/new name").read_bytes() == (tree / "a" / "data").read_bytes()
    (box.folder / "link").symlink_to("-x/new name")
    await transfer.download(box, "link", tmp_path / "copy")
    assert not (tmp_path / "copy").is_symlink()
    assert (tmp_path / "copy").read_bytes() == (tree / "a" / "data").read_bytes()


async def test_a_snapshot_is_one_file(box: HostBox, tree: Path, tmp_path: Path) -> None:
    await transfer.upload(box, tree, "work")
    size = await transfer.pack(box, "work", tmp_path / "snapshot")
    assert size == (tmp_path / "snapshot").stat().st_size
    await transfer.unpack(box, tmp_path / "snapshot", "again")
    assert contents(box.folder / "again") == contents(tree)
    with pytest.raises(SandboxOutputTooLarge):
        await transfer.pack(box, "work", tmp_path / "other", max_bytes=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "box", "snapshot", "tree"]


async def test_what_is_there_stays_or_is_replaced(box: HostBox, tree: Path, tmp_path: Path) -> None:
    await transfer.upload(box, tree, "in")
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (out / "a").mkdir(parents=True)
    (out / "a" / "mine").write_text("kept")
    elsewhere.write_text("untouched")
    (out / "run.sh").symlink_to(elsewhere)
    await transfer.download(box, "in", out)
    assert contents(out) == contents(tree) | {"a/mine": b"kept"}
    assert elsewhere.read_text() == "untouched"
    assert not list(out.glob(f"{PREFIX}*"))


async def test_a_link_in_the_place_of_a_folder_is_not_followed(box: HostBox, tmp_path: Path) -> None:
    (box.folder / "in" / "a").mkdir(parents=True)
    (box.folder / "in" / "a" / "x").write_text("new")
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "a").symlink_to(elsewhere)
    with pytest.raises(SandboxError, match="b'a' is no folder to write into"):
        await transfer.download(box, "in", out)
    assert contents(elsewhere) == {}
    assert contents(out) == {"a": str(elsewhere)}


@pytest.mark.parametrize(
    ("kind", "words"),
    [("absolute", "leads out"), ("climbing", "leads out"), ("chain", "leads out"), ("fifo", "a named pipe")],
)
async def test_what_must_not_come_out(box: HostBox, tmp_path: Path, kind: str, words: str) -> None:
    inside = box.folder / "in"
    (inside / "d").mkdir(parents=True)
    (inside / "good").write_text("fine")
    if kind == "absolute":
        (inside / "bad").symlink_to("/etc/passwd")
    elif kind == "climbing":
        (inside / "d" / "bad").symlink_to("../../x")
    elif kind == "chain":
        (inside / "d" / "here").symlink_to("..")
        (inside / "bad").symlink_to("d/here/../x")
    else:
        os.mkfifo(inside / "bad")
    with pytest.raises(SandboxError, match=words):
        await transfer.download(box, "in", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "box"]
    assert all(p.returncode is not None for p in (q._process for q in box.spawned))


async def test_too_much_is_refused_before_it_is_kept(box: HostBox, tmp_path: Path) -> None:
    (box.folder / "big").mkdir()
    with (box.folder / "big" / "file").open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(SandboxOutputTooLarge, match="download of 'big': more than max_bytes=1000"):
        await transfer.download(box, "big", tmp_path / "out", max_bytes=1000)
    assert not (tmp_path / "out").exists()


async def test_missing_and_wrong_things_are_named(box: HostBox, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileNotFound, match="no 'nothing' in the sandbox"):
        await transfer.download(box, "nothing", tmp_path / "out")
    with pytest.raises(SandboxError, match="No such file"):
        await transfer.upload(box, tmp_path / "nothing", "x")
    os.mkfifo(tree / "pipe")
    with pytest.raises(SandboxError, match="neither a file, a folder nor a link"):
        await transfer.upload(box, tree, "x")
    (box.folder / "is-a-folder" / "with something").mkdir(parents=True)
    with pytest.raises(SandboxError, match="the program inside ended with exit"):
        await transfer.upload(box, tree / "run.sh", "is-a-folder")
    (box.folder / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SandboxError, match="cannot download to"):
        await transfer.download(box, "file", tmp_path / "folder")
    assert contents(tmp_path / "folder") == {}


async def test_what_changes_meanwhile_is_taken_as_it_is(box: HostBox, tmp_path: Path) -> None:
    """Else whoever is inside could keep the files from ever being taken."""
    inside = box.folder / "in"
    (inside / "coming").mkdir(parents=True)
    (inside / "last").write_text("whole")
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            (inside / "changing").write_bytes(bytes(8 << 20))
            os.truncate(inside / "changing", 5)
            (inside / "coming" / "and going").mkdir()
            (inside / "coming" / "and going").rmdir()

    changing = asyncio.create_task(asyncio.to_thread(change))
    try:
        for n in range(20):
            await transfer.download(box, "in", tmp_path / f"out{n}")
            assert (tmp_path / f"out{n}" / "last").read_text() == "whole"
    finally:
        stop.set()
        await changing


async def test_without_any_program_it_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported, match="sh and tar, or python3"):
        await transfer.download(HostBox(tmp_path, str(tmp_path)), "x", tmp_path / "out")


async def test_cancelled_transfers_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(bytes(20 << 20))
    provider = LocalSandboxProvider()
    box = await provider.create(SandboxSpec(memory_mb=256))
    await box.upload(tmp_path / "tree", "in")
    for pause_s in (0, 0.001, 0.003, 0.006, 0.012, 0.025):
        for work in (
            transfer.download(box, "in", tmp_path / "out"),
            transfer.upload(box, tmp_path / "tree", "in"),
            transfer.pack(box, "in", tmp_path / "snapshot"),
        ):
            task = asyncio.ensure_future(work)
            await asyncio.sleep(pause_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if task.cancelled():
                assert [p.name for p in tmp_path.iterdir()] == ["tree"]
            for left in tmp_path.iterdir():
                if left.name != "tree":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
    count = ["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -cx tar"]
    async with asyncio.timeout(20):
        while (await box.exec(count)).stdout != b"0\n":
            pass
    await provider.aclose()


async def test_many_transfers_and_commands_at_once_do_not_mix(tmp_path: Path) -> None:
    provider = LocalSandboxProvider()
    box = await provider.create(SandboxSpec(memory_mb=256))

    async def move(number: int) -> None:
        tree, content = tmp_path / f"tree{number}", os.urandom(1 << 20)
        tree.mkdir()
        (tree / "file").write_bytes(content)
        await box.upload(tree, f"in{number}")
        await box.download(f"in{number}", tmp_path / f"out{number}")
        assert contents(tmp_path / f"out{number}") == {"file": content}

    async def run() -> None:
        for _ in range(20):
            # More than the socket to the runner holds: what follows has to wait for room.
            content = os.urandom(1 << 20)
            result = await box.exec(["sha256sum"], stdin=content)
            assert result.text.split()[0] == hashlib.sha256(content).hexdigest()

    await asyncio.gather(*(move(number) for number in range(10)), *(run() for _ in range(2)))
    await provider.aclose()


FAKE_TAR = """\
#!/bin/sh
(setsid sleep 600 <&0 2>/dev/null &) 2>/dev/null
"""
"""Somebody inside keeps both ends of the stream for as long as he can."""


@pytest.fixture
async def box_with_fake_tar(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    provider = LocalSandboxProvider()
    spec = SandboxSpec(memory_mb=256, env={"PATH": "/work/bin:/usr/bin:/bin"})
    box = await provider.create(spec)
    await box.write("/work/bin/tar", (FAKE_TAR + request.param).encode(), mode=0o755)
    yield box
    await provider.aclose()


@pytest.mark.parametrize("box_with_fake_tar", ['exec /usr/bin/tar "$@"\n'], indirect=True)
async def test_who_holds_the_stream_inside_does_not_hold_a_download(
    box_with_fake_tar: Sandbox, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 20000
    await box_with_fake_tar.exec(["mkdir", "in"])
    await box_with_fake_tar.write("in/file", content)
    async with asyncio.timeout(30):
        await box_with_fake_tar.download("in", tmp_path / "out")
    assert contents(tmp_path / "out") == {"file": content}


@pytest.mark.parametrize("box_with_fake_tar", ["exit 3\n"], indirect=True)
async def test_who_holds_the_stream_inside_does_not_hold_an_upload(
    box_with_fake_tar: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(20 << 20))
    with pytest.raises(SandboxError, match="the program inside ended with exit 3"):
        async with asyncio.timeout(30):
            await box_with_fake_tar.upload(tmp_path / "file", "in/file")


@pytest.mark.parametrize("box_with_fake_tar", ["exec sleep 600\n"], indirect=True)
async def test_those_who_do_not_move_hold_nobody_else_and_end_with_their_sandbox(
    box_with_fake_tar: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(20 << 20))
    before = len(os.listdir("/proc/self/fd"))
    stuck = [
        asyncio.ensure_future(box_with_fake_tar.upload(tmp_path / "file", f"in{n}/file")) for n in range(20)
    ]
    count = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 600' | wc -l"]
    async with asyncio.timeout(60):
        while int((await box_with_fake_tar.exec(count)).stdout) < 40:
            pass
        await asyncio.to_thread(os.getpid)  # there is a thread left for others
        stuck[0].cancel()
        await box_with_fake_tar.close()
        ended = await asyncio.gather(*stuck, return_exceptions=True)
    assert [type(e) for e in ended] == [asyncio.CancelledError] + [SandboxDead] * 19
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_what_a_killed_owner_left_is_removed_by_the_next_download(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / f"{PREFIX}dead").mkdir()
    (tmp_path / f"{PREFIX}dead" / "part").write_text("x")
    await transfer.download(HostBox(tmp_path / "box"), ".", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["box", "out"]


async def test_a_file_that_shrinks_is_not_padded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    blocks = transfer.archive(source)
    next(blocks)
    os.truncate(source, 10)
    with pytest.raises(SandboxError, match="became shorter"):
        list(blocks)


def test_set_user_bits_are_dropped_on_the_way_in(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch()
    (tmp_path / "tree" / "file").chmod(0o6755)
    (tmp_path / "tar").write_bytes(b"".join(transfer.archive(tmp_path / "tree")))
    with tarfile.open(tmp_path / "tar") as archive:
        assert [m.mode for m in archive] == [0o755]
