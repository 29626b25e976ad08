"""Checks of what games alone must keep: turns, scores, privacy, and who cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import io
import pickle
import warnings
from typing import Any

from vime_agents.checking.games.session import CannotGoOn, GameSession, Rule, broken_rule, game_check
from vime_agents.checking.kit import DoesNotApply, is_invalid_reward
from vime_agents.errors import MissingDependencyError, ModelError
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import ContextLengthExceeded, Policy

_RULES = ("turns", "scores", "zero-sum", "reward-range")
_ROUNDING = 1e-9


async def _report_broken(session: GameSession, rule: Rule) -> None:
    for label, trace in await session.games():
        if trace.error is not None and broken_rule(trace.error) == rule:
            session.find(f"{label}: {trace.error}"[:400], where=trace.where or _line_of_moves(session))
            return


def _line_of_moves(session: GameSession) -> str | None:
    hooks = ("move", "moves", "advance")
    return next(filter(None, map(session.author.line_of_hook, hooks)), None)


@game_check(
    "turns",
    fix="return from `start`, `move` and `forfeit` an agent of self.agents, several, or everybody's scores",
)
async def turns(session: GameSession) -> None:
    """The turn goes to agents in play, and to somebody as long as there is anybody."""
    await _report_broken(session, "turns")


@game_check(
    "scores", fix="end with a score for each agent of self.agents; `leave` scores those who went before"
)
async def scores(session: GameSession) -> None:
    """A game ends with a score for everybody in play, and for nobody else."""
    await _report_broken(session, "scores")


@game_check("zero-sum", fix="pay the winners what the losers lose, step rewards included, or drop `zero_sum`")
async def zero_sum(session: GameSession) -> None:
    """Where `zero_sum` is declared, the rewards of each episode sum to 0."""
    if not session.game.zero_sum:
        raise DoesNotApply("the game is not declared zero-sum")
    await _report_broken(session, "zero-sum")


@game_check(
    "reward-range", fix="declare the `reward_range` of an agent's whole episode, or divide the scores"
)
async def reward_range(session: GameSession) -> None:
    """Every agent's reward is a finite number within `reward_range`."""
    for label, trace in await session.games():
        if trace.error is not None and is_invalid_reward(trace.error):
            session.find(f"{label}: {trace.error}"[:400], where=trace.where or _line_of_moves(session))
            return


@game_check(
    "whole-games",
    explained_by=("first-action",),
    fix="make the hook at this line work in every position that play can reach",
)
async def whole_games(session: GameSession) -> None:
    """Games of each kind of player, to their end, raise nothing."""
    for label, trace in await session.games():
        fault = session.fault(trace)
        if fault is not None:
            session.find(f"{label}, in {trace.failed_in}: {fault}", where=trace.where)
            return


async def _report_refused(session: GameSession, script: str, hook: str) -> None:
    for label, trace in await session.games():
        refused = trace.counters.get("illegal_moves", 0)
        if label.startswith(f"a {script} ") and refused:
            why = next((o.detail for o in trace.outcomes.values() if o.stop == "illegal_move"), "")
            session.find(
                f"{label}: {refused:g} replies were refused{': ' if why else ''}{why}"[:400],
                where=session.author.line_of_hook(hook),
            )
            return


@game_check(
    "legal-moves",
    explained_by=("whole-games",),
    fix="list in `legal(agent)` what `parse` and `move` take from this agent in this position",
)
async def legal_moves(session: GameSession) -> None:
    """Every reply that `legal` lists is one that the game takes."""
    if not session.has_legal:
        raise DoesNotApply("the game has no `legal`")
    await _report_refused(session, "random", "legal")


@game_check(
    "gold-moves",
    explained_by=("whole-games",),
    fix="return from `gold(agent)` a reply as an agent would write it",
)
async def gold_moves(session: GameSession) -> None:
    """Every reply of `gold` is one that the game takes."""
    if not session.has_gold:
        raise DoesNotApply("the game has no `gold`")
    await _report_refused(session, "gold", "gold")


@game_check(
    "useless-pays",
    explained_by=("whole-games", "first-action", "legal-moves", "gold-moves", "seeds-differ", *_RULES),
    fix="score what was played: an agent that cannot play must not do better than one that plays well",
)
async def useless_pays(session: GameSession) -> None:
    """Against the same others, useless replies get no agent more than gold does."""
    if not session.has_gold:
        raise DoesNotApply("the game has no `gold`")
    players = session.policies()
    others = players.get("random", players["gold"])
    for agent in session.game.possible_agents:
        means = {
            name: await _mean_reward(session, agent, players[name], others)
            for name in ("gold", "wrong", "garbage")
        }
        gold = means.pop("gold")
        for name, mean in means.items():
            if gold is not None and mean is not None and mean > gold + _ROUNDING:
                session.find(
                    f"{agent} has {mean:.3g} with {name} replies, and {gold:.3g} with gold",
                    where=_line_of_moves(session),
                )
                return


async def _mean_reward(session: GameSession, agent: str, own: Policy, others: Policy) -> float | None:
    """Over several tasks; None: it has no reward in any."""
    players = {**dict.fromkeys(session.game.possible_agents, others), agent: own}
    rewards: list[float] = []
    for task in await session.task_indices():
        result = (await session.play(players, seed=task, task=task)).reward_results.get(agent)
        if result is not None and result.value is not None:
            rewards.append(result.value)
    return sum(rewards) / len(rewards) if rewards else None


@game_check(
    "turn-limit",
    family="limits",
    explained_by=("whole-games", "first-action", "reward-range", "step-after-end", *_RULES),
    fix="leave turns to MultiAgentEnv.astep, and write `standing()` so that it works at any time",
)
async def turn_limit(session: GameSession) -> None:
    """Every game ends within max_turns replies, which 1 may be."""
    where = session.author.line_of_hook("astep") or session.author.line_of_hook("standing")
    for label, trace in await session.games():
        taken = sum(len(replies) for replies in trace.replies[:-1])
        if trace.error is None and taken >= session.game.max_turns:
            session.find(f"{label} goes on after {taken} replies, its max_turns", where=where)
            return
    game = session.game
    one = type(game.__name__, (game,), {"max_turns": 1, "__module__": game.__module__})
    env = session.make(one)
    trace = await session.play(session.policies()["wrong"], env=env, max_steps=2)
    await session.close(env)
    if trace.error is not None:
        error = f"{type(trace.error).__name__}: {trace.error}"
        session.find(f"with max_turns = 1: {error}"[:400], where=trace.where or where)
    elif len(trace.steps) != 1:
        session.find("with max_turns = 1 it goes on after one turn", where=where)


@game_check(
    "spec",
    family="interface",
    fix="keep the class at module level under its own name",
)
async def spec(session: GameSession) -> None:
    """The class survives pickle, so that workers can make it."""
    try:
        copied = pickle.loads(pickle.dumps(session.cls))
    except Exception as error:  # noqa: BLE001 - whatever a class's parts raise
        session.find(f"{session.path} cannot be pickled: {type(error).__name__}: {error}"[:400])
        return
    if copied is not session.cls:
        session.find(f"the class unpickles as another one than {session.path}")


@game_check(
    "ends",
    explained_by=("whole-games", "legal-moves", *_RULES),
    fix="let the rules end it (a draw after so many moves), or raise `max_turns`",
)
async def ends(session: GameSession) -> None:
    """Random games end by the game's rules, at least now and then, and not all by `max_turns`."""
    random = [trace for label, trace in await session.games() if label.startswith("a random ")]
    if not random:
        raise DoesNotApply("the game has no `legal`, so that nobody can play at random")
    if all(trace.cut for trace in random):
        session.find(
            f"all {len(random)} random games were cut after {session.game.max_turns} turns",
            severity="warning",
            where=_line_of_moves(session),
        )


@game_check(
    "secrets",
    explained_by=("whole-games",),
    fix="write into `view`, `rules` and `tell` what this agent may know, and nothing of another's",
)
async def secrets(session: GameSession) -> None:
    """Nobody is shown, while the game goes on, what `secrets` says is another's alone."""
    if session.game.secrets is MultiAgentEnv.secrets:
        raise DoesNotApply("the game has no `secrets`")
    for label, trace in await session.games():
        if trace.indiscretions:
            where = session.author.line_of_hook("view") or session.author.line_of_hook("rules")
            session.find(f"{label}: {trace.indiscretions[0]}", where=where)
            return


@game_check(
    "cannot-go-on",
    explained_by=("first-action", *_RULES),
    fix="write `forfeit(agents)` (or `advance`, which gets an Outcome) for anybody, and for all at once",
)
async def cannot_go_on(session: GameSession) -> None:
    """A full context or a failed model of one agent, or of all at once, ends in an outcome and no error."""
    causes = {
        "a full context": CannotGoOn(ContextLengthExceeded(num_tokens=2, limit=1)),
        "a failed model": CannotGoOn(ModelError("the model gave nothing")),
    }
    usual = ScriptedPolicy("random" if session.has_legal else "wrong")
    for cause, broken in causes.items():
        agents = list(session.game.possible_agents)
        for unable in (*([agent] for agent in agents), agents):
            players: dict[str, Policy] = {a: broken if a in unable else usual for a in agents}
            trace = await session.play(players)
            fault = session.fault(trace)
            if fault is not None:
                session.find(f"{cause} of {', '.join(unable)}: {fault}", where=trace.where)
                return


@game_check(
    "pettingzoo",
    family="interface",
    explained_by=(
        "whole-games",
        "first-action",
        "global-rng",
        "shared-state",
        "same-seed",
        "reset-isolation",
        "aliasing",
        "step-after-end",
        "close",
        *_RULES,
    ),
    fix="leave `areset`, `astep` and the spaces to MultiAgentEnv, and write hooks",
)
async def pettingzoo(session: GameSession) -> None:
    """PettingZoo's api_test, parallel_api_test and seed_test pass."""
    try:
        tests = _pettingzoo_tests(session)
    except MissingDependencyError as error:
        raise DoesNotApply(str(error)) from error
    for name, call in tests.items():
        try:
            async with asyncio.timeout(10 * session.scale.call_s):
                await asyncio.to_thread(_quietly, call)
        except Exception as error:  # noqa: BLE001 - PettingZoo's tests raise what they like
            session.hung |= isinstance(error, TimeoutError)
            session.find(
                f"{name}: {type(error).__name__}: {error}"[:400], where=session.author.line_of(error)
            )


def _pettingzoo_tests(session: GameSession) -> dict[str, Any]:
    session.make().aec()  # is it installed?
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pettingzoo.test import api_test, parallel_api_test, seed_test  # optional, and slow to import

    return {
        "api_test": lambda: api_test(session.make().aec(), num_cycles=20),
        "parallel_api_test": lambda: parallel_api_test(session.make().parallel(), num_cycles=20),
        "seed_test": lambda: seed_test(lambda: session.make().aec(), num_cycles=20),
    }


def _quietly(call: Any) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        call()
