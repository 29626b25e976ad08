from __future__ import annotations

import pytest

from tests.unit.vime_tools.hosts import Host
from vime_agents.errors import SandboxDead, ToolError
from vime_tools.files import Files


@pytest.fixture
def files(host: Host) -> Files:
    return Files(host)


async def content(host: Host, path: str) -> bytes:
    return await (await host.sandbox()).read(path)


async def test_a_file_is_written_viewed_and_edited(files: Files, host: Host) -> None:
    assert await files.write_file("a/b.txt", "one\ntwo é\u2028x\nthree\n") == "Wrote 21 bytes to a/b.txt."
    assert await files.view_file("a/b.txt") == "     1\tone\n     2\ttwo é\u2028x\n     3\tthree"
    assert await files.view_file("a/b.txt", 2, 2) == "     2\ttwo é\u2028x"
    assert await files.edit_file("a/b.txt", "two é", "2") == "Replaced the text at line 2 of a/b.txt."
    assert await content(host, "a/b.txt") == "one\n2\u2028x\nthree\n".encode()
    await files.edit_file("/work/a/b.txt", "2\u2028x\nthree\n", "")
    assert await content(host, "a/b.txt") == b"one\n"
    await files.write_file("a/b.txt", "")
    assert await files.view_file("a/b.txt") == "[a/b.txt is empty]"


async def test_what_is_not_named_stays_byte_for_byte(files: Files, host: Host) -> None:
    box = await host.sandbox()
    await box.write("run.sh", b"#!/bin/sh\r\n\xff\xfe\0old\r\n", mode=0o755)
    await files.edit_file("run.sh", "old", "new")
    assert await content(host, "run.sh") == b"#!/bin/sh\r\n\xff\xfe\0new\r\n"
    await files.write_file("run.sh", "#!/bin/sh\necho ran\n")
    assert (await box.exec(["./run.sh"])).text == "ran\n"


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("x", r"occurs 3 times in f, at lines 1, 2, 2; give more"),
        ("xx", "occurs 1 times|Replaced"),
        ("X", "does not occur in f; it must match exactly"),
        ("x\n\nx", "does not occur"),
        ("", "the old text is empty"),
        ("\ud800", "not valid Unicode in the old text"),
    ],
)
async def test_an_edit_must_name_one_place(files: Files, host: Host, old: str, words: str) -> None:
    await files.write_file("f", "x\nxx\n")
    if old == "xx":
        assert await files.edit_file("f", old, "y") == "Replaced the text at line 2 of f."
        return
    with pytest.raises(ToolError, match=words):
        await files.edit_file("f", old, "y")
    assert await content(host, "f") == b"x\nxx\n"


async def test_places_that_overlap_are_two(files: Files) -> None:
    await files.write_file("f", "aaa")
    with pytest.raises(ToolError, match="occurs 2 times"):
        await files.edit_file("f", "aa", "b")
    await files.write_file("f", "a\n" * 100)
    with pytest.raises(ToolError, match=r"occurs 100 times in f, at lines 1, 2, .*10, \.\.\.;"):
        await files.edit_file("f", "a", "b")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nope", "there is no file nope"),
        ("", "there is no file"),
        ("/etc/shadow-of-nobody", "there is no file"),
        (".", r"\. cannot be used: not a regular file"),
        ("f/below", "there is no file|cannot be used"),
        ("a\0b", "a NUL character in the path"),
        ("\ud800", "not valid Unicode in the path"),
        ("x" * 5000, "x{200} cannot be used: File name too long"),
        ("-e", "there is no file -e"),
        ("loop", "loop cannot be used: Too many levels"),
        ("large", "large is larger than 1000 bytes"),
    ],
)
async def test_bad_paths_are_told_to_the_model(files: Files, host: Host, path: str, words: str) -> None:
    box = await host.sandbox()
    await box.write("f", b"x")
    await box.write("large", b"x" * 1001)
    await box.exec(["ln", "-s", "loop", "loop"])
    files.max_bytes = 1000
    with pytest.raises(ToolError, match=words):
        await files.view_file(path)
    with pytest.raises(ToolError, match=words):
        await files.edit_file(path, "x", "y")


@pytest.mark.parametrize("path", ["/usr/bin/x", "/proc/1/mem", ".", "f/below", "a\0b", "", "x" * 5000])
async def test_where_it_may_not_write_is_told_too(files: Files, host: Host, path: str) -> None:
    await (await host.sandbox()).write("f", b"x")
    with pytest.raises(ToolError):
        await files.write_file(path, "x")


@pytest.mark.parametrize(("first", "last"), [(0, None), (-1, 2), (3, None), (2, 1), (1, 0)])
async def test_lines_that_are_not_there(files: Files, first: int, last: int | None) -> None:
    await files.write_file("f", "1\n2\n")
    with pytest.raises(ToolError, match="f has lines 1 to 2"):
        await files.view_file("f", first, last)


async def test_a_long_file_is_shown_in_parts(files: Files) -> None:
    await files.write_file("f", "".join(f"line {n}\n" for n in range(1, 1001)))
    first = (await files.view_file("f")).split("\n")
    assert first[0] == "     1\tline 1"
    assert first[-2:] == ["   400\tline 400", "[f goes on to line 1000]"]
    assert (await files.view_file("f", 999, 5000)).split("\n") == ["   999\tline 999", "  1000\tline 1000"]


async def test_a_dead_sandbox_is_not_the_models_mistake(files: Files, host: Host) -> None:
    await (await host.sandbox()).close()
    for work in (files.view_file("f"), files.write_file("f", "x"), files.edit_file("f", "x", "y")):
        with pytest.raises(SandboxDead):
            await work
