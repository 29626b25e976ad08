"""`make bench` lists every benchmark, and a wrong name is an error that lists them too."""

from __future__ import annotations

import importlib

import pytest

from benchmarks import measure
from benchmarks.__main__ import main, names


def test_every_benchmark_is_listed_with_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, line in names().items():
        assert f"make bench-{name} " in listed
        assert len(line) > 20
        assert callable(importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main)
    assert set(names()) >= {"import-time", "learning", "rollout", "sandboxes", "trainer", "weight-sync"}


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rolout"]) == 2
    assert "rollout" in capsys.readouterr().err


def test_arms_take_turns_in_alternating_order_and_say_how_far_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) or 1.0 for name in "ab"}
    assert measure.interleaved(arms, 3) == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert capsys.readouterr().err.splitlines()[1:4] == ["1/3 b: 1", "2/3 b: 1", "2/3 a: 1"]


def test_percentiles() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [measure.percentile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]


def test_ratios_are_those_of_the_same_repeat() -> None:
    assert measure.median_ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
