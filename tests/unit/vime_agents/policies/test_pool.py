"""Whom a pool sends."""

from __future__ import annotations

from collections import Counter

import pytest

from vime_agents.errors import ConfigError
from vime_agents.policies.pool import PolicyPool
from vime_agents.policies.scripted import ScriptedPolicy

MEMBERS = [ScriptedPolicy("gold"), ScriptedPolicy("wrong"), ScriptedPolicy("random")]


def names(seed: str, lots: range) -> list[str]:
    pool = PolicyPool(MEMBERS, seed=seed)
    return [pool.draw(lot).name for lot in lots]


def test_every_member_plays_once_in_each_round_and_rounds_differ() -> None:
    drawn = names("0/O", range(60))
    rounds = [tuple(drawn[i : i + 3]) for i in range(0, 60, 3)]
    assert all(len(set(r)) == 3 for r in rounds)
    # 20 draws out of 6 orders: that one is missing has the chance 6 * (5/6)^20 = 0.16; four, none.
    assert len(set(rounds)) >= 4


def test_who_is_drawn_depends_on_seed_and_lot_alone() -> None:
    drawn = names("0/O", range(60))
    assert names("0/O", range(30, 60)) == drawn[30:]
    assert names("1/O", range(60)) != drawn
    assert names("0/X", range(60)) != drawn
    # The seed of an episode is a lot too.
    counts = Counter(names("0/O", range(2**31, 2**31 + 300)))
    assert set(counts.values()) <= {99, 100, 101}


def test_members_that_could_not_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="two members named scripted:gold"):
        PolicyPool([ScriptedPolicy("gold"), ScriptedPolicy("gold")], seed="0")
    with pytest.raises(ConfigError, match="no member"):
        PolicyPool([], seed="0")


async def test_members_are_closed_with_the_pool_also_where_one_cannot_be() -> None:
    closed: list[str] = []

    class Closing(ScriptedPolicy):
        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "scripted:wrong":
                raise OSError("gone")

    pool = PolicyPool([Closing("gold"), Closing("wrong"), Closing("random")], seed="0")
    assert pool.name == "scripted:gold|scripted:wrong|scripted:random"
    with pytest.raises(OSError, match="gone"):
        await pool.aclose()
    assert sorted(closed) == ["scripted:gold", "scripted:random", "scripted:wrong"]
