"""vime-agents: agent environments and a trainer SDK for LLM agents.

Importing this registers every known environment with Gymnasium (`gymnasium.make("vime_agents/...")`),
without importing any of them. Torch, vLLM, Ray and Docker are never imported from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vime_agents import registry

if TYPE_CHECKING:
    from vime_agents.answers import last_number, match_number
    from vime_agents.env import AgentEnv, ToolEnv
    from vime_agents.episode import (
        Episode,
        Outcome,
        RewardResult,
        Segment,
        Span,
        Trajectory,
        Turn,
    )
    from vime_agents.errors import EnvFault, IllegalMove, ToolError, Unscorable, VimeAgentsError
    from vime_agents.judge import Judge
    from vime_agents.multi_agent import Game, MultiAgentEnv
    from vime_agents.policy import Conversation, Generation, Policy, Sampling
    from vime_agents.rollout.runner import Limits, Runner
    from vime_agents.sandbox import ExecResult, Sandbox, SandboxSpec
    from vime_agents.sandbox_env import SandboxEnv
    from vime_agents.single_turn import single_turn
    from vime_agents.spaces import Messages, Reply
    from vime_agents.task import Task, TaskSet
    from vime_agents.tasks import load_jsonl, load_tasks
    from vime_agents.tools import Tool, Toolset, tool
    from vime_agents.trainer import Batch, Trainer, TrainingSample

__version__ = "0.1.0"

_EXPORTS = {
    "AgentEnv": "env",
    "Batch": "trainer",
    "Conversation": "policy",
    "EnvFault": "errors",
    "Episode": "episode",
    "ExecResult": "sandbox",
    "Game": "multi_agent",
    "Generation": "policy",
    "IllegalMove": "errors",
    "Judge": "judge",
    "Limits": "rollout.runner",
    "Messages": "spaces",
    "MultiAgentEnv": "multi_agent",
    "Outcome": "episode",
    "Policy": "policy",
    "Reply": "spaces",
    "RewardResult": "episode",
    "Runner": "rollout.runner",
    "Sampling": "policy",
    "Sandbox": "sandbox",
    "SandboxEnv": "sandbox_env",
    "SandboxSpec": "sandbox",
    "Segment": "episode",
    "Span": "episode",
    "Task": "task",
    "TaskSet": "task",
    "Tool": "tools",
    "ToolEnv": "env",
    "ToolError": "errors",
    "Toolset": "tools",
    "Trainer": "trainer",
    "TrainingSample": "trainer",
    "Trajectory": "episode",
    "Turn": "episode",
    "Unscorable": "errors",
    "VimeAgentsError": "errors",
    "last_number": "answers",
    "load_jsonl": "tasks",
    "load_tasks": "tasks",
    "match_number": "answers",
    "single_turn": "single_turn",
    "tool": "tools",
}
__all__ = ["__version__", *_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll]

registry.register_all()


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import vime_agents` stays fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'vime_agents' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"vime_agents.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
