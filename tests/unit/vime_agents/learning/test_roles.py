"""Self-play: each role against its own past."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode, RewardResult
from vime_agents.errors import CheckpointError, ConfigError
from vime_agents.learning.advantages import RoleBaselines
from vime_agents.learning.samples import build_batch
from vime_agents.trainer import Batch


def test_the_baseline_is_read_before_it_moves() -> None:
    """Plan 9."""
    baselines = RoleBaselines(0.95)
    np.testing.assert_allclose(baselines.of("x")([1, 1, 0, 1]), [1, 0.95, -0.0975, 0.907375])
    assert baselines.state_dict() == {"x": pytest.approx(0.13799375)}  # .95 * .092625 + .05


def test_the_baseline_survives_a_checkpoint() -> None:
    """Plan 9."""
    whole, first, second = RoleBaselines(0.9), RoleBaselines(0.9), RoleBaselines(0.9)
    expected = [*whole.of("x")([1, 0]), *whole.of("x")([0, 1])]
    found = [*first.of("x")([1, 0])]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [*found, *second.of("x")([0, 1])] == expected


@pytest.mark.parametrize("value", [float("nan"), "0.5", None, True])
def test_a_broken_baseline_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match="role 'x'"):
        RoleBaselines().load_state_dict({"x": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_forgets_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="--rae-decay"):
        RoleBaselines(decay)


def game(episode_id: str, first: float, second: float) -> Episode:
    """Two seats of one game."""
    episode = make_episode(episode_id, episode_id, first)
    (one,) = episode.trajectories
    two = replace(one, agent="second", reward=RewardResult(value=second))
    return replace(episode, trajectories=(replace(one, agent="first"), two))


def advantages(batch: Batch) -> dict[tuple[str, str], float]:
    return {(s.episode_id, s.agent): float(s.advantages[s.loss_mask][0]) for s in batch.samples}


def test_each_seat_has_its_own_baseline_whatever_the_order_in_which_games_end() -> None:
    games = [game("g0", 1, -1), game("g1", 1, -1), game("g2", -1, 1)]
    expected = {
        ("g0", "first"): 1,
        ("g0", "second"): -1,
        ("g1", "first"): 1 - 0.05,
        ("g1", "second"): -1 + 0.05,
        ("g2", "first"): -1 - 0.0975,
        ("g2", "second"): 1 + 0.0975,
    }
    for order in (games, games[::-1]):
        found = advantages(build_batch(order, estimator=RoleBaselines(0.95), temperature=1.0))
        assert found == pytest.approx(expected)


def test_a_game_that_failed_moves_no_baseline() -> None:
    failed = make_episode("g0", "g0", None, cause="engine")
    baselines = RoleBaselines()
    build_batch([failed, game("g1", 1, -1)], estimator=baselines, temperature=1.0)
    assert baselines.state_dict() == pytest.approx({"first": 0.05, "second": -0.05})
