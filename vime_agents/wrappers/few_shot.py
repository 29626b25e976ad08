"""A wrapper that shows the agent how it is done before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from vime_agents.env import Info, Observation
from vime_agents.errors import ConfigError
from vime_agents.messages import Message, check_message
from vime_agents.wrappers.base import AgentWrapper


class FewShot(AgentWrapper, RecordConstructorArgs):
    """Puts example messages between the env's system message, if any, and its prompt.

    What the agent says in the examples was not sampled: it is never trained on.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, examples: Sequence[Message]) -> None:
        """`examples`: whole exchanges, from a user message to the reply to it.

        Raises:
            ContractError: not a message.
            ConfigError: no examples, a system message among them, or a question without a reply.
        """
        RecordConstructorArgs.__init__(self, examples=list(examples))
        AgentWrapper.__init__(self, env)
        self.examples = tuple(check_message(message) for message in examples)
        roles = [message["role"] for message in self.examples]
        if "system" in roles or roles[:1] != ["user"] or roles[-1] != "assistant":
            raise ConfigError(
                f"few-shot examples go from a user message to an assistant's, without system messages; got "
                f"the roles {', '.join(roles) or 'of no message at all'}"
            )

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """The prompt, with the examples before it."""
        messages = observation["messages"]
        num_system = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
        shown = (*messages[:num_system], *map(_copy, self.examples), *messages[num_system:])
        return {**observation, "messages": shown}, info


def _copy(message: Message) -> Message:
    """What a caller does to an observation must not change the next one."""
    copied: Any = {**message}
    if "tool_calls" in message:
        copied["tool_calls"] = [
            {**call, "function": {**call["function"]}} for call in message.get("tool_calls", ())
        ]
    return copied
