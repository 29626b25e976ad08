"""An episode -> documents of the Agent Trajectory Interchange Format (ATIF), one for each agent.

The format is Harbor's (harborframework.com/docs/trajectory-format, RFC 0001). A policy call is a step of
source `agent`; the tools' answers to it are its observation; what else the agent read are steps of source
`system` and `user`. The documents of one episode share `session_id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import numpy as np

from vime_agents.episode import Segment, Trajectory, Turn
from vime_agents.messages import Message, ToolCall
from vime_agents.storage.exports.rows import num_sampled
from vime_agents.storage.stored_episodes import StoredEpisode

ATIF_VERSION = "ATIF-v1.7"
"""The first version that has every field written here; readers of later ones accept it."""

_MAX_DEPTH = 64
"""Of JSON inside JSON: deeper values stay text, since readers stop at 100 to 200."""


def atif_documents(stored: StoredEpisode, *, version: str, tokens: bool = False) -> Iterator[dict[str, Any]]:
    """Each agent's document; of an episode that never started, one that says so.

    Args:
        stored: the episode.
        version: of vime-agents, which is the agent system.
        tokens: give token ids and log-probs, where the store has them.
    """
    episode = stored.episode
    if not episode.trajectories:
        yield _document(stored, None, [], version)
    for trajectory in episode.trajectories:
        yield _document(stored, trajectory, _steps(trajectory, tokens=tokens), version)


def _document(
    stored: StoredEpisode, trajectory: Trajectory | None, steps: list[dict[str, Any]], version: str
) -> dict[str, Any]:
    episode = stored.episode
    name = "" if trajectory is None else trajectory.agent
    outcome = (trajectory and trajectory.outcome) or episode.outcome
    if not steps:
        text = f"The episode ended before its first message ({outcome.stop}): {outcome.detail}"
        steps = [{"source": "system", "message": text}]
    prompts = [] if trajectory is None else [t.num_prompt_tokens for t in trajectory.turns]
    totals = {
        "total_prompt_tokens": None if None in prompts else sum(p or 0 for p in prompts),
        "total_completion_tokens": None if trajectory is None else num_sampled([trajectory]),
        "total_steps": len(steps),
        "extra": dict(episode.metrics),
    }
    agent = {"name": "vime-agents", "version": version, "extra": {"agent": name}}
    if trajectory is not None:
        agent["model_name"] = trajectory.policy
    return {
        "schema_version": ATIF_VERSION,
        "session_id": f"{stored.source}/{episode.id}",
        "trajectory_id": f"{stored.source}/{episode.id}/{name}".rstrip("/"),
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": _without_none(totals),
        "extra": {
            "env_id": episode.env_id,
            "task_id": episode.task_id,
            "group_id": episode.group_id,
            "seed": episode.seed,
            "attempt": episode.attempt,
            "status": outcome.status,
            "stop": outcome.stop,
            "detail": outcome.detail,
            "reward": None if trajectory is None else _reward(trajectory),
            "started_at": datetime.fromtimestamp(episode.started_at, UTC).isoformat(),
            "duration_s": episode.duration_s,
            "info": _shallow(dict(episode.info)),
        },
    }


def _steps(trajectory: Trajectory, *, tokens: bool) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        for message in turn.messages:
            _add_context(steps, message)
        metrics = {"prompt_tokens": turn.num_prompt_tokens, "completion_tokens": turn.num_sampled_tokens}
        if tokens:
            metrics |= _token_metrics(trajectory.segments, turn)
        steps.append(_agent_step(turn.reply, _without_none(metrics), turn))
    for message in trajectory.final_messages:
        _add_context(steps, message)
    return steps


def _agent_step(reply: Message, metrics: dict[str, Any], turn: Turn) -> dict[str, Any]:
    step = _spoken(reply) | {
        "llm_call_count": 1,
        "extra": {
            "turn": turn.index,
            "reward": turn.reward,
            "finish_reason": turn.finish_reason,
            "policy_s": turn.policy_s,
            "env_s": turn.env_s,
        },
    }
    return step | {"metrics": metrics} if metrics else step


def _add_context(steps: list[dict[str, Any]], message: Message) -> None:
    """Add what the agent read: a step, or a tool's answer to the step that called it."""
    if message["role"] == "assistant":  # a few-shot example, or history that was rewritten
        steps.append(_spoken(message) | {"llm_call_count": 0, "is_copied_context": True})
    elif message["role"] != "tool":
        steps.append({"source": message["role"], "message": message["content"]})
    else:
        if not any(step["source"] == "agent" for step in steps):
            steps.append({"source": "system", "message": ""})
        caller = next((s for s in reversed(steps) if s["source"] == "agent"), steps[-1])
        known = {call["tool_call_id"] for call in caller.get("tool_calls", ())}
        result: dict[str, Any] = {"content": message["content"]}
        if (call_id := message.get("tool_call_id")) in known:
            result["source_call_id"] = call_id
        else:  # ATIF allows references inside a step alone
            names = {"tool_call_id": call_id, "name": message.get("name")}
            result["extra"] = _without_none(names)
        caller.setdefault("observation", {"results": []})["results"].append(result)


def _spoken(message: Message) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if calls := message.get("tool_calls"):
        step["tool_calls"] = [_call(call) for call in calls]
    return step


def _call(call: ToolCall) -> dict[str, Any]:
    """ATIF wants an object of arguments; what the model wrote and is none stands beside an empty one."""
    text = call["function"]["arguments"]
    out: dict[str, Any] = {"tool_call_id": call["id"], "function_name": call["function"]["name"]}
    try:
        arguments = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict) and _depth_at_most(arguments, _MAX_DEPTH):
        return out | {"arguments": arguments}
    return out | {"arguments": {}, "extra": {"arguments_text": text}}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _token_metrics(segments: tuple[Segment, ...], turn: Turn) -> dict[str, Any]:
    """Ids of the prompt and of the completion, and the completion's log-probs, of a turn that was sampled."""
    for segment in segments:
        spans = [s for s in segment.spans if s.source == "sampled" and s.turn == turn.index]
        if spans:
            sampled = np.concatenate([np.arange(s.start, s.end) for s in spans])
            return {
                "prompt_token_ids": segment.token_ids[: spans[0].start].tolist(),
                "completion_token_ids": segment.token_ids[sampled].tolist(),
                # float32 -> the shortest decimal that reads back as the same float32
                "logprobs": [float(str(x)) for x in segment.logprobs[sampled]],
                "extra": {
                    "loss_mask": segment.loss_mask[sampled].tolist(),
                    "weight_versions": [s.weight_version for s in spans],
                },
            }
    return {}


def _reward(trajectory: Trajectory) -> dict[str, Any]:
    reward = trajectory.reward
    return {
        "value": reward.value,
        "status": reward.status,
        "detail": reward.detail,
        "components": dict(reward.components),
        "weights": dict(reward.weights),
    }


def _shallow(value: Any) -> Any:
    return value if _depth_at_most(value, _MAX_DEPTH) else json.dumps(value)


def _depth_at_most(value: Any, most: int) -> bool:
    """Whether no container stands more than `most` containers deep; without recursion."""
    level = [value]
    for _ in range(most + 1):
        inner = [v for v in level if isinstance(v, (dict, list))]
        level = [part for v in inner for part in (v.values() if isinstance(v, Mapping) else v)]
        if not level:
            return True
    return False


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
