"""A policy without a model: plays an environment's own gold replies, wrong ones, garbage, random moves."""

from __future__ import annotations

import asyncio
import inspect
import random
import string
import weakref
from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium

from vime_agents import messages as msg
from vime_agents.errors import ConfigError, ContractError
from vime_agents.messages import Message
from vime_agents.multi_agent.seat_view import SeatView
from vime_agents.policy import Conversation, Generation, Sampling

Script = Literal["gold", "wrong", "garbage", "random"]
SCRIPTS: tuple[Script, ...] = get_args(Script)

WRONG = "I do not know."
"""A well-formed reply that answers nothing."""


class ScriptedPolicy:
    """Plays one of `SCRIPTS`: offline, free, and the same each time.

    gold: the environment's `gold()`, one reply a turn; an environment that works gives its best reward.
    wrong: the same useless reply each turn. garbage: noise, broken tool calls, markup; a pure function of the
    sampling seed and the turn. random: one of the replies that a game calls `legal`, drawn in the same way.
    """

    exact_tokens = False

    def __init__(self, script: Script) -> None:
        if script not in SCRIPTS:
            raise ConfigError(f"a script is one of {', '.join(SCRIPTS)}, got {script!r}")
        self.script = script
        self.name = f"scripted:{script}"
        # By episode; an entry goes when its env does.
        self._envs: weakref.WeakValueDictionary[str, gymnasium.Env[Any, Any] | SeatView] = (
            weakref.WeakValueDictionary()
        )

    def begin(self, conversation: Conversation, env: gymnasium.Env[Any, Any] | SeatView) -> None:
        """Called by the runner before the first turn."""
        self._envs[conversation.episode_id] = env.unwrapped

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """The next reply of the script."""
        if self.script == "gold":
            message = await self._gold(conversation)
        elif self.script == "random":
            message = await self._random(conversation, f"{sampling.seed}/{conversation.turn}")
        elif self.script == "wrong":
            message = msg.assistant(WRONG)
        else:
            message = garbage(f"{sampling.seed}/{conversation.turn}")
        return Generation(message=message, finish_reason="tool_calls" if "tool_calls" in message else "stop")

    async def aclose(self) -> None:
        """Nothing to release."""

    async def _gold(self, conversation: Conversation) -> Message:
        env = self._envs.get(conversation.episode_id)
        if isinstance(env, SeatView):  # of a game: what is best depends on what the others did
            return _message(await env.gold())
        hook = getattr(env, "gold", None)
        if hook is None:
            raise ContractError(f"scripted:gold needs an environment with `gold`, got {type(env).__name__}")
        script = await hook() if inspect.iscoroutinefunction(hook) else await asyncio.to_thread(hook)
        replies: Sequence[Any] = [script] if isinstance(script, (str, dict)) else script
        if conversation.turn >= len(replies):
            raise ContractError(
                f"{type(env).__name__}.gold() has {len(replies)} replies, but the episode goes on after them"
            )
        return _message(replies[conversation.turn])

    async def _random(self, conversation: Conversation, seed: str) -> Message:
        env = self._envs.get(conversation.episode_id)
        legal = await env.legal() if isinstance(env, SeatView) else ()
        if not legal:
            what = type(env.env if isinstance(env, SeatView) else env).__name__
            raise ContractError(f"scripted:random needs a game that lists its `legal` replies, got {what}")
        return _message(random.Random(seed).choice(legal))


def _message(reply: Any) -> Message:
    return msg.assistant(reply) if isinstance(reply, str) else msg.check_message(reply)


def garbage(seed: str) -> Message:
    """What a broken model might say: noise, calls of tools that are not there, arguments that are no JSON."""
    rng = random.Random(seed)
    noise = "".join(rng.choices(string.printable + "é漢🙂\x00", k=rng.randint(0, 200)))
    kind = rng.randrange(4)
    if kind == 0:
        return msg.assistant(noise)
    if kind == 1:
        return msg.assistant("", [msg.tool_call("no_such_tool", {"x": noise}, "call-0")])
    if kind == 2:
        return msg.assistant(
            noise, [msg.tool_call("", '{"x": ', "call-0"), msg.tool_call(noise, "", "call-0")]
        )
    return msg.assistant(f'<tool_call>{{"name": {noise!r}</tool_call><|im_end|><answer>')
