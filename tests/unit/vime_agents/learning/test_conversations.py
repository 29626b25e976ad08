"""Random conversations -> batches: every sampled token is trained once, after what it was sampled after.

60 of the test plan: harnesses that extend, compact their history, ask again, branch off an earlier turn, or
hand over to a sub-agent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.row_limit import RowLimit
from vime_agents.learning.samples import build_batch
from vime_agents.token_log import Piece, SampledTokens, TokenLog

ACTIONS = ("extend", "compact", "retry", "branch")
TURN = st.tuples(st.sampled_from(ACTIONS), st.integers(1, 4), st.integers(1, 4), st.booleans())
"""What the harness does, tokens that the env says and the policy samples, whether a sub-agent acts."""


@dataclass
class Player:
    """One agent's log, and each call as it was made: (prompt, ids that only this call sampled)."""

    log: TokenLog = field(default_factory=TokenLog)
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def act(self, action: str, said: list[int], sampled: list[int]) -> None:
        held = self.log.token_ids
        if action == "compact":
            held = held[:1] + held[-2:]
        elif action == "branch" and self.calls:
            held = self.calls[len(self.calls) // 2][0]
        prompt = [*held, *said]
        if action == "retry" and self.calls:
            prompt = self.calls[-1][0]
        turn = len(self.calls)
        self.log.record_prompt([Piece(token_ids=tuple(prompt), source="user")], turn=turn)
        tokens = SampledTokens(
            token_ids=tuple(sampled), logprobs=(-1.0,) * len(sampled), versions=((0, 0, len(sampled)),)
        )
        self.log.append_sampled(tokens, turn=turn)
        self.calls.append((prompt, sampled))


def played(turns: list[tuple[str, int, int, bool]]) -> dict[str, Player]:
    players = {"agent": Player(), "helper": Player()}
    fresh = iter(range(100, 10_000))
    for action, num_said, num_sampled, handed_over in turns:
        said = [next(fresh) % 7 for _ in range(num_said)]
        sampled = [next(fresh) for _ in range(num_sampled)]
        players["helper" if handed_over else "agent"].act(action, said, sampled)
    return {name: p for name, p in players.items() if p.calls}


def episode_of(players: dict[str, Player], name: str, reward: float) -> Episode:
    parts = [
        replace(make_episode(reward=reward, log=p.log, num_turns=len(p.calls)).trajectories[0], agent=agent)
        for agent, p in players.items()
    ]
    return replace(make_episode(name), trajectories=tuple(parts))


@given(st.lists(TURN, min_size=1, max_size=8))
def test_every_sampled_token_is_trained_once_after_what_it_was_sampled_after(
    turns: list[tuple[str, int, int, bool]],
) -> None:
    """Plan 60."""
    players = played(turns)
    episodes = [episode_of(players, name, reward) for name, reward in (("a", 1.0), ("b", 0.0))]
    batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0)
    context = {
        token: [*prompt, *sampled[:at]]
        for p in players.values()
        for prompt, sampled in p.calls
        for at, token in enumerate(sampled)
    }
    for episode_id in ("a", "b"):
        seen = []
        for sample in (s for s in batch.samples if s.episode_id == episode_id):
            for at in np.flatnonzero(sample.loss_mask):
                token = int(sample.token_ids[at])
                assert sample.token_ids[:at].tolist() == context[token]
                seen.append(token)
        assert sorted(seen) == sorted(context)
    found = batch.metrics
    assert found["tokens_trained"] == found["tokens_sampled"] == 2 * len(context)
    assert found["tokens_lost_to_drift"] == 0
    num_segments = sum(len(p.log.segments()) for p in players.values())
    assert found["rows"] == 2 * num_segments
    assert found["forks"] == 2 * sum(p.log.num_forks for p in players.values())
    total = sum(float(s.weights.sum()) for s in batch.samples)
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)


@given(st.lists(TURN, min_size=1, max_size=8), st.integers(2, 30), st.sampled_from(["truncate", "drop"]))
def test_what_a_row_limit_takes_is_all_that_is_missing(
    turns: list[tuple[str, int, int, bool]], size: int, on_excess: str
) -> None:
    players = played(turns)
    episodes = [episode_of(players, name, reward) for name, reward in (("a", 1.0), ("b", 0.0))]
    limit = RowLimit(max_tokens=size, on_excess=on_excess)
    batch = build_batch(episodes, estimator=dr_grpo, row_limit=limit, temperature=1.0)
    found = batch.metrics
    assert found["tokens_trained"] + found["tokens_lost_to_row_limit"] == found["tokens_sampled"]
    assert all(np.flatnonzero(s.loss_mask)[-1] < size for s in batch.samples)
