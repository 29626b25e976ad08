"""Folders of episodes for tests, and text that wants to do harm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.unit.vime_agents.episodes import make_episode, make_log
from vime_agents.episode import Episode, Outcome, RewardResult, Trajectory, Turn
from vime_agents.messages import assistant, system, tool_call, tool_result, user
from vime_agents.storage.episodes import EpisodeWriter

HOSTILE = "</script></pre><img src=x onerror=alert(1)>'\"&\x00\x1b[2J\r\u2028\u202e\ud800 \\ud800 😀"
"""Markup, control characters, a line separator, reversed text, half a surrogate pair, what looks like one."""


def write_file(path: Path, episodes: Iterable[Episode]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with EpisodeWriter(path) as writer:
        for episode in episodes:
            writer.append(episode)


def write_run(folder: Path) -> None:
    """A training run: evaluations before it and after updates 1 and 10, and ten rollouts of two episodes."""
    for rollout in range(10):
        names = [f"r{rollout}-{i}" for i in range(2)]
        write_file(folder / "episodes" / f"rollout-{rollout:06d}.jsonl", map(make_episode, names))
    for update in (0, 1, 10):
        write_file(folder / "episodes" / f"eval-{update:06d}.jsonl", [make_episode("eval-0-0")])


def tool_episode(text: str = "4", arguments: str = '{"a": 2}', episode_id: str = "tools") -> Episode:
    """Two turns with a tool call between them; `text` is what everybody says, and in every free text."""
    call = tool_call("add", arguments, "call-1")
    call["function"]["name"] = f"add{text}"
    log = make_log(2)
    turns = (
        Turn(
            index=0,
            messages=(system(text), user(text)),
            reply=assistant(text, [call]),
            finish_reason="tool_calls",
            num_prompt_tokens=2,
            num_sampled_tokens=3,
            policy_s=0.5,
            env_s=0.25,
        ),
        Turn(
            index=1,
            messages=(tool_result(text, call),),
            reply=assistant(text),
            finish_reason=text,
            num_prompt_tokens=7,
            num_sampled_tokens=3,
            policy_s=0.5,
            env_s=0.25,
            reward=0.75,
        ),
    )
    reward = RewardResult(
        value=0.75, components={text: 0.5, "len": 3.0}, weights={text: 1.5, "len": 0.0}, detail=text
    )
    trajectory = Trajectory(
        agent="agent",
        policy=text,
        turns=turns,
        segments=log.segments(),
        reward=reward,
        final_messages=(user(text),),
    )
    return Episode(
        id=episode_id,
        env_id=text,
        task_id=text,
        group_id=text,
        seed=7,
        outcome=Outcome(kind="truncated", stop="max_turns", detail=text),
        started_at=1_700_000_000.5,
        duration_s=1.5,
        trajectories=(trajectory,),
        metrics={"tool_calls": 1.0},
        info={text: [text]},
    )


def game_episode(episode_id: str = "game") -> Episode:
    """Two agents, one of whom won."""
    (trajectory,) = make_episode(episode_id).trajectories
    lost = replace(
        trajectory,
        agent="second",
        frozen=True,
        reward=RewardResult(value=-1.0, components={"score": -1.0}, weights={"score": 1.0}),
        outcome=Outcome(kind="terminated", stop="illegal_move", detail="no such cell"),
    )
    episode = make_episode(episode_id)
    return replace(episode, trajectories=(replace(trajectory, agent="first"), lost))


def unstarted_episode(episode_id: str = "unstarted") -> Episode:
    """Its env never started."""
    outcome = Outcome(kind="failed", stop="error", cause="sandbox", detail="no space left")
    return replace(make_episode(episode_id), trajectories=(), outcome=outcome)
