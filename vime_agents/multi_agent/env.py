"""Environments that several agents act in, in turns or at the same time, each seeing only its own.

The shape is PettingZoo's parallel API plus one thing: `acting`, the agents whose turn it is. `areset` gives
observations and infos by agent; `astep` takes the acting agents' replies and gives the five dictionaries, by
every agent that was live before the step. The observation of an agent holds the messages that are new to it
and are taken at the moment at which it is to act; an agent whose turn it is not sees nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np

from vime_agents import messages as msg
from vime_agents.env import AgentEnv, Observation, pick_task
from vime_agents.episode import Outcome, RewardResult
from vime_agents.errors import (
    ConfigError,
    ContractError,
    EnvError,
    EpisodeError,
    GraderError,
    IllegalMove,
)
from vime_agents.messages import Message
from vime_agents.policy import Policy, Sampling
from vime_agents.reward import Score, reward_from_score, with_component
from vime_agents.spaces import Messages, Reply
from vime_agents.task import ListTaskSet, ProceduralTaskSet, Task, TaskSet
from vime_agents.threads import call_hook, is_coroutine_function, needs_loop, run_on_background_loop, run_sync

if TYPE_CHECKING:
    from vime_agents.multi_agent.faces import AecFace, ParallelFace

Action = str | Message | Outcome
"""A reply; or, in place of one, the Outcome that took the agent out of play."""
Next = str | Sequence[str] | Mapping[str, Score] | None
"""What comes next: one agent's turn, several agents' at the same time, or the end with everybody's scores.
None: the end, because nobody is left."""
Infos = dict[str, dict[str, Any]]
Step = tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], Infos]

_ROUNDING = 1e-9
_MAY_REFUSE = ("parse", "moves")
"""Hooks for whose IllegalMove there is somebody to ask again."""


class MultiAgentEnv:
    """Base of every environment of several agents; `Game` is the one to begin with.

    Guarantees: one instance plays one episode at a time; all randomness comes from the generator passed in;
    an agent is shown nothing but what `view`, `rules` and `tell` give to it; the turn goes to living agents
    only; the rewards of an agent's steps sum to its `reward_result`.

    What an author writes (each may be `def`, run off the event loop, or `async def`):

        start(rng) -> Next                 a new episode of `self.task`
        view(agent) -> str | messages      what the agent sees when its turn comes
        advance(replies) -> Next           the acting agents' replies, by agent
        rules(agent) -> str                put before the first view
        standing() -> scores               what everybody has if a limit ends the episode now
    """

    possible_agents: Sequence[str] = ()
    """Everybody who can take part, in the order of play."""
    roles: Mapping[str, str] = {}
    """Agent -> role: what a policy can be assigned to as well. An agent not in it has no role."""
    compared_in_episode: ClassVar[frozenset[str]] = frozenset()
    """Roles whose agents are compared with each other inside an episode, for their advantages: when all of
    them do the same there. The others are compared with the same agent in the other episodes of the group."""
    max_turns: ClassVar[int] = 100
    """The env truncates after this many replies, all agents' together."""
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    """An agent's reward outside is the env's failure, not a reward."""
    zero_sum: ClassVar[bool] = False
    """Whether all rewards of an episode sum to 0; checked at its end."""
    num_tasks: ClassVar[int] = 10_000
    """Size of a procedural task set."""
    prompt_style: ClassVar[str] = "chat"
    """As of `AgentEnv`."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    _needs_loop: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._needs_loop = needs_loop(
            cls, "vime_agents.multi_agent.env.MultiAgentEnv", "vime_agents.multi_agent.game.Game"
        )

    def __init__(self, *, split: str = "train", task_seed: int = 0, render_mode: str | None = None) -> None:
        self.split, self.task_seed, self.render_mode = split, task_seed, render_mode
        agents = list(self.possible_agents)
        if not agents or len(set(agents)) != len(agents):
            raise ContractError(f"{type(self).__name__}.possible_agents must be distinct names, got {agents}")
        if unknown := set(self.roles) - set(agents):
            raise ContractError(f"{type(self).__name__}.roles names {sorted(unknown)}, who do not take part")
        if unknown := self.compared_in_episode - set(self.roles.values()):
            raise ContractError(
                f"{type(self).__name__}.compared_in_episode names {sorted(unknown)}, which are no roles"
            )
        spaces: dict[str, Any] = {a: gymnasium.spaces.Dict({"messages": Messages()}) for a in agents}
        self.observation_spaces = spaces
        self.action_spaces: dict[str, Any] = {agent: Reply() for agent in agents}
        self.task: Mapping[str, Any] = {}
        self.task_id = ""
        self.agents: list[str] = []
        """Who is live, in the order of `possible_agents`."""
        self.acting: tuple[str, ...] = ()
        """Whose turn it is; empty when the episode is over."""
        self.turn = 0
        self.counters: dict[str, float] = {}
        self.messages: dict[str, list[Message]] = {}
        """By agent: what it saw and said."""
        self.results: dict[str, RewardResult] = {}
        """By agent: its reward, once it is out."""
        self.outcomes: dict[str, Outcome] = {}
        """By agent: how it ended for it."""
        self.outcome: Outcome | None = None
        """How the episode ended."""
        self.earned: dict[str, float] = {}
        """By agent: the sum of its step rewards; scores come on top."""
        self._np_random: np.random.Generator | None = None
        self._task_set: TaskSet | None = None
        self._inbox: dict[str, list[str]] = {}
        self._step_rewards: dict[str, float] = {}
        self._why: dict[str, Outcome] = {}
        self._playing = False

    # ------------------------------------------------------------------------------ author's hooks

    def tasks(self) -> Iterable[Mapping[str, Any] | Task] | TaskSet:
        """Rows or a TaskSet of `self.split`. Override this or `make_task`, or neither."""
        return ProceduralTaskSet(
            self.make_task,
            name=type(self).__name__,
            split=self.split,
            seed=self.task_seed,
            size=self.num_tasks,
        )

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """One task from `rng` alone. Here: a `seed`, so that all episodes of a task have the same luck."""
        return {"seed": int(rng.integers(2**31))}

    def start(self, rng: np.random.Generator, /) -> Any:
        """Set the episode up; whose turn is first. `rng` is seeded by the task's `seed`, if it has one."""
        raise ContractError(f"{type(self).__name__} needs `start`")

    def view(self, agent: str, /) -> Any:
        """What is new to an agent whose turn it is: a str is one user message."""
        raise ContractError(f"{type(self).__name__} needs `view`")

    def advance(self, replies: Mapping[str, Message | Outcome], /) -> Any:
        """Take the replies of all acting agents; what comes next.

        An Outcome in place of a reply: the agent cannot go on (its policy failed, or its context is full).
        """
        raise ContractError(f"{type(self).__name__} needs `advance`")

    def rules(self, agent: str, /) -> Any:
        """A text that the agent reads once, before its first view."""
        return ""

    def standing(self) -> Any:
        """Scores of the live agents if a limit ends the episode now; None: there is no telling."""
        return None

    def legal(self, agent: str, /) -> Any:
        """Some replies that are legal now, for random players and checkers; empty: not known."""
        return ()

    def secrets(self, agent: str, /) -> Any:
        """Texts that only this agent may read while the game goes on, for checkers; empty: there are none."""
        return ()

    def gold(self, agent: str, /) -> Any:
        """A reply that nobody can better, now."""
        raise ContractError(f"{type(self).__name__} has no `gold`")

    def teardown(self) -> Any:
        """Called at the end of each episode, also after a failure."""

    # ------------------------------------------------------------------------- what hooks may call

    def tell(self, agent: str, text: str) -> None:
        """Say something to one agent: it reads it before its next view, or at the end."""
        self._inbox[agent].append(text)

    def give(self, agent: str, reward: float) -> None:
        """A step reward; it counts towards the agent's sum. Raises ContractError: the agent is not live."""
        if agent not in self.agents:
            raise ContractError(f"give() to {agent!r}, who is not in play; there are {self.agents}")
        if not math.isfinite(reward):
            raise GraderError(f"{type(self).__name__}: a reward of {agent!r} is {reward!r}")
        self.earned[agent] += float(reward)
        self._step_rewards[agent] = self._step_rewards.get(agent, 0.0) + float(reward)

    def leave(self, agent: str, score: Score = 0.0, *, stop: str = "done", truncated: bool = False) -> None:
        """Take an agent out of play, with its last score; the others go on. `truncated`: by a limit."""
        if agent not in self.agents:
            raise ContractError(f"leave() of {agent!r}, who is not in play; there are {self.agents}")
        self._retire(agent, score, Outcome(kind="truncated" if truncated else "terminated", stop=stop))

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter that ends up in the episode's metrics."""
        self.counters[name] = self.counters.get(name, 0) + amount

    # ---------------------------------------------------------------------------------- async face

    def task_set(self) -> TaskSet:
        """The tasks of `self.split`."""
        if self._task_set is None:
            tasks = self.tasks()
            if not isinstance(tasks, TaskSet):
                tasks = ListTaskSet(tasks, name=type(self).__name__, split=self.split)
            self._task_set = tasks
        return self._task_set

    async def areset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], Infos]:
        """Start an episode. `options={"task": Task | id | index}` pins the task.

        Raises:
            EnvError: a hook of the author's raised, or gave the turn to nobody. ConfigError: no such task.
        """
        await self._end_episode()
        if seed is not None or self._np_random is None:
            self._np_random = np.random.default_rng(seed)
        task = pick_task(self.task_set(), (options or {}).get("task"), self._np_random)
        self.task, self.task_id = task.inputs, task.id
        self.agents, self.turn, self.counters = list(self.possible_agents), 0, {}
        self.messages = {agent: [] for agent in self.agents}
        self._inbox = {agent: [] for agent in self.agents}
        self.earned = dict.fromkeys(self.agents, 0.0)
        self.results, self.outcomes, self.outcome, self._why = {}, {}, None, {}
        self._step_rewards = {}
        self._playing = True
        luck = self.task.get("seed", int(self._np_random.integers(2**31)))
        if not isinstance(luck, int) or luck < 0:
            raise ConfigError(f"task {task.id!r}: its `seed` must be a whole number >= 0, got {luck!r}")
        try:
            self._settle(await self._hook("start", np.random.default_rng(luck)))
            if not self.acting:
                raise EnvError(f"{type(self).__name__}.start ended the episode before anybody acted")
            observations = await self._observations(self.agents)
        except Exception:
            await self._end_episode()
            raise
        return observations, self._infos(self.agents)

    async def astep(self, actions: Mapping[str, Action]) -> Step:
        """Take the replies of exactly the acting agents.

        Raises:
            ContractError: no episode in progress, not the acting agents, or not a Reply.
            EnvError, GraderError, EnvFault: the episode failed; nobody has a reward.
        """
        if not self.acting:
            raise ContractError("step() without reset(), or after the episode ended")
        if set(actions) != set(self.acting):
            raise ContractError(f"it is the turn of {list(self.acting)}, but {sorted(actions)} replied")
        before = list(self.agents)
        replies = {agent: self._checked(agent, actions[agent]) for agent in self.acting}
        for agent, reply in replies.items():
            if not isinstance(reply, Outcome):
                self.messages[agent].append(reply)
        self.turn += len(replies)
        self._why = {}
        try:
            self._settle(await self._hook("advance", replies))
            if self.acting and self.turn >= self.max_turns:
                await self._cut("max_turns", f"limit {self.max_turns} turns")
            observations = await self._observations(before)
            rewards = {agent: self._step_rewards.get(agent, 0.0) for agent in before}
            self._step_rewards = {}
            if not self.acting:
                await self._end_episode()
        except Exception:
            await self._end_episode()  # it failed: there is no going on
            raise
        truncated = {a: a in self.outcomes and self.outcomes[a].kind == "truncated" for a in before}
        terminated = {a: a in self.outcomes and not truncated[a] for a in before}
        return observations, rewards, terminated, truncated, self._infos(before)

    async def score_partial(self, stop: str = "limit", detail: str = "") -> Mapping[str, RewardResult]:
        """End the episode now, because the limit `stop` of the runner's fired; the rewards as they stand."""
        if not self.acting:
            raise ContractError("score_partial() without an episode in progress")
        try:
            await self._cut(stop, detail)
        finally:
            await self._end_episode()
        return dict(self.results)

    async def aclose(self) -> None:
        """Free everything. Idempotent."""
        await self._end_episode()

    # ----------------------------------------------------------------------------------- sync face

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], Infos]:
        """`areset`, from plain code."""
        return self._run_sync(self.areset(seed=seed, options=options))

    def step(self, actions: Mapping[str, Action]) -> Step:
        """`astep`, from plain code."""
        return self._run_sync(self.astep(actions))

    def close(self) -> None:
        """`aclose`, from plain code."""
        if self._playing:
            self._run_sync(self.aclose())

    def render(self) -> str:
        """Every agent's conversation, as text."""
        lines = [f"[{a}] [{m['role']}] {m['content']}" for a, ms in self.messages.items() for m in ms]
        return "\n".join(lines)

    def aec(self) -> AecFace:
        """This env as a `pettingzoo.AECEnv`. Raises MissingDependencyError."""
        from vime_agents.multi_agent.faces import AecFace  # pettingzoo is optional

        return AecFace(self)

    def parallel(self) -> ParallelFace:
        """This env as a `pettingzoo.ParallelEnv`. Raises MissingDependencyError."""
        from vime_agents.multi_agent.faces import ParallelFace  # pettingzoo is optional

        return ParallelFace(self)

    def as_gym(
        self, agent: str, opponents: Policy | Mapping[str, Policy], *, sampling: Sampling | None = None
    ) -> AgentEnv:
        """One agent of this env as an `AgentEnv`, which is a `gymnasium.Env`; the rest is played inside.

        Args:
            agent: whose observations, actions and rewards it has.
            opponents: who plays the others: one policy, or one by agent, role or `*`; they stay open.
            sampling: how the opponents are sampled.

        Raises:
            ConfigError, UnknownIdError: no such agent, or nobody plays one of the others.
        """
        from vime_agents.multi_agent.gym_face import GymFace  # it imports this module

        limits = {"max_turns": self.max_turns, "reward_range": self.reward_range}
        face = type(f"{type(self).__name__}As{agent.title()}", (GymFace,), limits)
        return face(self, agent, opponents, sampling=sampling)

    # ------------------------------------------------------------------------------------ internals

    def _run_sync(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As of AgentEnv: in this thread, unless the class has coroutines of its own."""
        return run_on_background_loop(coroutine) if self._needs_loop else run_sync(coroutine)

    def _checked(self, agent: str, action: Action) -> Message | Outcome:
        if isinstance(action, Outcome):
            return action
        if not self.action_spaces[agent].contains(action):
            raise ContractError(f"{agent}: an action is a str or an assistant message, got {action!r:.200}")
        return msg.assistant(action) if isinstance(action, str) else copy.deepcopy(action)

    def _settle(self, verdict: object) -> None:
        """Apply what `start` or `advance` returned."""
        name = type(self).__name__
        if isinstance(verdict, Mapping):
            self._finish(verdict, Outcome(kind="terminated", stop="done"))
            return
        turn = (verdict,) if isinstance(verdict, str) else () if verdict is None else verdict
        if not isinstance(turn, Iterable):
            raise EnvError(f"{name} must return an agent, agents, or scores by agent; got {verdict!r:.200}")
        movers = set(turn)
        if dead := movers - set(self.agents):
            raise EnvError(f"{name} gives the turn to {dead!r:.200}; in play are {self.agents}")
        if self.agents and not movers:
            raise EnvError(f"{name} gives the turn to nobody; in play are {self.agents}")
        self.acting = tuple(a for a in self.possible_agents if a in movers)
        if not self.agents:
            *_, last = self.outcomes.values()
            all_cut = all(outcome.kind == "truncated" for outcome in self.outcomes.values())
            self._over(last if all_cut else Outcome(kind="terminated", stop="done"))

    def _finish(self, scores: Mapping[Any, Any], outcome: Outcome) -> None:
        if set(scores) != set(self.agents):
            raise EnvError(
                f"{type(self).__name__} ends with scores of {sorted(map(str, scores))}, but in play are "
                f"{self.agents}: everybody in play needs one, and nobody else"
            )
        for agent in list(self.agents):
            self._retire(agent, scores[agent], outcome)
        self._over(outcome)

    def _over(self, outcome: Outcome) -> None:
        self.acting, self.outcome = (), self.outcome or outcome
        values = [result.value for result in self.results.values()]
        total = math.fsum(v for v in values if v is not None)
        if self.zero_sum and None not in values and abs(total) > _ROUNDING:
            raise GraderError(f"{type(self).__name__} is declared zero-sum, but its rewards sum to {total:g}")

    def _retire(self, agent: str, score: object, outcome: Outcome) -> None:
        outcome = self._why.get(agent, outcome)
        result = reward_from_score(score, (-math.inf, math.inf))
        earned = self.earned[agent]
        if result.value is not None:
            self._step_rewards[agent] = self._step_rewards.get(agent, 0.0) + result.value
            if earned:
                result = with_component(result, "steps", earned)
            result = reward_from_score(result, self.reward_range)
        if outcome.kind == "failed":  # whoever cannot play is no evidence of how well it plays
            result = RewardResult(value=None, status="error", detail=outcome.detail)
        self.agents.remove(agent)
        self.results[agent], self.outcomes[agent] = result, outcome

    async def _cut(self, stop: str, detail: str) -> None:
        scores = await self._hook("standing")
        if scores is None:
            unscored = RewardResult(value=None, status="unscorable", detail=f"cut by {stop}")
            scores = dict.fromkeys(self.agents, unscored)
        self._finish(scores, Outcome(kind="truncated", stop=stop, detail=detail))

    async def _observations(self, agents: Sequence[str]) -> dict[str, Observation]:
        return {agent: {"messages": await self._new_messages(agent)} for agent in agents}

    async def _new_messages(self, agent: str) -> tuple[Message, ...]:
        acting = agent in self.acting
        if not acting and agent in self.agents:
            return ()
        said, self._inbox[agent] = self._inbox[agent], []
        view: object = ""
        if acting:
            view = await self._hook("view", agent)
            if not self.messages[agent]:
                said.insert(0, await self._hook("rules", agent))
        if isinstance(view, str):
            # One message, not several: many chat templates refuse two users in a row.
            text = "\n\n".join(part for part in (*said, view) if part)
            new = [msg.user(text)] if text or acting else []
        elif isinstance(view, (list, tuple)):
            new = [*(msg.user(part) for part in said if part), *(msg.check_message(m) for m in view)]
        else:
            raise EnvError(f"{type(self).__name__}.view must return a str or messages, got {view!r:.200}")
        self.messages[agent].extend(new)
        return tuple(copy.deepcopy(new))

    def _infos(self, agents: Sequence[str]) -> Infos:
        infos: Infos = {}
        for agent in agents:
            infos[agent] = {"task_id": self.task_id, "acting": agent in self.acting}
            if agent in self.outcomes:
                infos[agent] |= {"outcome": self.outcomes[agent], "reward_result": self.results[agent]}
        return infos

    async def _hook(self, name: str, *args: Any) -> Any:
        """Call an author's hook; what escapes is named after the boundary that it crossed."""
        hook = getattr(self, name)
        try:
            if not self._needs_loop and is_coroutine_function(hook):  # of `Game`, which waits for hooks alone
                return await hook(*args)
            return await call_hook(hook, *args)
        except (EpisodeError, ConfigError, ContractError):
            raise
        except Exception as error:
            if isinstance(error, IllegalMove) and name in _MAY_REFUSE:
                raise
            raise EnvError(f"{type(self).__name__}.{name}: {error!r}") from error

    async def _end_episode(self) -> None:
        playing, self._playing = self._playing, False
        self.acting = ()
        if playing:
            await self._hook("teardown")
