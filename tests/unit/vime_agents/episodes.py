"""Episodes for tests, made the way the runner makes them."""

from __future__ import annotations

from dataclasses import replace

from vime_agents.episode import Episode, Outcome, RewardResult, Trajectory, Turn
from vime_agents.messages import assistant, user
from vime_agents.token_log import Piece, SampledTokens, TokenLog


def make_log(num_turns: int = 1, version: int | None = 0) -> TokenLog:
    """Each turn: 2 prompt tokens, 3 sampled ones."""
    log = TokenLog()
    for turn in range(num_turns):
        log.extend([Piece(token_ids=(10 + turn, 11), source="user" if turn == 0 else "tool")], turn=turn)
        tokens = SampledTokens(
            token_ids=(20, 21, 22), logprobs=(-0.5, -1.0, -0.25), versions=((version, 0, 3),)
        )
        log.append_sampled(tokens, turn=turn)
    return log


def make_episode(
    episode_id: str = "e0",
    group_id: str = "g0",
    reward: float | None = 1.0,
    *,
    cause: str | None = None,
    log: TokenLog | None = None,
    num_turns: int = 1,
) -> Episode:
    """An episode of one agent; `cause` makes it a failed one."""
    log = log or make_log(num_turns)
    status = "error" if reward is None else "ok"
    turns = tuple(
        Turn(
            index=i,
            messages=(user("q"),),
            reply=assistant("a"),
            finish_reason="stop",
            num_prompt_tokens=2,
            num_sampled_tokens=log.num_sampled if i == 0 else 0,
            policy_s=0.1,
            env_s=0.1,
        )
        for i in range(num_turns)
    )
    kind = "failed" if cause else "terminated"
    trajectory = Trajectory(
        agent="agent",
        policy="policy",
        turns=turns,
        segments=log.segments(),
        reward=RewardResult(value=reward, status=status),
        num_forks=log.num_forks,
    )
    return Episode(
        id=episode_id,
        env_id="test",
        task_id="t",
        group_id=group_id,
        seed=0,
        outcome=Outcome(kind=kind, stop="error" if cause else "done", cause=cause),
        started_at=0.0,
        duration_s=1.0,
        trajectories=(trajectory,),
    )


def with_turn_rewards(episode: Episode, *rewards: float) -> Episode:
    """The episode with these rewards of its turns; its own reward stays."""
    (trajectory,) = episode.trajectories
    turns = tuple(replace(t, reward=r) for t, r in zip(trajectory.turns, rewards, strict=True))
    return replace(episode, trajectories=(replace(trajectory, turns=turns),))
