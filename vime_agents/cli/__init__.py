"""The command line. Each command is a function (argv) -> exit code, imported when it is asked for."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO, TypeGuard

from vime_agents import _checkout, registry
from vime_agents.errors import (
    ConfigError,
    MissingDependencyError,
    UnknownIdError,
    VimeAgentsError,
    did_you_mean,
)

OK, FAILED, USAGE, TOO_MANY_ERRORS, BUDGET_SPENT, INTERRUPTED, UNREAD = 0, 1, 2, 3, 4, 130, 141

EXIT_CODES = {
    OK: "done",
    FAILED: "it failed; eval: the mean reward is below --fail-under",
    USAGE: "wrong usage: a flag, a file or an environment that cannot be meant",
    TOO_MANY_ERRORS: "eval, rescore: more than --max-error-rate of the episodes failed for reasons of "
    "infrastructure",
    BUDGET_SPENT: "eval: the budget was spent before all was played",
    INTERRUPTED: "interrupted (Ctrl-C)",
    UNREAD: "nobody reads the output any more (| head)",
}
"""Of every command; of several that apply to an evaluation, 3 comes before 4, and 4 before 1."""

COMMANDS = {
    "train": ("vime_agents.cli.train:run", "train a model on an environment"),
    "eval": ("vime_agents.cli.evaluate:run", "measure a model on an environment"),
    "compare": ("vime_agents.cli.compare:run", "tell two evaluations apart, task by task"),
    "rescore": ("vime_agents.cli.rescore:run", "score an evaluation again after a grader was mended"),
    "view": ("vime_agents.cli.view:run", "look at stored episodes, at the terminal or as HTML"),
    "export": ("vime_agents.cli.export:run", "write stored episodes as JSON Lines, Parquet or ATIF"),
    "check": ("vime_agents.cli.check:run", "find the faults of an environment, without a model"),
    "init": ("vime_agents.cli.init:run", "write a new environment in a package of its own"),
    "play": ("vime_agents.cli.play:run", "play an environment yourself, or watch a model play it"),
    "envs": ("vime_agents.cli.envs:run", "list, search or show the environments"),
    "sandboxes": ("vime_agents.cli.sandboxes:run", "list, reap, test or enter sandboxes"),
}

HELP = f"""usage: vime-agents COMMAND [arguments] [--debug]

Agent environments and a trainer for LLM agents.

commands:
{chr(10).join(f"  {name:<11}{text}" for name, (_, text) in COMMANDS.items())}

  vime-agents COMMAND --help   the flags of a command
  --debug                      show the traceback of an error
  --version                    print the version

exit codes:
{chr(10).join(f"  {code:<5}{text}" for code, text in EXIT_CODES.items())}
"""

# Import name -> extra that installs it.
_EXTRAS = {
    "torch": "train",
    "ray": "train",
    "megatron": "train",
    "safetensors": "train",
    "matplotlib": "train",
    "transformers": "tokens",
    "jinja2": "tokens",
    "renderers": "tokens",
    "gguf": "model",
    "accelerate": "model",
    "vllm": "vllm",
    "docker": "docker",
    "e2b": "e2b",
    "mcp": "mcp",
    "starlette": "serve-e2b",
    "uvicorn": "serve-e2b",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            print(end="", flush=True)  # at the interpreter's end nobody could catch what this raises
    except (BrokenPipeError, BaseExceptionGroup) as error:
        pipes = error if isinstance(error, BrokenPipeError) else error.subgroup(BrokenPipeError)
        unread = [stream for stream in (sys.stdout, sys.stderr) if _is_unread(stream)]
        if pipes is None or not unread:  # the pipe of something else
            raise
        for stream in unread:  # what Python still holds for it has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return UNREAD


def _is_unread(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Whether it is a pipe whose reader is gone."""
    if stream is None:  # as Python makes it of one that was closed: `>&-`
        return False
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except OSError:  # not a file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _main(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return OK if arguments else USAGE
    if arguments[0] == "--version":
        import vime_agents

        print(vime_agents.__version__)
        return OK
    _checkout.add_root_folders()
    try:
        return _run(arguments[0], arguments[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except VimeAgentsError as error:
        if debug:
            traceback.print_exc()
        print(f"vime-agents: {error}", file=sys.stderr)
        return USAGE if isinstance(error, (ConfigError, UnknownIdError)) else FAILED


def _run(command: str, arguments: list[str]) -> int:
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        raise ConfigError(f"unknown command {command!r}.{hint} Commands: {', '.join(COMMANDS)}.")
    run = registry.load_object(COMMANDS[command][0], f"command {command!r}")
    try:
        return run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingDependencyError(package, _EXTRAS[package], f"vime-agents {command}") from error
