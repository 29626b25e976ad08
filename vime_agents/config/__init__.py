"""Flags and YAML files -> frozen configs. Never imports torch, ray or vllm."""

from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.options import Options
from vime_agents.config.train import TrainConfig

__all__ = ["EvalConfig", "Options", "TrainConfig"]
