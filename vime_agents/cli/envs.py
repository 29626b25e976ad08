"""`vime-agents envs`: what there is to play."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from vime_agents import registry
from vime_agents.env import AgentEnv
from vime_agents.errors import ConfigError
from vime_agents.registry import ENVS_GROUP

HELP = """usage: vime-agents envs [ID]

List the environments with their tools and tasks, or show one of them.
"""
SPLITS = ("train", "test")


def run(argv: Sequence[str]) -> int:
    """List, or show one."""
    if any(a in ("-h", "--help") for a in argv):
        print(HELP)
        return 0
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        raise ConfigError(f"vime-agents envs takes at most the id of one environment, got {' '.join(argv)!r}")
    print(show(argv[0]) if argv else listing())
    return 0


def listing() -> str:
    """One line for each known environment."""
    rows: list[tuple[str, ...]] = [("ID", "TRAIN", "TEST", "TURNS", "TOOLS", "WHAT")]
    for name in sorted(registry.entry_points(ENVS_GROUP)):
        try:
            rows.append(_row(name, registry.env_class(name)))
        except (ImportError, ConfigError) as error:
            rows.append((name, "", "", "", "", f"cannot be loaded: {error}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def show(env_id: str) -> str:
    """Everything about one environment that can be known without playing it."""
    cls = registry.env_class(env_id)
    lines = [f"{env_id}  ({cls.__module__}:{cls.__qualname__})", "", inspect.getdoc(cls) or "", ""]
    if not issubclass(cls, AgentEnv):
        return "\n".join([*lines, "A Gymnasium environment that is no AgentEnv."])
    lines += [f"tasks in {split}: {_num_tasks(cls, split)}" for split in SPLITS]
    lines += [
        f"turns: at most {cls.max_turns}",
        f"reward: {cls.reward_range[0]:g} to {cls.reward_range[1]:g}",
    ]
    if cls.sandbox_spec is not None:
        lines.append(f"sandbox: {cls.sandbox_spec.backend}")
    for schema in cls().tool_schemas:
        function = schema["function"]
        arguments = ", ".join(function["parameters"].get("properties", {}))
        lines.append(f"tool: {function['name']}({arguments})  {function['description']}")
    return "\n".join(lines)


def _row(name: str, cls: type) -> tuple[str, ...]:
    what = (inspect.getdoc(cls) or "").split("\n", 1)[0]
    if not issubclass(cls, AgentEnv):
        return (name, "", "", "", "", what)
    tools = ", ".join(schema["function"]["name"] for schema in cls().tool_schemas)
    counts = [_num_tasks(cls, split) for split in SPLITS]
    return (name, *counts, str(cls.max_turns), tools or "-", what)


def _num_tasks(cls: type[AgentEnv], split: str) -> str:
    env = cls(split=split)
    try:
        return str(len(env.task_set()))
    except Exception:  # noqa: BLE001 - an author's hook; a split that the env does not have is no error here
        return "-"
    finally:
        env.close()
