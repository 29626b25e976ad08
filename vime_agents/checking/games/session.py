"""What the checks of games are written with."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vime_agents import registry
from vime_agents.checking import kit
from vime_agents.checking.drive import Hung, Trace
from vime_agents.checking.games.drive import GameTrace, play_game
from vime_agents.checking.scale import FULL, Scale
from vime_agents.errors import ModelError
from vime_agents.multi_agent import env as multi_agent_env
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Policy, Sampling

GAME_CHECKS: dict[str, kit.Check] = {}
"""Id -> check; those of `kit.CHECKS` that games must pass as well are among them."""

Rule = Literal["turns", "scores", "zero-sum"]
_RAISED_IN: Mapping[str, Rule] = {"_settle": "turns", "_finish": "scores", "_over": "zero-sum"}


class GameSession(kit.Session):
    """One game under check."""

    subject = MultiAgentEnv

    def __init__(self, env_id: str, *, split: str = "train", scale: Scale = FULL) -> None:
        """As of `kit.Session`."""
        super().__init__(env_id, split=split, scale=scale)
        self.game: type[MultiAgentEnv] = registry.env_class(env_id)
        self._games: list[tuple[str, GameTrace]] | None = None

    @property
    def checks(self) -> dict[str, kit.Check]:
        """Id -> check."""
        return GAME_CHECKS

    @property
    def has_gold(self) -> bool:
        """Whether the author wrote `gold`."""
        return self.game.gold is not MultiAgentEnv.gold

    @property
    def has_legal(self) -> bool:
        """Whether the author wrote `legal`."""
        return self.game.legal is not MultiAgentEnv.legal

    def best_policy(self) -> Policy:
        """Gold, or else legal moves at random, or else useless replies."""
        return self.policies()[next(name for name in ("gold", "random", "wrong") if name in self.policies())]

    def action(self, env: MultiAgentEnv, text: str) -> Any:
        """The same text from everybody whose turn it is, or else from the first."""
        return dict.fromkeys(env.acting or env.possible_agents[:1], text)

    def ended(self, values: tuple[Any, ...]) -> bool:
        """When nobody who was live goes on."""
        return all(values[2][agent] or values[3][agent] for agent in values[2])

    def seen(self, env: MultiAgentEnv, observation: Any, info: Any) -> list[tuple[str, Any, Any, Any]]:
        """Of each agent that was live. `pettingzoo` reports an agent without a space."""
        return [
            (f", {agent}", env.observation_spaces.get(agent), observation.get(agent, {}), told)
            for agent, told in info.items()
        ]

    def make(self, cls: Any = None) -> Any:
        """A new game."""
        return (cls or self.game)(split=self.split)

    def policies(self) -> dict[str, Policy]:
        """By label; gold and random only where the author wrote what they play."""
        scripted = {"wrong": ScriptedPolicy("wrong"), "garbage": ScriptedPolicy("garbage")}
        if self.has_gold:
            scripted["gold"] = ScriptedPolicy("gold")
        if self.has_legal:
            scripted["random"] = ScriptedPolicy("random")
        return dict(scripted)

    async def play(
        self,
        policy: Policy | Mapping[str, Policy],
        *,
        seed: int = 0,
        task: int | None = 0,
        env: Any = None,
        max_steps: int | None = None,
    ) -> GameTrace:
        """One episode, all agents by one policy or each by its own."""
        own = self.make() if env is None else env
        agents = policy if isinstance(policy, Mapping) else dict.fromkeys(own.possible_agents, policy)
        try:
            trace = await play_game(
                own,
                agents,
                seed=seed,
                task=task,
                limit_s=self.scale.call_s,
                author=self.author,
                max_steps=max_steps,
            )
        finally:
            if env is None:
                await self.close(own)
        self.hung |= isinstance(trace.error, Hung)
        return trace

    async def games(self) -> Sequence[tuple[str, GameTrace]]:
        """(how it was played, episode) of whole games, played once for all checks that only look at them."""
        if self._games is None:
            played = []
            for label, policy in self.policies().items():
                many = self.scale.num_random_episodes if label == "random" else self.scale.num_tasks
                for seed in range(many):
                    trace = await self.play(policy, seed=seed, task=None)
                    played.append((f"a {label} game with seed {seed}", trace))
            self._games = played
        return self._games

    def fault(self, trace: Trace) -> str | None:
        """How an episode failed, or None. A broken rule of the interface has a check of its own."""
        return None if trace.error is None or broken_rule(trace.error) else super().fault(trace)


class CannotGoOn:
    """A policy whose context is full, or whose model fails."""

    exact_tokens, name = False, "cannot go on"

    def __init__(self, error: ContextLengthExceeded | ModelError) -> None:
        self.error = error

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """Raises the error."""
        raise self.error

    async def aclose(self) -> None:
        """Nothing to release."""


def open_session(env_id: str, *, split: str = "train", scale: Scale = FULL) -> kit.Session:
    """A session of the kind that the env is of.

    Raises:
        UnknownIdError, ConfigError: no such env, or neither an AgentEnv nor a MultiAgentEnv.
    """
    cls = registry.env_class(env_id)
    several = isinstance(cls, type) and issubclass(cls, MultiAgentEnv)
    return (GameSession if several else kit.Session)(env_id, split=split, scale=scale)


def broken_rule(error: BaseException) -> Rule | None:
    """Which rule for what `start`, `move` and so on return was broken; None: it is another error."""
    steps = list(traceback.walk_tb(error.__traceback__))
    frame = steps[-1][0] if steps else None
    if frame is None or frame.f_code.co_filename != multi_agent_env.__file__:
        return None
    return _RAISED_IN.get(frame.f_code.co_name)


def game_check(
    check_id: str,
    *,
    family: str = "games",
    fix: str,
    needs: tuple[str, ...] = ("plays",),
    explained_by: tuple[str, ...] = (),
) -> Callable[[Callable[[GameSession], Any]], Callable[[GameSession], Any]]:
    """Add a check of games to the list; as `kit.check`."""

    def add(function: Callable[[GameSession], Any]) -> Callable[[GameSession], Any]:
        made = kit.make_check(
            function, check_id=check_id, family=family, fix=fix, needs=needs, explained_by=explained_by
        )
        GAME_CHECKS[check_id] = made
        return function

    return add
