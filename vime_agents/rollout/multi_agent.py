"""One env of several agents, a policy for each, one episode with a trajectory for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from vime_agents.episode import Outcome, RewardResult, RewardStatus, Trajectory
from vime_agents.errors import ContractError, ModelError
from vime_agents.messages import Message
from vime_agents.multi_agent.assign import ANYBODY
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.multi_agent.seat_view import SeatView
from vime_agents.policies.cast import Cast
from vime_agents.policies.pool import Player
from vime_agents.policy import ContextLengthExceeded, Policy
from vime_agents.rollout.attempt import Attempt, EpisodeRequest, Truncate
from vime_agents.rollout.seat import Seat


class MultiAgentPlay(Attempt):
    """The state of one attempt at one episode of several agents.

    Agents who act at the same time are sampled at the same time. A failure of infrastructure ends the
    episode; an agent whose model fails, or whose context is full, is taken out by the rules of the game.
    """

    def __init__(
        self,
        request: EpisodeRequest,
        env: MultiAgentEnv,
        policies: Policy | Mapping[str, Player] | Cast,
        **kwargs: Any,
    ) -> None:
        """`policies`: one for everybody, by agent, role or `*`, or a `Cast`; `kwargs`: as of `Attempt`."""
        super().__init__(request, env, **kwargs)
        self.infos: Mapping[str, Mapping[str, Any]] = {}
        base = f"{request.episode_id}-a{self.attempt}"
        lot = request.seed if request.lot is None else request.lot
        cast = as_cast(policies).of_episode(env.possible_agents, env.roles, lot)
        self.seats = {
            agent: Seat(agent, policy, episode_id=f"{base}-{agent}", of_episode=request.episode_id)
            for agent, (policy, _) in cast.items()
        }
        self._policy_of = {agent: of for agent, (_, of) in cast.items() if of != agent}
        # Held here: policies refer to them weakly.
        self._views = {agent: SeatView(env, agent) for agent in self.seats}
        self._replies: dict[str, Message | Outcome] = {}
        self._lost_turns = 0
        self._rewards: dict[str, RewardResult] = {}
        self._outcomes: dict[str, Outcome] = {}

    # ------------------------------------------------------------------- what a generate function uses

    async def reset(self) -> tuple[str, ...]:
        """Start the env on the request's task; who acts first."""
        options = {"task": self.request.task}
        observations, self.infos = await self._env_call(
            "reset", seed=self.request.seed & 0x7FFFFFFF, options=options
        )
        for agent, seat in self.seats.items():
            seat.observe(observations[agent])
            seat.begin(self._views[agent])
        return self.env.acting

    async def act(self) -> dict[str, Message | Outcome]:
        """A reply of each acting agent; an Outcome where its policy has none to give."""
        self._check_budgets()
        calls = [asyncio.ensure_future(self._reply(a, i)) for i, a in enumerate(self.env.acting)]
        try:
            replies = await asyncio.gather(*calls)
        finally:
            for call in calls:  # one raised: nobody reads what the others say
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        self._replies = dict(zip(self.env.acting, replies, strict=True))
        return self._replies

    async def step(self, replies: Mapping[str, Message | Outcome] | None = None) -> bool:
        """Give the env the replies (or others); whether the episode is over."""
        if not self._replies:
            raise ContractError("step() before act()")
        actions = self._replies if replies is None else replies
        started = time.monotonic()
        observations, rewards, *_, self.infos = await self._env_call("step", actions)
        env_s = time.monotonic() - started
        for agent, action in actions.items():
            seat = self.seats[agent]
            if isinstance(action, Outcome) or seat.generation is None:
                self._lost_turns += 1
            else:
                seat.answered(action, 0.0, env_s)
        self._replies = {}
        for agent, observation in observations.items():
            seat = self.seats[agent]
            seat.earned(rewards[agent])
            if observation["messages"] or agent in self.env.acting or agent in self.env.outcomes:
                seat.observe(observation)
        if not self.env.acting:
            self.done = True
            self._outcome = self.env.outcome
            self._rewards, self._outcomes = dict(self.env.results), dict(self.env.outcomes)
        return self.done

    async def _reply(self, agent: str, position: int) -> Message | Outcome:
        seat = self.seats[agent]
        sampling = self._turn_sampling(self.infos[agent], position)
        try:
            return await seat.act(sampling, self.limits.generation_s, self._bounded)
        except ContextLengthExceeded as full:
            return Outcome(kind="truncated", stop="context_length", detail=str(full))
        except ModelError as error:
            return Outcome(kind="failed", stop="error", cause="model", detail=str(error)[:2000])

    # ------------------------------------------------------------------------------ what an attempt asks

    @property
    def _num_turns(self) -> int:
        return self._lost_turns + sum(len(seat.turns) for seat in self.seats.values())

    @property
    def _num_sampled(self) -> int:
        return sum(seat.num_sampled for seat in self.seats.values())

    async def _score_partial(self, limit: Truncate) -> None:
        self._rewards |= await self.env.score_partial(limit.stop, limit.detail)
        self._outcomes = dict(self.env.outcomes)

    def _unscored(self, status: RewardStatus, detail: str) -> None:
        result = RewardResult(value=None, status=status, detail=detail)
        self._rewards = dict.fromkeys(self.seats, result)
        self._outcomes = {}

    def _trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(
            seat.trajectory(
                self._rewards[agent],
                done=self.done,
                outcome=self._outcomes.get(agent),
                frozen=is_frozen(seat.policy),
                policy_of=self._policy_of.get(agent, ""),
                peers=self._peers(agent),
            )
            for agent, seat in self.seats.items()
        )

    def _peers(self, agent: str) -> str:
        role = self.env.roles.get(agent, "")
        return role if role in self.env.compared_in_episode else ""


def as_cast(policies: Policy | Mapping[str, Player] | Cast) -> Cast:
    """One policy for everybody, or policies by agent, as a `Cast`."""
    if isinstance(policies, Cast):
        return policies
    return Cast(policies if isinstance(policies, Mapping) else {ANYBODY: policies})


def is_frozen(policy: Policy) -> bool:
    """Whether a policy says that it is not trained, by `trainable`; else, whether it has no exact tokens."""
    return not getattr(policy, "trainable", policy.exact_tokens)
