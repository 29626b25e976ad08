"""What `import vime_agents` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium

import vime_agents
from vime_agents import registry

ROOT = Path(__file__).resolve().parents[3]

PUBLIC = [
    "AgentEnv",
    "Batch",
    "Conversation",
    "EnvFault",
    "Episode",
    "ExecResult",
    "Game",
    "Generation",
    "IllegalMove",
    "Judge",
    "Limits",
    "Messages",
    "MultiAgentEnv",
    "Outcome",
    "Policy",
    "Reply",
    "RewardResult",
    "Runner",
    "Sampling",
    "Sandbox",
    "SandboxEnv",
    "SandboxSpec",
    "Segment",
    "Span",
    "Task",
    "TaskSet",
    "Tool",
    "ToolEnv",
    "ToolError",
    "Toolset",
    "Trainer",
    "TrainingSample",
    "Trajectory",
    "Turn",
    "Unscorable",
    "VimeAgentsError",
    "__version__",
    "last_number",
    "load_jsonl",
    "load_tasks",
    "match_number",
    "single_turn",
    "tool",
]


def test_the_public_names_are_these_and_all_of_them_exist() -> None:
    assert sorted(vime_agents.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(vime_agents, name) is not None


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "megatron", "ray", "docker", "transformers", "aiohttp", "pydantic")
    code = f"import sys, vime_agents; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_checkout_knows_the_plug_ins_that_an_install_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == registry._BUILT_IN


def test_every_env_is_in_gymnasiums_registry() -> None:
    for name in registry.entry_points(registry.ENVS_GROUP):
        assert f"vime_agents/{name}" in gymnasium.registry
