"""Checks of Gymnasium's interface: made, reset, stepped, closed, described."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import env_checker

from vime_agents.checking.drive import bounded, comparable, first_difference
from vime_agents.checking.kit import CannotRun, Session, check
from vime_agents.checking.policies import FixedReplies, RandomActions
from vime_agents.errors import ContractError, EpisodeError
from vime_agents.policies.scripted import WRONG
from vime_agents.registry import NAMESPACE


@check(
    "plays",
    family="interface",
    needs=(),
    fix="make the hook at this line work for a reply like 'I do not know.'",
)
async def plays(session: Session) -> None:
    """It can be made, reset, and played to its end by a policy that knows nothing."""
    try:
        session.make()
    except Exception as error:  # noqa: BLE001 - an author's constructor
        session.find(
            f"{session.cls.__name__}(split={session.split!r}) raises {type(error).__name__}: {error}",
            where=session.author.line_of(error),
            fix="a constructor takes **kwargs, hands them to super().__init__(**kwargs), and raises nothing",
        )
        return
    for seed in range(3):
        trace = await session.play(FixedReplies([WRONG]), seed=seed, task=None)
        fault = session.fault(trace)
        if fault is not None:
            session.must_be_possible(trace)
            session.find(f"seed {seed}, in {trace.failed_in}: {fault}", where=trace.where)
            return


@check(
    "close",
    family="interface",
    fix="free only what is there: `teardown` and `close` run before a reset, in mid-episode and twice",
)
async def close(session: Session) -> None:
    """It can be closed before a reset, in the middle of an episode, and twice; then reset again."""

    async def call(what: str, coroutine: Any) -> None:
        try:
            await bounded(coroutine, what, session.scale.call_s, session.author)
        except Exception as error:  # noqa: BLE001 - an author's hook
            session.find(
                f"{what}: {type(error).__name__}: {error}"[:400], where=session.author.line_of(error)
            )

    for error in session.close_errors[:1]:
        where = session.author.line_of(error)
        session.find(f"closing after an episode: {type(error).__name__}: {error}"[:400], where=where)
        return
    env = session.make()
    await call("closing before a reset", env.aclose())
    await call("a reset after closing", env.areset(seed=0))
    await call("closing in mid-episode", env.aclose())
    await call("closing twice", env.aclose())
    await call("closing by the sync face", asyncio.to_thread(env.close))


@check(
    "step-after-end",
    family="interface",
    fix="call super().astep(): AgentEnv raises ContractError for a step outside an episode",
)
async def step_after_end(session: Session) -> None:
    """A step before the reset, or after the end, raises ContractError."""
    env = session.make()
    await _expect_refusal(session, "before the reset", env)
    await session.play(FixedReplies([WRONG]), env=env)
    await _expect_refusal(session, "after the end", env)
    await session.close(env)


async def _expect_refusal(session: Session, when: str, env: Any) -> None:
    try:
        await bounded(env.astep(session.action(env, WRONG)), "step", session.scale.call_s, session.author)
    except ContractError:
        return
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        seen, where = f"raises {type(error).__name__}: {error}", session.author.line_of(error)
    else:
        seen, where = "is taken", session.author.line_of_hook("astep")
    session.find(f"a step {when} {seen}"[:400], where=where)


@check(
    "random-actions",
    family="interface",
    explained_by=("first-action",),
    fix="the hook at this line must take any text: check what was parsed before using it",
)
async def random_actions(session: Session) -> None:
    """Every sample of the action space is taken as an action."""
    num_tasks = await session.num_tasks()
    for seed in range(session.scale.num_random_episodes):
        trace = await session.play(RandomActions(), seed=seed, task=seed % num_tasks)
        fault = session.fault(trace)
        if fault is not None:
            session.must_be_possible(trace)
            session.find(f"seed {seed}, reply {trace.replies[-1:]!r:.120}: {fault}", where=trace.where)
            return


@check(
    "spec",
    family="interface",
    explained_by=("same-seed",),
    fix="keep the class at module level under its own name, and registered kwargs plain JSON data",
)
async def spec(session: Session) -> None:
    """Its Gymnasium spec survives JSON and pickle and still makes the same env; so does the class."""
    registered = f"{NAMESPACE}/{session.env_id.removeprefix(NAMESPACE + '/')}"
    known = gymnasium.registry.get(registered) or gymnasium.registry.get(session.env_id)
    original = known or make_spec(session)
    try:
        read = EnvSpec.from_json(original.to_json())
        unpickled = pickle.loads(pickle.dumps(original))
        if pickle.loads(pickle.dumps(session.cls)) is not session.cls:
            session.find(f"the class unpickles as another one than {session.path}")
        for name, copied in (("JSON", read), ("pickle", unpickled)):
            if copied != original:
                session.find(f"the spec comes back changed from {name}: {copied!r:.200}")
        first = await asyncio.to_thread(_first_observation, original)
        again = await asyncio.to_thread(_first_observation, read)
    except EpisodeError as error:
        raise CannotRun(f"the env made from its spec fails: {error}") from error
    except Exception as error:  # noqa: BLE001 - whatever a spec's parts raise
        session.find(f"the spec cannot be copied: {type(error).__name__}: {error}"[:400])
        return
    difference = first_difference(comparable(first), comparable(again))
    if difference is not None:
        session.find(f"the env of the copied spec begins differently (seed 0): {difference}")


def make_spec(session: Session) -> EnvSpec:
    """A Gymnasium spec of the class, registered or not."""
    return EnvSpec(
        id=f"check/{session.cls.__name__}-v0",
        entry_point=session.path,
        kwargs={"split": session.split},
        disable_env_checker=True,
    )


def _first_observation(spec: EnvSpec) -> Any:
    env = gymnasium.make(spec)
    try:
        return env.reset(seed=0)
    finally:
        env.close()


@check(
    "gymnasium",
    family="interface",
    explained_by=(
        "global-rng",
        "shared-state",
        "same-seed",
        "seeds-differ",
        "reset-isolation",
        "aliasing",
        "spec",
        "turn-limit",
        "random-actions",
        "observation-json",
    ),
    fix="see https://gymnasium.farama.org/api/env/; AgentEnv's own reset, step, spaces and render pass it",
)
async def gymnasium_check_env(session: Session) -> None:
    """`gymnasium.utils.env_checker.check_env` passes without a warning."""
    env = session.cls(split=session.split, render_mode="ansi")
    env.spec = make_spec(session)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            await asyncio.to_thread(env_checker.check_env, env)
    except EpisodeError as error:
        raise CannotRun(f"check_env's random actions make the episode fail: {error}"[:400]) from error
    except Exception as error:  # noqa: BLE001 - check_env raises whatever it likes
        session.find(f"{type(error).__name__}: {error}"[:600], where=session.author.line_of(error))
        return
    finally:
        await asyncio.to_thread(env.close)
    for warning in warned:
        if issubclass(warning.category, UserWarning):
            session.find(f"it warns: {warning.message}"[:600], severity="warning")
