"""What an update's metrics say that a person should look at."""

import pytest

from vime_trainers.ray.alarms import Alarms

HEALTHY = {
    "ess": 0.98,
    "zero_advantage_share": 0.4,
    "tokens_lost_to_drift": 0.0,
    "mean_rollout_train_logprob_diff": 1e-5,
}


def test_a_healthy_update_has_none():
    alarms = Alarms()
    assert alarms.of(HEALTHY) == []
    assert alarms.of({"loss": 1.0}) == []  # a warm-up knows none of these


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ess", 0.3),
        ("zero_advantage_share", 1.0),
        ("tokens_lost_to_drift", 12.0),
        ("mean_rollout_train_logprob_diff", 0.2),
    ],
)
def test_each_fault_is_named_alone(name, value):
    alarms = Alarms()
    alarms.of(HEALTHY)
    (line,) = alarms.of(HEALTHY | {name: value})
    assert line.startswith(name)


def test_a_difference_that_jumped_stays_an_alarm_until_it_is_back():
    alarms = Alarms()
    seen = [len(alarms.of({"mean_rollout_train_logprob_diff": x})) for x in (1e-5, 5e-4, 0.2, 0.2, 1e-5)]
    # 5e-4 is more than ten times 1e-5, and still rounding.
    assert seen == [0, 0, 1, 1, 0]
