"""One agent of a MultiAgentEnv as a Gymnasium env: the others are played inside, by fixed policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vime_agents.env import AgentEnv, Info, Observation
from vime_agents.episode import Outcome, RewardResult
from vime_agents.errors import ConfigError, ModelError
from vime_agents.messages import Message
from vime_agents.multi_agent.assign import assign
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.multi_agent.seat_view import SeatView
from vime_agents.policy import ContextLengthExceeded, Conversation, Policy, Sampling
from vime_agents.task import Task, TaskSet


class GymFace(AgentEnv):
    """An AgentEnv that plays the others until it is its agent's turn. Made by `MultiAgentEnv.as_gym`.

    Its reward is the agent's; `info["outcome"]` says how it ended for it. If the game is over before the
    agent's first turn, the first observation is what it was told, and any reply ends the episode.
    """

    def __init__(
        self,
        game: MultiAgentEnv,
        agent: str,
        opponents: Policy | Mapping[str, Policy],
        *,
        sampling: Sampling | None = None,
    ) -> None:
        """`opponents`: as `assign` takes them, and stay the caller's. `sampling`: how they are sampled."""
        super().__init__(split=game.split, task_seed=game.task_seed, render_mode=game.render_mode)
        if agent not in game.possible_agents:
            raise ConfigError(f"no agent {agent!r} in {type(game).__name__}: {list(game.possible_agents)}")
        self.game, self.agent, self.sampling = game, agent, sampling or Sampling()
        others = [a for a in game.possible_agents if a != agent]
        self.opponents = assign(others, game.roles, opponents)
        self._views = {other: SeatView(game, other) for other in others}
        self._conversations: dict[str, Conversation] = {}
        self._new: list[Message] = []
        self._due = 0.0
        """Step rewards of the game that no step of this env has paid yet."""
        self._paid = 0.0

    def task_set(self) -> TaskSet:
        """The game's."""
        return self.game.task_set()

    async def setup(self) -> None:
        """Start the game and play the others until it is the agent's turn."""
        self._new, self._due, self._paid = [], 0.0, 0.0
        seed = int(self.np_random.integers(2**31))
        options = {"task": Task(id=self.task_id, inputs=self.task, split=self.split)}
        observations, _ = await self.game.areset(seed=seed, options=options)
        self._conversations = {
            other: Conversation(agent=other, episode_id=f"{self.task_id}-{seed}-{other}")
            for other in self.opponents
        }
        for other, policy in self.opponents.items():
            begin = getattr(policy, "begin", None)
            if begin is not None:
                begin(self._conversations[other], self._views[other])
        self._tell(observations)
        await self._play_the_others()

    async def prompt(self) -> Sequence[Message]:
        """What the agent is told before its first turn."""
        return self._new

    async def respond(self, message: Message) -> Sequence[Message]:
        """Make the agent's move, and the others' until it is its turn again or it is out."""
        self._new = []
        if self.agent in self.game.acting:
            await self._step({self.agent: message})
            await self._play_the_others()
        if self.agent in self.game.results:
            self.finish(message["content"])
        return self._new

    async def score(self, text: str) -> RewardResult:
        """The agent's reward in the game; as it stands, if a limit ended the episode."""
        if self.agent not in self.game.results:
            await self.game.score_partial("max_turns")
        return self.game.results[self.agent]

    async def teardown(self) -> None:
        """End the game."""
        await self.game.aclose()

    async def astep(self, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:
        """As of AgentEnv, with the agent's outcome."""
        observation, reward, terminated, truncated, info = await super().astep(action)
        if terminated or truncated:
            outcome = self.game.outcomes[self.agent]
            info |= {"outcome": outcome, "stop": outcome.stop}
            terminated, truncated = outcome.kind != "truncated", outcome.kind == "truncated"
            scored = info["reward_result"].value is not None
            return observation, reward - self._paid if scored else self._due, terminated, truncated, info
        reward, self._due = self._due, 0.0
        self._paid += reward
        return observation, reward, False, False, info

    async def _play_the_others(self) -> None:
        while self.agent in self.game.agents and self.agent not in self.game.acting:
            await self._step({})

    async def _step(self, replies: Mapping[str, Message | Outcome]) -> None:
        asked = [a for a in self.game.acting if a != self.agent]
        actions = {**replies, **{other: await self._ask(other) for other in asked}}
        observations, rewards, *_ = await self.game.astep(actions)
        self._due += rewards.get(self.agent, 0.0)
        self._tell(observations)

    async def _ask(self, other: str) -> Message | Outcome:
        conversation = self._conversations[other]
        sampling = replace(self.sampling, seed=int(self.np_random.integers(2**31)))
        try:
            generation = await self.opponents[other].act(conversation, sampling=sampling)
        except ContextLengthExceeded as full:
            return Outcome(kind="truncated", stop="context_length", detail=str(full))
        except ModelError as error:
            return Outcome(kind="failed", stop="error", cause="model", detail=str(error)[:2000])
        conversation.replied(generation.message)
        return generation.message

    def _tell(self, observations: Mapping[str, Any]) -> None:
        for agent, observation in observations.items():
            if agent == self.agent:
                self._new.extend(observation["messages"])
            else:
                self._conversations[agent].observe(observation["messages"])
