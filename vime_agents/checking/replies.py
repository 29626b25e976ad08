"""Checks of what a broken or hostile model says, and of what the model is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vime_agents import messages as msg
from vime_agents.checking.kit import Session, check
from vime_agents.messages import Message

MOST_CHARACTERS = 1_000_000
"""Of one message to the model; several hundred thousand tokens, more than most contexts hold."""


def broken_replies() -> dict[str, str | Message]:
    """Label -> what models say when they break."""

    def calls(*pairs: tuple[str, str]) -> Message:
        return msg.assistant("", [msg.tool_call(name, arguments, "call-0") for name, arguments in pairs])

    return {
        "nothing": "",
        "blanks": " \n\t ",
        "one word": "ok",
        "a number": "0",
        "JSON": '{"answer": null}',
        "JSON that is cut off": '{"answer": ',
        "an unclosed tag": "<answer>",
        "an unclosed code block": "```python\n",
        "a call of a tool that is not there": calls(("no_such_tool", "{}")),
        "a call without a name": calls(("", "{}")),
        "a call whose arguments are cut off": calls(("no_such_tool", '{"x": ')),
        "a call whose arguments are a list": calls(("no_such_tool", "[]")),
        "two calls with one id": calls(("no_such_tool", "{}"), ("no_such_tool", "{}")),
        "50 calls at once": calls(*[("no_such_tool", "{}")] * 50),
    }


def hostile_replies(huge: int) -> dict[str, str]:
    """Label -> text that breaks parsers; the longest has `huge` characters."""
    return {
        "NUL": "a\x00b",
        "line separators": "1\u2028 2\u2029 3\x85 4\x0b 5\x0c 6",
        "a lone surrogate": "answer \ud800",
        "emojis": "🙂" * 50,
        "terminal escapes": "\x1b[2J\x1b]0;title\x07",
        "right-to-left marks": "\u202e12\u202c \u200f3",
        "digits of other scripts": "٣٤ ² Ⅷ ½ 一",
        "a number of 5000 digits": "9" * 5_000,
        "numbers that are none": "nan inf -inf 1e999 -1e999 0x10 1_0 --1 1.2.3",
        "deep brackets": "(" * 20_000,
        "deep JSON": "[" * 100_000,
        "format fields": "{0} {x!r} %s %(x)d ${x}",
        "slow for regular expressions": "a" * 5_000 + " " * 5_000 + "1" * 5_000 + "!",
        "huge text": "a" * huge,
        "many lines": "x\n" * (huge // 20),
    }


@check(
    "first-action",
    family="replies",
    fix="check what was parsed before using it: what a model says may be empty or half a reply",
)
async def first_action(session: Session) -> None:
    """A first reply that is empty, cut off or calls what is not there does not make the episode fail."""
    await session.find_faults(broken_replies())


@check(
    "hostile-text",
    family="replies",
    explained_by=("first-action",),
    fix="treat the text as data: bound its length, catch ValueError and OverflowError where it is parsed",
)
async def hostile_text(session: Session) -> None:
    """NUL, lone surrogates, endless numbers, deep nesting and 10 MB of text do not make it fail or hang."""
    await session.find_faults(hostile_replies(session.scale.huge_characters))


@check(
    "observation-json",
    family="replies",
    fix="put only JSON data into messages and info, and text that UTF-8 can hold",
)
async def observation_json(session: Session) -> None:
    """Observations lie in their space; they and infos are JSON: no NaN, bytes, sets or lone surrogates."""
    env = session.make()
    for played in await session.played():
        trace = played.trace
        infos = [trace.info, *(step.info for step in trace.steps)]
        for turn, (observation, info) in enumerate(zip(trace.observations(), infos, strict=True)):
            if observation is None:  # the reset failed
                continue
            for whose, space, seen, told in session.seen(env, observation, info):
                at = f"{played.label}, task {played.task}, turn {turn}{whose}"
                if space is not None and not space.contains(seen):
                    session.find(f"{at}: the observation is not in {space}: {seen!r:.200}")
                    return
                for problem in _not_json({"observation": seen, "info": _without_records(told)}, ""):
                    session.find(f"{at}: {problem}")
                    return


def _without_records(info: Any) -> Any:
    """Without what AgentEnv and MultiAgentEnv put there for the runner."""
    if not isinstance(info, dict):
        return info
    return {key: value for key, value in info.items() if key not in ("reward_result", "outcome")}


def _not_json(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                yield f"{path.lstrip('.')} has the key {key!r}, which is no str"
            yield from _not_json(part, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _not_json(part, f"{path}[{index}]")
    else:
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:  # among them UnicodeEncodeError
            yield f"{path.lstrip('.')} is {value!r:.100}: {error}"


@check(
    "observation-size",
    family="replies",
    fix="cut what a tool or prompt shows, and say so in the text: '[... 12000 characters left out]'",
)
async def observation_size(session: Session) -> None:
    """No message to the model is longer than a million characters."""
    for played in await session.played():
        for message in played.trace.messages():
            if len(message["content"]) > MOST_CHARACTERS:
                session.find(
                    f"{played.label}, task {played.task}: a {message['role']} message of "
                    f"{len(message['content'])} characters begins {message['content'][:60]!r}",
                    where=session.author.line_of_hook(message.get("name", "prompt")),
                )
                return
