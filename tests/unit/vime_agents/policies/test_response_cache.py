"""The file of answers: exact, shared, and never in the way."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.vime_agents.full_disk import full_disk
from vime_agents import messages as msg
from vime_agents.errors import ConfigError
from vime_agents.policies import response_cache
from vime_agents.policies.response_cache import ResponseCache, check_cache_file
from vime_agents.policy import Generation, Usage

ODD = "\x00 \u2028 \ud800 half, \ud83d\ude00 as two halves, \U0001f600 whole, é\r\n\t\x7f \ufeff"
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40)


def answer(text: str = "4", **more: Any) -> Generation:
    return Generation(message=msg.assistant(text), **{"finish_reason": "stop", **more})


def stored(path: Path, *pairs: tuple[bytes, Generation]) -> ResponseCache:
    """A closed cache with these answers."""
    with ResponseCache(path) as cache:
        for key, generation in pairs:
            cache.put(key, generation)
    assert cache.failures == 0
    return cache


def looked_up(path: Path, key: bytes) -> Generation | None:
    with ResponseCache(path) as cache:
        return asyncio.run(cache.get(key))


def test_an_answer_comes_back_exactly_in_another_process(tmp_path: Path) -> None:
    call = msg.tool_call(f"f{ODD}", f'{{"x": "{ODD}', "id")
    told = Generation(
        message=msg.assistant(ODD, [call]),
        finish_reason="length",
        usage=Usage(prompt_tokens=7, sampled_tokens=None, cached_prompt_tokens=3),
    )
    stored(tmp_path / "a" / "b.sqlite", (b"k", told))
    assert looked_up(tmp_path / "a" / "b.sqlite", b"k") == told
    assert looked_up(tmp_path / "a" / "b.sqlite", b"other") is None


@given(text=ANY_TEXT, arguments=ANY_TEXT)
def test_any_text_survives(text: str, arguments: str) -> None:
    told = Generation(
        message=msg.assistant(text, [msg.tool_call(text, arguments, text)]), finish_reason=arguments
    )
    assert response_cache._decoded(response_cache._encoded(told)) == told


def test_of_two_answers_the_first_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    stored(path, (b"k", answer("first")), (b"k", answer("second")))
    stored(path, (b"k", answer("third")))
    assert looked_up(path, b"k") == answer("first")


async def test_an_answer_is_there_for_other_processes_while_the_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with ResponseCache(path) as one, ResponseCache(path) as other:
        one.put(b"k", answer("x"))
        async with asyncio.timeout(30):
            while await other.get(b"k") is None:
                await asyncio.sleep(0)
        assert await other.get(b"k") == answer("x")
        assert one.failures == other.failures == 0


def test_many_processes_make_and_fill_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.sqlite"
    program = (
        "import sys\n"
        "from vime_agents.policies.response_cache import ResponseCache\n"
        "from vime_agents.policy import Generation\n"
        "with ResponseCache(sys.argv[1]) as cache:\n"
        "    for n in range(200):\n"
        "        text = f'{sys.argv[2]} {n}'\n"
        "        message = {'role': 'assistant', 'content': text}\n"
        "        cache.put(text.encode(), Generation(message=message, finish_reason='stop'))\n"
        "sys.exit(cache.failures)\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(path), str(i)]) for i in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    for i in range(4):
        assert looked_up(path, f"{i} 199".encode()) == answer(f"{i} 199")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone() == (800,)
    connection.close()


def test_it_leaves_one_file(tmp_path: Path) -> None:
    stored(tmp_path / "c.sqlite", (b"k", answer()))
    assert [path.name for path in tmp_path.iterdir()] == ["c.sqlite"]


# ---------------------------------------------------------------------------------- what cannot be opened


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all\n" * 500)


def cut_off(path: Path) -> None:
    stored(path, *((bytes([n]), answer("x" * 3000)) for n in range(50)))
    path.write_bytes(path.read_bytes()[:20_000])


def torn_inside(path: Path) -> None:
    stored(path, *((bytes([n]), answer("x" * 3000)) for n in range(50)))
    data = bytearray(path.read_bytes())
    data[4096:12288] = b"\xff" * 8192
    path.write_bytes(data)


def somebody_elses(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE answers (key, answer)")
    connection.close()


def older(path: Path) -> None:
    stored(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (garbage, "cannot be used (file is not a database)"),
        (cut_off, "cannot be used ("),
        (torn_inside, "cannot be used ("),
        (Path.mkdir, "cannot be used (unable to open database file)"),
        (somebody_elses, "is a SQLite database of something else"),
        (older, "has schema version 0, and this release reads and writes 1"),
    ],
)
def test_what_is_no_cache_of_ours_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, make: Any, told: str
) -> None:
    path = tmp_path / "c.sqlite"
    make(path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        ResponseCache(path)
    assert str(caught.value).startswith(f"--cache: {path} ")
    assert told in str(caught.value)
    assert "give another file" in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--cache: cannot make the folder .*/file: "):
        ResponseCache(tmp_path / "file" / "c.sqlite")


def test_an_empty_file_is_a_new_cache(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").write_bytes(b"")
    stored(tmp_path / "c.sqlite", (b"k", answer()))
    assert looked_up(tmp_path / "c.sqlite", b"k") == answer()


def test_looking_whether_it_is_a_cache_makes_nothing(tmp_path: Path) -> None:
    check_cache_file(tmp_path / "none" / "c.sqlite")
    assert list(tmp_path.iterdir()) == []
    stored(tmp_path / "c.sqlite", (b"k", answer()))
    check_cache_file(tmp_path / "c.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["c.sqlite"]
    for make in (garbage, somebody_elses, older):
        (tmp_path / "c.sqlite").unlink()
        make(tmp_path / "c.sqlite")
        with pytest.raises(ConfigError, match=r"^--cache: "):
            check_cache_file(tmp_path / "c.sqlite")


# ----------------------------------------------------------------------------------- what goes wrong later


async def test_a_full_disk_costs_answers_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, pages=8)
    told: list[str] = []
    with ResponseCache(tmp_path / "c.sqlite", on_trouble=told.append) as cache:
        for n in range(20):
            cache.put(bytes([n]), answer("x" * 100_000))
        assert await cache.get(b"never stored") is None
    assert cache.failures == 20
    assert told == [f"{tmp_path}/c.sqlite: database or disk is full"]
    monkeypatch.undo()
    stored(tmp_path / "c.sqlite", (b"k", answer()))  # the file is as good as ever
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        assert await cache.get(b"k") == answer()


async def test_a_locked_file_costs_answers_and_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    with ResponseCache(tmp_path / "c.sqlite", busy_s=0.01, on_trouble=told.append) as cache:
        other = sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        cache.put(b"k", answer())
        assert await cache.get(b"k") is None  # whoever only reads does not wait for who writes
        async with asyncio.timeout(30):
            while not cache.failures:
                await asyncio.sleep(0)
        other.execute("ROLLBACK")
        other.close()
        cache.put(b"later", answer("later"))
    assert cache.failures == 1
    assert told == [f"{tmp_path}/c.sqlite: database is locked"]
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        assert await cache.get(b"later") == answer("later")


async def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    stored(path)
    with sqlite3.connect(path) as connection:
        broken = [
            b"{",
            b"[1]",
            b'[{"role": "assistant"}, "stop", {}]',
            b'[{}, "stop", {"tokens": 1}]',
            b"\xff",
        ]
        rows = [(bytes([i]), response_cache._checksum(b) + b) for i, b in enumerate(broken)]
        connection.executemany("INSERT INTO answers VALUES (?, ?)", rows)
    connection.close()
    with ResponseCache(path) as cache:
        assert [await cache.get(bytes([i])) for i in range(len(broken))] == [None] * len(broken)
        assert cache.failures == len(broken)


async def test_an_answer_with_a_flipped_bit_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    stored(path, (b"k", answer("5")))
    with sqlite3.connect(path) as connection:
        ((data,),) = connection.execute("SELECT answer FROM answers")
        assert data.count(b'"5"') == 1
        connection.execute("UPDATE answers SET answer = ?", (data.replace(b'"5"', b'"4"'),))
    connection.close()
    with ResponseCache(path) as cache:
        assert await cache.get(b"k") is None
        assert cache.failures == 1


def test_looking_at_a_file_that_another_process_changes_refuses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    stored(path, (b"k", answer()))
    content = bytearray(path.read_bytes())
    content[28:32] = (1000).to_bytes(4, "big")  # pages: the first one is written before the file has grown
    path.write_bytes(content)
    check_cache_file(path)


def test_what_cannot_be_written_is_refused_before_sqlite_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.sqlite"
    stored(path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as of another user's; root may write everything
    for look in (check_cache_file, ResponseCache):
        with pytest.raises(ConfigError, match=r"c\.sqlite cannot be written"):
            look(path)
    assert list(tmp_path.iterdir()) == [path]


def test_no_name_means_something_else_to_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored(Path(":memory:"), (b"k", answer()))
    assert looked_up(Path(":memory:"), b"k") == answer()
    assert (tmp_path / ":memory:").is_file()


def test_a_file_that_another_process_holds_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.sqlite"
    stored(path)
    monkeypatch.setattr(response_cache, "_OPEN_S", 0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(ConfigError, match=r"another process holds .*try again"):
            ResponseCache(path)
    finally:
        holder.close()
