"""Archives that a hostile program could send."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_agents.errors import SandboxError, SandboxOutputTooLarge
from vime_sandboxes import tree_write
from vime_sandboxes.tar_read import MAX_META_BYTES, MAX_TRAILING_BYTES, TarReader
from vime_sandboxes.tree_write import TreeWriter

Member = tuple[str, bytes, object]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o644):
    header = tarfile.TarInfo(name)
    header.type, header.linkname, header.size, header.mode = kind, link, len(data), mode
    return header, data


def folder(name: str):
    return member(name, tarfile.DIRTYPE, mode=0o755)


def link(name: str, to: str):
    return member(name, tarfile.SYMTYPE, to)


def tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for header, data in members:
            archive.addfile(header, io.BytesIO(data))
    return out.getvalue()


def extract(data: bytes, root: Path, *, existing: Path | None = None, piece: int = 1 << 20) -> TreeWriter:
    root.mkdir(exist_ok=True)
    fd = os.open(root, os.O_RDONLY)
    outer = None if existing is None else os.open(existing, os.O_RDONLY)
    writer = TreeWriter(fd, max_bytes=1 << 20)
    reader = TarReader(writer)
    try:
        for start in range(0, len(data), piece):
            reader.feed(data[start : start + piece])
        reader.close()
        writer.check_links(outer)
    finally:
        writer.close()
        os.close(fd)
        if outer is not None:
            os.close(outer)
    return writer


BAD: dict[str, Sequence[tuple[tarfile.TarInfo, bytes]]] = {
    "absolute path": [folder("."), member("/tmp/vime-evil", data=b"x")],
    "climbing path": [folder("."), member("a/../../evil", data=b"x")],
    "climbing within": [folder("."), member("a/../b", data=b"x")],
    "through a link": [folder("."), link("a", "."), member("a/x", data=b"x")],
    "folder over a link": [folder("."), folder("d"), link("a", "d"), folder("a")],
    "file over a link": [folder("."), link("a", "d"), member("a", data=b"x")],
    "absolute link": [folder("."), link("a", "/etc/passwd")],
    "climbing link": [folder("."), folder("d"), link("d/a", "../../x")],
    "link through a link": [folder("."), folder("d"), link("d/up", ".."), link("a", "d/up/../x")],
    "links, the later first": [folder("."), link("a", "d/up/../x"), folder("d"), link("d/up", "..")],
    "climbing from what is not there": [folder("."), link("a", "later/../x")],
    "climbing from a file": [folder("."), member("f"), link("a", "f/../x")],
    "a loop of links": [folder("."), link("a", "b"), link("b", "a")],
    "hard link out": [folder("."), member("a", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link up": [folder("."), member("a", tarfile.LNKTYPE, "../../etc/passwd")],
    "hard link to a later member": [folder("."), member("a", tarfile.LNKTYPE, "b"), member("b")],
    "hard link to a link": [folder("."), link("l", "x"), member("a", tarfile.LNKTYPE, "l")],
    "hard link through a link": [
        folder("."),
        folder("d"),
        member("d/f"),
        link("l", "d"),
        member("a", tarfile.LNKTYPE, "l/f"),
    ],
    "hard link to the top": [folder("."), member("a", tarfile.LNKTYPE, ".")],
    "character device": [folder("."), member("a", tarfile.CHRTYPE)],
    "block device": [folder("."), member("a", tarfile.BLKTYPE)],
    "named pipe": [folder("."), member("a", tarfile.FIFOTYPE)],
    "unknown kind": [folder("."), member("a", b"Z")],
    "twice": [folder("."), member("a", data=b"x"), member("a", data=b"y")],
    "file over a folder": [folder("."), folder("a"), member("a")],
    "folder over a file": [folder("."), member("a"), folder("a")],
    "below a file": [folder("."), member("a"), member("a/b")],
    "the top as a file": [member(".", data=b"x")],
    "the top as a link": [link(".", "x")],
    "more than one file": [member("a"), member("b")],
    "too deep": [folder("."), member("/".join("d" * 300), data=b"x")],
    "a name too long for the disk": [folder("."), member("x" * 300, data=b"x")],
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_hostile_members_are_refused(tmp_path: Path, name: str, format: int) -> None:
    with pytest.raises(SandboxError):
        extract(tar(*BAD[name], format=format), tmp_path / "root")
    assert [p.name for p in tmp_path.iterdir()] == ["root"]


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    members = [folder("."), folder("d"), member("d/f", data=b"x"), link("d/up", "../d/f")]
    members += [link("a", "d/up"), link("dangling", "d/nothing"), link("top", "d/.."), link("dot", ".")]
    extract(tar(*members), tmp_path / "root")
    assert (tmp_path / "root" / "a").read_bytes() == b"x"
    assert os.readlink(tmp_path / "root" / "dangling") == "d/nothing"


def test_links_are_checked_against_what_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").symlink_to("/etc")
    with pytest.raises(SandboxError, match="leads out"):
        extract(tar(folder("."), link("a", "mine/x")), tmp_path / "root", existing=tmp_path / "target")


def test_hard_links_are_the_same_file_and_modes_are_tame(tmp_path: Path) -> None:
    members = [folder("."), member("a", data=b"x", mode=0o6777), member("b", tarfile.LNKTYPE, "./a")]
    extract(tar(*members), tmp_path / "root")
    root = tmp_path / "root"
    assert (root / "a").stat().st_ino == (root / "b").stat().st_ino
    assert (root / "a").stat().st_mode & 0o7777 == 0o755


def test_one_file_is_told_from_a_folder(tmp_path: Path) -> None:
    assert extract(tar(member("a", data=b"x")), tmp_path / "one").single == b"a"
    assert extract(tar(folder("."), member("./a", data=b"x")), tmp_path / "two").single is None


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("piece", [1, 511, 513, 1 << 20])
def test_any_format_in_any_pieces(tmp_path: Path, format: int, piece: int) -> None:
    long = "/".join(["n" * 60] * 3) + "/é"
    members = [folder("."), member(long, data=b"z" * 1500), link("l", long.split("/")[0]), member("empty")]
    extract(tar(*members, format=format), tmp_path / "root", piece=piece)
    assert (tmp_path / "root" / long).read_bytes() == b"z" * 1500
    assert os.readlink(tmp_path / "root" / "l") == "n" * 60
    assert (tmp_path / "root" / "empty").read_bytes() == b""


def _damaged(change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(tar(member("a", data=b"x")))
    change(data)
    data[148:156] = b" " * 8
    data[148:155] = b"%06o\0" % sum(data[:512])
    return bytes(data)


def _put(offset: int, field: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[offset : offset + len(field)] = field

    return change


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_damaged(_put(124, b"-0000000001\0")), "where a number belongs"),
        (_damaged(_put(124, b"\xff" * 12)), "where a number belongs"),
        (_damaged(_put(124, b"\x80" + b"\xff" * 11)), "max_bytes"),
        (_damaged(_put(156, b"2")), "a link with content"),
        (_damaged(_put(156, b"L")), "ends in the middle"),
        (tar(member("a", data=b"x"))[:700], "ends in the middle"),
        (b"", "ends in the middle"),
        (b"x" * 512, "number belongs|checksum"),
        (tar(member("a")) + b"x" * (MAX_TRAILING_BYTES + 1), "goes on after its end"),
    ],
)
def test_damaged_archives_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        extract(data, tmp_path / "root")


def test_headers_do_not_fill_the_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, MAX_META_BYTES + 1
    with pytest.raises(SandboxError, match="a header of"):
        extract(header.tobuf(), tmp_path / "root")


@pytest.mark.parametrize("record", [b"99 path=x\n", b"3 path=x\n", b"x path=x\n", b"9 pathxx\n", b"0 =\n"])
def test_malformed_extended_headers_are_refused(tmp_path: Path, record: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    data = header.tobuf() + record.ljust(512, b"\0") + tar(member("a"))
    with pytest.raises(SandboxError):
        extract(data, tmp_path / "root")


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_write, "MAX_ENTRIES", 3)
    with pytest.raises(SandboxOutputTooLarge, match="more than 3 files"):
        extract(tar(folder("."), member("a"), member("b"), member("c")), tmp_path / "root")


@given(st.data())
@settings(max_examples=60)
def test_whatever_comes_nothing_is_written_outside(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "c"]), min_size=1, max_size=4).map("/".join)
    kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
    drawn = data.draw(st.lists(st.tuples(names, kinds, names), max_size=8))
    outside = tmp_path_factory.mktemp("outside")
    (outside / "a").write_text("mine")
    members = [folder(".")] + [
        member(n, kind, to, b"evil" if kind == tarfile.REGTYPE else b"") for n, kind, to in drawn
    ]
    try:
        extract(tar(*members), outside / "root")
        accepted = True
    except SandboxError:
        accepted = False
    assert sorted(p.name for p in outside.iterdir()) == ["a", "root"]
    assert (outside / "a").read_text() == "mine"
    if accepted:
        inside = outside / "root"
        for path in inside.rglob("*"):
            assert path.resolve().is_relative_to(inside)
