"""Starts the ranks of a test, and ends them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def run_ranks(
    num_ranks: int, worker: str, folders: Sequence[Path], output: Path, layouts: Mapping[str, Any]
) -> None:
    """Run `worker`, a file beside this one, with `folders`, `output` and `layouts` (JSON) as arguments."""
    arguments = [str(Path(__file__).with_name(worker)), *map(str, folders), str(output), json.dumps(layouts)]
    run_script(num_ranks, arguments, output)


def run_script(num_ranks: int, arguments: Sequence[str], logs: Path) -> None:
    """Run a Python script as that many ranks of one process group; fails with the ends of their logs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # Of this checkout, wherever the installed packages are.
    path = os.pathsep.join([str(ROOT), str(ROOT / "trainers"), os.environ.get("PYTHONPATH", "")])
    ranks = []
    for rank in range(num_ranks):
        env = os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        with (logs / f"rank-{rank}.log").open("w") as log:
            command = [sys.executable, *arguments]
            ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    try:
        # A rank that fails leaves the others waiting for it.
        while any(p.poll() is None for p in ranks) and not any(p.poll() for p in ranks):
            time.sleep(0.1)
        codes = [process.poll() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    texts = "\n".join((logs / f"rank-{r}.log").read_text()[-3000:] for r in range(num_ranks))
    assert codes == [0] * num_ranks, texts
