from __future__ import annotations

import json
import os
import pickle
import re
import tracemalloc
from pathlib import Path

import pytest

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.task import TaskSet, content_id
from vime_agents.tasks import JsonlTaskSet, RowRules, load_jsonl, rows


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def test_json_lines_are_read_whatever_separators_the_text_holds(path: Path) -> None:
    write(path, '\ufeff{"q": "a\u2028b\u0085c"}\n\n  \r\n{"q": "\\ud800"}\r\n{"q": "last"}')
    tasks = load_jsonl(path, required=["q"], split="test")
    assert isinstance(tasks, TaskSet)
    assert [tasks[i].inputs for i in range(len(tasks))] == [
        {"q": "a\u2028b\u0085c"},
        {"q": "\ud800"},
        {"q": "last"},
    ]
    assert (tasks.name, tasks[0].split, tasks.bad_rows.count) == ("tasks.jsonl", "test", 0)
    with pytest.raises(IndexError):
        tasks[3]
    with pytest.raises(IndexError):
        tasks[-1]


BAD = [
    (b'{"q": 1}\n{"q": ', r"tasks\.jsonl:2: not JSON"),
    (b'{"q": 1}\n\n[1]\n', r"tasks\.jsonl:3: a row is a JSON object, got \[1\]"),
    (b'{"q": 1}\n{"a": 1}\n', r"tasks\.jsonl:2: no key 'q'; the row has \['a'\]"),
    (b'{"q": 1}\n{"q": null}\n', r"tasks\.jsonl:2: 'q' has no value"),
    (b'{"q": 1}\n{"q": "\xff"}\n', r"tasks\.jsonl:2: not JSON"),
    (b'{"q": 1}\n{"q": NaN}\n', r"tasks\.jsonl:2: not JSON: NaN is no JSON value"),
    (b'{"q": 1}\n{"q": ' + b"[" * 100_000 + b"\n", r"tasks\.jsonl:2: not JSON"),
    (b'{"q": 1}\n{"q": 2, "id": [1]}\n', r"tasks\.jsonl:2: an id is text or a whole number, got \[1\]"),
    (b'{"q": 1}\n{"q": 2, "id": "a"}\n{"q": 3, "id": "a"}\n', r"tasks\.jsonl:3: its id is that of row 2"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_bad_row_is_named_by_file_line_and_key(path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_jsonl(write(path, content), required=["q"])


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_bad_row_is_left_out_and_counted_where_asked(path: Path, content: bytes, message: str) -> None:
    tasks = load_jsonl(write(path, content + b'\n{"q": "good"}\n'), required=["q"], on_bad_row="skip")
    assert [tasks[n].inputs["q"] for n in range(len(tasks))][:: len(tasks) - 1] == [1, "good"]
    assert tasks.bad_rows.count == 1
    assert re.search(message, tasks.bad_rows.first[0])


def test_only_the_first_bad_rows_are_kept_but_all_are_counted(path: Path) -> None:
    tasks = load_jsonl(write(path, "no\n" * 1000 + "{}\n"), on_bad_row="skip")
    assert (len(tasks), tasks.bad_rows.count, len(tasks.bad_rows.first)) == (1, 1000, 20)


def test_a_file_without_good_rows_is_an_error_in_both_modes(path: Path) -> None:
    with pytest.raises(DatasetError, match=r"tasks\.jsonl: no rows$"):
        load_jsonl(write(path, "\n\n"))
    with pytest.raises(DatasetError, match=r"no rows; 2 bad, the first: .*tasks\.jsonl:1: not JSON"):
        load_jsonl(write(path, "x\ny\n"), on_bad_row="skip")


def test_a_row_that_is_too_long_is_never_read_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vime_agents.tasks.jsonl.MAX_ROW_BYTES", 1000)
    write(path, json.dumps({"q": "x" * 5000}) + '\n{"q": 2}\n')
    with pytest.raises(DatasetError, match=r"tasks\.jsonl:1: longer than 1000 bytes"):
        load_jsonl(path)
    tasks = load_jsonl(path, on_bad_row="skip")
    assert [tasks[0].inputs, len(tasks), tasks.bad_rows.count] == [{"q": 2}, 1, 1]


def test_ids_are_the_rows_own_or_their_contents(path: Path) -> None:
    write(path, '{"id": 7, "q": 1}\n{"q": 1, "a": 2}\n{"a": 2, "q": 1}\n{"q": 3}\n{"q": 1, "a": 2}\n')
    tasks = load_jsonl(path)
    content = content_id({"a": 2, "q": 1})
    ids = ["7", content, f"{content}-2", content_id({"q": 3}), f"{content}-3"]
    assert [tasks[n].id for n in range(5)] == ids
    assert [tasks.index_of(task_id) for task_id in ids] == [0, 1, 2, 3, 4]
    assert [tasks.index_of(other) for other in ("8", f"{content}-4", f"{content}-1", "")] == [None] * 4


def test_ids_whose_digests_coincide_are_told_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "id_digest", lambda task_id: len(task_id))
    tasks = load_jsonl(write(path, '{"id": "bb"}\n{"id": "a"}\n'))
    assert [tasks.index_of(name) for name in ("a", "bb", "b", "cc")] == [1, 0, None, None]


def test_rows_of_other_splits_are_left_out_and_are_not_bad(path: Path) -> None:
    write(path, '{"s": "test", "q": 1}\n{"s": "train", "q": 2}\n{"q": 3}\n')
    with pytest.raises(DatasetError, match=r"tasks\.jsonl:3: no key 's'"):
        load_jsonl(path, split="test", split_key="s")
    tasks = load_jsonl(path, split="test", split_key="s", on_bad_row="skip")
    assert (len(tasks), tasks[0].inputs["q"], tasks[0].split, tasks.bad_rows.count) == (1, 1, "test", 1)
    with pytest.raises(DatasetError, match="no rows of split 'dev'"):
        load_jsonl(path, split="dev", split_key="s", on_bad_row="skip")


def test_a_large_file_is_indexed_and_not_loaded(path: Path) -> None:
    row = json.dumps({"q": "x" * 20_000})
    path.write_text("\n".join(row.replace("x", str(n % 10), 1) for n in range(2000)))
    tracemalloc.start()
    tasks = load_jsonl(path)
    assert tasks[1999].inputs["q"].startswith("9xxx")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 40_000_000
    assert kept < 1_000_000


def test_a_file_that_changes_is_noticed(path: Path) -> None:
    tasks = load_jsonl(write(path, '{"q": 1}\n{"q": 2}\n'))
    os.truncate(path, 5)
    with pytest.raises(DatasetError, match=r"tasks\.jsonl changed after its rows were counted"):
        tasks[0]


def test_a_file_that_is_replaced_is_still_the_old_one(path: Path) -> None:
    tasks = load_jsonl(write(path, '{"q": 1}\n'))
    os.replace(write(path.with_suffix(".new"), '{"q": 22}\n'), path)
    assert tasks[0].inputs == {"q": 1}


def test_task_sets_of_files_can_be_pickled_and_close_what_they_open(path: Path) -> None:
    write(path, '{"q": 1}\n{"q": 2}\n')
    before = os.listdir("/proc/self/fd")
    tasks = load_jsonl(path)
    copy = pickle.loads(pickle.dumps(tasks))
    assert [copy[n] for n in range(2)] == [tasks[n] for n in range(2)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    del tasks, copy
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        load_jsonl(tmp_path / "nothing.jsonl")


def test_rules_that_cannot_be_meant_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="on_bad_row must be 'error' or 'skip', got 'ignore'"):
        load_jsonl(path, on_bad_row="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="required must be a sequence of keys"):
        JsonlTaskSet(path, RowRules(required="q"))  # type: ignore[arg-type]
