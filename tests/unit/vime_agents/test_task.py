from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.task import (
    ListTaskSet,
    ProceduralTaskSet,
    Task,
    TaskSet,
    content_id,
    load_jsonl,
    shuffled_indices,
)


def make(rng: np.random.Generator) -> dict:
    return {"n": int(rng.integers(10**9))}


def procedural(seed: int = 0, split: str = "train", size: int = 10) -> ProceduralTaskSet:
    return ProceduralTaskSet(make, name="numbers", split=split, seed=seed, size=size)


def test_procedural_tasks_are_a_function_of_seed_split_and_index() -> None:
    tasks = procedural()
    backwards = [tasks[i] for i in reversed(range(10))][::-1]
    assert backwards == [procedural()[i] for i in range(10)]
    assert isinstance(tasks, TaskSet)
    assert [t.id for t in backwards[:2]] == ["train-0", "train-1"]
    sets = (procedural(), procedural(seed=1), procedural(split="test"))
    assert len({tasks[i].inputs["n"] for tasks in sets for i in range(10)}) == 30


@pytest.mark.parametrize("index", [-1, 10])
def test_procedural_tasks_end_at_their_size(index: int) -> None:
    assert len(procedural()) == 10
    with pytest.raises(IndexError):
        procedural()[index]


def test_rows_become_tasks_with_ids_of_their_content() -> None:
    task = Task(id="own", inputs={}, split="test")
    tasks = ListTaskSet([{"q": 1, "a": 2}, {"id": 7, "q": 1}, task], name="rows", split="train")
    assert isinstance(tasks, TaskSet)
    assert [t.id for t in (tasks[0], tasks[1], tasks[2])] == [content_id({"a": 2, "q": 1}), "7", "own"]
    assert tasks[2] is task
    assert tasks[0].split == "train"


def test_content_ids_do_not_depend_on_the_order_of_keys_or_the_process() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})
    written = subprocess.run(["sha256sum"], input=b'{"a": 1}', capture_output=True, check=True).stdout
    assert content_id({"a": 1}) == written.decode()[:16]


def test_an_empty_task_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'rows' \(train\) is empty"):
        ListTaskSet([], name="rows", split="train")


def test_json_lines_are_read_whatever_separators_the_text_holds(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = '{"q": "a\u2028b\u0085c"}\n\n  \n{"q": "\\ud800"}\n{"q": "last"}'
    path.write_text(rows, encoding="utf-8")
    tasks = load_jsonl(path, required=["q"], split="test")
    assert [tasks[i].inputs["q"] for i in range(len(tasks))] == ["a\u2028b\u0085c", "\ud800", "last"]
    assert (tasks.name, tasks[0].split) == ("tasks.jsonl", "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"q": 1}\n{"q": ', r"tasks\.jsonl:2: not JSON"),
        (b'{"q": 1}\n\n[1]\n', r"tasks\.jsonl:3: a row is a JSON object"),
        (b'{"q": 1}\n{"a": 1}\n', r"tasks\.jsonl:2: no key 'q'; the row has \['a'\]"),
        (b'{"q": 1}\n{"q": "\xff"}\n', r"tasks\.jsonl:2: not JSON"),
        (b"\n\n", r"tasks\.jsonl: no rows"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_key(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load_jsonl(path, required=["q"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        load_jsonl(tmp_path / "nothing.jsonl")


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 10**6))
def test_shuffled_order_can_be_entered_anywhere_and_covers_every_epoch(
    size: int, start: int, seed: int
) -> None:
    order = list(itertools.islice(shuffled_indices(size, seed=seed), start + 2 * size))
    assert list(itertools.islice(shuffled_indices(size, seed=seed, start=start), 2 * size)) == order[start:]
    for epoch in range(0, len(order) - size + 1, size):
        assert sorted(order[epoch : epoch + size]) == list(range(size))


def test_epochs_are_shuffled_differently() -> None:
    order = list(itertools.islice(shuffled_indices(50, seed=1), 100))
    assert order[:50] != order[50:]
    assert order[:50] != list(range(50))
