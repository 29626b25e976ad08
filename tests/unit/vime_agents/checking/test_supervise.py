"""What becomes of a worker that says nothing more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vime_agents.checking import scale, supervise
from vime_agents.checking.catalog import CHECKS
from vime_agents.checking.scale import QUICK


async def test_a_check_that_takes_longer_than_its_scale_allows_is_a_hang_of_that_many_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "_CHECK_S", 0.25)
    run = supervise._Run(
        env_id="an env", split="train", scale=QUICK, checks=CHECKS, on_result=lambda result: None
    )
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"begin": "gold-wins"}\n')
        running, stuck = await run._follow(reading)
    finally:
        os.close(writing)
    assert running == "gold-wins"
    run._ended_early(running, None, stuck, "")
    (fault,) = run.faults["hang"]
    assert fault.message == "gold-wins did not end within 0.25 s"
    (result,) = run.results
    assert (result.id, result.state) == ("gold-wins", "not run")


async def test_a_worker_that_does_not_even_begin_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stuck_at_import.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(scale, "_CHECK_S", 1.0)
    run = supervise._Run(
        env_id="stuck_at_import:Env",
        split="train",
        scale=QUICK,
        checks=CHECKS,
        on_result=lambda result: None,
    )
    await run._one_worker(["gold-wins"])
    assert run.results == []
