"""`import vime_agents` against `import gymnasium`, each in a fresh interpreter (target: at most 1.5 x)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.measure import interleaved, report


def _seconds(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started


def main(repeats: int = 15) -> None:
    """Measure and print."""
    arms = {
        "import gymnasium": lambda: _seconds("import gymnasium"),
        "import vime_agents": lambda: _seconds("import vime_agents"),
    }
    for arm in arms.values():
        arm()
    rows = interleaved(arms, repeats)
    ratio = statistics.median(rows["import vime_agents"]) / statistics.median(rows["import gymnasium"])
    report("import-time", rows, "s", {"ratio": ratio})


if __name__ == "__main__":
    main()
