"""`vime-agents eval`: play, count, report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vime_agents import registry
from vime_agents.cli import BUDGET_SPENT, FAILED, OK, TOO_MANY_ERRORS
from vime_agents.cli.evaluate_plan import format_plan, limits_of, meter_of, plan_of
from vime_agents.cli.models import open_agents, open_policy
from vime_agents.cli.progress import EvalProgress
from vime_agents.config.evaluation import EvalConfig
from vime_agents.episode import Episode
from vime_agents.evaluation.evaluate import (
    cast_of,
    compared_episodes,
    env_maker,
    evaluate,
    first_tasks,
    opponents_of,
)
from vime_agents.evaluation.rating import Elo
from vime_agents.evaluation.report import EvalReport
from vime_agents.policies.admission import Admissions
from vime_agents.policies.cached import with_cache
from vime_agents.policies.metered import Spent
from vime_agents.policies.response_cache import ResponseCache
from vime_agents.policy import Sampling
from vime_agents.storage.eval_directory import EvalDirectory


def run(argv: Sequence[str]) -> int:
    """Parse the flags and evaluate. The environment may be given without its flag, first."""
    arguments = list(argv)
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--env")
    config = EvalConfig.from_argv(arguments)
    # A wrong id, or agents that cannot be assigned, must not cost the start of a server.
    registry.env_class(config.env)
    opponents_of(config.env, config.agents, rotate_seats=config.rotate_seats)
    if config.dry_run:
        plan = plan_of(config)
        print(json.dumps(plan.to_dict()) if config.json else format_plan(plan))
        return OK
    try:
        report = asyncio.run(_evaluate(config))
    except KeyboardInterrupt:
        if config.out:
            print(f"the same command goes on with what is in {config.out}", file=sys.stderr)
        raise
    print(json.dumps(report.to_dict()) if config.json else format_report(report))
    codes: list[int] = []
    for code, problem in _shortcomings(config, report):
        print(f"vime-agents: {problem}", file=sys.stderr)
        codes.append(code)
    return codes[0] if codes else OK


def _shortcomings(config: EvalConfig, report: EvalReport) -> Iterator[tuple[int, str]]:
    """(exit code, what is wrong), the code that wins first."""
    if report.infrastructure_error_rate > config.max_error_rate:
        yield (
            TOO_MANY_ERRORS,
            f"{report.infrastructure_error_rate:.1%} of the episodes failed for reasons of "
            f"infrastructure, more than --max-error-rate {config.max_error_rate:g}",
        )
    if report.budget_spent:
        total = report.num_tasks * report.samples_per_task
        go_on = f", and the same command with more goes on in {config.out}" if config.out else ""
        yield (
            BUDGET_SPENT,
            f"the budget is spent ({report.budget_spent}) after {report.n} of {total} episodes{go_on}",
        )
    least = config.fail_under
    if least is not None and not report.n_scored:
        yield FAILED, f"no episode has a reward, and --fail-under asks for a mean of {least:g}"
    elif least is not None and report.mean < least and not math.isclose(report.mean, least, abs_tol=1e-12):
        yield FAILED, f"the mean reward is {report.mean:.6g}, less than --fail-under {least:g}"


async def _evaluate(config: EvalConfig) -> EvalReport:
    with contextlib.ExitStack() as stack:
        cache = None
        if config.cache is not None:
            cache = stack.enter_context(ResponseCache(config.cache, on_trouble=_tell_of_the_cache))
        group_size = compared_episodes(config.env, config.samples_per_task)
        folder: EvalDirectory | None = None
        if config.out:
            folder = stack.enter_context(EvalDirectory(Path(config.out), config, group_size=group_size))
        earlier = [] if folder is None else folder.finished
        meter = meter_of(config, Spent() if folder is None else folder.spent())
        if folder is not None:
            stack.callback(folder.keep_usage, meter.spent)
        tasks = first_tasks(env_maker(config.env, split=config.split, seed=config.seed), config.num_tasks)
        if folder is not None:
            folder.keep_tasks(tasks)
        # The server of a vllm: model starts before the bar appears: its start has a log of its own.
        admissions = Admissions(config.max_connections or config.concurrency)
        async with (
            open_agents(config, admissions=admissions) as agents,
            open_policy(config, admissions=admissions) as policy,
        ):
            if cache is not None:
                policy = with_cache(policy, cache)
                agents = {agent: with_cache(player, cache) for agent, player in agents.items()}
            _, opponents = cast_of(config.env, policy, agents, rotate_seats=config.rotate_seats)
            progress = stack.enter_context(
                EvalProgress(config.num_tasks * config.samples_per_task, sys.stderr, opponents, meter)
            )

            for episode in earlier:
                progress.add(episode)

            def on_episode(episode: Episode) -> None:
                if folder is not None:
                    folder.keep_usage(meter.spent)  # first: a kill in between must not lose what was spent
                    folder.append(episode)
                progress.add(episode)

            report = await evaluate(
                config.env,
                policy,
                agents=agents,
                rotate_seats=config.rotate_seats,
                num_tasks=config.num_tasks,
                samples_per_task=config.samples_per_task,
                split=config.split,
                seed=config.seed,
                concurrency=config.concurrency,
                limits=limits_of(config),
                sampling=Sampling(
                    temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_response_len
                ),
                max_retries=config.max_retries,
                sandbox_pool_size=config.sandbox_pool_size,
                max_sandboxes=config.max_sandboxes,
                on_episode=on_episode,
                tasks=tasks,
                finished=earlier,
                keep_graded=folder is not None,
                meter=meter,
            )
        if cache is not None:
            cache.close()  # what is not stored yet may fail, and shall be counted
            report = replace(report, cache_failures=cache.failures)
        if folder is not None and not report.budget_spent:
            folder.write_report(report.to_dict())
    return report


def _tell_of_the_cache(problem: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it: no reason for an episode to fail
        print(f"vime-agents: --cache {problem}; what it lacks is asked of the model", file=sys.stderr)


def format_report(report: EvalReport) -> str:
    """The report for a person."""
    failed = sum(report.errors.values())
    by_class = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
    lines = [
        f"{report.env_id} ({report.split}, {report.num_tasks} tasks x {report.samples_per_task}, seed "
        f"{report.seed}) played by {report.policy}",
        f"  reward    {report.mean:.4f}   95 % interval {report.ci_low:.4f} to {report.ci_high:.4f} "
        f"({report.ci_method}, {report.n_scored} scored)",
    ]
    if report.n_scored < report.n:
        lines.append(f"            {report.mean_errors_as_zero:.4f} if every episode without a reward got 0")
    if len(report.pass_at_k) > 1:
        shares = "   ".join(f"pass@{k} {value:.4f}" for k, value in report.pass_at_k.items())
        lines.append(f"  tasks     {shares}")
    lines += [
        f"  episodes  {report.n}: {report.ok} ok, {report.truncated} truncated"
        + (f" ({report.truncated_share:.1%})" if report.truncated else "")
        + f", {failed} failed"
        + (f" ({by_class})" if failed else ""),
        f"  stops     {', '.join(f'{count} {stop}' for stop, count in report.stops.items())}",
        f"  cost      {_tokens(report)}{report.turns_mean:.2f} turns an episode, {report.duration_s:.1f} s",
        *_retries(report),
    ]
    if not math.isnan(report.call_p95_s) and not report.policy.startswith("scripted:"):
        lines.append(f"  calls     {report.call_p50_s:.3f} s (p50), {report.call_p95_s:.3f} s (p95)")
    if report.cache_hits or report.cache_failures:
        trouble = f", {report.cache_failures} lookups or stores failed" if report.cache_failures else ""
        lines.append(f"  cache     {report.cache_hits} answers were there{trouble}")
    for name, agent in report.agents.items():
        stops = ", ".join(f"{count} {stop}" for stop, count in agent.stops.items())
        lines.append(f"  agent     {name}: {agent.mean:.4f} played by {agent.policy} ({stops})")
    lines += _against(report)
    lines += [f"  error     {kind}: {text[:300]}" for kind, text in report.error_examples.items()]
    return "\n".join(lines)


def _tokens(report: EvalReport) -> str:
    """What the model's calls took, as the start of a line."""
    usage = report.usage
    if not usage.total_tokens:
        return ""
    share = usage.cached_prompt_tokens / max(usage.prompt_tokens, 1)
    cached = f" ({usage.cached_prompt_tokens} cached, {share:.1%})" if usage.cached_prompt_tokens else ""
    unknown = f", {usage.calls_without_usage} calls not counted" if usage.calls_without_usage else ""
    cost = "" if report.cost is None else f"${report.cost:.4f}, "
    return f"{cost}{usage.prompt_tokens} tokens read{cached}, {usage.sampled_tokens} sampled{unknown}, "


def _retries(report: EvalReport) -> list[str]:
    """A line on the further tries of calls, if there was any."""
    usage = report.usage
    if not usage.retries:
        return []
    ranked = sorted(usage.retries.items(), key=lambda item: (-item[1], item[0]))
    by_kind = ", ".join(f"{count} {what}" for what, count in ranked)
    most = f"; at most {usage.most_calls_at_once} calls at once" if usage.most_calls_at_once else ""
    return [f"  retries   {sum(usage.retries.values())} ({by_kind}){most}"]


def _against(report: EvalReport) -> list[str]:
    """A line for each opponent, the strongest first."""
    lines: list[str] = []
    ranked = sorted(report.opponents.items(), key=lambda item: item[1].ahead.elo if item[1].ahead else 0.0)
    for name, other in ranked:
        line = f"  against   {name}: {other.n} episodes, "
        if other.won + other.drawn + other.lost:
            line += f"{other.won} won, {other.drawn} drawn, {other.lost} lost, "
        line += f"reward {other.mean:.4f}"
        lines.append(line + (f", ahead by {_elo(other.ahead)}" if other.ahead else ""))
    if report.first_seat is not None:
        lines.append(f"  seats     the first is worth {_elo(report.first_seat)}")
    return lines


def _elo(elo: Elo) -> str:
    return f"{elo.elo:+z.0f} Elo ({elo.low:+z.0f} to {elo.high:+z.0f})"
