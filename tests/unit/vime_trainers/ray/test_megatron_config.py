"""What a run's flags make of the trainer's loss."""

from vime_agents.config import TrainConfig
from vime_trainers.losses.config import LossConfig
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.ray.processes import megatron_config


def trainer_of(**settings) -> MegatronConfig:
    return megatron_config(TrainConfig(env="E", hf_checkpoint="m", run_dir="r", **settings))


def loss_of(**settings) -> LossConfig:
    return trainer_of(**settings).loss


def test_without_flags_the_loss_is_the_default():
    assert loss_of() == LossConfig()


def test_flags_reach_the_loss():
    found = loss_of(
        pg_loss_type="gspo",
        eps_clip=3e-4,
        eps_clip_c=3.0,
        use_tis=True,
        tis_clip=5.0,
        tis_clip_low=0.5,
        tis_level="sequence",
        tis_mode="mask",
        rs_lower_bound=0.99,
        rs_upper_bound=1.01,
        rs_veto_threshold=1e-4,
        kl_loss_coef=0.1,
        kl_loss_type="k1",
        use_unbiased_kl=True,
    )
    assert found == LossConfig(
        pg_loss_type="gspo",
        eps_clip=3e-4,
        eps_clip_high=3e-4,
        eps_clip_c=3.0,
        tis_clip=5.0,
        tis_clip_low=0.5,
        tis_level="sequence",
        tis_mode="mask",
        rs_lower_bound=0.99,
        rs_upper_bound=1.01,
        rs_veto_threshold=1e-4,
        kl_loss_coef=0.1,
        kl_loss_type="k1",
        use_unbiased_kl=True,
    )


def test_without_the_switch_there_is_no_correction():
    assert loss_of().tis_clip is None
    assert loss_of(use_tis=True).tis_clip == 2.0


def test_recomputed_log_probs_come_with_the_samples():
    assert loss_of(old_logprobs="recompute", num_steps_per_rollout=2).old_logprobs == "sample"


def test_the_rate_decays_over_all_optimizer_steps_of_the_run_unless_said_otherwise():
    steps = {"num_rollout": 7, "num_steps_per_rollout": 3, "old_logprobs": "recompute"}
    assert trainer_of(lr_decay_style="cosine", **steps).lr_decay_iters == 21
    assert trainer_of(lr_decay_style="linear", lr_decay_iters=5, **steps).lr_decay_iters == 5
    assert trainer_of(**steps).lr_decay_iters is None


def test_the_reference_is_the_policy_that_sampled_or_a_frozen_model():
    def found(**settings):
        config = trainer_of(kl_coef=0.1, **settings)
        return config.ref_load, config.loss.kl_reference

    assert found() == (None, "rollout")
    assert found(kl_reference="ref") == ("m", "sample")
    assert found(ref_load="other") == ("other", "sample")
