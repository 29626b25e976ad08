"""Parts of an episode in words, and text that cannot act on whoever looks at it."""

from __future__ import annotations

import re

from vime_agents.episode import Outcome, RewardResult, Trajectory

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, other line ends, what reverses text, halves of surrogate pairs."""


def visible(text: str) -> str:
    r"""The text with \xXX or \uXXXX for what moves a cursor, renames a window, reverses text or is none."""
    return _UNSEEN.sub(lambda m: _written_out(ord(m[0])), text)


def one_line(text: str, most: int = 60) -> str:
    """`visible` text in one line of at most so many characters."""
    text = visible(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= most else f"{text[: most - 1]}…"


def outcome_text(outcome: Outcome) -> str:
    """How it ended: `done`, `cut: max_turns: 3`, `failed (tool), error: ...`."""
    kind = {"terminated": "", "truncated": "cut: ", "failed": f"failed ({outcome.cause}), "}[outcome.kind]
    return f"{kind}{outcome.stop}{': ' if outcome.detail else ''}{outcome.detail}"


def reward_text(reward: RewardResult) -> str:
    """A reward and what it is made of: `1 = 0.3 x call 1 + 0.7 x answer 1; metrics: success 1`."""
    if reward.value is None:
        return f"none: {reward.status}{': ' if reward.detail else ''}{reward.detail}"
    parts = [
        f"{f'{weight:g} x ' if weight != 1 else ''}{name} {reward.components[name]:g}"
        for name, weight in reward.weights.items()
        if weight != 0
    ]
    metrics = [f"{n} {reward.components[n]:g}" for n, weight in reward.weights.items() if weight == 0]
    text = f"{reward.value:g}{' = ' if parts else ''}{' + '.join(parts)}"
    return f"{text}; metrics: {', '.join(metrics)}" if metrics else text


def step_rewards_text(trajectory: Trajectory) -> str:
    """The step rewards, where there is more than the last turn's."""
    rewards = [turn.reward for turn in trajectory.turns]
    return f"; by turn: {', '.join(f'{r:g}' for r in rewards)}" if any(rewards[:-1]) else ""


def _written_out(number: int) -> str:
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
