"""The check that an agent is told in what form its answer counts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import partial

from vime_agents.checking.drive import Trace
from vime_agents.checking.kit import DoesNotApply, Session, check
from vime_agents.checking.policies import FixedReplies

_TOLERANCE = 1e-9
_FRAMES: Mapping[str, str] = {
    r"</?(?P<name>[a-z][\w-]*)>": r"</?{name}\b|\btags?\b",
    r"\\boxed\{(?P<inside>[^\n]*)\}": r"\bbox",
    r"```[ \t]*\w*": r"```|\bblock|\bfence|\bmarkdown",
    r"#{3,}": r"##|\bhash",
    r"^[ \t]*\[(?P<inside>[^\[\]\n]+)\][ \t]*$": r"\[|\bbracket|\blist|\barray",
    r"^[ \t*_>]*(?P<name>[a-z][a-z _-]{1,30}):(?!//)[*_]*(?=[ \t]*\S)": r"\b{name}\W{{0,3}}:|[\"'`*]{name}\b",
    r"(?:\bthe )?(?:\bfinal )?\b(?P<name>answer|result|solution|guess|move|choice) is\b:?": r"\b{name} is\b",
}
"""What frames an answer -> what tells of it: only what can hardly be a part of the answer itself."""
_PATTERNS = {re.compile(frame, re.IGNORECASE | re.MULTILINE): sign for frame, sign in _FRAMES.items()}


@check(
    "answer-form",
    family="rewards",
    needs=("plays", "gold"),
    explained_by=("reward-range", "gold-wins", "garbage-pays"),
    fix="say in `prompt`, word for word, how an answer is to be written; or let `score` take the bare one",
)
async def answer_form(session: Session) -> None:
    """The agent is told of the tags, labels and the like without which gold's answer is worth less."""
    golds = {p.task: p.trace for p in await session.played() if p.label == "gold" and p.trace.replies}
    finals = [trace.replies[-1] for trace in golds.values()]
    if any("tool_calls" in final for final in finals):
        raise DoesNotApply("gold's last reply is a call of a tool, whose schema says its form")
    if len({final["content"] for final in finals}) < 2:
        raise DoesNotApply("fewer than two tasks have answers of their own")
    framed = [frames(final["content"]) for final in finals]
    shared = {sign: found for sign, found in framed[0].items() if all(sign in others for others in framed)}
    untold: list[str] = []
    for task, gold in golds.items() if shared else ():
        text = without_frames(gold.replies[-1]["content"], shared)
        bare = await session.play(FixedReplies([*gold.replies[:-1], text]), seed=task, task=task)
        if gold.reward is None or (bare.reward is not None and bare.reward >= gold.reward - _TOLERANCE):
            continue
        told = "\n".join([*_told(gold), *_told(bare), json.dumps(session.make().tool_schemas)])
        if not any(re.search(sign, told, re.IGNORECASE) for sign in shared):
            untold.append(f"{gold.replies[-1]['content']!r:.80} is paid in full and {text!r:.80} is not")
    if 2 * len(untold) > len(golds):
        session.find(
            f"nothing that the agent is told names {', '.join(shared.values())}; but {untold[0]} "
            f"({len(untold)} of {len(golds)} tasks)",
            severity="warning",
            where=session.author.line_of_hook("prompt"),
        )


def frames(text: str) -> dict[str, str]:
    """Regular expression that tells of a frame -> the frame as it stands in a reply, of all that it has."""
    found = {_sign_of_key(key): f'"{key}"' for key in _object(text)}
    for pattern, sign in _PATTERNS.items():
        for frame in pattern.finditer(text):
            found.setdefault(_named(sign, frame), frame[0].strip())
    return found


def without_frames(text: str, signs: Collection[str]) -> str:
    """What is left of a reply when the frames of these signs are taken off."""
    values = _object(text)
    if any(_sign_of_key(key) in signs for key in values):
        return " ".join(value if isinstance(value, str) else json.dumps(value) for value in values.values())

    for pattern, sign in _PATTERNS.items():
        text = pattern.sub(partial(_taken_off, sign, signs), text)
    return text.strip()


def _taken_off(sign: str, signs: Collection[str], frame: re.Match[str]) -> str:
    return frame.groupdict().get("inside") or "" if _named(sign, frame) in signs else frame[0]


def _named(sign: str, frame: re.Match[str]) -> str:
    return sign.format(name=re.escape(frame.groupdict().get("name") or ""))


def _object(text: str) -> Mapping[str, object]:
    """A reply that is one JSON object; of any other, nothing."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sign_of_key(key: str) -> str:
    return rf"\bjson\b|[\"'`]{re.escape(key)}[\"'`]"


def _told(trace: Trace) -> list[str]:
    """What the env said before the agent's last reply."""
    return [message["content"] for seen in trace.observations()[:-1] for message in seen["messages"]]
