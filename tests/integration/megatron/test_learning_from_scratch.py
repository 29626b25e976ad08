"""The trainer learns a two-turn tool task from scratch; two broken signals teach it nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def learn(variant: str, max_updates: int, seed: int = 0) -> dict[str, Any]:
    script = Path(__file__).with_name("call_observe_answer.py")
    done = subprocess.run(
        [sys.executable, script, variant, str(seed), str(max_updates)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_success_goes_from_nothing_to_nearly_always():
    """Plan 81: Two seeds out of at most four; which ones explore in time depends on rounding."""
    solved: list[dict[str, Any]] = []
    for seeds in ((0, 1), (2, 3)):
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda seed: learn("real", 600, seed), seeds))
        for run in found:
            assert run["rewards"][0] < 0.1
            # The sampler is the trainer's own model: the log-probs of both differ by rounding only.
            assert run["max_rollout_train_logprob_diff"] < 1e-4
        solved += [run for run in found if run["success"] >= 0.98]
        if len(solved) >= 2:
            return
    raise AssertionError(f"solved by {len(solved)} of 4 seeds only")


def test_rewards_of_other_episodes_teach_nothing():
    """Plan 81."""
    found = learn("shuffled-rewards", 100)
    assert found["success"] == 0
    assert max(found["rewards"]) < 0.2


def test_training_on_what_was_not_sampled_teaches_nothing():
    """Plan 81."""
    found = learn("inverted-mask", 100)
    assert found["success"] == 0
    assert max(found["rewards"]) < 0.2
