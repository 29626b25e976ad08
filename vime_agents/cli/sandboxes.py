"""`vime-agents sandboxes`: what there is, what was left behind, what works here, and a shell inside."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from vime_agents import registry
from vime_agents.cli.sandboxes_flags import BACKEND_HELP, SPEC_HELP, Parser, backend_of, spec_of
from vime_agents.errors import ConfigError, MissingDependencyError, did_you_mean

# Strings: the core does not import its plug-ins.
SURVEY = "vime_sandboxes.reaper:survey"
REAP = "vime_sandboxes.reaper:reap"
OWNER_PID = "vime_sandboxes.ownership:owner_pid"
MANAGED = "vime_sandboxes.managed:ManagedProvider"
SERVE = "vime_sandboxes.e2b_server.serve:serve"

COMMANDS = {
    "list": ("vime_agents.cli.sandboxes:list_sandboxes", "the sandboxes that exist, of any owner"),
    "reap": ("vime_agents.cli.sandboxes:reap", "end those that a dead owner left"),
    "doctor": (
        "vime_agents.cli.sandboxes_doctor:run",
        "which backends work here, and whether their walls hold",
    ),
    "shell": ("vime_agents.cli.sandboxes_shell:run", "a shell in a new sandbox"),
    "serve-e2b": (
        "vime_agents.cli.sandboxes:serve_e2b",
        "run code written for E2B on this machine's sandboxes",
    ),
}

HELP = f"""usage: vime-agents sandboxes COMMAND [arguments]

Where code that agents wrote is run.

commands:
{chr(10).join(f"  {name:<11}{text}" for name, (_, text) in COMMANDS.items())}

  vime-agents sandboxes COMMAND --help   the flags of a command
"""


def run(argv: Sequence[str]) -> int:
    """Run one of the commands."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        hint = did_you_mean(argv[0], COMMANDS)
        raise ConfigError(f"unknown command 'sandboxes {argv[0]}'.{hint} Commands: {', '.join(COMMANDS)}.")
    return registry.load_object(COMMANDS[argv[0]][0], "command")(argv[1:])


def list_sandboxes(argv: Sequence[str]) -> int:
    """Print a table, or JSON."""
    parser = Parser(
        "list",
        "The sandboxes that vime-agents made, of any owner that can be seen from here.",
        usage="[--backend BACKEND] [--json]",
        epilog="OWNER is the process that made it: alive, dead, or on another host. EXPIRES is when it ends\n"
        "by itself, as far as the backend tells. A backend that cannot be asked is named on standard error.",
    )
    _add_backend_and_json(parser)
    flags = parser.parse(argv)
    backends = _backends(flags.backend)
    survey = asyncio.run(registry.load_object(SURVEY)(backends))
    if flags.json:
        print(json.dumps({"sandboxes": [_plain(f) for f in survey.found], "unavailable": survey.unavailable}))
    else:
        print(_table(survey.found))
        _warn(survey)
    return 1 if backends and survey.unavailable else 0


def reap(argv: Sequence[str]) -> int:
    """End what dead owners left, and say what and why."""
    parser = Parser(
        "reap",
        "End the sandboxes that nobody will end: their owner is dead, or their time is up and their owner\n"
        "is not on this host. A living owner's sandbox is never touched.",
        usage="[--dry-run] [--backend BACKEND] [--json]",
        epilog="Exit code 1 when one could not be ended, or the asked backend could not be asked.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be ended")
    _add_backend_and_json(parser)
    flags = parser.parse(argv)
    backends = _backends(flags.backend)
    report = asyncio.run(registry.load_object(REAP)(backends=backends, dry_run=flags.dry_run))
    if flags.json:
        found = {
            "dry_run": flags.dry_run,
            "removed": [_plain(f) for f in report.removed],
            "failed": [{**_plain(f), "error": problem} for f, problem in report.failed],
            "kept": [_plain(f) for f in report.kept],
            "unavailable": report.unavailable,
        }
        print(json.dumps(found))
    else:
        verb = "would end" if flags.dry_run else "ended"
        for found in report.removed:
            print(f"{verb} {found.info.id} ({found.info.backend}): {found.reason}")
        for found, problem in report.failed:
            print(f"could not end {found.info.id} ({found.info.backend}): {problem}", file=sys.stderr)
        print(f"{verb} {len(report.removed)}, failed {len(report.failed)}, kept {len(report.kept)}")
        _warn(report)
    return 1 if report.failed or (backends and report.unavailable) else 0


def serve_e2b(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = Parser(
        "serve-e2b",
        "Speak E2B's protocol, on sandboxes of this machine: code written for E2B runs with no cloud.\n"
        "The three variables that point E2B's client here are printed at the start.",
        usage="[--host HOST] [--port PORT] [--api-key KEY] [--backend BACKEND] [--max-sandboxes N]",
        epilog="Runs until Ctrl-C or SIGTERM, then ends every sandbox. There is no encryption: whoever\n"
        "reaches the address and has the key can run programs here.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=3000, help="0: any free one (default: %(default)s)")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="what clients must send; other users of this machine can see it in the\n"
        "list of processes (default: a random one, printed at the start)",
    )
    parser.add_argument("--backend", default="local", help=f"{SPEC_HELP} (default: %(default)s)")
    parser.add_argument(
        "--max-sandboxes", type=int, default=64, metavar="N", help="more are refused (default: %(default)s)"
    )
    flags = parser.parse(argv)
    spec = spec_of(flags.backend, envs=False)
    if not 0 <= flags.port < 1 << 16:
        raise ConfigError(f"--port: must be 0 to 65535, got {flags.port}")
    if flags.max_sandboxes < 1:
        raise ConfigError(f"--max-sandboxes: must be at least 1, got {flags.max_sandboxes}")
    try:
        serve = registry.load_object(SERVE)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise MissingDependencyError(package, "serve-e2b", "vime-agents sandboxes serve-e2b") from error
    serve(
        registry.load_object(MANAGED)(registry.sandbox_provider(spec.backend), run="serve-e2b"),
        host=flags.host,
        port=flags.port,
        api_key=flags.api_key,
        templates=None if spec.image is None else {"base": spec},
        max_sandboxes=flags.max_sandboxes,
        announce=lambda text: print(text, flush=True),
    )
    return 0


def _add_backend_and_json(parser: Parser) -> None:
    parser.add_argument("--backend", help=BACKEND_HELP)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")


def _backends(given: str | None) -> list[str] | None:
    return None if given is None else [backend_of(given)]


def _warn(seen: Any) -> None:
    for backend, why in seen.unavailable.items():
        print(f"{backend} cannot be asked: {why}", file=sys.stderr)
    for path, why in seen.damaged.items():
        print(f"damaged file of the ledger: {path}: {why}", file=sys.stderr)


def _plain(found: Any) -> dict[str, Any]:
    """For JSON; times in Unix seconds."""
    info = found.info
    return {
        "id": info.id,
        "backend": info.backend,
        "state": info.state,
        "owner_pid": _owner_pid(found),
        "owner_alive": found.owner_alive,
        "run": info.labels.get("vime.run"),
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "labels": dict(info.labels),
        "reason": found.reason,
    }


def _owner_pid(found: Any) -> int | None:
    return registry.load_object(OWNER_PID)(found.info.labels.get("vime.owner", ""))


def _table(found: Sequence[Any]) -> str:
    if not found:
        return "no sandboxes"
    now = time.time()
    rows = [("ID", "BACKEND", "STATE", "OWNER", "RUN", "AGE", "EXPIRES")]
    for f in sorted(found, key=lambda f: (f.info.backend, f.info.created_at or 0.0)):
        info, pid = f.info, _owner_pid(f)
        life = {True: "alive", False: "dead", None: "other host" if pid is not None else "unknown"}
        owner = life[f.owner_alive] if pid is None else f"{pid} {life[f.owner_alive]}"
        age = "-" if info.created_at is None else _span(now - info.created_at)
        left = "-" if info.expires_at is None else _span(info.expires_at - now)
        rows.append((info.id, info.backend, info.state, owner, info.labels.get("vime.run") or "-", age, left))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _span(seconds: float) -> str:
    """A length of time for a person: 12s, 3m 20s, 5h 10m."""
    whole = int(abs(seconds))
    sign = "-" if seconds < 0 and whole else ""
    if whole < 60:
        return f"{sign}{whole}s"
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60}s"
    return f"{sign}{whole // 3600}h {whole % 3600 // 60}m"
