"""A wrapper for models that have no tool calls of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from vime_agents import messages as msg
from vime_agents.env import Info, Observation
from vime_agents.errors import ConfigError
from vime_agents.messages import Message
from vime_agents.wrappers.base import AgentWrapper, Step, wrapped_attribute
from vime_agents.wrappers.call_styles import (
    CALL_STYLES,
    CallStyle,
    as_text,
    described,
    how_to_call,
    read_calls,
)


class TextToolCalls(AgentWrapper, RecordConstructorArgs):
    """Lets the model write tool calls as text: describes the tools, reads the calls, writes out the answers.

    The description goes to the end of the env's system message, or into one of its own. The policy is told of
    no tools (`tool_schemas` is empty); what a tool answers comes as a user message. What was meant as a call
    but cannot be read is answered with an error and counted: `unreadable_calls`. Native calls still pass.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, style: CallStyle = "xml") -> None:
        """`style`: as in `call_styles`. Raises ConfigError: there is no such style."""
        if style not in CALL_STYLES:
            raise ConfigError(f"style must be one of {', '.join(CALL_STYLES)}, got {style!r}")
        RecordConstructorArgs.__init__(self, style=style)
        AgentWrapper.__init__(self, env)
        self.style: CallStyle = style
        self._turn = 0
        self._problems: dict[str, str] = {}
        """Id of an unreadable call -> what is wrong with it."""

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """None: the prompt describes the tools."""
        return []

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """The prompt, with the tools described. Raises ConfigError: the env has none."""
        self._turn, self._problems = 0, {}
        schemas = self._schemas()
        if not schemas:
            raise ConfigError(f"{self.unwrapped} has no tools to describe: take TextToolCalls away")
        text = described(schemas, self.style)
        messages = self._readable(observation["messages"])
        if messages and messages[0]["role"] == "system":
            text = f"{messages[0]['content']}\n\n{text}"
            messages = messages[1:]
        return {**observation, "messages": (msg.system(text), *messages)}, info

    def action(self, action: str | Message) -> str | Message:
        """The reply, with the calls that its text makes."""
        self._turn += 1
        self._problems = {}
        reply = msg.assistant(action) if isinstance(action, str) else action
        if reply.get("tool_calls"):
            return action
        calls = []
        for index, read in enumerate(read_calls(reply["content"], self._schemas(), self.style)):
            call_id = f"text-{self._turn}-{index}"
            calls.append(msg.tool_call(read.name, read.arguments, call_id))
            if read.problem:
                self._problems[call_id] = read.problem
                self.count("unreadable_calls")
        return msg.assistant(reply["content"], calls) if calls else action

    def answer(self, step: Step) -> Step:
        """What the tools answered, as text."""
        step.observation = {**step.observation, "messages": self._readable(step.observation["messages"])}
        return step

    def _schemas(self) -> list[dict[str, Any]]:
        return wrapped_attribute(self.env, "tool_schemas", [])

    def _readable(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Without tool messages: consecutive ones become one user message, as chat templates want it."""
        readable: list[Message] = []
        answers: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                answers.append(self._answer_of(message))
                continue
            if answers:
                readable.append(msg.user("\n\n".join(answers)))
                answers = []
            readable.append(as_text(message, self._schemas(), self.style))
        if answers:
            readable.append(msg.user("\n\n".join(answers)))
        return tuple(readable)

    def _answer_of(self, message: Message) -> str:
        problem = self._problems.get(message.get("tool_call_id", ""))
        if problem is not None:
            return f"Error: that was no tool call: {problem}. {how_to_call(self._schemas(), self.style)}"
        return f"Answer of {message.get('name', 'the tool')}:\n{message['content']}"
