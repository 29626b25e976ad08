"""A made model appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from vime_trainers.models.cache import make_once, models_folder


def test_a_model_is_made_once(tmp_path: Path):
    made: list[Path] = []

    def build(out: Path) -> None:
        made.append(out)
        (out / "weights").write_text("w")

    for _ in range(2):
        assert make_once(tmp_path / "models" / "m", build) == tmp_path / "models" / "m"
    assert len(made) == 1
    assert (tmp_path / "models" / "m" / "weights").read_text() == "w"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path):
    def build(out: Path) -> None:
        (out / "half").write_text("w")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        make_once(tmp_path / "m", build)
    assert list(tmp_path.iterdir()) == []


def test_of_two_builders_at_once_the_first_to_finish_wins(tmp_path: Path):
    def build(out: Path) -> None:
        (out / "who").write_text("second")
        make_once(tmp_path / "m", lambda inner: (inner / "who").write_text("first") and None)

    assert (make_once(tmp_path / "m", build) / "who").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_the_cache_is_the_argument_then_the_variable_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VIME_AGENTS_CACHE", str(tmp_path / "env"))
    assert models_folder(tmp_path / "arg") == tmp_path / "arg" / "models"
    assert models_folder() == tmp_path / "env" / "models"
    monkeypatch.delenv("VIME_AGENTS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder() == tmp_path / ".cache" / "vime-agents" / "models"
