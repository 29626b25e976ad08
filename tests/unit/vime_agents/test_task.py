from __future__ import annotations

import itertools
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError
from vime_agents.task import (
    ListTaskSet,
    ProceduralTaskSet,
    Task,
    TaskSet,
    content_id,
    index_of,
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


def test_rows_of_equal_content_have_different_ids_and_an_id_of_its_own_comes_once() -> None:
    tasks = ListTaskSet([{"q": 1}, {"q": 2}, {"q": 1}], name="rows", split="train")
    assert [tasks[n].id for n in range(3)] == [
        content_id({"q": 1}),
        content_id({"q": 2}),
        content_id({"q": 1}) + "-2",
    ]
    with pytest.raises(ConfigError, match=r"'rows' \(train\): two tasks have the id '7'"):
        ListTaskSet([{"id": 7, "q": 1}, {"id": "7", "q": 2}], name="rows", split="train")


def test_a_task_is_found_by_its_id() -> None:
    assert [index_of(procedural(), name) for name in ("train-3", "test-3")] == [3, None]


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
