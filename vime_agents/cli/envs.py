"""`vime-agents envs`: what there is to play."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from vime_agents import registry
from vime_agents.cli.env_facts import SPLITS, EnvFacts, all_facts, facts, gold_episode
from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.cli.tool_text import tool_lines
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError, did_you_mean, nearest
from vime_agents.sandbox import SandboxSpec
from vime_agents.viewer.text import reward_text

COMMANDS = {
    "list": "every environment, a line for each (also without COMMAND)",
    "search": "those that have all the WORDS in their id, text or tools",
    "show": "one environment: tasks, tools, reward, sandbox, where it comes from",
}

HELP = f"""usage: vime-agents envs [COMMAND] [arguments] [--json]

The environments that are installed here.

commands:
{chr(10).join(f"  {name:<11}{text}" for name, text in COMMANDS.items())}

  vime-agents envs COMMAND --help   the flags of a command
"""


def run(argv: Sequence[str]) -> int:
    """Run one of the commands."""
    if argv and argv[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    command, *rest = argv if argv and not argv[0].startswith("-") else ["list", *argv]
    if command == "list":
        return _list(rest)
    if command == "search":
        return _search(rest)
    if command == "show":
        return _show(rest)
    known = registry.env_entry_points()
    if command in known or ":" in command:
        raise ConfigError(f"unknown command 'envs {command}'; write: vime-agents envs show {command}")
    close = nearest(command, [*COMMANDS, *known])
    hint = f" Did you mean {f'envs show {close}' if close in known else f'envs {close}'!r}?" if close else ""
    raise ConfigError(f"unknown command 'envs {command}'.{hint} Commands: {', '.join(COMMANDS)}.")


def _list(argv: Sequence[str]) -> int:
    parser = Parser("list", "Every environment, a line for each.", group="envs", usage="[--json]")
    flags = _parsed(parser, argv)
    found = all_facts()
    print(json.dumps([_plain(f) for f in found]) if flags.json else table(found))
    return 0


def _search(argv: Sequence[str]) -> int:
    parser = Parser(
        "search",
        "The environments that have all the words in their id, text or tools.",
        group="envs",
        usage="WORD [WORD ...] [--json]",
        epilog="Exit code 1 when there are none.",
    )
    parser.add_argument("words", metavar="WORD", nargs="+", help="any part of a word, in any case")
    flags = _parsed(parser, argv)
    everything = all_facts()
    found = [f for f in everything if _has(f, flags.words)]
    if flags.json:
        print(json.dumps([_plain(f) for f in found]))
    elif found:
        print(table(found))
    else:
        hint = did_you_mean(" ".join(flags.words), [f.id for f in everything])
        print(f"no environment has {' and '.join(map(repr, flags.words))}.{hint}")
    return 0 if found else 1


def _show(argv: Sequence[str]) -> int:
    parser = Parser(
        "show",
        "Everything about one environment. Its first task is played with its own gold replies, to learn\n"
        "what its reward is made of.",
        group="envs",
        usage="ID [--json]",
    )
    parser.add_argument("id", metavar="ID", help="Name-v0, or module:Class of one that is not registered")
    flags = _parsed(parser, argv)
    found = facts(flags.id)
    split = next((s for s in SPLITS if found.num_tasks.get(s)), None)
    gold = None if split is None else gold_episode(flags.id, split)
    if flags.json:
        print(json.dumps(_plain(found) | {"gold": None if gold is None else _plain_gold(gold)}))
    else:
        print("\n".join(_lines(found, gold)))
    return 0


def _parsed(parser: Parser, argv: Sequence[str]) -> Any:
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    return parser.parse(argv)


def table(found: Sequence[EnvFacts]) -> str:
    """One line for each environment."""
    rows: list[tuple[str, ...]] = [("ID", "TRAIN", "TEST", "TURNS", "TOOLS", "FROM", "WHAT")]
    for f in found:
        counts = [str(f.num_tasks.get(s) or "-") for s in SPLITS]
        turns, tools = str(f.max_turns or "-"), ", ".join(f.tool_names) or "-"
        rows.append((f.id, *counts, turns, tools, f.origin, f.summary))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _lines(f: EnvFacts, gold: Episode | None) -> list[str]:
    lines = [f"{f.id}  ({f.entry_point})", f"from: {f.origin}", "", *f.doc.splitlines(), ""]
    if f.max_turns is None or f.reward_range is None:
        return [*lines, "Neither an AgentEnv nor a MultiAgentEnv: nothing more is known."]
    counts = (f"{split}: {'none' if n is None else n}" for split, n in f.num_tasks.items())
    lines += [
        f"tasks    {', '.join(counts)}",
        *([f"agents   {', '.join(f.agents)}"] if f.agents else []),
        f"turns    at most {f.max_turns}",
        f"reward   {f.reward_range[0]:g} to {f.reward_range[1]:g}",
        *([] if gold is None else [f"gold     {_gold_text(gold)}"]),
        f"sandbox  {'none' if f.sandbox is None else sandbox_text(f.sandbox)}",
        f"tools    {'' if f.tools else 'none'}".rstrip(),
    ]
    return lines + [f"  {line}" for schema in f.tools for line in tool_lines(schema)]


def _gold_text(gold: Episode) -> str:
    if gold.outcome.kind == "failed":
        return f"cannot be played: {gold.outcome.detail}"
    return "; ".join(reward_text(t.reward) for t in gold.trajectories)


def sandbox_text(sandbox: dict[str, Any]) -> str:
    """The backend, and what differs from a sandbox that nobody asked anything of."""
    usual = dataclasses.asdict(SandboxSpec())
    asked = [f"{k} {v}" for k, v in sandbox.items() if k not in ("backend", "files") and v != usual[k]]
    files = f"{len(sandbox['files'])} files" if sandbox["files"] else ""
    return ", ".join(filter(None, (sandbox["backend"], *asked, files)))


def _plain(f: EnvFacts) -> dict[str, Any]:
    return {field.name: getattr(f, field.name) for field in dataclasses.fields(f)}


def _plain_gold(gold: Episode) -> dict[str, Any]:
    rewards = [dataclasses.asdict(t.reward) | {"agent": t.agent} for t in gold.trajectories]
    return {"task_id": gold.task_id, "status": gold.status, "detail": gold.outcome.detail, "rewards": rewards}


def _has(f: EnvFacts, words: Sequence[str]) -> bool:
    tools = [f"{s['function']['name']} {s['function']['description']}" for s in f.tools]
    text = "\n".join([f.id, f.entry_point, f.doc, f.package or "", *tools]).lower()
    return all(word.lower() in text for word in words)
