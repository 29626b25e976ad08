from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

from tests.unit.vime_sandboxes.host_box import HostBox
from vime_agents.errors import (
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxUnsupported,
)
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import transfer
from vime_sandboxes.download_folder import PREFIX
from vime_sandboxes.local import LocalSandboxProvider

TOOLS = {"tar": ("sh", "tar", "mkdir", "dirname", "basename"), "no tar": ("sh", "mkdir"), "python": ()}


@pytest.fixture(params=list(TOOLS))
def box(tmp_path: Path, request: pytest.FixtureRequest) -> HostBox:
    """With tar; with a shell but no tar; with python3 alone."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (*TOOLS[request.param], "python3"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "box").mkdir()
    return HostBox(tmp_path / "box", str(programs))


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
