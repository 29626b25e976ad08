"""What Gymnasium makes of a game: one agent's seat, the others played by a script."""

from __future__ import annotations

from collections.abc import Mapping

from vime_agents import registry
from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError
from vime_agents.policies.scripted import SCRIPTS, Script, ScriptedPolicy
from vime_agents.policy import Policy


def game_seat(
    *,
    game: str,
    agent: str | None = None,
    opponents: str | Policy | Mapping[str, Policy] = "scripted:random",
    split: str = "train",
    task_seed: int = 0,
    render_mode: str | None = None,
) -> AgentEnv:
    """One agent of a registered game: `gymnasium.make("vime_agents/TicTacToe-v0", agent="O")`.

    Args:
        game: its id.
        agent: whose seat; None: the first one's.
        opponents: a script by its name; or policies, as `MultiAgentEnv.as_gym` takes them.
        split: whose tasks are played.
        task_seed: of procedural tasks.
        render_mode: of Gymnasium.

    Raises:
        UnknownIdError, ConfigError: no such game, agent or script.
    """
    if isinstance(opponents, str):
        named: dict[str, Script] = {
            name: script for script in SCRIPTS for name in (script, f"scripted:{script}")
        }
        if opponents not in named:
            raise ConfigError(f"opponents: must be {', '.join(named)}, or policies, got {opponents!r}")
        opponents = ScriptedPolicy(named[opponents])
    env = registry.env_class(game)(split=split, task_seed=task_seed, render_mode=render_mode)
    return env.as_gym(agent or env.possible_agents[0], opponents)
