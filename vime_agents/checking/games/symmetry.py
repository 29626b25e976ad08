"""Check that seats of one role are told the same, but for who they are and what is theirs to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest

from vime_agents.checking.games.session import GameSession, game_check
from vime_agents.checking.kit import DoesNotApply
from vime_agents.threads import call_hook

_FEWEST = 4
"""Different messages of an agent before a line of all of them is more than chance."""


@game_check(
    "symmetric",
    explained_by=("whole-games", "first-action", "secrets", "same-seed"),
    fix="write `rules` and `view` once for all seats, out of `me`; give agents who play differently "
    "different `roles`",
)
async def symmetric(session: GameSession) -> None:
    """Agents of one role are told the same, when names are swapped and numbers and secrets left out."""
    pairs = [pair for peers in _peers(session) for pair in combinations(peers, 2)]
    if not pairs:
        raise DoesNotApply("no two agents have the same role")
    rules = await _rules(session)
    usual = await _usual_lines(session)
    for one, other in pairs:
        difference = _difference(rules[one], rules[other], one, other)
        where = session.author.line_of_hook("rules")
        if difference is None and one in usual and other in usual:
            where = session.author.line_of_hook("view")
            difference = _missing(usual, one, other) or _missing(usual, other, one)
        if difference is not None:
            session.find(difference[:600], severity="warning", where=where)
            return


def _peers(session: GameSession) -> Iterator[Sequence[str]]:
    """Agents that play alike: of each role; of a zero-sum game without roles, all."""
    game = session.game
    if not game.roles and game.zero_sum:
        yield game.possible_agents
    for role in dict.fromkeys(game.roles.values()):
        yield [agent for agent in game.possible_agents if game.roles.get(agent) == role]


async def _rules(session: GameSession) -> dict[str, str]:
    """What everybody reads first on the same task."""
    env = session.make()
    await env.areset(seed=0, options={"task": 0})
    rules: dict[str, str] = {}
    for agent in env.agents:
        text = str(await call_hook(env.rules, agent))
        for secret in await call_hook(env.secrets, agent):
            text = text.replace(secret, "<secret>")
        rules[agent] = _without_numbers(text)
    await session.close(env)
    return rules


async def _usual_lines(session: GameSession) -> dict[str, tuple[set[str], set[str]]]:
    """By agent: the lines of every message on its turn, and those of any. Not of agents who saw too few."""
    seen: dict[str, set[str]] = {}
    for _, trace in await session.games():
        shown = zip([trace.info, *(s.info for s in trace.steps)], trace.observations(), strict=True)
        for infos, observations in shown:
            for agent, told in (infos or {}).items():
                if told.get("acting"):
                    texts = [m["content"] for m in observations[agent]["messages"]]
                    seen.setdefault(agent, set()).add("\n".join(texts))
    split = {
        agent: [set(_without_numbers(text).splitlines()) for text in texts] for agent, texts in seen.items()
    }
    return {
        agent: (set.intersection(*lines), set.union(*lines))
        for agent, lines in split.items()
        if len(lines) >= _FEWEST
    }


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+(?![\w])", "#", text)


def _swapped(text: str, one: str, other: str) -> str:
    names = {one: other, other: one}
    words = rf"(?<!\w)(?:{re.escape(one)}|{re.escape(other)})(?!\w)"
    return re.sub(words, lambda found: names[found[0]], text)


def _difference(left: str, right: str, one: str, other: str) -> str | None:
    for mine, theirs in zip_longest(left.splitlines(), right.splitlines(), fillvalue=""):
        # A name may also be a word of the language: the first move.
        if theirs not in (mine, _swapped(mine, one, other)):
            return f"the rules tell {one} {mine!r}, and {other} {theirs!r}"
    return None


def _missing(usual: dict[str, tuple[set[str], set[str]]], one: str, other: str) -> str | None:
    """A line that one always sees, and the other never."""
    for line in sorted(usual[one][0]):
        if not {line, _swapped(line, one, other)} & usual[other][1]:
            return (
                f"{one} is told {line!r} on each of its turns, and {other} never {line!r} with names swapped"
            )
    return None
