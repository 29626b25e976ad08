"""Checks that episodes end: by the env's own limit, and when somebody cancels them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from vime_agents.checking.drive import bounded
from vime_agents.checking.kit import Session, check
from vime_agents.checking.policies import FixedReplies
from vime_agents.checking.replies import broken_replies
from vime_agents.env import AgentEnv
from vime_agents.episode import RewardResult


@check(
    "turn-limit",
    family="limits",
    fix="leave turns to AgentEnv.astep, which truncates with info['stop'] = 'max_turns'",
)
async def turn_limit(session: Session) -> None:
    """Every episode ends within max_turns, which 1 may be, and says why it ended and with what reward."""
    where = session.author.line_of_hook("astep") or session.author.line_of_hook("respond")
    call = broken_replies()["a call of a tool that is not there"]
    policies = {**session.policies(), "endless": FixedReplies([call])}
    for label, policy in policies.items():
        for seed in range(3):
            env = session.make()
            trace = await session.play(policy, seed=seed, task=None, env=env)
            limit = env.max_turns
            await session.close(env)
            if trace.error is not None:
                continue
            at = f"a {label} episode with seed {seed}"
            last = trace.steps[-1]
            if len(trace.steps) > limit or not trace.done:
                session.find(f"{at} goes on after {limit} turns, its max_turns", where=where)
                return
            if last.truncated and len(trace.steps) < limit:
                session.find(f"{at} is truncated after {len(trace.steps)} of {limit} turns", where=where)
                return
            if not isinstance(last.info.get("stop"), str):
                session.find(f"{at} ends with info['stop'] = {last.info.get('stop')!r}", where=where)
                return
            if not isinstance(last.info.get("reward_result"), RewardResult):
                session.find(f"{at} ends without a RewardResult in info['reward_result']", where=where)
                return
    one = type(session.cls.__name__, (session.cls,), {"max_turns": 1, "__module__": session.cls.__module__})
    env = session.make(one)
    trace = await session.play(policies["endless"], env=env)
    await session.close(env)
    if trace.error is None and len(trace.steps) != 1:
        session.find("with max_turns = 1 it goes on after one turn", where=where)


@check(
    "cancellation",
    family="limits",
    fix="catch Exception at most, and re-raise asyncio.CancelledError: limits and Ctrl-C end a hook with it",
)
async def cancellation(session: Session) -> None:
    """A reset or step that is cancelled ends at once, and the env can be reset afterwards."""
    replies = await session.best_replies(0)
    for what, step in (("reset", None), *((f"step {i + 1}", i) for i in range(len(replies)))):
        if not await _cancelled_well(session, what, replies, step):
            return


async def _cancelled_well(session: Session, what: str, replies: list[Any], step: int | None) -> bool:
    limit_s = session.scale.call_s
    env = session.make()
    task = await _begin(session, env, replies, step)
    started = time.monotonic()
    await asyncio.wait([task], timeout=limit_s)
    duration_s = time.monotonic() - started
    task.cancel()
    await asyncio.wait([task], timeout=limit_s)
    await session.close(env)
    if task.cancelled() or not task.done() or task.exception() is not None:
        return True  # it fails without being cancelled: other checks look at that
    for share in (0.0, 0.25, 0.5, 0.75):
        env = session.make()
        task = await _begin(session, env, replies, step)
        await asyncio.wait([task], timeout=duration_s * share)
        fault = await _cancel(session, task)
        await session.close(env)
        if fault is None:
            try:
                await bounded(env.areset(seed=0), "a reset afterwards", limit_s, session.author)
            except Exception as error:  # noqa: BLE001 - an author's hook
                fault = f"a reset afterwards: {type(error).__name__}: {error}", session.author.line_of(error)
            await session.close(env)
        if fault is not None:
            message, where = fault
            session.find(f"{what}, cancelled after {duration_s * share:.3f} s: {message}"[:400], where=where)
            return False
    return True


async def _begin(
    session: Session, env: AgentEnv, replies: list[Any], step: int | None
) -> asyncio.Task[tuple[Any, ...]]:
    """The reset, or with a step the one of that index, under way."""
    options = {"task": 0}
    if step is None:
        return asyncio.ensure_future(env.areset(seed=0, options=options))
    await bounded(env.areset(seed=0, options=options), "reset", session.scale.call_s, session.author)
    for reply in replies[:step]:
        await bounded(env.astep(reply), "step", session.scale.call_s, session.author)
    return asyncio.ensure_future(env.astep(replies[step]))


async def _cancel(session: Session, task: asyncio.Task[Any]) -> tuple[str, str | None] | None:
    """What is wrong with how it ends, and where."""
    if not task.cancel():  # it was faster this time
        return None
    await asyncio.wait([task], timeout=session.scale.call_s)
    if not task.done():
        session.hung = True
        return f"it goes on for {session.scale.call_s:g} s", session.author.line_now([task])
    if not task.cancelled():
        ends_with = repr(task.exception() or "a result")
        return f"it ends with {ends_with}", session.author.line_of_hook("respond")
    return None
