"""Checks that episodes end: by the env's own limit, and when somebody cancels them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from vime_agents.checking.kit import Session, check
from vime_agents.checking.policies import FixedReplies
from vime_agents.checking.replies import broken_replies
from vime_agents.episode import RewardResult
from vime_agents.policies.scripted import WRONG, ScriptedPolicy


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
    policy = ScriptedPolicy("gold") if session.has_gold else FixedReplies([WRONG])
    trace = await session.play(policy)
    replies = trace.replies or [{"role": "assistant", "content": WRONG}]
    for what, step in (("reset", None), *((f"step {i + 1}", i) for i in range(len(replies)))):
        if not await _cancelled_well(session, what, replies, step):
            return


async def _cancelled_well(session: Session, what: str, replies: list[Any], step: int | None) -> bool:
    limit_s = session.scale.call_s
    duration_s = 0.0
    for share in (None, 0.0, 0.25, 0.5, 0.75):  # None: to the end, to know how long it takes
        env = session.make()
        try:
            call: Callable[[], Coroutine[Any, Any, Any]] = lambda: env.areset(seed=0, options={"task": 0})  # noqa: B023, E731
            if step is not None:
                await asyncio.wait_for(call(), limit_s)
                for reply in replies[:step]:
                    await asyncio.wait_for(env.astep(reply), limit_s)
                call = lambda: env.astep(replies[step])  # noqa: B023, E731
            started = time.monotonic()
            task = asyncio.ensure_future(call())
            if share is None:
                await asyncio.wait([task], timeout=limit_s)
                duration_s = time.monotonic() - started
            await asyncio.wait([task], timeout=duration_s * (share or 0.0))
            if task.cancel():
                await asyncio.wait([task], timeout=limit_s)
                if not task.done():
                    where = session.author.line_now([task])
                    session.hung = True
                    session.find(f"{what} goes on for {limit_s:g} s after it was cancelled", where=where)
                    return False
                if not task.cancelled():
                    session.find(
                        f"{what}, cancelled after {duration_s * (share or 0.0):.3f} s, ends with "
                        f"{task.exception() or 'a result'!r}"[:300],
                        where=session.author.line_of_hook("respond"),
                    )
                    return False
            elif task.exception() is not None:
                return True  # other checks look at what it raises
        finally:
            await session.close(env)
        try:
            await asyncio.wait_for(env.areset(seed=0), limit_s)
        except Exception as error:  # noqa: BLE001 - an author's hook
            session.find(
                f"a reset after a cancelled {what}: {type(error).__name__}: {error}"[:300],
                where=session.author.line_of(error),
            )
            return False
        finally:
            await session.close(env)
    return True
