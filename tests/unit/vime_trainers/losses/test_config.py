import pytest

from vime_agents.errors import ConfigError
from vime_trainers.losses.config import LossConfig


def test_tis_on_top_of_the_rollout_ratio_is_refused():
    with pytest.raises(ConfigError, match="corrects twice"):
        LossConfig(old_logprobs="rollout", tis_clip=2.0)


def test_rejection_on_top_of_the_rollout_ratio_weighs_nothing_twice_and_is_allowed():
    assert LossConfig(old_logprobs="rollout", rs_lower_bound=0.9).rejects


def test_k1_in_the_loss_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"expected gradient of k1 in the loss is zero.*kl_coef"):
        LossConfig(kl_loss_coef=0.1, kl_loss_type="k1")
    assert LossConfig(kl_loss_coef=0.1, kl_loss_type="k1", use_unbiased_kl=True).use_unbiased_kl


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ({"tis_clip_low": 0.5}, "tis_clip = None"),
        ({"tis_level": "sequence"}, "tis_clip = None"),
        ({"tis_mode": "mask"}, "tis_clip = None"),
        ({"use_unbiased_kl": True, "kl_loss_type": "k3"}, "kl_loss_coef = 0"),
    ],
)
def test_a_setting_that_would_do_nothing_is_an_error(setting, missing):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}.*{missing} has no effect"):
        LossConfig(**setting)


@pytest.mark.parametrize("estimator", ["k2", "k3+"])
def test_weighting_an_estimate_whose_gradient_is_right_already_is_refused(estimator):
    with pytest.raises(ConfigError, match="use_unbiased_kl"):
        LossConfig(kl_loss_coef=0.1, kl_loss_type=estimator, use_unbiased_kl=True)


def test_the_same_divergence_in_reward_and_loss_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        LossConfig(kl_coef=0.1, kl_loss_coef=0.1)


@pytest.mark.parametrize(
    "unused", [{"tis_clip": 2.0}, {"rs_veto_threshold": 1e-4}, {"kl_coef": 0.1}, {"opd_kl_coef": 1.0}]
)
@pytest.mark.parametrize(
    "kind", [{"loss_type": "sft_loss"}, {"loss_type": "custom_loss", "custom_loss_function_path": "m:f"}]
)
def test_what_a_loss_does_not_read_is_refused(kind, unused):
    with pytest.raises(ConfigError, match=f"{next(iter(unused))}.*no part"):
        LossConfig(**kind, **unused)


def test_a_custom_loss_and_its_path_come_together():
    with pytest.raises(ConfigError, match="custom_loss_function_path"):
        LossConfig(loss_type="custom_loss")
    with pytest.raises(ConfigError, match="custom_loss_function_path"):
        LossConfig(custom_loss_function_path="m:f")


@pytest.mark.parametrize("kind", ["reinforce", "cispo"])
def test_a_dual_clip_without_a_clip_is_refused(kind):
    with pytest.raises(ConfigError, match="eps_clip_c"):
        LossConfig(pg_loss_type=kind, eps_clip_c=3.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"eps_clip": 1.1},
        {"eps_clip_high": -0.1},
        {"eps_clip_c": 1.0},
        {"tis_clip": 0.0},
        {"tis_clip_low": 3.0, "tis_clip": 2.0},
        {"tis_level": "geometric"},
        {"tis_mode": "drop"},
        {"rs_lower_bound": 1.1},
        {"rs_upper_bound": 0.9},
        {"rs_veto_threshold": 0.0},
        {"kl_loss_coef": -1.0},
        {"kl_coef": float("nan")},
        {"opd_kl_coef": -1.0},
        {"opd_top_k": -1},
        {"pg_loss_type": "dpo"},
        {"loss_type": "sft"},
        {"kl_loss_type": "k4"},
        {"kl_reference": "ref"},
        {"old_logprobs": "both"},
    ],
)
def test_values_out_of_range_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LossConfig(**bad)


def test_a_number_of_top_tokens_without_a_weight_is_refused():
    with pytest.raises(ConfigError, match=r"opd_top_k = 8 with loss.opd_kl_coef = 0"):
        LossConfig(opd_top_k=8)


def test_a_loss_names_what_it_reads_of_a_sample():
    assert LossConfig().sample_fields == ()
    everything = LossConfig(
        old_logprobs="sample", kl_coef=0.1, kl_reference="sample", opd_kl_coef=1.0
    ).sample_fields
    assert everything == ("old_logprobs", "reference_logprobs", "teacher_logprobs")
    assert LossConfig(kl_reference="sample").sample_fields == ()
    assert LossConfig(opd_kl_coef=1.0, opd_top_k=8).sample_fields == ("teacher_top",)


def test_only_losses_of_whole_rows_need_them():
    assert not LossConfig(tis_clip=2.0).needs_rows
    for settings in (
        {"pg_loss_type": "gspo"},
        {"tis_clip": 2.0, "tis_level": "sequence"},
        {"rs_veto_threshold": 1e-4},
    ):
        assert LossConfig(**settings).needs_rows
