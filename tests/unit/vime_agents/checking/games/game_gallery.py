"""Games with one fault each; `FINDS` names the check that is to catch it, and no other may."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game, MultiAgentEnv
from vime_agents.multi_agent.game import whole_number

_OTHER = {"first": "second", "second": "first"}


class Nim(Game):
    """Take one or two of five sticks; whoever takes the last wins."""

    FINDS: ClassVar[str | None] = None
    possible_agents = ("first", "second")
    zero_sum = True
    max_turns = 8

    def make_task(self, rng: Any) -> Mapping[str, Any]:
        return {"sticks": int(rng.integers(4, 7)), "seed": int(rng.integers(2**31))}

    def start(self, rng: Any) -> Any:
        self.sticks = self.task["sticks"]
        self.card = {
            agent: int(card) for agent, card in zip(_OTHER, rng.integers(1000, 9999, 2), strict=True)
        }
        return "first"

    def view(self, me: str) -> Any:
        return f"Your card is {self.card[me]}. {self.sticks} sticks are left. Take 1 or 2."

    def secrets(self, me: str) -> Any:
        return [f"card is {self.card[me]}"]

    def parse(self, me: str, text: str) -> Any:
        return whole_number(text, 1, 2)

    def move(self, me: str, taken: Any) -> Any:
        if taken > self.sticks:
            raise IllegalMove("there are not so many")
        self.sticks -= taken
        return _OTHER[me] if self.sticks else self.end(me)

    def end(self, me: str) -> Any:
        return {me: 1.0, _OTHER[me]: -1.0}

    def legal(self, me: str) -> Any:
        return [str(n) for n in (1, 2) if n <= self.sticks]

    def gold(self, me: str) -> Any:
        return str(self.sticks % 3 or 1)


class ThreeDeals(Nim):
    FINDS = "split-overlap"

    def make_task(self, rng: Any) -> Mapping[str, Any]:
        return {"sticks": int(rng.integers(4, 7)), "seed": 1}


class TurnOfTheDead(Nim):
    """Whoever takes the third last stick leaves, and is still asked."""

    FINDS = "turns"
    zero_sum = False

    def move(self, me: str, taken: Any) -> Any:
        verdict = super().move(me, taken)
        if self.sticks <= 2 and isinstance(verdict, str):
            self.leave(me)
            return me
        return verdict


class TurnOfNobody(Nim):
    """Forgets to say who is next."""

    FINDS = "turns"

    def move(self, me: str, taken: Any) -> Any:
        verdict = super().move(me, taken)
        return None if isinstance(verdict, str) and self.sticks == 1 else verdict


class LoserWithoutScore(Nim):
    """Only the winner has one."""

    FINDS = "scores"

    def end(self, me: str) -> Any:
        return {me: 1.0}


class EverybodyWins(Nim):
    """Is declared zero-sum, and pays both."""

    FINDS = "zero-sum"

    def end(self, me: str) -> Any:
        return {me: 1.0, _OTHER[me]: 0.5}


class RewardTooLarge(Nim):
    """Pays in other units than it declares."""

    FINDS = "reward-range"

    def end(self, me: str) -> Any:
        return {me: 10.0, _OTHER[me]: -10.0}


class CrashesLate(Nim):
    """Fails in a position that only good play reaches."""

    FINDS = "whole-games"

    def move(self, me: str, taken: Any) -> Any:
        verdict = super().move(me, taken)
        return {}[self.sticks] if isinstance(verdict, dict) else verdict


class LegalOfTheFirst(Nim):
    """Lists moves without looking at the position."""

    FINDS = "legal-moves"

    def legal(self, me: str) -> Any:
        return ["1", "2", "3"]


class GoldInWords(Nim):
    """Has a gold that the game cannot read."""

    FINDS = "gold-moves"

    def gold(self, me: str) -> Any:
        return "take as many as leaves a multiple of three"


class NeverEnds(Nim):
    """Puts the sticks back."""

    FINDS = "ends"

    def move(self, me: str, taken: Any) -> Any:
        return _OTHER[me]

    def standing(self) -> Any:
        return dict.fromkeys(self.agents, 0.0)


class ShowsTheFirstsCard(Nim):
    """Shows everybody the first player's card."""

    FINDS = "secrets"

    def view(self, me: str) -> Any:
        return f"The card is {self.card['first']}. {self.sticks} sticks are left."


class CannotForfeit(Nim):
    """Knows what a bad move costs, but not what to do without any."""

    FINDS = "cannot-go-on"

    async def advance(self, replies: Any) -> Any:
        for reply in replies.values():
            reply["content"].strip()
        return await super().advance(replies)


class NotNimblyParsed(Nim):
    """Parses with what a model's text can break."""

    FINDS = "first-action"

    def parse(self, me: str, text: str) -> Any:
        return whole_number(text.split()[-1], 1, 2)


class ParsesAnyDigit(Nim):
    """Reads digits of other scripts as numbers, as `str.isdigit` does."""

    FINDS = "hostile-text"

    def parse(self, me: str, text: str) -> Any:
        digits = "".join(character for character in text if character.isdigit())
        if not digits:
            raise IllegalMove("answer with 1 or 2")
        if int(digits) not in (1, 2):
            raise IllegalMove("answer with 1 or 2")
        return int(digits)


class DrawsFromTheProcess(Nim):
    """Deals with the generator that everybody shares."""

    FINDS = "global-rng"

    def start(self, rng: Any) -> Any:
        super().start(rng)
        self.sticks += random.randint(0, 1)
        return "first"


class ShowsTheTime(Nim):
    """Lets the clock into a view."""

    FINDS = "same-seed"

    def view(self, me: str) -> Any:
        return f"{time.perf_counter_ns()}: {super().view(me)}"


class AlwaysTheSame(Nim):
    """Ignores the task."""

    FINDS = "seeds-differ"

    def start(self, rng: Any) -> Any:
        self.sticks, self.card = 5, {"first": 1111, "second": 2222}
        return "first"

    async def areset(self, *, options: Any = None, **kwargs: Any) -> Any:
        return await super().areset(options=options or {"task": 0}, **kwargs)


class CountsForAll(Nim):
    """Numbers the games of all instances."""

    FINDS = "shared-state"
    played: ClassVar[list[int]] = []

    def start(self, rng: Any) -> Any:
        self.played.append(1)
        return super().start(rng)

    def teardown(self) -> None:
        if len(self.played) > 50:
            self.played.clear()


class KeepsTheSticks(Nim):
    """Goes on with what the last game left."""

    FINDS = "reset-isolation"
    left = 0

    def start(self, rng: Any) -> Any:
        super().start(rng)
        self.sticks += self.left
        return "first"

    def teardown(self) -> None:
        self.left = self.sticks % 2


class PlaysOnAfterTheEnd(Nim):
    """Takes a step of an episode that is over."""

    FINDS = "step-after-end"

    async def astep(self, actions: Any) -> Any:
        return await super().astep(actions) if self.acting else ({}, {}, {}, {}, {})


class SplitsAtEquals(Nim):
    """Reads what stands behind an equals sign."""

    FINDS = "random-actions"

    def parse(self, me: str, text: str) -> Any:
        if text.count("=") == 1 and len(text) < 40:
            float(text.split("=")[1])
        return super().parse(me, text)


class IgnoresOptions(Nim):
    """Chooses the task itself."""

    FINDS = "task-options"

    async def areset(self, *, options: Any = None, **kwargs: Any) -> Any:
        return await super().areset(**kwargs)


class TellsItsSticks(Nim):
    """Puts what it goes on using into everybody's info."""

    FINDS = "aliasing"

    def start(self, rng: Any) -> Any:
        self.taken: list[int] = []
        return super().start(rng)

    def move(self, me: str, taken: Any) -> Any:
        self.taken.append(taken)
        return super().move(me, taken)

    async def areset(self, *, options: Any = None, **kwargs: Any) -> Any:
        observations, infos = await super().areset(options=options, **kwargs)
        return observations, {agent: {**told, "taken": self.taken} for agent, told in infos.items()}


class TellsASet(Nim):
    """Puts what is no JSON into the info of an agent."""

    FINDS = "observation-json"

    async def astep(self, actions: Any) -> Any:
        *values, infos = await super().astep(actions)
        return *values, {agent: {**told, "legal": {1, 2}} for agent, told in infos.items()}


class ShowsEveryStick(Nim):
    """Draws a line of a million sticks."""

    FINDS = "observation-size"

    def view(self, me: str) -> Any:
        return super().view(me) + "|" * 1_000_001


class CannotBeCancelled(Nim):
    """Takes a cancelled move for an illegal one."""

    FINDS = "cancellation"

    async def advance(self, replies: Any) -> Any:
        try:
            await asyncio.sleep(0.02 if self.task_id == "train-0" and self.turn < 3 else 0)
        except asyncio.CancelledError:
            return self.acting
        return await super().advance(replies)


class NoStandingYet(Nim):
    """Knows who is ahead only after two moves."""

    FINDS = "turn-limit"
    zero_sum = False

    def start(self, rng: Any) -> Any:
        self.moved: list[str] = []
        return super().start(rng)

    def move(self, me: str, taken: Any) -> Any:
        self.moved.append(me)
        return super().move(me, taken)

    def standing(self) -> Any:
        return {self.moved[-1]: 0.5, self.moved[-2]: -0.5}


class PaysForForfeits(Nim):
    """Gives the game to whoever does not play."""

    FINDS = "useless-pays"

    def forfeit(self, agents: Any) -> Any:
        return {me: 1.0 if me in agents else -1.0 for me in self.agents}


class AdvisesTheFirst(Nim):
    """Tells one of two equals how to win."""

    FINDS = "symmetric"

    def rules(self, me: str) -> Any:
        advice = "\nLeave a multiple of three." if me == "first" else ""
        return f"You play {me} against {_OTHER[me]}.{advice}"


class TellsTheFirstAlone(Nim):
    """Does not say to one of two equals what it may do."""

    FINDS = "symmetric"

    def view(self, me: str) -> Any:
        return super().view(me) + ("" if me == "first" else "\nYou may not take three.")


class OpensFiles(Nim):
    """Leaves a file open after each game."""

    FINDS = "leak-files"

    def start(self, rng: Any) -> Any:
        left_open.enter_context(open(__file__))  # noqa: SIM115
        return super().start(rng)


class ClosesOnce(Nim):
    """Cannot be torn down before its board is laid out."""

    FINDS = "close"

    async def aclose(self) -> None:
        del self.sticks
        await super().aclose()


class CutsSpaces(MultiAgentEnv):
    """Its agents have no spaces, which nobody but PettingZoo asks for."""

    FINDS = "pettingzoo"
    possible_agents = ("alone",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_spaces = {}

    def start(self, rng: Any) -> Any:
        return "alone"

    def view(self, me: str) -> Any:
        return f"Task {self.task_id}"

    def advance(self, replies: Any) -> Any:
        return {"alone": 0.0}


Misnamed = type("NotItsName", (Nim,), {"FINDS": "spec", "__module__": __name__})

left_open = contextlib.ExitStack()
"""The files of `OpensFiles`."""

GALLERY = {
    name: cls
    for name, cls in list(globals().items())
    if isinstance(cls, type) and issubclass(cls, MultiAgentEnv) and "FINDS" in vars(cls)
}
