"""Lines are whole or not there."""

import json

import pytest

from vime_agents.errors import DatasetError
from vime_agents.storage.json_lines import (
    JsonLinesWriter,
    drop_torn_line,
    keep_lines,
    read_json_lines,
    write_atomically,
)


def rows(path):
    return [row for _, row in read_json_lines(path)]


@pytest.mark.parametrize("size", [1, 10, 70_000, 200_000])
def test_a_torn_last_line_is_dropped_and_the_file_goes_on(tmp_path, size):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n' + b'{"torn": "' + b"x" * size)
    writer = JsonLinesWriter(file, sync_each=True)
    writer.append('{"a": 3}')
    writer.close()
    assert file.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def test_a_file_of_one_torn_line_becomes_empty(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"{" * 100_000)
    drop_torn_line(file)
    assert file.read_bytes() == b""


def test_whole_lines_are_left_alone(tmp_path):
    file = tmp_path / "a.jsonl"
    data = b'{"long": "' + b"y" * 100_000 + b'"}\n'
    file.write_bytes(data)
    drop_torn_line(file)
    drop_torn_line(tmp_path / "absent")
    assert file.read_bytes() == data


def test_readers_skip_a_torn_last_line_of_a_running_writer(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{"a":')
    assert rows(file) == [{"a": 1}]


@pytest.mark.parametrize(("bad", "told"), [("{", "not JSON"), ("[1]", "must be a JSON object")])
def test_a_bad_line_is_named(tmp_path, bad, told):
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"a": 1}}\n{bad}\n')
    with pytest.raises(DatasetError, match=rf"a\.jsonl:2: {told}"):
        rows(file)
    with pytest.raises(DatasetError, match="no such file"):
        rows(tmp_path / "absent")


def test_appended_lines_are_visible_at_once(tmp_path):
    file = tmp_path / "a.jsonl"
    writer = JsonLinesWriter(file, sync_each=False)
    writer.append(json.dumps({"text": "é\u2028"}))
    assert rows(file) == [{"text": "é\u2028"}]
    writer.close()
    writer.close()


def test_keep_lines_drops_what_is_not_wanted_and_counts_it(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    assert keep_lines(file, lambda row: row["n"] % 2 == 0) == 2
    assert rows(file) == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert keep_lines(file, lambda row: True) == 0
    assert keep_lines(tmp_path / "absent", lambda row: True) == 0


def test_an_atomic_write_leaves_no_second_file(tmp_path):
    file = tmp_path / "a.json"
    write_atomically(file, "1")
    write_atomically(file, "2")
    assert file.read_text() == "2"
    assert list(tmp_path.iterdir()) == [file]
