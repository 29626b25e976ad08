"""`vime-agents play`: one episode at the terminal, played by a person or watched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from vime_agents import registry
from vime_agents.cli.models import open_agents, open_policy
from vime_agents.cli.play_person import LEFT, PersonPolicy, Prompt, at_terminal
from vime_agents.cli.play_screen import Screen
from vime_agents.config.play import PERSON, PlayConfig
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError
from vime_agents.evaluation.evaluate import AnyEnv, env_maker, eval_request
from vime_agents.multi_agent.assign import ANYBODY, assign
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policy import Sampling
from vime_agents.rollout.attempt import Attempt, Truncate
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import AGENT, EpisodeRequest
from vime_agents.rollout.runner import GenerateFunction, Runner
from vime_agents.task import index_of

A_PERSONS_TIME_S = 30 * 86400.0
"""Nobody hurries a person."""


def run(argv: Sequence[str]) -> int:
    """Parse the flags and play. The environment may be given without its flag, first."""
    arguments = list(argv)
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--env")
    config = PlayConfig.from_argv(arguments)
    make_env = env_maker(config.env, split=config.split, seed=config.seed)
    request = _request(config, make_env)
    prompt = Prompt()
    episode = prompt.run(lambda: _play(config, make_env, request, prompt))
    return 1 if episode.outcome.kind == "failed" else 0


async def _play(
    config: PlayConfig,
    make_env: Callable[[], AnyEnv],
    request: EpisodeRequest,
    prompt: Prompt,
) -> Episode:
    cls = registry.env_class(config.env)
    several = issubclass(cls, MultiAgentEnv)
    if config.agents and not several:
        raise ConfigError(f"--agents: {config.env!r} has one agent; give --model")
    screen = Screen(sys.stdout)
    person = PersonPolicy(prompt, screen.say, name_agents=several)
    async with (
        open_agents(config, {PERSON: person}) as agents,
        open_policy(config, {PERSON: person}) as policy,
    ):
        players = {AGENT: policy}
        if several:
            players = assign(cls.possible_agents, cls.roles, {ANYBODY: policy, **agents})
        people = [agent for agent, player in players.items() if player is person]
        if people:  # what the others see is none of their business, and what they typed they know
            screen.show_only(people, echo=not at_terminal())
        runner = Runner(
            make_env,
            players if several else policy,
            env_id=config.env,
            sampling=Sampling(
                temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_response_len
            ),
            limits=Limits(
                episode_s=A_PERSONS_TIME_S if people or config.pause else config.episode_timeout,
                generation_s=A_PERSONS_TIME_S if people else config.turn_timeout,
                env_s=config.turn_timeout,
            ),
            max_retries=0,
            generate=_shown(screen, prompt if config.pause and not people else None),
        )
        screen.say(_title(config, request, cls), bold=True)
        if people and at_terminal():
            screen.say("/help says what can be said; Ctrl-D leaves.")
        episode = await runner.play(request)
    screen.show_end(episode)
    return episode


def _shown(screen: Screen, pause: Prompt | None) -> GenerateFunction:
    """Plays to the end and shows each message as it comes; waits for Enter at `pause` before each turn."""

    async def generate(play: Attempt) -> None:
        await play.reset()
        screen.show_new(play)
        while not play.done:
            if pause is not None:
                await _wait(pause)
            await play.act()
            screen.show_new(play)
            await play.step()
            screen.show_new(play)

    return generate


async def _wait(pause: Prompt) -> None:
    try:
        await pause.ask("[Enter] ")
    except EOFError:
        raise Truncate("cancelled", LEFT) from None


def _request(config: PlayConfig, make_env: Callable[[], AnyEnv]) -> EpisodeRequest:
    """The episode that `vime-agents eval` plays of that task. Raises ConfigError: there is no such task."""
    env = make_env()
    try:
        tasks = env.task_set()
        index = int(config.task) if config.task.isdecimal() else index_of(tasks, config.task)
        if index is None or index >= len(tasks):
            raise ConfigError(
                f"--task: no task {config.task!r} in {tasks.name} ({config.split}); give an id, or an index "
                f"from 0 to {len(tasks) - 1}"
            )
        return eval_request(tasks[index], index, 0, config.seed, lot=index)
    finally:
        env.close()


def _title(config: PlayConfig, request: EpisodeRequest, cls: Any) -> str:
    low, high = cls.reward_range
    turns = f"{cls.max_turns} turn{'' if cls.max_turns == 1 else 's'}"
    return (
        f"{config.env} ({config.split}), task {request.task.id}, seed {config.seed}: at most {turns}, "
        f"reward {low:g} to {high:g}"
    )
