"""Episodes in new processes with different PYTHONHASHSEED, and what importing the env does there.

`python -m vime_agents.checking.fresh RESULT` reads what to play from stdin and writes JSON to the file
RESULT: what is printed is the author's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vime_agents import registry
from vime_agents.checking import kit
from vime_agents.checking.drive import comparable
from vime_agents.checking.games.session import open_session
from vime_agents.checking.scale import Scale


async def run_fresh(session: kit.Session) -> list[dict[str, Any]]:
    """What two new processes saw; once for all checks that ask.

    Raises:
        CannotRun: a process failed.
    """
    if session.fresh is None:
        session.fresh = await asyncio.gather(*(_run(session, hash_seed) for hash_seed in ("1", "2")))
    return session.fresh


async def _run(session: kit.Session, hash_seed: str) -> dict[str, Any]:
    request = {"env": session.path, "split": session.split, "scale": asdict(session.scale)}
    limit_s = session.scale.fresh_s
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "vime_agents.checking.fresh",
            str(result),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        try:
            async with asyncio.timeout(limit_s):
                _, stderr = await process.communicate(json.dumps(request).encode())
        except TimeoutError as error:
            raise kit.CannotRun(f"a new process did not end within {limit_s:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0 or not result.exists():
            last = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise kit.CannotRun(f"a new process ended with status {process.returncode}: {last}"[:400])
        return json.loads(result.read_text(encoding="utf-8"))


def main() -> None:
    """Play in this process."""
    request = json.loads(sys.stdin.buffer.read())
    imported = _import(request["env"])
    episodes = asyncio.run(_play(request))
    # ASCII: what an env says may hold lone surrogates.
    Path(sys.argv[1]).write_text(json.dumps({"import": imported, "episodes": episodes}), encoding="ascii")


def _import(path: str) -> dict[str, Any]:
    before = _globals()
    with tempfile.TemporaryFile() as printed:
        streams = [os.dup(1), os.dup(2)]
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        started, had_waited_s = time.perf_counter(), waited_for_processor_s()
        try:
            registry.env_class(path)
        finally:
            waited_s = waited_for_processor_s() - had_waited_s
            seconds = time.perf_counter() - started - waited_s
            sys.stdout.flush()
            for target, stream in enumerate(streams, start=1):
                os.dup2(stream, target)
                os.close(stream)
        printed.seek(0)
        text = printed.read(1000).decode("utf-8", "replace")
    after = _globals()
    return {
        "seconds": seconds,
        "printed": text,
        "changed": [name for name in before if before[name] != after[name]],
    }


def waited_for_processor_s() -> float:
    """How long this thread could have run and others did, since it began; 0 where the system keeps no count.

    What an import takes must not depend on what else the machine does.
    """
    try:
        counts = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:  # not Linux, or a kernel without it
        return 0.0
    return int(counts[1]) / 1e9


def _globals() -> dict[str, Any]:
    root = logging.getLogger()
    return {
        "the root logger": (root.level, len(root.handlers)),
        "the running threads": threading.active_count(),
        "the working folder": os.getcwd(),
        "the state of random": random.getstate(),
        "the state of numpy.random": repr(comparable(np.random.get_state())),
    }


async def _play(request: dict[str, Any]) -> list[Any]:
    scale = Scale(**request["scale"])
    session = open_session(request["env"], split=request["split"], scale=scale)
    try:
        return [
            {
                "policy": label,
                "seed": seed,
                "trace": comparable(await session.play(policy, seed=seed, task=None)),
            }
            for label, policy in session.policies().items()
            for seed in range(scale.num_seeds)
        ]
    finally:
        await session.sandboxes.aclose()


if __name__ == "__main__":
    main()
