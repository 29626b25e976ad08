from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError
from vime_agents.task import ListTaskSet, Task, TaskSet, index_of
from vime_agents.tasks import (
    ConcatenatedTaskSet,
    MappedTaskSet,
    MixedTaskSet,
    SubsetTaskSet,
    limited,
    shuffled,
    sliced,
    split_by_id,
)


def numbers(count: int, *, name: str = "numbers", start: int = 0) -> ListTaskSet:
    return ListTaskSet([{"n": n} for n in range(start, start + count)], name=name, split="train")


def values(tasks: TaskSet) -> list[int]:
    return [tasks[n].inputs["n"] for n in range(len(tasks))]


slices = st.tuples(
    st.none() | st.integers(-12, 12), st.none() | st.integers(-12, 12), st.sampled_from([None, 1, 2, -1])
)


@given(slices)
def test_a_slice_is_that_of_a_list(cut: tuple) -> None:
    expected = list(range(10))[slice(*cut)]
    if expected:
        assert values(sliced(numbers(10), *cut)) == expected
    else:
        with pytest.raises(ConfigError, match="is empty; 'numbers' has 10 tasks"):
            sliced(numbers(10), *cut)


def test_tasks_keep_their_ids_when_they_are_shuffled_and_sliced() -> None:
    tasks = numbers(50)
    ids = {tasks[n].inputs["n"]: tasks[n].id for n in range(50)}
    view = sliced(shuffled(tasks, seed=3), 5, 25)
    assert isinstance(view, TaskSet)
    assert all(view[n].id == ids[view[n].inputs["n"]] for n in range(20))
    assert len(set(values(view))) == 20
    assert sorted(values(shuffled(tasks, seed=3))) == list(range(50))
    assert (
        values(shuffled(tasks, seed=3)) == values(shuffled(tasks, seed=3)) != values(shuffled(tasks, seed=4))
    )
    assert index_of(view, view[7].id) == 7


def test_the_limit_is_at_most() -> None:
    assert values(limited(numbers(5), 3)) == [0, 1, 2]
    assert values(limited(numbers(5), 9)) == [0, 1, 2, 3, 4]
    assert values(limited(numbers(5), None)) == [0, 1, 2, 3, 4]


def test_a_split_goes_by_the_id_alone() -> None:
    tasks, shares = numbers(2000), {"train": 0.8, "dev": 0.1, "test": 0.1}
    parts = split_by_id(tasks, shares, seed=1)
    found = {split: set(values(part)) for split, part in parts.items()}
    assert sorted(n for part in found.values() for n in part) == list(range(2000))
    assert [len(found[s]) / 2000 for s in shares] == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert {part[n].split for part in parts.values() for n in range(5)} == set(shares)
    # More rows, in another order: those that were there stay where they were.
    again = split_by_id(shuffled(numbers(3000), seed=9), shares, seed=1)
    assert all(set(values(again[s])) & set(range(2000)) == found[s] for s in shares)
    assert set(values(split_by_id(tasks, shares, seed=2)["test"])) != found["test"]
    assert values(pickle.loads(pickle.dumps(parts["dev"]))) == values(parts["dev"])


def test_shares_add_up_and_leave_no_split_empty() -> None:
    for shares in ({"a": 0.5, "b": 0.6}, {"a": 1.5, "b": -0.5}, {}):
        with pytest.raises(ConfigError, match="shares must be > 0 and add up to 1"):
            split_by_id(numbers(5), shares)
    with pytest.raises(ConfigError, match=r"'numbers \(b\)' is empty"):
        split_by_id(numbers(1), {"a": 1 - 1e-9, "b": 1e-9})


def test_mapped_tasks_are_changed_when_they_are_asked_for() -> None:
    asked = []

    def double(task: Task) -> Task:
        asked.append(task.inputs["n"])
        return replace(task, inputs={"n": 2 * task.inputs["n"]})

    tasks = MappedTaskSet(numbers(5), double)
    assert (len(tasks), asked) == (5, [])
    assert (tasks[3].inputs, asked) == ({"n": 6}, [3])


def test_parts_one_after_the_other() -> None:
    joined = ConcatenatedTaskSet([numbers(3), numbers(2, start=2), numbers(1)], name="joined")
    assert values(joined) == [0, 1, 2, 2, 3, 0]
    ids = [joined[n].id for n in range(6)]
    assert len(set(ids)) == 6
    assert (ids[3], ids[5]) == (f"{ids[2]}-2", f"{ids[0]}-2")
    named = ListTaskSet([{"id": "x"}], name="named", split="train")
    with pytest.raises(ConfigError, match="joined: two parts have a task with the id 'x'"):
        ConcatenatedTaskSet([named, named], name="joined")
    with pytest.raises(IndexError):
        joined[6]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 100)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_a_mix_keeps_its_proportions_from_the_start(parts: list[tuple[int, float]], size: int) -> None:
    mix = MixedTaskSet({str(n): (numbers(length), w) for n, (length, w) in enumerate(parts)}, size=size)
    total = sum(w for _, w in parts)
    counts: Counter[str] = Counter()
    for index in range(size):
        part, _, inner = mix[index].id.partition("/")
        tasks = numbers(parts[int(part)][0])
        assert inner == tasks[counts[part] % len(tasks)].id
        counts[part] += 1
        for n, (_, w) in enumerate(parts):
            assert abs(counts[str(n)] - (index + 1) * w / total) <= len(parts)


def test_a_mix_ends_before_a_task_would_come_twice() -> None:
    mix = MixedTaskSet({"easy": (numbers(30), 3), "hard": (numbers(100), 1)})
    assert Counter(mix[n].id.partition("/")[0] for n in range(len(mix))) == {"easy": 30, "hard": 10}
    assert len({mix[n].id for n in range(len(mix))}) == len(mix)
    assert len(MixedTaskSet({"one": (numbers(7), 0.1)})) == 7
    assert index_of(mix, mix[17].id) == 17
    assert [index_of(mix, name) for name in ("easy/nothing", "other/x", "easy")] == [None] * 3


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_weights_are_above_zero(weight: float) -> None:
    with pytest.raises(ConfigError, match="the weight of 'a' must be > 0"):
        MixedTaskSet({"a": (numbers(1), weight)})


def test_nothing_is_no_task_set() -> None:
    with pytest.raises(ConfigError, match="has no parts"):
        MixedTaskSet({})
    with pytest.raises(ConfigError, match="has no parts"):
        ConcatenatedTaskSet([], name="none")
    with pytest.raises(IndexError):
        SubsetTaskSet(numbers(3), [0], name="one")[1]
