"""Wrappers around environments of one agent: `gymnasium.Wrapper`s that have an async face as well.

They go around an env by hand (`TurnLimit(Calculator(), max_turns=3)`), around one that `gymnasium.make`
made, and into a registered spec (`additional_wrappers=(TurnLimit.wrapper_spec(max_turns=3),)`).
"""

from __future__ import annotations

from vime_agents.wrappers.base import AgentWrapper, Step, wrap
from vime_agents.wrappers.few_shot import FewShot
from vime_agents.wrappers.limits import ObservationLimit, TokenBudget, TurnLimit
from vime_agents.wrappers.text_tool_calls import TextToolCalls
from vime_agents.wrappers.transcript import TranscriptRecorder

__all__ = [
    "AgentWrapper",
    "FewShot",
    "ObservationLimit",
    "Step",
    "TextToolCalls",
    "TokenBudget",
    "TranscriptRecorder",
    "TurnLimit",
    "wrap",
]
