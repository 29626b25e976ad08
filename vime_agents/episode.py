"""What happened, token by token: Span -> Segment -> Trajectory -> Episode. Never what is trained on.

Worked example: a tool episode of one agent. The prompt is 5 tokens, the policy samples 3 (a call), the
environment answers with 2, the policy samples 1. One Segment of 11 tokens:

    token_ids  [p p p p p | s s s | t t | s]
    spans      user 0..5 | sampled 5..8 (turn 0, version 3) | tool 8..10 | sampled 10..11 (turn 1, version 3)
    logprobs   NaN * 5   | -0.1 -0.7 -0.2                    | NaN NaN   | -0.4

Records are immutable and validated at construction: whoever holds one may trust it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import FAILURE_CLASSES, RecordError
from vime_agents.graded import Graded
from vime_agents.messages import Message

SCHEMA_VERSION = 1

Source = Literal["template", "system", "user", "tool", "assistant", "sampled"]
SOURCES: tuple[Source, ...] = ("template", "system", "user", "tool", "assistant", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of tokens with one source."""

    source: Source
    """Who wrote these tokens. `assistant` is text put into the model's mouth; only `sampled` was sampled."""
    start: int
    """First token, an index into the segment."""
    end: int
    """One past the last token; `end > start`."""
    turn: int
    """The turn that these tokens belong to, from 0. A prompt belongs to the turn that it opens."""
    weight_version: int | None = None
    """Published update that sampled these tokens; None for spans that nobody sampled, or where a server of
    somebody else's does not say."""
    trainable: bool = False
    """Whether the loss may see these tokens. Only sampled spans can be."""
    reason: str = ""
    """Why, in words for a person: 'sampled by the policy', 'context of an earlier segment', ..."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise RecordError(f"span source {self.source!r} is not one of {SOURCES}")
        if not 0 <= self.start < self.end:
            raise RecordError(f"span [{self.start}, {self.end}) is empty or negative")
        if self.trainable and self.source != "sampled":
            raise RecordError(f"a {self.source!r} span cannot be trainable: nobody sampled it")
        if self.trainable and not self.reason:
            raise RecordError("a trainable span needs its reason")

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One contiguous token row; every later prompt extends the earlier tokens."""

    token_ids: NDArray[np.int32]
    """[num_tokens] exactly what the engine read and sampled."""
    logprobs: NDArray[np.float32]
    """[num_tokens] the engine's log-prob of each sampled token at sampling time (nats, at the sampling
    temperature); NaN where nobody sampled."""
    spans: tuple[Span, ...]
    """Tile [0, num_tokens) in order, without gap or overlap."""

    def __post_init__(self) -> None:
        ids = np.array(self.token_ids, dtype=np.int32)
        logprobs = np.array(self.logprobs, dtype=np.float32)
        if ids.ndim != 1 or ids.size == 0:
            raise RecordError(f"token_ids must be [num_tokens >= 1], got shape {ids.shape}")
        if (ids < 0).any():
            raise RecordError(f"negative token id at {int(np.argmax(ids < 0))}")
        if logprobs.shape != ids.shape:
            raise RecordError(f"{ids.size} token ids but logprobs of shape {logprobs.shape}")
        position = 0
        for span in self.spans:
            if span.start != position:
                raise RecordError(f"spans leave a gap or overlap at token {position}: {span}")
            position = span.end
            values = logprobs[span.start : span.end]
            if span.source == "sampled":
                if not np.isfinite(values).all() or (values > 0).any():
                    at = span.start + int(np.argmax(~(np.isfinite(values) & (values <= 0))))
                    raise RecordError(
                        f"sampled token {at} (turn {span.turn}) has log-prob {logprobs[at]}; "
                        "it must be finite and <= 0"
                    )
            elif not np.isnan(values).all():
                raise RecordError(f"a {span.source!r} span at {span.start} carries log-probs")
        if position != ids.size:
            raise RecordError(f"spans cover {position} of {ids.size} tokens")
        ids.flags.writeable = False
        logprobs.flags.writeable = False
        object.__setattr__(self, "token_ids", ids)
        object.__setattr__(self, "logprobs", logprobs)

    def __len__(self) -> int:
        return int(self.token_ids.size)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Segment)
            and np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.logprobs, other.logprobs, equal_nan=True)
            and self.spans == other.spans
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """[num_tokens] true exactly on the tokens of trainable spans."""
        mask = np.zeros(len(self), dtype=np.bool_)
        for span in self.spans:
            if span.trainable:
                mask[span.start : span.end] = True
        return mask


RewardStatus = Literal["ok", "unscorable", "error", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A reward, its parts, and whether it can be trusted."""

    value: float | None
    """The number that is learned from; None unless `status` is 'ok'."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Name -> unweighted value."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Name -> weight; 0 makes a component a metric. Same keys as `components`."""
    status: RewardStatus = "ok"
    detail: str = ""
    """What went wrong, for a person."""

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.value is not None):
            raise RecordError(f"reward status {self.status!r} with value {self.value!r}")
        numbers = [*self.components.values(), *([] if self.value is None else [self.value])]
        if not all(map(math.isfinite, numbers)):
            raise RecordError(f"reward is not finite: {self.value!r}, {dict(self.components)!r}")
        if set(self.components) != set(self.weights):
            raise RecordError(f"components {set(self.components)} != weights {set(self.weights)}")

    @property
    def ok(self) -> bool:
        """Whether the value may enter a baseline or a loss."""
        return self.status == "ok"


OutcomeKind = Literal["terminated", "truncated", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an episode ended."""

    kind: OutcomeKind
    stop: str
    """What ended it: done, max_turns, max_tokens, context_length, timeout:<stage>, cancelled, error; of a
    game also forfeit, and of the agent who lost by one illegal_move."""
    cause: str | None = None
    """Failure class (model, env, tool, sandbox, grader, judge, engine, budget, cancelled) when `kind` is
    'failed', else None."""
    detail: str = ""
    """The limit's value, or the error's message."""

    def __post_init__(self) -> None:
        if (self.kind == "failed") != (self.cause is not None):
            raise RecordError(f"outcome {self.kind!r} with cause {self.cause!r}")
        if self.cause is not None and self.cause not in FAILURE_CLASSES:
            raise RecordError(f"failure class {self.cause!r} is not one of {FAILURE_CLASSES}")

    @property
    def status(self) -> str:
        """`ok`, `truncated` or `error:<class>`."""
        if self.kind == "failed":
            return f"error:{self.cause}"
        return "truncated" if self.kind == "truncated" else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy call of one agent and the env's answer to it."""

    index: int
    messages: tuple[Message, ...]
    """New messages that the agent saw before it acted."""
    reply: Message
    finish_reason: str
    """The engine's word: stop, length, abort, ..."""
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None
    policy_s: float
    """Seconds that the policy took; not what it waited for a place at its server."""
    env_s: float
    """Seconds that the environment took to answer."""
    reward: float = 0.0
    """The env's reward for this turn alone (its step reward)."""
    from_cache: bool = False
    """Whether the reply is one to an earlier call, and nobody was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One agent's record of an episode."""

    agent: str
    policy: str
    """Name of the policy that played this agent."""
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...] = ()
    """Empty when the policy gives no exact tokens."""
    reward: RewardResult
    final_messages: tuple[Message, ...] = ()
    """What the env said after the last turn; nobody answered it."""
    num_forks: int = 0
    """Times that a prompt did not extend the tokens so far."""
    outcome: Outcome | None = None
    """How it ended for this agent, in an env of several; None: as the episode."""
    frozen: bool = False
    """Played by a policy that is not trained: part of the record, never of a baseline or a loss."""
    policy_of: str = ""
    """Agent to whom its policy was given, when seats rotate and that is another one."""
    peers: str = ""
    """Role whose agents it is compared with, inside this episode; empty: it is compared with the same agent
    in the other episodes of the group."""

    def __post_init__(self) -> None:
        trained = sum(int(s.loss_mask.sum()) for s in self.segments)
        if trained > self.num_sampled_tokens:
            raise RecordError(f"{trained} trainable tokens but {self.num_sampled_tokens} sampled")

    @property
    def cast_as(self) -> str:
        """The agent to whom its policy was given: itself, unless seats rotate."""
        return self.policy_of or self.agent

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that the policy sampled, by its own count for each turn."""
        return sum(t.num_sampled_tokens or 0 for t in self.turns)

    @property
    def weight_versions(self) -> tuple[int, ...]:
        """The distinct versions that sampled, ascending."""
        spans = (p for s in self.segments for p in s.spans)
        return tuple(sorted({p.weight_version for p in spans if p.weight_version is not None}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run of an env on a task, from reset to its outcome."""

    id: str
    env_id: str
    task_id: str
    group_id: str
    """Episodes with the same id are compared with each other. Never a position."""
    seed: int
    outcome: Outcome
    trajectories: tuple[Trajectory, ...]
    """One for each agent that acted or was scored; empty when the env never started."""
    attempt: int = 0
    """0 for the first try; infrastructure failures are tried again with everything fresh."""
    started_at: float
    """Seconds since the epoch."""
    duration_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Counters of the env and the runner: tool_calls, tool_errors, ..."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serialisable extras of the env's author."""
    graded: Graded | None = None
    """What its graders were given, where that was to be kept and the episode came so far."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        names = [t.agent for t in self.trajectories]
        if len(set(names)) != len(names):
            raise RecordError(f"episode {self.id}: an agent has two trajectories: {names}")
        if not self.id or not self.group_id:
            raise RecordError("an episode needs an id and a group id")

    @property
    def status(self) -> str:
        """`ok`, `truncated` or `error:<class>`."""
        return self.outcome.status

    @property
    def reward(self) -> float | None:
        """The only agent's reward, or None when there is no trusted one or more than one agent."""
        return self.trajectories[0].reward.value if len(self.trajectories) == 1 else None


def messages_of(trajectory: Trajectory) -> tuple[Message, ...]:
    """All that the agent was told and said, in order."""
    return tuple(message for _, message in conversation(trajectory))


def conversation(trajectory: Trajectory) -> Iterator[tuple[int, Message]]:
    """(turn, message) of all that the agent was told and said; what came last has a turn of its own."""
    for turn in trajectory.turns:
        for message in (*turn.messages, turn.reply):
            yield turn.index, message
    for message in trajectory.final_messages:
        yield len(trajectory.turns), message


# ---------------------------------------------------------------------------------------------- JSON


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """A JSON-serialisable dict; NaN log-probs become null."""
    return {
        "schema_version": episode.schema_version,
        "id": episode.id,
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "seed": episode.seed,
        "attempt": episode.attempt,
        "status": episode.status,
        "reward": episode.reward,
        "outcome": _plain(episode.outcome),
        "started_at": episode.started_at,
        "duration_s": episode.duration_s,
        "metrics": dict(episode.metrics),
        "info": dict(episode.info),
        "trajectories": [_trajectory_to_json(t) for t in episode.trajectories],
        **({} if episode.graded is None else {"graded": episode.graded.to_json()}),
    }


def episode_from_json(data: Mapping[str, Any]) -> Episode:
    """The inverse of `episode_to_json`.

    Raises:
        RecordError: another schema version, a missing field, or a record that cannot be true.
    """
    if data.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"episode schema {data.get('schema_version')!r}, need {SCHEMA_VERSION}")
    try:
        keep = ("id", "env_id", "task_id", "group_id", "seed", "attempt", "started_at")
        return Episode(
            **{k: data[k] for k in keep},
            duration_s=data["duration_s"],
            metrics=data["metrics"],
            info=data["info"],
            graded=Graded.from_json(data["graded"]) if "graded" in data else None,
            outcome=Outcome(**data["outcome"]),
            trajectories=tuple(_trajectory_from_json(t) for t in data["trajectories"]),
        )
    except (KeyError, TypeError) as error:
        raise RecordError(f"episode {data.get('id')!r}: {error!r}") from error


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    out = _plain(trajectory)
    out["turns"] = [_turn_to_json(t) for t in trajectory.turns]
    out["final_messages"] = list(trajectory.final_messages)
    out["outcome"] = None if trajectory.outcome is None else _plain(trajectory.outcome)
    out["reward"] = _plain(trajectory.reward)
    out["reward"]["components"] = dict(trajectory.reward.components)
    out["reward"]["weights"] = dict(trajectory.reward.weights)
    out["segments"] = [
        {
            "token_ids": s.token_ids.tolist(),
            # float32 -> the shortest decimal that reads back as the same float32
            "logprobs": [None if np.isnan(x) else float(str(x)) for x in s.logprobs],
            "spans": [_plain(p) for p in s.spans],
        }
        for s in trajectory.segments
    ]
    return out


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    out = _plain(turn) | {"messages": list(turn.messages)}
    if not turn.from_cache:  # so that earlier releases can read what owes nothing to a cache
        del out["from_cache"]
    return out


def _trajectory_from_json(data: Mapping[str, Any]) -> Trajectory:
    out = dict(data)
    out["turns"] = tuple(Turn(**(t | {"messages": tuple(t["messages"])})) for t in data["turns"])
    out["final_messages"] = tuple(data["final_messages"])
    out["reward"] = RewardResult(**data["reward"])
    if data.get("outcome") is not None:  # a record of an earlier release has no such key
        out["outcome"] = Outcome(**data["outcome"])
    out["segments"] = tuple(_segment_from_json(s) for s in data["segments"])
    return Trajectory(**out)


def _segment_from_json(data: Mapping[str, Any]) -> Segment:
    return Segment(
        token_ids=np.asarray(data["token_ids"], dtype=np.int32),
        logprobs=np.asarray([np.nan if x is None else x for x in data["logprobs"]], np.float32),
        spans=tuple(Span(**p) for p in data["spans"]),
    )
