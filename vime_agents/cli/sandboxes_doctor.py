"""`vime-agents sandboxes doctor`: which backends work here, and whether their walls hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vime_agents import registry
from vime_agents.cli.sandboxes_flags import SPEC_HELP, Parser, spec_of
from vime_agents.registry import SANDBOXES_GROUP
from vime_agents.sandbox import SandboxSpec

DIAGNOSE = "vime_sandboxes.doctor:diagnose"
"""A string: the core does not import its plug-ins."""

EPILOG = """\
Each backend that works is tried for real, with about twenty sandboxes: can the inside read the host's files,
see its processes, reach anything over the network; do the limits of memory, processes, file size and time
hold; does a fork bomb stay inside. Then come the times of 10 boots, commands and closings. Where a backend
says itself that it does not hold something, that is not tried. With E2B's cloud this costs what twenty short
sandboxes cost.

Exit code 0 when the asked backend, or without --backend the local one, works and everything holds; else 1.
"""


def run(argv: Sequence[str]) -> int:
    """Try the backends and say what was found."""
    parser = Parser(
        "doctor",
        "Which sandbox backends work on this machine, and whether their walls hold.",
        usage="[--backend BACKEND[:IMAGE]] [--json]",
        epilog=EPILOG,
    )
    parser.add_argument("--backend", help=f"{SPEC_HELP}; default: all")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    flags = parser.parse(argv)
    if flags.backend is None:
        names = sorted(registry.entry_points(SANDBOXES_GROUP), key=lambda name: (name != "local", name))
        specs, judged = [SandboxSpec(backend=name) for name in names], "local"
    else:
        specs = [spec_of(flags.backend, envs=False)]
        judged = specs[0].backend
    found = asyncio.run(_diagnose(specs, quiet=flags.json))
    ok = all(d.ok for d in found if d.backend == judged)
    if flags.json:
        print(json.dumps({"ok": ok, "backends": [{"ok": d.ok, **asdict(d)} for d in found]}))
    return 0 if ok else 1


async def _diagnose(specs: Sequence[SandboxSpec], *, quiet: bool) -> list[Any]:
    """One after the other: they would spoil each other's times."""
    found: list[Any] = []
    for spec in specs:
        diagnosis = await registry.load_object(DIAGNOSE)(spec)
        found.append(diagnosis)
        if not quiet:
            print(format_diagnosis(diagnosis), flush=True)
    return found


def format_diagnosis(diagnosis: Any) -> str:
    """One backend's part of the report."""
    if diagnosis.problem is not None:
        lines = [f"{diagnosis.backend}: does not work here", f"  {diagnosis.problem}"]
    elif diagnosis.ok:
        lines = [f"{diagnosis.backend}: works, and everything holds"]
    else:
        lines = [f"{diagnosis.backend}: works, but NOT everything holds"]
    for f in diagnosis.findings:
        lines.append(f"  {f.state:<9} {f.name:<15} {f.promise}")
        if f.detail:
            lines.append(f"            {'':<15} {f.detail}")
    if diagnosis.enforced:
        lines.append(f"  enforced  {', '.join(diagnosis.enforced)}")
    for name, t in diagnosis.latencies.items():
        lines.append(
            f"  {name:<9} p50 {t.p50_s * 1000:.1f} ms   p95 {t.p95_s * 1000:.1f} ms   ({t.rounds} times)"
        )
    return "\n".join(lines)
