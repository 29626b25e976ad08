"""Environments that an LLM policy acts in. `AgentEnv` is a real `gymnasium.Env`.

Two faces, one semantics: the runner awaits `areset`/`astep`; `reset`/`step` drive the same coroutines from
plain code, so that an env also works in a notebook, under `gymnasium.make` and in wrappers.

What an author writes (each may be `def`, run off the event loop, or `async def`):

    make_task(rng) -> dict           one procedural task; or tasks() -> rows
    prompt() -> str | list[Message]  what the agent sees first, from self.task
    score(text) -> float | dict      the reward, once, at the end; or `@reward` components
    gold() -> str                    a reply that scores the maximum (used by checkers)
    setup(), teardown()              resources of one episode
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np

from vime_agents import messages as msg
from vime_agents import registry
from vime_agents.episode import RewardResult
from vime_agents.errors import (
    ConfigError,
    ContractError,
    EnvError,
    EnvFault,
    EpisodeError,
    GraderError,
    SandboxError,
    ToolError,
    Unscorable,
)
from vime_agents.exact_json import decode
from vime_agents.graded import Fingerprint, Graded, assigned_names, fingerprint, stored_state
from vime_agents.messages import Message, ToolCall
from vime_agents.reward import (
    ANY_NUMBER,
    GroupReward,
    Score,
    in_range,
    reward_from_score,
    rewards_of,
    score_components,
    with_component,
)
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_agents.spaces import Messages, Reply
from vime_agents.task import ListTaskSet, ProceduralTaskSet, Task, TaskSet, index_of
from vime_agents.threads import call_hook, needs_loop, run_in_thread, run_on_background_loop, run_sync
from vime_agents.tools import (
    CallableTool,
    Tool,
    ToolHost,
    Toolset,
    cut_output,
    repaired_arguments,
    tools_of,
)

Observation = dict[str, tuple[Message, ...]]
Info = dict[str, Any]


class AgentEnv(gymnasium.Env[Observation, "str | Message"]):
    """Base of every single-agent environment.

    Guarantees: one instance plays one episode at a time; all randomness comes from `self.np_random` or the
    generator passed in; the observation holds only messages that are new since the last action.

    `info` holds `stop_strings` and `max_tokens` for the coming turn where the env sets them; `task_id` at an
    episode's start and end; `stop` and `reward_result` at its end.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    max_turns: ClassVar[int] = 10
    """The env truncates after this many turns."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """A score outside is the grader's failure, not a reward."""
    group_rewards: ClassVar[tuple[GroupReward, ...]] = ()
    """Components that compare the episodes of a group with each other; training adds them."""
    num_tasks: ClassVar[int] = 10_000
    """Size of a procedural task set."""
    sandbox_spec: ClassVar[SandboxSpec | None] = None
    """What `await self.sandbox()` gives; made on first use, one for each episode."""
    prompt_style: ClassVar[str] = "chat"
    """`chat`: messages go through the model's chat template. `text`: their contents are concatenated as they
    are, for few-shot prompts that a base model continues."""

    _needs_loop: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Components of a reward are asked all at once.
        waits = cls.sandbox_spec is not None or cls.score is AgentEnv.score
        cls._needs_loop = waits or needs_loop(cls, "vime_agents.env.AgentEnv")

    def __init__(
        self,
        *,
        split: str = "train",
        task_seed: int = 0,
        render_mode: str | None = None,
        sandbox_provider: SandboxProvider | None = None,
    ) -> None:
        self.split, self.task_seed, self.render_mode = split, task_seed, render_mode
        space: Any = gymnasium.spaces.Dict({"messages": Messages()})
        self.observation_space = space
        self.action_space = Reply()
        self.task: Mapping[str, Any] = {}
        self.messages: list[Message] = []
        self.turn = 0
        self.counters: dict[str, float] = {}
        self._given = 0.0
        """Rewards of the step in progress."""
        self._earned: float | None = None
        """Rewards of all steps; None: the env gives none."""
        self._provider = sandbox_provider
        self._own_provider: SandboxProvider | None = None
        self._sandbox: asyncio.Future[Sandbox] | None = None
        self._task_set: TaskSet | None = None
        self._playing = False
        self._answer: str | None = None
        self.graded_record: Graded | None = None
        """What the graders of the last episode were given; None before they were asked, and without
        `keep_graded`."""
        self._fingerprints: dict[str, Fingerprint] | None = None
        """Of the author's attributes, as the constructor left them; None: what is graded is not kept."""
        self._is_regraded = False
        """Whether the episode was played by another env, see `grade_again`."""

    # ------------------------------------------------------------------------------ author's hooks

    def tasks(self) -> Iterable[Mapping[str, Any] | Task] | TaskSet:
        """Rows or a TaskSet of `self.split`. Override this or `make_task`."""
        return ProceduralTaskSet(
            self.make_task,
            name=type(self).__name__,
            split=self.split,
            seed=self.task_seed,
            size=self.num_tasks,
        )

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """One task from `rng` alone (and `self.split`)."""
        raise ContractError(f"{type(self).__name__} needs `tasks` or `make_task`")

    def prompt(self) -> str | Sequence[Message] | Awaitable[str | Sequence[Message]]:
        """The first messages; a str is one user message."""
        raise ContractError(f"{type(self).__name__} needs `prompt`")

    def score(self, text: str) -> Score | Awaitable[Score]:
        """The reward of the finished episode; `text` is the agent's last message.

        Override this, or give the class `@reward` components, whose weighted sum it is.
        """
        rewards = rewards_of(self)
        if not rewards:
            raise ContractError(f"{type(self).__name__} needs `score`, or components that `@reward` makes")
        return score_components(self, text, rewards, run_in_thread=run_in_thread)

    def gold(self) -> Any:
        """A policy's replies, in order, that score the maximum: a str or a list of str / Message."""
        raise ContractError(f"{type(self).__name__} has no `gold`")

    def setup(self) -> Any:
        """Called at the start of each episode, with `self.task` set."""

    def teardown(self) -> Any:
        """Called at the end of each episode, also after a failure."""

    def stop_strings(self) -> Sequence[str]:
        """Strings that end the coming turn; they stay part of the reply."""
        return ()

    def max_tokens(self) -> int | None:
        """Most tokens of the coming turn; None takes the run's own limit."""
        return None

    def respond(self, message: Message) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """The env's answer to a reply; None ends the episode. Here: every reply is the last one."""
        return None

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """Tools that the model is told about."""
        return []

    # ---------------------------------------------------------------------------------- async face

    def task_set(self) -> TaskSet:
        """The tasks of `self.split`."""
        if self._task_set is None:
            tasks = self.tasks()
            if isinstance(tasks, TaskSet):
                self._task_set = tasks
            else:
                self._task_set = ListTaskSet(tasks, name=type(self).__name__, split=self.split)
        return self._task_set

    async def areset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode. `options={"task": Task | id | index}` pins the task.

        Raises:
            EnvError: a hook of the author's raised. EnvFault, SandboxError: infrastructure.
            ConfigError: no such task.
        """
        super().reset(seed=seed)
        await self._end_episode()
        task = pick_task(self.task_set(), (options or {}).get("task"), self.np_random)
        self.task, self.task_id = task.inputs, task.id
        self.messages, self.turn, self.counters = [], 0, {}
        self._playing, self._answer = True, None
        self._given, self._earned, self.graded_record, self._is_regraded = 0.0, None, None, False
        await self._set_up()
        first = await self._hook("prompt")
        if not isinstance(first, (str, list, tuple)):
            raise ContractError(
                f"{type(self).__name__}.prompt must return a str or messages, got {first!r:.200}"
            )
        new = [msg.user(first)] if isinstance(first, str) else [msg.check_message(m) for m in first]
        self.messages.extend(new)
        return self._observe(new), {"task_id": self.task_id} | self._info()

    async def astep(self, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:
        """Take the policy's reply.

        Raises:
            ContractError: no episode in progress, or not a Reply.
            EnvError, GraderError, EnvFault, SandboxError: the episode failed; it has no reward.
        """
        if not self._playing:
            raise ContractError("step() without reset(), or after the episode ended")
        if not self.action_space.contains(action):
            raise ContractError(f"an action is a str or an assistant message, got {action!r:.200}")
        # A copy: what a caller does to its own message later must not change the record of the episode.
        reply = msg.assistant(action) if isinstance(action, str) else msg.copied(action)
        self.messages.append(reply)
        self.turn += 1
        try:
            return await self._advance(reply)
        except Exception:
            await self._end_episode()  # it failed: there is no going on
            raise

    async def _advance(self, reply: Message) -> tuple[Observation, float, bool, bool, Info]:
        answer = await self._hook("respond", reply)
        new = list(answer) if answer is not None else []
        self.messages.extend(new)
        terminated = answer is None or self._answer is not None
        truncated = not terminated and self.turn >= self.max_turns
        info = self._info()
        reward, self._given = self._given, 0.0
        if terminated or truncated:
            info |= {"task_id": self.task_id, "stop": "done" if terminated else "max_turns"}
            result = await self._grade(info["stop"], terminated=terminated)
            info["reward_result"] = result
            if result.value is not None:  # so that the rewards of all steps sum to it
                reward = result.value - (self._earned or 0.0) + reward
            await self._end_episode()
        return self._observe(new), float(reward), terminated, truncated, info

    async def score_partial(self) -> RewardResult:
        """End the episode now, because a limit of the runner's fired, and score it as it stands."""
        if not self._playing:
            raise ContractError("score_partial() without an episode in progress")
        try:
            return await self._grade("", terminated=False)
        finally:
            await self._end_episode()

    def keep_graded(self) -> None:
        """From here on, fill `graded_record`; called before anything else is."""
        self._fingerprints = {name: fingerprint(value) for name, value in self._authors_attributes().items()}

    async def grade_again(self, task: Task, messages: Sequence[Message], graded: Graded) -> RewardResult:
        """The reward, by this class's graders, of an episode that another env played.

        Nothing of it is set up: no hook but `score` or its components is called.

        Args:
            task: what was played.
            messages: all of the episode, as the env had them.
            graded: what its graders were given; this env keeps it, without `messages`.

        Raises:
            ContractError: this env plays an episode. EpisodeError: a grader failed.
        """
        if self._playing:
            raise ContractError("grade_again() while an episode is in progress")
        self.task, self.task_id = task.inputs, task.id
        self.messages, self.turn, self.counters = list(messages), graded.turn, dict(graded.counters)
        self._answer, self._earned, self.graded_record, self._is_regraded = (
            graded.answer,
            graded.earned,
            graded,
            True,
        )
        vars(self).update({name: decode(value) for name, value in graded.state.items()})
        return await self._grade_kept()

    async def aclose(self) -> None:
        """Free everything. Idempotent."""
        await self._end_episode()
        provider, self._own_provider = self._own_provider, None
        if provider is not None:
            self._provider = None
            await provider.aclose()

    def use_sandboxes(self, provider: SandboxProvider) -> None:
        """Take sandboxes from `provider`, which stays the caller's, unless the env was given one already."""
        if self._provider is None:
            self._provider = provider

    async def sandbox(self) -> Sandbox:
        """This episode's sandbox, made on first use. A tool's time stands still while it waits here.

        Raises:
            ContractError: the class has no `sandbox_spec`. SandboxError: it could not be made.
        """
        if self.sandbox_spec is None:
            raise ContractError(f"{type(self).__name__} declares no `sandbox_spec`")
        if self._sandbox is None:
            # A future, not the sandbox: tool calls of one message run at once and must share one.
            self._sandbox = asyncio.ensure_future(self.sandboxes().create(self.sandbox_spec))
        with _standing_still(_tool_deadline.get()):
            return await asyncio.shield(self._sandbox)

    def sandboxes(self) -> SandboxProvider:
        """Where the sandbox comes from; what else is made here is its maker's to close."""
        if self._provider is None:
            self._provider = self._own_provider = registry.sandbox_pool(size=0)
        return self._provider

    @property
    def has_sandbox(self) -> bool:
        """Whether this episode's sandbox was asked for, and not ended since."""
        return self._sandbox is not None

    async def close_sandbox(self) -> None:
        """End this episode's sandbox now, if there is one; `sandbox()` would make another."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await asyncio.shield(_close_when_made(sandbox))

    def give(self, reward: float) -> None:
        """Reward the step in progress, from a tool or `respond`; it adds to the episode's reward.

        Raises:
            GraderError: no finite number.
        """
        given = in_range(reward, "a step's reward", ANY_NUMBER)
        self._given += given
        self._earned = given + (self._earned or 0.0)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter that ends up in the episode's metrics."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def finish(self, answer: str) -> None:
        """End the episode with this turn: for tools. `score` gets `answer` instead of the last message."""
        self._answer = answer

    # ----------------------------------------------------------------------------------- sync face

    def reset(  # noqa: D102 - documented by gymnasium and `areset`
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        return self._run_sync(self.areset(seed=seed, options=options))

    def step(self, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:  # noqa: D102
        return self._run_sync(self.astep(action))

    def close(self) -> None:  # noqa: D102
        if self._playing or self._sandbox is not None or self._own_provider is not None:
            self._run_sync(self.aclose())

    def _run_sync(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run one of the async face's coroutines from plain code.

        In this thread where all hooks are plain functions, which are then called as in any Gymnasium env;
        else on the background loop, where what they make (a sandbox, a connection) lives on between steps.
        """
        if self._needs_loop or self._sandbox is not None or self._own_provider is not None:
            return run_on_background_loop(coroutine)
        return run_sync(coroutine)

    def render(self) -> str:
        """The conversation as text."""
        return "\n".join(f"[{m['role']}] {m['content']}" for m in self.messages)

    # ------------------------------------------------------------------------------------ internals

    def _observe(self, new: Sequence[Message]) -> Observation:
        return {"messages": tuple(map(msg.copied, new))}

    def _info(self) -> Info:
        # Only what is set: Gymnasium's vector envs make an array of each key in every step.
        info: Info = {}
        if stop_strings := tuple(self.stop_strings()):
            info["stop_strings"] = stop_strings
        if (max_tokens := self.max_tokens()) is not None:
            info["max_tokens"] = max_tokens
        return info

    async def _set_up(self) -> None:
        await self._hook("setup")

    async def _hook(self, name: str, *args: Any) -> Any:
        if name in _NOT_NEEDED and getattr(type(self), name) is getattr(AgentEnv, name):
            return None
        return await self._run_hook(getattr(self, name), name, *args)

    async def _run_hook(self, hook: Callable[..., Any], name: str, *args: Any) -> Any:
        """Call an author's hook; what escapes is named after the boundary that it crossed."""
        try:
            return await call_hook(hook, *args)
        except (EpisodeError, ConfigError, ContractError):
            raise
        except Exception as error:
            failure = GraderError if name == "score" else EnvError
            raise failure(f"{type(self).__name__}.{name}: {error!r}") from error

    async def _grade(self, stop: str, *, terminated: bool) -> RewardResult:
        """The episode's reward, after noting what it is of where that is kept."""
        if self._fingerprints is not None:
            state, unchanged, lost = stored_state(self._authors_attributes(), self._fingerprints)
            self.graded_record = Graded(
                stop=stop,
                terminated=terminated,
                answer=self._answer,
                turn=self.turn,
                messages=tuple(self.messages),
                counters=dict(self.counters),
                earned=self._earned,
                state=state,
                unchanged=unchanged,
                lost=lost,
                assigned=tuple(sorted(assigned_names(type(self)) - own_attributes())),
            )
        return await self._grade_kept()

    def _authors_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in own_attributes()}

    async def _grade_kept(self) -> RewardResult:
        """The episode's reward; what was given on the way is its component `steps`."""
        text = msg.last_text(self.messages) if self._answer is None else self._answer
        try:
            result = reward_from_score(await self._hook("score", text), ANY_NUMBER)
        except Unscorable as why:
            return RewardResult(value=None, status="unscorable", detail=str(why))
        if self._earned is not None:
            result = with_component(result, "steps", self._earned)
        return reward_from_score(result, self.reward_range)

    async def _end_episode(self) -> None:
        playing, self._playing = self._playing, False
        try:
            if playing:
                await self._hook("teardown")
        finally:
            await self.close_sandbox()


_NOT_NEEDED = ("setup", "respond", "teardown")
"""Hooks that an author may leave out."""

_tool_deadline: ContextVar[asyncio.Timeout | None] = ContextVar("tool_deadline", default=None)


@contextlib.contextmanager
def _standing_still(deadline: asyncio.Timeout | None) -> Iterator[None]:
    """A wait for infrastructure is not a slow tool: the model must not be told that it is."""
    when = None if deadline is None or deadline.expired() else deadline.when()
    if deadline is None or when is None:
        yield
        return
    now = asyncio.get_running_loop().time
    left_s = when - now()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(now() + left_s)


async def _close_when_made(sandbox: asyncio.Future[Sandbox]) -> None:
    if not sandbox.done():
        await asyncio.wait([sandbox])
    if not sandbox.cancelled() and sandbox.exception() is None:  # whoever asked for it has been told
        await sandbox.result().close()


class ToolEnv(AgentEnv):
    """An AgentEnv whose `@tool` methods the model can call; a reply without a call is the last one.

    Metrics: `tool_calls`, `tool_errors`, `tool_repairs` (arguments that were almost valid JSON),
    `tool_outputs_cut`.
    """

    tool_timeout_s: ClassVar[float] = 30.0
    """A call that takes longer is answered with an error."""
    max_tool_output: ClassVar[int] = 20_000
    """Characters of an answer; a longer one is cut in the middle, and says so."""
    toolsets: ClassVar[Sequence[Tool | Callable[[ToolHost], Toolset]]] = ()
    """More tools: `@tool` functions, and classes whose instances live for one episode (`Toolset`)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tools: dict[str, CallableTool] = {**tools_of(self)}
        """What the model can call; `setup` may add tools that live elsewhere (an MCP server's)."""
        self._lent: set[str] = set()  # names in `tools` that came from `toolsets`
        self._set_up_toolsets: list[Toolset] = []
        self._make_toolsets()  # so that the schemas are known before the first episode

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools."""
        return [t.schema for t in self.tools.values()]

    def parse_calls(self, text: str) -> Sequence[ToolCall]:
        """Tool calls written as text, for models without native ones. Here: none."""
        return ()

    def format_result(self, result: str, call: ToolCall) -> Message:
        """The message that carries a tool's answer."""
        return msg.tool_result(result, call)

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Serve every tool call of the reply."""
        calls = message.get("tool_calls") or self.parse_calls(message["content"])
        if not calls:
            return None
        if len(calls) == 1:
            return [await self._serve(calls[0])]
        tasks = [asyncio.ensure_future(self._serve(call)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # one raised: the others' answers will have no reader
                task.cancel()

    def _make_toolsets(self) -> list[Toolset]:
        """Fresh instances; those of the last episode are forgotten."""
        for name in self._lent:
            self.tools.pop(name, None)
        self._lent.clear()
        made = [entry if isinstance(entry, Tool) else entry(self) for entry in self.toolsets]
        for entry in made:
            self._offer({entry.name: entry} if isinstance(entry, Tool) else entry.tools)
        return [entry for entry in made if isinstance(entry, Toolset)]

    def _offer(self, tools: Mapping[str, CallableTool]) -> None:
        if twice := sorted(tools.keys() & self.tools.keys()):
            raise ContractError(
                f"{type(self).__name__}: two tools are called {twice[0]!r}; rename one of them"
            )
        self.tools |= tools
        self._lent |= tools.keys()

    async def _set_up(self) -> None:
        await super()._set_up()
        for toolset in self._make_toolsets():
            before = toolset.tools.keys()
            self._set_up_toolsets.append(toolset)
            await self._run_hook(toolset.setup, f"{type(toolset).__name__}.setup")
            self._offer({n: t for n, t in toolset.tools.items() if n not in before})

    async def _end_episode(self) -> None:
        try:
            async with (
                contextlib.AsyncExitStack() as closing
            ):  # in reverse, and each one whatever another does
                for toolset in self._set_up_toolsets:
                    name = f"{type(toolset).__name__}.close"
                    closing.push_async_callback(self._run_hook, toolset.close, name)
                self._set_up_toolsets = []
        finally:
            await super()._end_episode()

    async def _serve(self, call: ToolCall) -> Message:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        self.count("tool_calls")
        note = ""
        if (repaired := await repaired_arguments(arguments, run_in_thread)) is not None:
            self.count("tool_repairs")
            arguments, note = repaired, "[The arguments were not valid JSON and were repaired.]\n"
        deadline = asyncio.timeout(self.tool_timeout_s)
        try:
            if name not in self.tools:
                raise ToolError(f"no tool {name!r}; there are: {', '.join(self.tools)}")
            async with deadline:
                token = _tool_deadline.set(deadline)
                try:
                    result = await self.tools[name].call(arguments, run_in_thread)
                finally:
                    _tool_deadline.reset(token)
        except (EnvFault, SandboxError):
            raise
        except TimeoutError as error:
            self.count("tool_errors")
            ours = deadline.expired()
            result = (
                f"Error: {name} took longer than {self.tool_timeout_s:g} s" if ours else f"Error: {error!r}"
            )
        except ToolError as error:
            self.count("tool_errors")
            result = f"Error: {error}"
        except Exception as error:  # noqa: BLE001 - a tool's own bug is the model's to see, and counted
            self.count("tool_errors")
            result = f"Error: {type(error).__name__}: {error}"
        if len(result) > self.max_tool_output:
            self.count("tool_outputs_cut")
        return self.format_result(note + cut_output(result, self.max_tool_output), call)


@cache
def own_attributes() -> frozenset[str]:
    """Names of the attributes that every env has; all others are its author's."""
    return frozenset(vars(ToolEnv())) | {"task_id", "_np_random", "_np_random_seed"}  # since a reset


def pick_task(tasks: TaskSet, pin: object, rng: np.random.Generator) -> Task:
    """The task that `pin` names (a Task, an id or an index); None: a random one. Raises ConfigError."""
    if isinstance(pin, Task):
        return pin
    if pin is None:
        return tasks[int(rng.integers(len(tasks)))]
    if isinstance(pin, (int, np.integer)):
        if not 0 <= pin < len(tasks):
            raise ConfigError(f"task index {pin} is outside 0..{len(tasks) - 1}")
        return tasks[int(pin)]
    index = index_of(tasks, str(pin))
    if index is None:
        raise ConfigError(f"no task {pin!r} in {tasks.name} ({len(tasks)} tasks)")
    return tasks[index]
