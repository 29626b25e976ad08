"""Settings of `vime-agents play`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vime_agents.config.evaluation import EvalConfig, SamplingOptions, check_vllm_has_a_server
from vime_agents.config.fields import NonNegativeInt
from vime_agents.config.options import Options

PERSON = "person"
"""The model that is whoever sits at the terminal."""


@dataclass(frozen=True, kw_only=True)
class WhoOptions:
    """What is played, and by whom."""

    env: str
    """Id (`Calculator-v0`) or `module:Class` of the environment; may be given without the flag."""
    model: str = PERSON
    """person, you; or who is watched, as `vime-agents eval` takes it: scripted:gold, http://HOST:PORT/v1#NAME,
    vllm:FOLDER, ..."""
    agents: str = ""
    """Who else plays a game, as AGENT=MODEL,...; an agent's name or a role. The rest are --model's. Whom a
    pool, AGENT='MODEL|MODEL|...', sends is decided by the task."""
    task: str = "0"
    """Index of the task in the split, or its id."""
    split: str = "test"
    """Split of the environment's tasks."""
    seed: NonNegativeInt = 0
    """Seed of tasks and sampling; `vime-agents eval` plays the same episodes."""
    pause: bool = False
    """Wait for Enter before each turn of a model."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig(Options, WhoOptions, SamplingOptions):
    """Everything that one played episode depends on."""

    program: ClassVar[str] = "vime-agents play ENV"
    summary: ClassVar[str] = (
        "Play one episode at the terminal, or watch a model play it, turn by turn. A tool is called by "
        "/NAME argument=value; /help lists the tools, Tab completes, Ctrl-D leaves."
    )
    owned_vllm_flags: ClassVar[Mapping[str, str]] = EvalConfig.owned_vllm_flags

    @classmethod
    def aliases(cls) -> Mapping[str, tuple[str, ...]]:
        """Short flags."""
        return {"model": ("-m", "--policy")}

    def check(self) -> None:
        """Raises ConfigError where settings contradict each other."""
        check_vllm_has_a_server(self.model, self.agents, self.vllm)
