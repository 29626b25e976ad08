"""Adapters and lists of trained parameters: what cannot be is refused by flag."""

import pytest

from vime_agents.config import TrainConfig
from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import LoraConfig, MegatronConfig
from vime_trainers.ray.processes import megatron_config


@pytest.mark.parametrize(
    "settings", [{"rank": 0}, {"rank": 4, "alpha": 0.0}, {"rank": 4, "target_modules": ()}]
)
def test_an_adapter_that_cannot_be_is_refused(settings):
    with pytest.raises(ConfigError, match="--lora-rank"):
        LoraConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": LoraConfig(rank=1), "freeze_params_name_list": "x"},
        {"only_train_params_name_list": "x", "freeze_params_name_list": "y"},
    ],
)
def test_only_one_of_them_says_what_is_trained(settings):
    with pytest.raises(ConfigError, match="give one of them"):
        MegatronConfig(hf_checkpoint="m", **settings)


def test_flags_reach_the_adapters():
    shared = {"env": "E", "hf_checkpoint": "m", "run_dir": "r"}
    config = TrainConfig(**shared, lora_rank=4, lora_alpha=8.0, lora_target_modules="q_proj, v_proj")
    assert megatron_config(config).lora == LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj"))
    assert megatron_config(TrainConfig(**shared)).lora is None
