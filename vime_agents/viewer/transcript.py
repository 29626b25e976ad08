"""An episode -> all that is shown of it, the same at the terminal and in HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from vime_agents.episode import Episode, Segment, Span, Trajectory, Turn
from vime_agents.messages import Message
from vime_agents.storage.exports.rows import num_sampled
from vime_agents.storage.stored_episodes import StoredEpisode
from vime_agents.viewer.text import outcome_text, reward_text, step_rewards_text

Facts = tuple[tuple[str, str], ...]
"""(name, value), in the order of showing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    head: str
    """Who, and of a reply what it took."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """A run of tokens with one source."""

    start: int
    end: int
    in_loss: bool
    text: str
    """Source, turn, weight version, mean log-prob, why it is in the loss or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSegment:
    """One token row."""

    num_tokens: int
    num_in_loss: int
    spans: tuple[ShownSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAgent:
    """One agent's side."""

    name: str
    facts: Facts
    messages: tuple[ShownMessage, ...]
    segments: tuple[ShownSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One episode."""

    number: int
    title: str
    facts: Facts
    agents: tuple[ShownAgent, ...]


def transcript(stored: StoredEpisode) -> Transcript:
    """All that is shown of an episode; texts are as they were, nothing in them is made visible yet."""
    episode = stored.episode
    return Transcript(
        number=stored.number,
        title=f"{stored.source}/{episode.id}",
        facts=_facts(episode),
        agents=tuple(_agent(t, episode) for t in episode.trajectories),
    )


def _facts(episode: Episode) -> Facts:
    started = datetime.fromtimestamp(episode.started_at, UTC)
    facts = [
        ("environment", episode.env_id),
        ("task", episode.task_id),
        ("group", episode.group_id),
        ("seed", str(episode.seed)),
        ("status", episode.status),
        ("end", outcome_text(episode.outcome)),
        ("time", f"{episode.duration_s:.1f} s from {started:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    if episode.attempt:
        facts.append(("attempt", str(episode.attempt + 1)))
    if counters := [f"{name} {value:g}" for name, value in episode.metrics.items() if value]:
        facts.append(("counters", ", ".join(counters)))
    if episode.info:
        facts.append(("info", json.dumps(episode.info, ensure_ascii=False)))
    return tuple(facts)


def _agent(trajectory: Trajectory, episode: Episode) -> ShownAgent:
    frozen = ", which is not trained" if trajectory.frozen else ""
    facts = [
        ("policy", f"{trajectory.policy}{frozen}"),
        ("reward", f"{reward_text(trajectory.reward)}{step_rewards_text(trajectory)}"),
    ]
    if trajectory.reward.ok and trajectory.reward.detail:
        facts.append(("grading", trajectory.reward.detail))
    if trajectory.outcome is not None and trajectory.outcome != episode.outcome:
        facts.append(("end", outcome_text(trajectory.outcome)))
    if (sampled := num_sampled([trajectory])) is not None:
        forks = f", {trajectory.num_forks} forks" if trajectory.num_forks else ""
        facts.append(("tokens", f"{sampled} sampled in {len(trajectory.turns)} turns{forks}"))
    return ShownAgent(
        name=trajectory.agent,
        facts=tuple(facts),
        messages=tuple(_messages(trajectory)),
        segments=tuple(_segment(s) for s in trajectory.segments),
    )


def _messages(trajectory: Trajectory) -> Iterator[ShownMessage]:
    for turn in trajectory.turns:
        for message in turn.messages:
            yield _message(message, "")
        yield _message(turn.reply, _turn_text(turn, trajectory.segments))
    for message in trajectory.final_messages:
        yield _message(message, "")


def _message(message: Message, note: str) -> ShownMessage:
    name = f" {message['name']}" if "name" in message else ""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = (f"call {function['name']} {function['arguments']}" for function in functions)
    parts = [*([message["content"]] if message["content"] else []), *calls]
    head = f"{message['role']}{name}{'  ' if note else ''}{note}"
    return ShownMessage(role=message["role"], head=head, text="\n".join(parts))


def _turn_text(turn: Turn, segments: tuple[Segment, ...]) -> str:
    """What a reply took, and where it stands in the loss."""
    counts = ((turn.num_prompt_tokens, "prompt tokens"), (turn.num_sampled_tokens, "sampled"))
    parts = [f"{count} {what}" for count, what in counts if count is not None]
    kept = " (an earlier answer)" if turn.from_cache else ""
    parts += [turn.finish_reason, f"{turn.policy_s:.1f} s{kept} + {turn.env_s:.1f} s of the env"]
    if turn.reward:
        parts.append(f"reward {turn.reward:g}")
    for number, segment in enumerate(segments):
        for span in segment.spans:
            if span.source == "sampled" and span.turn == turn.index:
                place = "in the loss" if span.trainable else "not in the loss"
                parts.append(f"tokens {span.start} to {span.end} of segment {number} {place}")
    return f"turn {turn.index}: {', '.join(parts)}"


def _segment(segment: Segment) -> ShownSegment:
    return ShownSegment(
        num_tokens=len(segment),
        num_in_loss=int(segment.loss_mask.sum()),
        spans=tuple(_span(span, segment) for span in segment.spans),
    )


def _span(span: Span, segment: Segment) -> ShownSpan:
    parts = [f"{span.source} of turn {span.turn}"]
    if span.source == "sampled":
        version = "" if span.weight_version is None else f"version {span.weight_version}, "
        parts.append(f"{version}mean log-prob {np.mean(segment.logprobs[span.start : span.end]):.3f}")
    if span.reason:
        parts.append(span.reason)
    return ShownSpan(start=span.start, end=span.end, in_loss=span.trainable, text="; ".join(parts))
