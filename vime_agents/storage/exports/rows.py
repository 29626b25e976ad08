"""An episode -> one flat row: the same columns in JSON Lines and in Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vime_agents.episode import Episode, Trajectory, conversation
from vime_agents.messages import Message, ToolCall
from vime_agents.storage.stored_episodes import StoredEpisode

COLUMNS = {
    "source": "file of the store that it is from: episodes, rollout-000003, eval-000010",
    "id": "the episode's; unique in its file",
    "env_id": "environment",
    "task_id": "task",
    "group_id": "episodes with the same one are compared with each other",
    "seed": "seed of the env and of the sampling",
    "attempt": "0: the first try; infrastructure failures are tried again",
    "status": "ok, truncated, error:<class>",
    "stop": "what ended it: done, max_turns, timeout:<stage>, ...",
    "detail": "the limit's value, or the error's text",
    "reward": "the only agent's; null without a trusted one, or with several agents",
    "started_at": "seconds since the epoch",
    "duration_s": "seconds",
    "num_turns": "policy calls, of all agents",
    "num_sampled_tokens": "tokens, of all agents; null where no policy counts them",
    "weight_versions": "published updates that sampled it, ascending",
    "agents": "for each agent: agent, policy, frozen, reward, reward_status, reward_detail, status, stop, "
    "detail, num_turns, num_sampled_tokens, num_forks",
    "components": "what rewards are made of: agent, name, value, weight (0: a metric)",
    "metrics": "counters of the env and the runner: name, value",
    "info": "the env author's extras, as JSON text",
    "messages": "each agent's conversation, one agent after the other: agent, turn, role, content, name, "
    "tool_calls, tool_call_id, as in OpenAI's chat API",
}
"""Column -> what it holds."""

TOKEN_COLUMNS = {
    "segments": "token rows: agent, token_ids, logprobs (null where nobody sampled), loss_mask",
}
"""Those that `--tokens` adds."""


def episode_row(stored: StoredEpisode, *, tokens: bool = False) -> dict[str, Any]:
    """COLUMNS, and with `tokens` TOKEN_COLUMNS, of one episode; JSON values."""
    episode = stored.episode
    trajectories = episode.trajectories
    row = {
        "source": stored.source,
        "id": episode.id,
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "seed": episode.seed,
        "attempt": episode.attempt,
        "status": episode.status,
        "stop": episode.outcome.stop,
        "detail": episode.outcome.detail,
        "reward": episode.reward,
        "started_at": episode.started_at,
        "duration_s": episode.duration_s,
        "num_turns": sum(len(t.turns) for t in trajectories),
        "num_sampled_tokens": num_sampled(trajectories),
        "weight_versions": sorted({v for t in trajectories for v in t.weight_versions}),
        "agents": [_agent(t, episode) for t in trajectories],
        "components": [
            {"agent": t.agent, "name": name, "value": value, "weight": t.reward.weights[name]}
            for t in trajectories
            for name, value in t.reward.components.items()
        ],
        "metrics": [{"name": name, "value": value} for name, value in episode.metrics.items()],
        "info": json.dumps(episode.info),
        "messages": [
            _message(message, t.agent, turn) for t in trajectories for turn, message in conversation(t)
        ],
    }
    if tokens:
        row["segments"] = [segment for t in trajectories for segment in _segments(t)]
    return row


def num_sampled(trajectories: Sequence[Trajectory]) -> int | None:
    """Tokens that were sampled; None when no policy counted them."""
    counts = [turn.num_sampled_tokens for t in trajectories for turn in t.turns]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _agent(trajectory: Trajectory, episode: Episode) -> dict[str, Any]:
    outcome = trajectory.outcome or episode.outcome
    return {
        "agent": trajectory.agent,
        "policy": trajectory.policy,
        "frozen": trajectory.frozen,
        "reward": trajectory.reward.value,
        "reward_status": trajectory.reward.status,
        "reward_detail": trajectory.reward.detail,
        "status": outcome.status,
        "stop": outcome.stop,
        "detail": outcome.detail,
        "num_turns": len(trajectory.turns),
        "num_sampled_tokens": num_sampled([trajectory]),
        "num_forks": trajectory.num_forks,
    }


def _message(message: Message, agent: str, turn: int) -> dict[str, Any]:
    return {
        "agent": agent,
        "turn": turn,
        "role": message["role"],
        "content": message["content"],
        "name": message.get("name"),
        "tool_calls": [_call(call) for call in message.get("tool_calls", ())],
        "tool_call_id": message.get("tool_call_id"),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


def _segments(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for segment in trajectory.segments:
        # float32 -> the shortest decimal that reads back as the same float32
        logprobs = [float(str(x)) if x == x else None for x in segment.logprobs]
        yield {
            "agent": trajectory.agent,
            "token_ids": segment.token_ids.tolist(),
            "logprobs": logprobs,
            "loss_mask": segment.loss_mask.tolist(),
        }
