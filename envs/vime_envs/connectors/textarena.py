"""TextArena's games as games of ours: `ConnectFour = textarena_game("ConnectFour-v0", num_players=2)`.

Every game is also an attribute of this module, under its id and the number of players:
`vime-agents eval vime_envs.connectors.textarena:ConnectFour_v0_for_2`.

Some games look words up in NLTK's data, which must be installed, or need an API key for a judge of theirs.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import numpy as np

from vime_agents.caller import caller_module
from vime_agents.episode import Outcome, RewardResult
from vime_agents.errors import ConfigError, EnvError, MissingDependencyError, UnknownIdError
from vime_agents.messages import Message
from vime_agents.multi_agent import MultiAgentEnv, Next
from vime_agents.reward import Score

_before = random.getstate()
try:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
except ImportError as error:
    raise MissingDependencyError("textarena", "textarena", "a game of TextArena's") from error
finally:
    random.setstate(_before)  # importing it draws

_globals = threading.Lock()
"""Held while TextArena runs: its games draw from generators that the whole process shares."""
MAX_REPLY = 4_000
"""Characters: some games search a reply in a time that grows with its square, while everything else waits."""


class TextArenaGame(MultiAgentEnv):
    """A game that TextArena plays. Made by `textarena_game`.

    An agent reads what TextArena tells it, and what others replied where TextArena passes it on: the last
    MAX_REPLY characters (metric: `replies_cut`). Moves are written as the game's rules say, mostly in square
    brackets. How often an illegal one is asked again is TextArena's to decide too; whoever loses by one has
    the outcome `illegal_move`.

    TextArena draws from `random` and `numpy.random`. Here each game has its own state of the two, and the
    process's is put back after each call: the same task is the same game, whatever else is played.
    """

    env_id: ClassVar[str] = ""
    """In TextArena's registry."""
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    max_turns = 1000

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.game: Any = None
        self._luck: tuple[Any, Any] | None = None
        self._index = {agent: i for i, agent in enumerate(self.possible_agents)}

    def start(self, rng: np.random.Generator) -> Next:
        """A fresh game; whose turn it is."""
        seed = int(rng.integers(2**31))
        self._luck = None
        with self._own_luck(seed):
            self.game = _unwrapped(textarena.make(self.env_id, **self.env_kwargs))
            self.game.reset(num_players=len(self.possible_agents), seed=seed)
        return self._whose_turn()

    def view(self, me: str) -> str:
        """What the game has told since the last time; not one's own replies."""
        return self._news(me)

    def advance(self, replies: Mapping[str, Message | Outcome]) -> Next:
        """Make the move; whoever cannot reply has lost, and what the others are worth cannot be told."""
        ((me, reply),) = replies.items()
        if isinstance(reply, Outcome):
            return self._abandoned(me, reply)
        with self._own_luck():
            done, _ = self.game.step(self._read(reply["content"]))
            rewards, infos = self.game.close() if done else ({}, {})
        if not done:
            return self._whose_turn()
        if rewards is None or set(rewards) != set(self._index.values()):
            raise EnvError(f"{self.env_id} ended with rewards {rewards!r}: every player needs one")
        for agent, player in self._index.items():
            self.tell(agent, self._news(agent))
            if infos.get(player, {}).get("invalid_move"):
                self.count("illegal_moves")
                self.leave(agent, float(rewards[player]), stop="illegal_move")
        return {agent: float(rewards[self._index[agent]]) for agent in self.agents} or None

    def teardown(self) -> None:
        """Forget the game."""
        self.game = None

    def _whose_turn(self) -> Next:
        return self.possible_agents[self.game.state.current_player_id]

    def _read(self, text: str) -> str:
        if len(text) > MAX_REPLY:
            self.count("replies_cut")
        return text[-MAX_REPLY:]

    def _news(self, me: str) -> str:
        state, player = self.game.state, self._index[me]
        seen, state.observations[player] = state.observations[player], []
        own = textarena.ObservationType.PLAYER_ACTION
        lines = []
        for sender, text, kind in seen:
            if kind == own and sender == player:
                continue
            name = "" if sender == textarena.GAME_ID else f"[{state.role_mapping.get(sender, sender)}] "
            lines.append(f"{name}{str(text).strip()}")
        return "\n".join(lines)

    def _abandoned(self, me: str, why: Outcome) -> Mapping[str, Score]:
        unknown = RewardResult(value=None, status="unscorable", detail=f"{me} did not go on: {why.detail}")
        lost: Score = unknown if why.kind == "failed" else self.reward_range[0]
        return {agent: lost if agent == me else unknown for agent in self.agents}

    @contextmanager
    def _own_luck(self, seed: int | None = None) -> Iterator[None]:
        with _globals:
            outside = random.getstate(), np.random.get_state()
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed)
            elif self._luck is not None:
                _set_state(self._luck)
            try:
                yield
            finally:
                self._luck = random.getstate(), np.random.get_state()
                _set_state(outside)


def textarena_game(
    env_id: str,
    *,
    num_players: int,
    reward_range: tuple[float, float] = (-1.0, 1.0),
    max_turns: int = 1000,
    roles: Mapping[str, str] | None = None,
    name: str = "",
    **kwargs: Any,
) -> type[TextArenaGame]:
    """A class that plays a game of TextArena's; its agents are `player_0`, `player_1` and so on.

    Args:
        env_id: in TextArena's registry, such as `KuhnPoker-v0`. Only the game itself is taken, without the
            wrappers that it is registered with.
        num_players: of those that the game allows.
        reward_range: of an agent's episode.
        max_turns: all agents' replies together.
        roles: agent -> role; None: all are called `player`.
        name: of the class; that of the variable that it is given to, for workers and `vime-agents check`.
        kwargs: of the game.

    Raises:
        UnknownIdError: no such game. ConfigError: not for so many players.
    """
    if env_id not in ENV_REGISTRY:
        raise UnknownIdError("game of TextArena's", env_id, ENV_REGISTRY)
    if num_players < 1:
        raise ConfigError(f"{env_id}: num_players must be >= 1, got {num_players}")
    agents = tuple(f"player_{i}" for i in range(num_players))
    fields = {
        "__doc__": f"{env_id}, of TextArena, for {num_players}.",
        "__module__": caller_module(__name__),
        "env_id": env_id,
        "env_kwargs": kwargs,
        "possible_agents": agents,
        "roles": dict.fromkeys(agents, "player") if roles is None else roles,
        "reward_range": reward_range,
        "max_turns": max_turns,
    }
    return type(name or "".join(filter(str.isalnum, env_id)), (TextArenaGame,), fields)


@cache
def _by_name(name: str, env_id: str, num_players: int) -> type[TextArenaGame]:
    return textarena_game(env_id, num_players=num_players, name=name)


def __getattr__(name: str) -> type[TextArenaGame]:
    found = re.fullmatch(r"(\w+)_for_(\d{1,2})", name)
    for env_id in ENV_REGISTRY if found else ():
        if found and re.sub(r"\W", "_", env_id) == found[1]:
            return _by_name(name, env_id, int(found[2]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _unwrapped(env: Any) -> Any:
    while isinstance(env, textarena.Wrapper):
        env = env.env
    return env


def _set_state(states: Sequence[Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
