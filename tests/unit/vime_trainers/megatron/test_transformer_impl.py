"""Which layers are used, and what asks for layers that are not there."""

from __future__ import annotations

import pytest

from vime_agents.errors import ConfigError
from vime_trainers.megatron import device
from vime_trainers.megatron.config import MegatronConfig


@pytest.mark.parametrize(
    ("impl", "there", "used"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("local", True, False),
        ("transformer_engine", True, True),
    ],
)
def test_transformer_engine_is_used_where_it_is_and_wanted(monkeypatch, impl, there, used):
    monkeypatch.setattr(device, "has_transformer_engine", lambda: there)
    assert device.uses_transformer_engine(impl) is used


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"impl": "transformer_engine"}, "--transformer-impl transformer_engine"),
        ({"impl": "auto", "fp8": "hybrid"}, "--fp8-format hybrid"),
    ],
)
def test_what_only_an_accelerator_has_is_refused_by_flag_without_one(monkeypatch, settings, flag):
    monkeypatch.setattr(device, "has_transformer_engine", lambda: False)
    with pytest.raises(ConfigError, match=flag + ".*package transformer_engine"):
        device.uses_transformer_engine(**settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fp8_format": "hybrid"}, "--fp8-format hybrid: needs --bf16"),
        ({"num_layers_per_virtual_pipeline_stage": 1}, "--pipeline-model-parallel-size above 1"),
        ({"expert_tensor_parallel_size": 2}, "it needs --expert-model-parallel-size above 1"),
        (
            {
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "expert_tensor_parallel_size": 1,
            },
            "it needs --expert-model-parallel-size above 1",
        ),
        ({"expert_tensor_parallel_size": 0}, "--expert-tensor-parallel-size 0: must be at least 1"),
        ({"moe_aux_loss_coeff": -0.1}, "--moe-aux-loss-coeff -0.1: must not be negative"),
    ],
)
def test_contradictory_settings_are_named(settings, told):
    with pytest.raises(ConfigError, match=told):
        MegatronConfig(hf_checkpoint="m", **settings)
