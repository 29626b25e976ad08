"""Every layout of every family against transformers: `python -m tests.integration.megatron.parity`.

Prints a table: relative differences of the loss and the gradient norm, and the worst, over the tensors of
the model, of the gradients and of the weights after three optimizer steps. The other side is one process of
plain torch and transformers (eager attention, one row at a time, AdamW). float32; random models of two or
four layers. Each export is compared bit by bit with the checkpoint that was loaded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.integration.megatron import oracle
from tests.integration.megatron.ranks import run_script
from vime_trainers.losses.gradient_parts import part_of

NUM_UPDATES = 3
ONE = "one process"
TWO_STAGES = {"pipeline_model_parallel_size": 2}
SPLIT_EXPERTS: dict[str, Any] = {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
BALANCE: dict[str, Any] = {"moe_aux_loss_coeff": 0.5}
TENSOR: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}


@dataclass(frozen=True)
class Layout:
    """How a trainer is spread over processes."""

    num_ranks: int
    settings: Mapping[str, Any]
    num_layers: int = 2
    families: tuple[str, ...] = field(default=tuple(oracle.MODELS))
    in_table: bool = True


WITH_EXPERTS = ("qwen3_moe", "deepseek_v3")
DENSE = tuple(f for f in oracle.MODELS if f not in WITH_EXPERTS)
LAYOUTS = {
    ONE: Layout(1, {}),
    "one row per micro-batch": Layout(1, {"max_tokens_per_gpu": 40}),
    "recomputed": Layout(1, {"recompute_granularity": "full"}),
    "TP2": Layout(2, {"tensor_model_parallel_size": 2}, families=DENSE),
    "TP2, sequence parallel": Layout(2, TENSOR),
    "PP2": Layout(2, TWO_STAGES),
    "VPP: PP2 x 2 parts": Layout(2, {**TWO_STAGES, "num_layers_per_virtual_pipeline_stage": 1}, num_layers=4),
    "DP2": Layout(2, {}),
    "DP2, distributed optimizer": Layout(2, {"use_distributed_optimizer": True}),
    "CP2": Layout(2, {"context_parallel_size": 2}),
    "EP2": Layout(2, {"expert_model_parallel_size": 2}, families=WITH_EXPERTS),
    "EP2, distributed optimizer": Layout(
        2, {"expert_model_parallel_size": 2, "use_distributed_optimizer": True}, families=WITH_EXPERTS
    ),
    "TP2 x PP2": Layout(4, TENSOR | TWO_STAGES),
    "DP2 x PP2": Layout(4, TWO_STAGES),
    "DP2 x TP2": Layout(4, TENSOR),
    "EP2 x TP2": Layout(4, TENSOR | SPLIT_EXPERTS, families=WITH_EXPERTS),
    "balance loss": Layout(1, BALANCE, families=WITH_EXPERTS),
    "balance loss, one row per micro-batch": Layout(
        1, {**BALANCE, "max_tokens_per_gpu": 40}, families=WITH_EXPERTS
    ),
    "balance loss, recomputed, PP2": Layout(
        2, {**BALANCE, **TWO_STAGES, "recompute_granularity": "full"}, families=WITH_EXPERTS
    ),
    "balance loss, CP2": Layout(2, {**BALANCE, "context_parallel_size": 2}, families=WITH_EXPERTS),
    "balance loss, EP2 x TP2": Layout(4, BALANCE | TENSOR | SPLIT_EXPERTS, families=WITH_EXPERTS),
    "bf16": Layout(1, {"bf16": True}, in_table=False),
    "bf16, DP2": Layout(2, {"bf16": True}, in_table=False),
    "bf16, DP2, distributed optimizer": Layout(
        2, {"bf16": True, "use_distributed_optimizer": True}, in_table=False
    ),
    "EP2 x PP2": Layout(4, {**TWO_STAGES, "expert_model_parallel_size": 2}, families=WITH_EXPERTS),
}
GRID = (ONE, "TP2", "PP2", "DP2", "CP2", "DP2 x TP2", "DP2 x PP2")
"""Layouts whose gradients are taken with other micro-batches too: all rows in one, and one row in most."""
FIRST_STEP = (ONE, "DP2, distributed optimizer")
"""Layouts whose first optimizer step is looked at by itself."""


@dataclass(frozen=True)
class Case:
    """One layout of one family."""

    family: str
    layout: str

    @property
    def model(self) -> str:
        """Name of the folder of its model."""
        return f"{self.family}-{LAYOUTS[self.layout].num_layers}"


def all_cases(families: Iterable[str] = tuple(oracle.MODELS)) -> list[Case]:
    known = [(name, layout) for name, layout in LAYOUTS.items() if layout.in_table]
    return [Case(f, name) for f in families for name, layout in known if f in layout.families]


def run(cases: Iterable[Case], root: Path) -> dict[Case, dict[str, Any]]:
    """Train under each layout; the processes of a number of ranks are started once for all cases of it."""
    cases = list(cases)
    for case in cases:
        if not (root / case.model).exists():
            oracle.make_model(case.family, root / case.model, num_layers=LAYOUTS[case.layout].num_layers)
    for num_ranks in sorted({LAYOUTS[c.layout].num_ranks for c in cases}):
        jobs = [
            {
                "model": str(root / c.model),
                "settings": dict(LAYOUTS[c.layout].settings),
                "budgets": budgets(c.layout),
                "first_step": c.layout in FIRST_STEP,
                "output": str(root / f"{cases.index(c)}.pt"),
            }
            for c in cases
            if LAYOUTS[c.layout].num_ranks == num_ranks
        ]
        run_script(num_ranks, [str(Path(__file__).with_name("parity_rank.py")), json.dumps(jobs)], root)
    return {c: torch.load(root / f"{i}.pt", weights_only=False) for i, c in enumerate(cases)}


def budgets(layout: str) -> list[int]:
    """Other values of `max_tokens_per_gpu`: of the batch's rows, the longest alone fits into the last."""
    context_parallel = LAYOUTS[layout].settings.get("context_parallel_size", 1)
    return [4096, 32 // context_parallel] if layout in GRID else []


class References:
    """What transformers finds, worked out once for each model and loss."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[tuple[str, float], dict[str, Any]] = {}

    def of(self, case: Case) -> dict[str, Any]:
        key = case.model, LAYOUTS[case.layout].settings.get("moe_aux_loss_coeff", 0.0)
        if key not in self._known:
            self._known[key] = expected(case, self.root)
        return self._known[key]


def expected(case: Case, root: Path) -> dict[str, Any]:
    """What transformers and plain torch find for one process."""
    batch = oracle.make_batch(9)
    balance = LAYOUTS[case.layout].settings.get("moe_aux_loss_coeff", 0.0)
    model = oracle.load(root / case.model)
    value, gradients, norm = oracle.gradients(model, batch, balance)
    found = {"loss": value, "grad_norm": norm, "gradients": gradients} | norms_by_part(gradients)
    if balance:
        found["moe_balance_loss"] = oracle.balance_loss(model, batch).item()
    return found | {"weights": oracle.train(oracle.load(root / case.model), batch, NUM_UPDATES, balance)}


def norms_by_part(gradients: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The norm of the gradient of each part of a model."""
    squares: Counter[str] = Counter()
    for name, gradient in gradients.items():
        squares[part_of(name)] += gradient.double().square().sum().item()  # type: ignore[assignment]
    return {f"grad_norm/{part}": math.sqrt(value) for part, value in squares.items()}


def differences(found: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Worst relative difference of each metric, of each gradient and of each weight after training."""
    result = {n: abs(found[n] / other[n] - 1) for n in other if n not in ("gradients", "weights")}
    for name in ("gradients", "weights"):
        if name in found:
            result[name] = largest_relative_error(found[name], other[name])
    return result


def largest_relative_error(found: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Norm of the difference / norm, of the worst tensor; a tensor of zeros must be one of zeros."""
    names = set(other) - {n for n in other if n.endswith("e_score_correction_bias")}
    assert names <= found.keys(), sorted(names - found.keys())
    assert all(found[n].shape == other[n].shape for n in names)
    errors = [((found[n] - other[n]).norm() / other[n].norm().clamp(min=1e-30)).item() for n in names]
    return max(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=tuple(oracle.MODELS), help="only these")
    parser.add_argument("--layout", action="append", choices=tuple(LAYOUTS), help="only these")
    arguments = parser.parse_args()
    cases = all_cases(arguments.family or tuple(oracle.MODELS))
    if arguments.layout:
        cases = [c for c in cases if c.layout in arguments.layout]
    with tempfile.TemporaryDirectory() as folder:
        table(cases, Path(folder))


def table(cases: list[Case], root: Path) -> None:
    """Print it as Markdown."""
    found = run(cases, root)
    lines = ["| family | layout | loss | gradient norm | worst gradient | worst weight after 3 steps |"]
    lines.append("|---|---|---|---|---|---|")
    references = References(root)
    for case, result in found.items():
        cells = differences(result, references.of(case))
        numbers = [
            f"{cells[n]:.0e}" if n in cells else "-" for n in ("loss", "grad_norm", "gradients", "weights")
        ]
        assert result["round_trip"], f"{case}: export differs from the checkpoint"
        lines.append(f"| {case.family} | {case.layout} | {' | '.join(numbers)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
