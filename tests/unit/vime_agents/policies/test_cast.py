"""Who plays whom, lot by lot."""

from __future__ import annotations

from collections import Counter

from vime_agents.policies.cast import Cast
from vime_agents.policies.pool import PolicyPool
from vime_agents.policies.scripted import ScriptedPolicy

OWN, OTHER, THIRD = ScriptedPolicy("gold"), ScriptedPolicy("wrong"), ScriptedPolicy("random")


def names(cast: Cast, agents: tuple[str, ...], roles: dict[str, str], lot: int) -> dict[str, tuple[str, str]]:
    return {agent: (policy.name, of) for agent, (policy, of) in cast.of_episode(agents, roles, lot).items()}


def test_without_rotation_everybody_keeps_the_seat() -> None:
    cast = Cast({"*": OWN, "O": OTHER})
    for lot in range(3):
        assert names(cast, ("X", "O"), {}, lot) == {
            "X": ("scripted:gold", "X"),
            "O": ("scripted:wrong", "O"),
        }


def test_seats_rotate_from_lot_to_lot() -> None:
    cast = Cast({"*": OWN, "O": OTHER}, rotate_seats=True)
    straight = {"X": ("scripted:gold", "X"), "O": ("scripted:wrong", "O")}
    swapped = {"X": ("scripted:wrong", "O"), "O": ("scripted:gold", "X")}
    assert [names(cast, ("X", "O"), {}, lot) for lot in range(4)] == [straight, swapped] * 2


def test_roles_keep_to_themselves() -> None:
    agents, roles = ("judge", "a", "b", "c"), {"a": "player", "b": "player", "c": "player"}
    cast = Cast({"*": OWN, "b": OTHER, "judge": THIRD}, rotate_seats=True)
    seats = []
    for lot in range(6):
        found = names(cast, agents, roles, lot)
        assert found["judge"] == ("scripted:random", "judge")
        seats.append(next(agent for agent, (_, of) in found.items() if of == "b"))
    assert seats == ["b", "a", "c"] * 2


def test_each_opponent_of_a_pool_is_met_in_every_seat() -> None:
    cast = Cast({"*": OWN, "O": PolicyPool([OTHER, THIRD], seed="0")}, rotate_seats=True)
    met = Counter(
        (policy, agent)
        for lot in range(16)
        for agent, (policy, of) in names(cast, ("X", "O"), {}, lot).items()
        if of == "O"
    )
    assert met == {(name, seat): 4 for name in ("scripted:wrong", "scripted:random") for seat in "XO"}
    for lot in range(0, 16, 2):  # both games of a rotation are against the same
        pair = [names(cast, ("X", "O"), {}, lot + turn) for turn in (0, 1)]
        assert pair[0]["O"] == pair[1]["X"]
