"""Speed and memory of a whole training step on ragged multi-turn rows, against transformers and TRL.

`OMP_NUM_THREADS=1 make bench-trainer BENCH_FLAGS="--rows N --repeats N --turns 10 20 50"`

All arms hold the same weights (SmolLM2-135M, float32), see the same rows and make whole steps: forward,
backward, clipping, AdamW (at a rate of 0, so that every step meets the same weights). Each is a process of
its own; they take turns, so that other load meets all alike, and what is compared is the median of the ratios
of neighbours. On one thread seconds of the processor are compared, which other load changes little. Gradient
norms must agree, or the benchmark ends with an error.

- Megatron, packed: `MegatronTrainer`
- transformers, padded: micro-batches of `--rows-per-micro-batch` rows as they come, padded to their longest;
  logits of every position
- with `--careful` also transformers, sorted: the same with rows sorted by length first, and by row: one row
  at a time, which needs no padding: what can be had without packing. They are not part of the target
- TRL: `GRPOTrainer.training_step` of a version that is installed beside the cached models; the whole batch is
  padded to its longest row, as its trainer does

Then one conversation of many turns as one row, against one row for each turn, in Megatron alone. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.measure import machine
from benchmarks.trainer_arms.rows import ragged_lengths
from benchmarks.trainer_arms.trl_venv import ROOT, arm_environment, trl_python
from vime_trainers.batching.cost import read_row_cost
from vime_trainers.batching.plan import plan
from vime_trainers.batching.rows import rows_of_tokens
from vime_trainers.models.smollm2 import ensure_smollm2

OURS = "Megatron, packed"
PEERS = ("transformers, padded", "TRL GRPO")
CAREFUL = ("transformers, sorted", "transformers, by row")
TARGET_SPEED, TARGET_FILL, TARGET_IMBALANCE = 1.5, 0.95, 1.05
LONGEST_PLANNED, NUM_RANKS = 2048, 8


class Arm:
    """A trainer's process."""

    def __init__(self, python: str, kind: str, settings: Mapping[str, Any]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the arm
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.trainer_arms.step_arm", kind, json.dumps(settings)],
            cwd=ROOT,
            env=arm_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def step(self, request: Mapping[str, Any]) -> dict[str, float]:
        """One training step; see `step_arm`."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps(request) + "\n")
        asked.flush()
        line = answers.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"an arm ended: {self._log.read()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


def main() -> None:
    """Measure, print targets beside results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2-135M)")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--log-length", type=float, default=4.0, help="mean of log(tokens)")
    parser.add_argument("--longest", type=int, default=256, help="tokens of the longest row")
    parser.add_argument("--rows-per-micro-batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--careful", action="store_true", help="two more arms, that avoid padding")
    parser.add_argument("--turns", type=int, nargs="*", default=[10, 20, 50])
    options = parser.parse_args()
    if options.rows % options.rows_per_micro_batch:
        parser.error("--rows must be a multiple of --rows-per-micro-batch")
    model = options.model or str(ensure_smollm2())
    lengths = ragged_lengths(options.rows, mu=options.log_length, sigma=1.0, longest=options.longest)
    # No more tokens at a time than the largest padded micro-batch has.
    most = options.rows_per_micro_batch * max(lengths)
    shared = {"model": model, "lr": 0.0, "max_tokens": most, "num_rows": options.rows}
    batched = shared | {"rows_per_micro_batch": options.rows_per_micro_batch, "sort": False}
    kinds = {
        OURS: (sys.executable, "megatron", shared),
        PEERS[0]: (sys.executable, "transformers", batched),
        PEERS[1]: (str(trl_python()), "trl", batched),
    }
    careful = {
        CAREFUL[0]: (sys.executable, "transformers", batched | {"sort": True}),
        CAREFUL[1]: (sys.executable, "transformers", batched | {"rows_per_micro_batch": 1}),
    }
    kinds |= careful if options.careful else {}
    print(f"{options.rows} rows of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    speed = compare(kinds, {"lengths": lengths}, options.repeats)
    merged = compare_merged(kinds[OURS], options.turns, options.repeats) if options.turns else {}
    packing = plan_of_many_rows(model)
    print_plan(packing)
    line = {"benchmark": "trainer", "steps": speed, "merged": merged, "plan": packing, "machine": machine()}
    print(json.dumps(line))


def compare(
    kinds: Mapping[str, tuple[str, str, Mapping[str, Any]]], request: Mapping[str, Any], repeats: int
) -> dict[str, Any]:
    """Steps of all arms in turns: name -> medians, and ratios to ours."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        arms: dict[str, Arm] = {}
        for name, (python, kind, settings) in kinds.items():
            arms[name] = Arm(python, kind, settings)
            stack.callback(arms[name].close)
        # The first step of each warms it up, and shows that all start from the same weights.
        check_norms({name: [arm.step(request)] for name, arm in arms.items()})
        order = list(arms)
        for _ in range(repeats):
            for name in order:
                found[name].append(arms[name].step(request))
            order.reverse()
    results = {name: summary(steps, found[OURS]) for name, steps in found.items()}
    print(f"{'':<24}{'tokens/CPU-s':>14}{'peak MB':>10}{'computed':>10}{'ours is':>10}{'memory':>8}")
    for name, row in results.items():
        print(
            f"{name:<24}{row['tokens_per_s']:>14.1f}{row['peak_mb']:>10.0f}{row['computed']:>10.0f}"
            f"{row['ours_faster']:>9.2f}x{row['ours_memory']:>7.2f}x"
        )
    worst = min(results[name]["ours_faster"] for name in PEERS)
    memory = max(results[name]["ours_memory"] for name in PEERS)
    print(f"against the better of {' and '.join(PEERS)}: {worst:.2f}x (target: at least {TARGET_SPEED}x)")
    print(f"memory against the leaner of them: {memory:.2f}x (target: below 1x)")
    return results


def summary(steps: Sequence[Mapping[str, float]], ours: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians of an arm, and of the ratios of its steps to our neighbouring ones."""
    pairs = list(zip(steps, ours, strict=True))
    return {
        "tokens_per_s": statistics.median(s["tokens"] / s["cpu_s"] for s in steps),
        "peak_mb": statistics.median(s["peak_mb"] for s in steps),
        "computed": steps[0]["computed"],
        "grad_norm": steps[0]["grad_norm"],
        "ours_faster": statistics.median(s["cpu_s"] / o["cpu_s"] for s, o in pairs),
        "ours_faster_by_the_clock": statistics.median(s["seconds"] / o["seconds"] for s, o in pairs),
        "ours_memory": statistics.median(o["peak_mb"] / s["peak_mb"] for s, o in pairs),
    }


def check_norms(first: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """The arms must compute the same gradient."""
    norms = {name: steps[0]["grad_norm"] for name, steps in first.items()}
    if max(norms.values()) > 1.001 * min(norms.values()):
        raise SystemExit(f"the arms do not compute the same gradient: {norms}")


def compare_merged(
    kind: tuple[str, str, Mapping[str, Any]], turns: Sequence[int], repeats: int
) -> dict[str, dict[str, float]]:
    """A conversation as one row, against one row for each turn: tokens and seconds of the processor."""
    shape = {"prompt": 8, "turn": 4}
    python, name, settings = kind
    arm = Arm(python, name, settings)
    results = {}
    print("one row for each turn, against all turns in one row")
    print(f"{'turns':<8}{'tokens':>14}{'ratio':>8}{'CPU seconds':>16}{'ratio':>8}")
    try:
        for count in turns:
            rows = {by: shape | {"num_turns": count, "by_turn": by} for by in (False, True)}
            steps: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for repeat in range(repeats):
                for by in (bool(repeat % 2), not repeat % 2):
                    steps[by].append(arm.step(rows[by]))
            one, many = steps[False], steps[True]
            check_norms({"merged": one, "by turn": many})
            seconds = [statistics.median(s["cpu_s"] for s in part) for part in (one, many)]
            ratios = [m["cpu_s"] / o["cpu_s"] for o, m in zip(one, many, strict=True)]
            results[str(count)] = {
                "tokens": many[0]["tokens"] / one[0]["tokens"],
                "time": statistics.median(ratios),
            }
            print(
                f"{count:<8}{many[0]['tokens']:>7.0f}{one[0]['tokens']:>7.0f}"
                f"{results[str(count)]['tokens']:>8.1f}{seconds[1]:>8.2f}{seconds[0]:>8.2f}{results[str(count)]['time']:>8.1f}"
            )
    finally:
        arm.close()
    return results


def plan_of_many_rows(model: str) -> dict[str, float]:
    """Fill and balance of 512 rows over 8 ranks: counted, not timed."""
    lengths = ragged_lengths(512, mu=5.0, sigma=1.0, longest=LONGEST_PLANNED)
    rows = rows_of_tokens([np.zeros(n + 1, np.int32) for n in lengths])
    cost = read_row_cost(model)
    alone = plan(rows, max_tokens=LONGEST_PLANNED, cost=cost)
    spread = plan(rows, max_tokens=LONGEST_PLANNED, num_ranks=NUM_RANKS, cost=cost)
    in_turns = [sum(cost(n, n) for n in lengths[rank::NUM_RANKS]) for rank in range(NUM_RANKS)]
    return {
        "efficiency": alone.efficiency,
        "fill": sum(lengths) / (alone.num_micro_batches * LONGEST_PLANNED),
        "imbalance": spread.imbalance,
        "imbalance_in_turns": max(in_turns) / float(np.mean(in_turns)),
        "efficiency_padded": sum(lengths) / (len(lengths) * max(lengths)),
    }


def print_plan(found: Mapping[str, float]) -> None:
    """Targets beside results."""
    print(f"512 rows of up to {LONGEST_PLANNED} tokens: tokens of rows / tokens computed")
    print(f"  packed {found['efficiency']:.3f} (target: at least {TARGET_FILL}), ", end="")
    print(f"padded to the longest {found['efficiency_padded']:.3f}")
    print(f"  micro-batches of {LONGEST_PLANNED} are filled to {found['fill']:.3f} (target: {TARGET_FILL})")
    print(f"  costliest of {NUM_RANKS} ranks / mean {found['imbalance']:.4f} ", end="")
    print(f"(target: at most {TARGET_IMBALANCE}); rows dealt in turns {found['imbalance_in_turns']:.3f}")


if __name__ == "__main__":
    main()
