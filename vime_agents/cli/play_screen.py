"""What is seen of an episode: each agent's messages as they come, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TextIO

from vime_agents.cli.play_reply import format_reply
from vime_agents.episode import Episode
from vime_agents.messages import Message
from vime_agents.policy import Conversation
from vime_agents.rollout.attempt import Attempt
from vime_agents.rollout.multi_agent import MultiAgentPlay
from vime_agents.rollout.play import EpisodePlay
from vime_agents.viewer.text import outcome_text, reward_text, step_rewards_text, visible

_BOLD = "1"
_STYLES = {"system": "1;35", "user": "1;36", "assistant": "1;32", "tool": "1;33"}
"""Of a message's head, as the numbers of ANSI's escape sequence."""


class Screen:
    """Prints to a stream; colours on a terminal only, and nothing that would control it."""

    def __init__(self, stream: TextIO) -> None:
        """Everybody's side is shown, to `stream`."""
        self._stream, self._encoding = stream, stream.encoding or "utf-8"
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")
        self._seen: Collection[str] | None = None
        self._echo = True
        self._shown: dict[str, int] = {}

    def show_only(self, agents: Collection[str], *, echo: bool) -> None:
        """Show these agents' side alone; without `echo`, what they were told, but not what they reply."""
        self._seen, self._echo = agents, echo

    def say(self, text: str, *, bold: bool = False) -> None:
        """A line or more."""
        print(self._styled(text, _BOLD if bold else ""), file=self._stream, flush=True)

    def show_new(self, play: Attempt) -> None:
        """The messages that have come since the last time."""
        conversations = conversations_of(play)
        for agent, conversation in conversations.items():
            if self._seen is not None and agent not in self._seen:
                continue
            new = conversation.messages[self._shown.get(agent, 0) :]
            self._shown[agent] = len(conversation.messages)
            for message in new:
                if message["role"] != "assistant" or self._echo:
                    self._message(message, conversation, named=len(conversations) > 1)

    def show_end(self, episode: Episode) -> None:
        """How it ended, the rewards and what they are made of, the counters."""
        self.say(f"end: {outcome_text(episode.outcome)}", bold=True)
        several = len(episode.trajectories) > 1
        for trajectory in episode.trajectories:
            who = f"{trajectory.agent}: " if several else ""
            self.say(
                f"{who}reward {reward_text(trajectory.reward)}{step_rewards_text(trajectory)}", bold=True
            )
            if trajectory.outcome is not None and trajectory.outcome != episode.outcome:
                self.say(f"{who}{outcome_text(trajectory.outcome)}")
        if counters := [f"{name} {value:g}" for name, value in episode.metrics.items() if value]:
            self.say(f"counters: {', '.join(counters)}")

    def _message(self, message: Message, conversation: Conversation, *, named: bool) -> None:
        role, agent = message["role"], conversation.agent
        if role == "assistant":
            head, text = f"[{agent}]", format_reply(message, conversation.tools)
        else:
            of = f" {message['name']}" if "name" in message else ""
            head, text = f"[{role}{of}{f' to {agent}' if named else ''}]", message["content"]
        print(self._styled(head, _STYLES[role]), self._styled(text), file=self._stream, flush=True)

    def _styled(self, text: str, style: str = "") -> str:
        # What an env or a model says must not move the cursor or rename the window.
        plain = visible(text).encode(self._encoding, "backslashreplace").decode(self._encoding)
        return f"\x1b[{style}m{plain}\x1b[0m" if style and self._coloured else plain


def conversations_of(play: Attempt) -> Mapping[str, Conversation]:
    """Agent -> what it saw and said."""
    if isinstance(play, MultiAgentPlay):
        return {agent: seat.conversation for agent, seat in play.seats.items()}
    assert isinstance(play, EpisodePlay)
    return {play.conversation.agent: play.conversation}
