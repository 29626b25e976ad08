"""What the checks are written with, and the list of them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, ClassVar

from vime_agents import registry
from vime_agents.checking.author import AuthorCode
from vime_agents.checking.drive import Hung, Trace, bounded, play
from vime_agents.checking.finding import CheckResult, Finding, Severity
from vime_agents.checking.policies import FixedReplies
from vime_agents.checking.sandboxes import CountingSandboxes
from vime_agents.checking.scale import FULL, Scale
from vime_agents.env import AgentEnv
from vime_agents.errors import (
    ConfigError,
    EnvFault,
    GraderError,
    SandboxError,
    SandboxUnavailable,
    UnknownIdError,
)
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Policy

FAMILIES: Mapping[str, str] = {
    "interface": "Gymnasium's interface",
    "tasks": "Tasks",
    "determinism": "Determinism",
    "isolation": "Isolation",
    "replies": "Bad replies",
    "tools": "Tools",
    "rewards": "Rewards",
    "sandbox": "Sandbox",
    "limits": "Limits",
    "async": "Event loop",
    "leaks": "Leaks",
    "games": "Games",
    "speed": "Speed",
    "process": "Process",
}
"""Family -> its heading, in the order of the report."""


class DoesNotApply(Exception):
    """The check has no subject in this env; the message says why."""


class CannotRun(Exception):
    """The check could not be tried; the message says why. Never a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise that an environment must keep."""

    id: str
    family: str
    promise: str
    run: Callable[[Session], Awaitable[None]]
    fix: str
    needs: tuple[str, ...]
    """Checks without whose success this one cannot be tried."""
    explained_by: tuple[str, ...]
    """Checks whose findings would make this one fail too: then theirs is the one that counts."""


CHECKS: dict[str, Check] = {}
"""Id -> check."""


def check(
    check_id: str,
    *,
    family: str,
    fix: str,
    needs: tuple[str, ...] = ("plays",),
    explained_by: tuple[str, ...] = (),
) -> Callable[[Callable[[Session], Awaitable[None]]], Callable[[Session], Awaitable[None]]]:
    """Add a check to the list; its promise is the first line of the docstring, `fix` the usual advice."""

    def add(function: Callable[[Session], Awaitable[None]]) -> Callable[[Session], Awaitable[None]]:
        assert check_id not in CHECKS
        CHECKS[check_id] = make_check(
            function, check_id=check_id, family=family, fix=fix, needs=needs, explained_by=explained_by
        )
        return function

    return add


def make_check(function: Callable[[Any], Awaitable[None]], *, check_id: str, **fields: Any) -> Check:
    """A check whose promise is the first line of its docstring."""
    promise = (inspect.getdoc(function) or "").partition("\n")[0]
    return Check(id=check_id, promise=promise, run=function, **fields)


def chosen_checks(only: Iterable[str] = (), known: Mapping[str, Check] | None = None) -> list[str]:
    """The ids in `only`, or all, with every check that they stand on, in an order in which they can run.

    Args:
        only: ids; empty: all.
        known: id -> check; None: CHECKS.

    Raises:
        UnknownIdError: no such check.
    """
    known = CHECKS if known is None else known
    chosen: set[str] = set()
    waiting = list(only) or list(known)
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise UnknownIdError("check", name, known)
        if name not in chosen:
            chosen.add(name)
            waiting += [*known[name].needs, *known[name].explained_by]
    order = TopologicalSorter({c.id: (*c.needs, *c.explained_by) for c in known.values()}).static_order()
    return [name for name in order if name in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode, and how it was played."""

    label: str
    """gold, wrong or garbage."""
    task: int
    trace: Trace


class Session:
    """One environment under check, and what is known about it so far."""

    subject: ClassVar[type] = AgentEnv
    """What can be checked."""

    def __init__(self, env_id: str, *, split: str = "train", scale: Scale = FULL) -> None:
        """`env_id`: as `registry.env_class` takes it.

        Raises:
            UnknownIdError, ConfigError: no such env, or not an AgentEnv.
        """
        cls = registry.env_class(env_id)
        if not issubclass(cls, self.subject):
            raise ConfigError(
                f"{env_id} is a {cls.__name__}, which is no AgentEnv and no MultiAgentEnv: only those can be "
                f"checked here. For a plain Gymnasium env there is gymnasium.utils.env_checker.check_env."
            )
        self.env_id, self.split, self.scale = env_id, split, scale
        self.cls: type[AgentEnv] = cls
        self.author = AuthorCode(cls)
        self.sandboxes = CountingSandboxes()
        self.results: dict[str, CheckResult] = {}
        self.hung = False
        """A call was given up: what it left in this process cannot be removed."""
        self.close_errors: list[Exception] = []
        self.fresh: list[dict[str, Any]] | None = None
        """What new processes saw; see `fresh.py`."""
        self.leaks: Any = None
        """What many episodes left; see `leaks.py`."""
        self._played: list[Played] | None = None
        self._found: list[Finding] = []
        self._measured: dict[str, float] = {}
        self._check: Check | None = None

    # ------------------------------------------------------------------------- what checks are made of

    @property
    def checks(self) -> dict[str, Check]:
        """Id -> check, of envs of this kind."""
        return CHECKS

    @property
    def path(self) -> str:
        """The class as `module:Class`."""
        return f"{self.cls.__module__}:{self.cls.__qualname__}"

    def make(self, cls: type[AgentEnv] | None = None) -> AgentEnv:
        """A new env, which takes its sandboxes from where they are counted."""
        env = (cls or self.cls)(split=self.split)
        env.use_sandboxes(self.sandboxes)
        return env

    async def play(
        self,
        policy: Policy,
        *,
        seed: int = 0,
        task: int | None = 0,
        env: AgentEnv | None = None,
        max_steps: int | None = None,
    ) -> Trace:
        """One episode, on a new env that is closed afterwards unless `env` is given.

        Raises:
            CannotRun: the sandboxes that it needs cannot be had on this machine.
        """
        own = self.make() if env is None else env
        try:
            trace = await play(
                own,
                policy,
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
        if isinstance(trace.error, SandboxUnavailable):  # two such episodes are equal, and mean nothing
            raise CannotRun(f"no sandbox: {trace.error}"[:400])
        return trace

    async def close(self, env: AgentEnv) -> None:
        """Free an env. What goes wrong is kept for the check `close`."""
        try:
            await bounded(env.aclose(), "close", self.scale.call_s, self.author)
        except Exception as error:  # noqa: BLE001 - an author's teardown
            self.hung |= isinstance(error, Hung)
            self.close_errors.append(error)

    async def played(self) -> Sequence[Played]:
        """Episodes of each kind on several tasks, played once for all checks that only look at them."""
        if self._played is None:
            played = []
            for task in await self.task_indices():
                for label, policy in self.policies().items():
                    trace = await self.play(policy, seed=task, task=task)
                    played.append(Played(label=label, task=task, trace=trace))
            self._played = played
        return self._played

    def policies(self) -> dict[str, Policy]:
        """By label; gold only where the author wrote one."""
        scripts = ("gold", "wrong", "garbage") if self.has_gold else ("wrong", "garbage")
        return {script: ScriptedPolicy(script) for script in scripts}

    @property
    def has_gold(self) -> bool:
        """Whether the author wrote `gold`."""
        return self.cls.gold is not AgentEnv.gold

    def best_policy(self) -> Policy:
        """Gold, where the author wrote one."""
        return ScriptedPolicy("gold" if self.has_gold else "wrong")

    async def best_replies(self, task: int) -> list[Any]:
        """What `best_policy` replies to a task, as `astep` takes it; at least one.

        Raises:
            CannotRun: the episode failed before its first reply.
        """
        trace = await self.play(self.best_policy(), seed=task, task=task)
        self.must_be_possible(trace)
        if not trace.replies:
            raise CannotRun(f"task {task}, in {trace.failed_in}: {trace.error}"[:400])
        return list(trace.replies)

    # What differs between envs of one agent and of several.

    def action(self, env: Any, text: str) -> Any:
        """What `astep` takes when everybody says the same; before a reset, what it must refuse."""
        return text

    def ended(self, values: tuple[Any, ...]) -> bool:
        """Whether what a step returned is an episode's end."""
        return bool(values[2] or values[3])

    def seen(self, env: Any, observation: Any, info: Any) -> list[tuple[str, Any, Any, Any]]:
        """(whose, its observation space, its observation, its info) for each agent."""
        return [("", env.observation_space, observation, info)]

    async def num_tasks(self) -> int:
        """Size of the task set."""
        env = self.make()
        return await asyncio.to_thread(lambda: len(env.task_set()))

    async def task_indices(self) -> list[int]:
        """The tasks that are played. Where there are fewer than were asked for, the report tells how many."""
        known = await self.num_tasks()
        if known < self.scale.num_tasks:
            self.measure("tasks_in_split", known)
        return list(range(min(self.scale.num_tasks, known)))

    async def gold_replies(self, task: int) -> list[Any]:
        """The author's replies for a task. Raises DoesNotApply without a `gold`."""
        if not self.has_gold:
            raise DoesNotApply("the env has no `gold`")
        trace = await self.play(ScriptedPolicy("gold"), seed=task, task=task)
        self.must_be_possible(trace)
        return list(trace.replies)

    def find(
        self,
        message: str,
        *,
        where: str | None = None,
        severity: Severity = "error",
        fix: str | None = None,
    ) -> None:
        """Report a fault."""
        assert self._check is not None
        self._found.append(
            Finding(
                id=self._check.id,
                severity=severity,
                message=message,
                where=where,
                fix=fix or self._check.fix,
            )
        )

    def measure(self, name: str, value: float) -> None:
        """Note a number for the report."""
        self._measured[name] = value

    def fault(self, trace: Trace) -> str | None:
        """How an episode failed, or None. A score that is no valid reward is `reward-range`'s to report."""
        if trace.error is None or is_invalid_reward(trace.error):
            return None
        return f"{type(trace.error).__name__}: {trace.error}"[:400]

    def must_be_possible(self, trace: Trace) -> None:
        """Raise CannotRun when infrastructure is why an episode failed."""
        if isinstance(trace.error, (EnvFault, SandboxError)):
            raise CannotRun(f"infrastructure failed: {type(trace.error).__name__}: {trace.error}"[:400])

    async def find_faults(self, replies: Mapping[str, Any]) -> None:
        """Give each reply (label -> reply) on every turn of an episode; report those that make it fail."""
        labels: dict[tuple[str, str | None], list[str]] = {}  # one line of code is one fault
        for label, reply in replies.items():
            trace = await self.play(FixedReplies([reply]))
            fault = self.fault(trace)
            if fault is not None:
                labels.setdefault((fault, trace.where), []).append(label)
        for (fault, where), causes in labels.items():
            more = f" (and {len(causes) - 3} others)" if len(causes) > 3 else ""
            self.find(f"a reply of {', or '.join(causes[:3])}{more}: {fault}", where=where)

    # ------------------------------------------------------------------------------ running the checks

    async def run(self, check_id: str) -> CheckResult:
        """Run one check; an exception of the check's own says that it could not run."""
        self._check = self.checks[check_id]
        self._found, self._measured = [], {}
        started = time.monotonic()
        state, reason = "passed", ""
        try:
            blocking = [name for name in self._check.needs if self._is_blocked(name)]
            if blocking:
                raise CannotRun(f"it needs {', '.join(blocking)} to pass")
            await self._check.run(self)
        except DoesNotApply as error:
            state, reason = "skipped", str(error)
        except CannotRun as error:
            state, reason = "not run", str(error)
        except Exception as error:  # noqa: BLE001 - a check that breaks must say so, and the others go on
            place = self.author.line_of(error)
            at = f" at {place}" if place else ""
            state, reason = "not run", f"the check itself failed{at}: {type(error).__name__}: {error}"[:600]
        causes = [name for name in self._check.explained_by if self._is_blocked(name)]
        if self._found and causes:
            state = "not run"
            reason = f"what it saw may come from {', '.join(causes)}: {self._found[0].message}"[:600]
            self._found = []
        elif self._found:
            state = "found"
        result = CheckResult(
            id=check_id,
            family=self._check.family,
            promise=self._check.promise,
            state=state,
            findings=tuple(self._found),
            reason=reason,
            duration_s=time.monotonic() - started,
            measured=dict(self._measured),
        )
        self.results[check_id] = result
        return result

    def _is_blocked(self, name: str) -> bool:
        """Whether an earlier check failed; its warnings hold up nobody."""
        result = self.results.get(name)
        return result is not None and (
            result.state == "not run" or any(f.severity == "error" for f in result.findings)
        )


def is_invalid_reward(error: BaseException) -> bool:
    """Whether the score came back, but is no reward: not a number, or outside the declared range."""
    if not isinstance(error, GraderError) or error.__cause__ is not None:
        return False
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_globals.get("__name__", "").startswith("vime_agents.reward")
