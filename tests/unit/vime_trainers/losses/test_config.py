import pytest

from vime_agents.errors import ConfigError
from vime_trainers.losses.config import LossConfig


def test_tis_on_top_of_the_rollout_ratio_is_refused():
    with pytest.raises(ConfigError, match="corrects twice"):
        LossConfig(old_logprobs="rollout", tis_clip=2.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"eps_clip": 1.0},
        {"eps_clip_high": -0.1},
        {"dual_clip": 1.0},
        {"tis_clip": 0.0},
        {"kl_coef": -1.0},
        {"policy_loss": "dpo"},
        {"kl_estimator": "k1"},
        {"old_logprobs": "both"},
    ],
)
def test_values_out_of_range_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LossConfig(**bad)
