"""A folder of `eval --out` -> the same episodes with the rewards that the env's graders give them now.

Nobody plays: what graders get is what the episodes' record holds. The old folder is only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.env import AgentEnv
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError, did_you_mean
from vime_agents.evaluation.evaluate import comparisons_of, env_maker
from vime_agents.evaluation.paired import SAME
from vime_agents.evaluation.regrade import Regrader, Result, SingleAgentEnv
from vime_agents.evaluation.report import EvalReport, Tally, without_nan
from vime_agents.evaluation.rescore_tasks import TasksFrom, tasks_to_grade_on
from vime_agents.learning.group_rewards import add_group_rewards
from vime_agents.reward import Reward, rewards_of
from vime_agents.rollout.sandboxes import sandbox_pool
from vime_agents.sandbox import SandboxProvider
from vime_agents.storage.eval_directory import TASKS_FILE, EvalDirectory
from vime_agents.storage.stored_evaluation import StoredEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChange:
    """One episode whose reward is another one now."""

    episode_id: str
    task_id: str
    old: float | None
    """None: it had no trusted reward."""
    new: float | None
    components: Mapping[str, tuple[float | None, float | None]]
    """Those that changed; None: it had, or has, no such component."""
    detail: str
    """Why there is no reward now."""

    @property
    def size(self) -> float:
        """How far apart the two are; infinite where one of them is none."""
        return math.inf if self.old is None or self.new is None else abs(self.new - self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What scoring again came to."""

    folder: str
    out: str
    old: EvalReport
    new: EvalReport
    num_rescored: int
    left: Mapping[str, int]
    """Episodes that are as they were: why -> how many."""
    other_tasks: tuple[str, ...]
    """The first tasks that had another content when they were played than when they were graded now."""
    num_changed: int
    changes: tuple[RewardChange, ...]
    """The largest ones first."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; NaN becomes None."""
        plain = {"old": self.old.to_dict(), "new": self.new.to_dict(), "left": dict(self.left)}
        changes = [asdict(change) | {"components": dict(change.components)} for change in self.changes]
        return without_nan(
            {
                "folder": self.folder,
                "out": self.out,
                "num_rescored": self.num_rescored,
                "num_changed": self.num_changed,
                "other_tasks": list(self.other_tasks),
                **plain,
                "changes": changes,
            }
        )


async def rescore(
    stored: StoredEvaluation,
    out: Path,
    *,
    env_id: str | None = None,
    tasks_from: TasksFrom | None = None,
    keep: Collection[str] = (),
    concurrency: int = 64,
    top: int = 20,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Rescored:
    """Score every episode of a folder again, into a new one.

    Episodes that failed before they could be graded stay as they are. What `group_rewards` compare is
    compared again.

    Args:
        stored: the folder.
        out: the new one; there must be nothing yet. It is there when all is done, and whole.
        env_id: id or `module:Class` of whose graders are asked; None: of the env that was played.
        tasks_from: `stored`, the tasks as they were played; `present`, as the env has them now; None: there
            must be no difference.
        keep: components of `@reward` whose stored values stay.
        concurrency: episodes at once.
        top: changes to list.
        on_episode: called with each new episode, in their order.

    Raises:
        ConfigError: not an env of one agent, tasks that were changed, a component to keep that there is not,
            or episodes whose record does not hold what their graders were given.
        Refused: a component needs what the record does not hold. Nothing was written.
    """
    env_id = env_id or stored.env_id
    config = EvalConfig.from_dict({**stored.settings, "env": env_id, "out": str(out)})
    make_env = _env_maker(env_id, config, keep)
    tasks, other_tasks = tasks_to_grade_on(stored, make_env, tasks_from)
    comparisons = comparisons_of(env_id)
    account, started = _Account(), time.monotonic()
    async with _sandboxes(env_id, config.max_sandboxes) as sandboxes:
        grader = Regrader(make_env, env_id, tasks, frozenset(keep), config.turn_timeout, sandboxes)
        with _new_folder(out) as unfinished, EvalDirectory(unfinished, config) as folder:
            shutil.copy(stored.path / TASKS_FILE, unfinished)
            async with contextlib.aclosing(_rescored(stored, grader, concurrency, comparisons)) as results:
                async for was, now, why_left in results:
                    account.add(was, now, why_left)
                    folder.append(now)
                    on_episode(now)
            if not account.num_rescored:
                why = "; ".join(f"{count} {text}" for text, count in account.left.items()) or "there are none"
                raise ConfigError(f"{stored.path}: no episode can be scored again: {why}")
            duration_s = time.monotonic() - started
            old, new = (account.report(t, config, len(tasks), duration_s) for t in (account.old, account.new))
            origin = {
                "folder": str(stored.path.resolve()),
                "env": stored.played_env_id,
                "kept": sorted(keep),
                "tasks": tasks_from or "unchanged",
                "mean": without_nan(old.mean),
            }
            folder.write_report({**new.to_dict(), "rescored_from": origin})
    account.changes.sort(key=lambda change: -change.size)
    return Rescored(
        folder=str(stored.path),
        out=str(out),
        old=old,
        new=new,
        num_rescored=account.num_rescored,
        left=dict(account.left),
        other_tasks=tuple(other_tasks),
        num_changed=len(account.changes),
        changes=tuple(account.changes[:top]),
    )


@dataclass(slots=True)
class _Account:
    """Counts episodes as they are scored again; holds none of them."""

    old: Tally = field(default_factory=Tally)
    new: Tally = field(default_factory=Tally)
    left: Counter[str] = field(default_factory=Counter)
    changes: list[RewardChange] = field(default_factory=list)
    num_rescored: int = 0
    policy: str = ""

    def add(self, was: Episode, now: Episode, why_left: str) -> None:
        """One more; `why_left` is empty when it was scored again."""
        self.policy = self.policy or next((t.policy for t in now.trajectories), "")
        self.old.add(was)
        self.new.add(now)
        if why_left:
            self.left[why_left] += 1
        else:
            self.num_rescored += 1
        self.changes += _change(was, now)

    def report(self, tally: Tally, config: EvalConfig, num_tasks: int, duration_s: float) -> EvalReport:
        """On the episodes as they were, or as they are."""
        return tally.report(
            env_id=config.env,
            policy=self.policy or config.model,
            split=config.split,
            seed=config.seed,
            num_tasks=num_tasks,
            samples_per_task=config.samples_per_task,
            duration_s=duration_s,
        )


async def _rescored(
    stored: StoredEvaluation,
    grader: Regrader,
    concurrency: int,
    comparisons: Sequence[Any],
) -> AsyncGenerator[Result, None]:
    """Results in the order of the file; all at the end, where episodes are compared with each other."""
    episodes = stored.episodes()
    everything: list[Result] = []
    while batch := list(islice(episodes, concurrency)):
        calls = [asyncio.ensure_future(grader(episode)) for episode in batch]
        try:
            results = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        if comparisons:
            everything += results
            continue
        for result in results:
            yield result
    if everything:
        compared = await add_group_rewards([now for _, now, _ in everything], comparisons)
        for (was, _, why_left), now in zip(everything, compared, strict=True):
            yield was, now, why_left


def _change(was: Episode, now: Episode) -> list[RewardChange]:
    if not was.trajectories:
        return []
    old, new = was.trajectories[0].reward, now.trajectories[0].reward
    absent = (old.value is None) != (new.value is None)
    if not absent and abs((old.value or 0.0) - (new.value or 0.0)) <= SAME:
        return []
    parts = {
        name: (old.components.get(name), new.components.get(name))
        for name in dict.fromkeys([*old.components, *new.components])
    }
    return [
        RewardChange(
            episode_id=was.id,
            task_id=was.task_id,
            old=old.value,
            new=new.value,
            components={name: pair for name, pair in parts.items() if pair[0] != pair[1]},
            detail=new.detail,
        )
    ]


def _env_maker(env_id: str, config: EvalConfig, keep: Collection[str]) -> Callable[[], SingleAgentEnv]:
    """Raises ConfigError: an env of several agents, or one without a component that is to be kept."""
    make_env: Any = env_maker(env_id, split=config.split, seed=config.seed)
    cls = registry.env_class(env_id)
    if not issubclass(cls, AgentEnv):
        raise ConfigError(
            f"env {env_id!r} has several agents: its scores are made by playing it, and cannot be made again "
            "without. Evaluate again"
        )
    rewards: tuple[Reward, ...] = rewards_of(make_env().unwrapped) if cls.score is AgentEnv.score else ()
    names = [component.name for component in rewards]
    for name in keep:
        if name not in names:
            hint = did_you_mean(name, names)
            known = f"has the components {', '.join(names)}" if names else "has a `score`, and no components"
            raise ConfigError(f"--keep: {env_id!r} {known}; got {name!r}.{hint}")
    if names and set(names) <= set(keep):
        raise ConfigError("--keep: all components are to be kept; nothing would be scored again")
    return make_env


@contextlib.asynccontextmanager
async def _sandboxes(env_id: str, max_sandboxes: int | None) -> AsyncIterator[SandboxProvider | None]:
    pool = sandbox_pool(env_id, size=0, max_sandboxes=max_sandboxes)
    try:
        yield pool
    finally:
        if pool is not None:
            await pool.aclose()


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Where to write what becomes `out` when all is well, in one step, and nothing when it is not."""
    if out.exists():
        raise ConfigError(f"--out: {out} is there already; give another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
