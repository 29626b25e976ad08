"""Checks of rewards: in range, better for gold than for anything else, not for sale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vime_agents.checking.kit import DoesNotApply, Session, check, is_invalid_reward
from vime_agents.checking.policies import FixedReplies
from vime_agents.checking.replies import broken_replies, hostile_replies
from vime_agents.episode import RewardResult
from vime_agents.policies.scripted import WRONG, ScriptedPolicy

_TOLERANCE = 1e-9


@check(
    "reward-range",
    family="rewards",
    fix="declare `reward_range` as what `score` can give, and return finite numbers inside it",
)
async def reward_range(session: Session) -> None:
    """Every score is a finite number inside the declared `reward_range`."""
    low, high = session.cls.reward_range
    where = session.author.line_of_hook("score")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        session.find(f"reward_range is ({low}, {high}): two finite numbers, the lower one first", where=where)
        return
    for played in await session.played():
        error = played.trace.error
        if error is not None and is_invalid_reward(error):
            session.find(f"{played.label}, task {played.task}: {error}", where=where)
            return


@check(
    "reward-parts",
    family="rewards",
    explained_by=("reward-range",),
    fix='return {"name": (value, weight)} with the same names each time; the sum is made from it',
)
async def reward_parts(session: Session) -> None:
    """A reward is the weighted sum of its components, which have the same names in every episode."""
    where = session.author.line_of_hook("score")
    names: tuple[str, list[str]] | None = None
    for played in await session.played():
        result = played.trace.reward_result
        if result is None or result.value is None:
            continue
        at = f"{played.label}, task {played.task}"
        total = math.fsum(value * result.weights[name] for name, value in result.components.items())
        if result.components and not math.isclose(total, result.value, rel_tol=1e-6, abs_tol=1e-6):
            session.find(
                f"{at}: the value is {result.value}, its weighted components sum to {total}", where=where
            )
            return
        if played.trace.steps[-1].reward != result.value:
            session.find(
                f"{at}: step() returns {played.trace.steps[-1].reward}, the result says {result.value}",
                where=session.author.line_of_hook("astep") or where,
            )
            return
        mine = sorted(result.components)
        if names is not None and names[1] != mine:
            session.find(f"components are {names[1]} ({names[0]}), but {mine} ({at})", where=where)
            return
        names = names or (at, mine)


@check(
    "gold-wins",
    family="rewards",
    needs=("plays", "gold"),
    explained_by=("reward-range",),
    fix="correct `score` or `gold`: an agent that cannot do better than nonsense learns nothing",
)
async def gold_wins(session: Session) -> None:
    """Gold gets the highest reward of the range on each task, and more than useless replies."""
    if not session.has_gold:
        raise DoesNotApply("the env has no `gold`")
    where = session.author.line_of_hook("score")
    high = session.cls.reward_range[1]
    rewards: dict[tuple[int, str], float | None] = {
        (played.task, played.label): played.trace.reward for played in await session.played()
    }
    below: list[tuple[int, float]] = []
    for task in await session.task_indices():
        gold = rewards[task, "gold"]
        if gold is None:
            session.find(f"task {task}: gold gets no reward", where=where)
            return
        wrong = rewards[task, "wrong"]
        if wrong is not None and wrong >= gold:
            session.find(f"task {task}: gold gets {gold:g}, the reply {WRONG!r} gets {wrong:g}", where=where)
            return
        if gold < high - _TOLERANCE:
            below.append((task, gold))
    if below:
        task, gold = below[0]
        session.find(
            f"{len(below)} tasks: gold gets less than the range's {high:g} (task {task}: {gold:g})",
            where=where,
            severity="warning",
        )


@check(
    "garbage-pays",
    family="rewards",
    needs=("plays", "gold"),
    explained_by=("reward-range", "gold-wins"),
    fix="compare the whole answer with self.task's; form alone is worth nothing",
)
async def garbage_pays(session: Session) -> None:
    """No reply gets gold's reward on most tasks: nothing, noise, the prompt, another task's gold."""
    tasks = await session.task_indices()
    if len(tasks) < 3:
        raise DoesNotApply("there are fewer than three tasks")
    best = {task: await _best(session, task) for task in tasks}
    candidates: dict[str, Any] = {**broken_replies(), **hostile_replies(10_000)}
    for label, reply in candidates.items():
        if await _report_if_paid(session, label, best, lambda _, its=reply: [its]):
            return
    prompts = {task: ["\n".join(m["content"] for m in (await _first(session, task)))] for task in tasks}
    if await _report_if_paid(session, "that repeats the prompt", best, prompts.__getitem__):
        return
    if session.has_gold:
        golds = {task: await session.gold_replies(task) for task in tasks}
        if len({_last(replies) for replies in golds.values()}) == len(tasks):
            others = {task: golds[tasks[(i + 1) % len(tasks)]] for i, task in enumerate(tasks)}
            await _report_if_paid(session, "that is right for another task", best, others.__getitem__)


@check(
    "hedging-pays",
    family="rewards",
    needs=("plays", "gold"),
    explained_by=("reward-range", "gold-wins", "garbage-pays"),
    fix="take one answer from the reply, the last or the marked one; do not look whether it is in there",
)
async def hedging_pays(session: Session) -> None:
    """One reply that lists the answers of all tasks does not get gold's reward."""
    tasks = await session.task_indices()
    golds = {task: await session.gold_replies(task) for task in tasks}
    finals = {task: _last(replies) for task, replies in golds.items()}
    if len(set(finals.values())) < 3:
        raise DoesNotApply("fewer than three tasks have answers of their own")
    best = {task: await _best(session, task) for task in tasks}

    def all_answers(task: int) -> list[Any]:
        # Neither first nor last in the list, where a grader that takes one answer looks.
        others = [final for other, final in finals.items() if other != task]
        return [*golds[task][:-1], "\n".join([*others[:1], finals[task], *others[1:]])]

    label = "that lists the answers of all tasks"
    await _report_if_paid(session, label, best, all_answers, severity="warning")


def _last(replies: list[Any]) -> str:
    return replies[-1]["content"]


async def _best(session: Session, task: int) -> float:
    """Gold's reward, or without a gold the highest of the range."""
    if not session.has_gold:
        return session.cls.reward_range[1]
    trace = await session.play(ScriptedPolicy("gold"), seed=task, task=task)
    session.must_be_possible(trace)
    return session.cls.reward_range[1] if trace.reward is None else trace.reward


async def _first(session: Session, task: int) -> list[Any]:
    trace = await session.play(FixedReplies([WRONG]), seed=task, task=task)
    return list(trace.observation["messages"])


async def _report_if_paid(
    session: Session,
    label: str,
    best: dict[int, float],
    replies: Callable[[int], list[Any]],
    *,
    severity: Any = "error",
) -> bool:
    paid = []
    for task in best:
        trace = await session.play(FixedReplies(replies(task)), seed=task, task=task)
        if trace.reward is not None and trace.reward >= best[task] - _TOLERANCE:
            paid.append(task)
    if 2 * len(paid) <= len(best):
        return False
    shown = replies(paid[0])[-1]
    session.find(
        f"a reply {label} is paid in full on {len(paid)} of {len(best)} tasks ({paid[0]}: {shown!r:.80})",
        where=session.author.line_of_hook("score"),
        severity=severity,
    )
    return True


@check(
    "partial-score",
    family="rewards",
    explained_by=("first-action",),
    fix="let `score` take an episode that a limit ended after any turn: replies may be missing",
)
async def partial_score(session: Session) -> None:
    """An episode that the runner ends after its first turn can be scored as it stands."""
    reply = broken_replies()["a call of a tool that is not there"]
    env = session.make()
    try:
        trace = await session.play(FixedReplies([reply]), env=env, max_steps=1)
        if trace.done or trace.error is not None:
            raise DoesNotApply("every episode ends with its first turn")
        try:
            result: object = await env.score_partial()
        except Exception as error:  # noqa: BLE001 - an author's score
            if not is_invalid_reward(error):
                session.find(f"{type(error).__name__}: {error}"[:400], where=session.author.line_of(error))
            return
        if not isinstance(result, RewardResult):
            session.find(
                f"score_partial returns {result!r:.100}", where=session.author.line_of_hook("score_partial")
            )
    finally:
        await session.close(env)
