"""Each layout and each family once, of what `python -m tests.integration.megatron.parity` compares in full.

Plan 44: gradients of the real schedules at every layout are those of one process, whatever
the micro-batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.megatron import oracle
from tests.integration.megatron.parity import (
    FIRST_STEP,
    GRID,
    LAYOUTS,
    Case,
    References,
    differences,
    run,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CASES = [
    Case("llama", "one process"),
    Case("deepseek_v3", "one row per micro-batch"),
    Case("qwen3_moe", "recomputed"),
    Case("qwen2", "TP2"),
    Case("deepseek_v3", "TP2, sequence parallel"),
    Case("llama", "PP2"),
    Case("qwen3_moe", "VPP: PP2 x 2 parts"),
    Case("qwen3", "DP2"),
    Case("deepseek_v3", "DP2, distributed optimizer"),
    Case("deepseek_v3", "CP2"),
    Case("qwen3_moe", "EP2"),
    Case("deepseek_v3", "EP2, distributed optimizer"),
    Case("deepseek_v3", "TP2 x PP2"),
    Case("llama", "DP2 x PP2"),
    Case("qwen2", "DP2 x TP2"),
    Case("qwen3_moe", "EP2 x TP2"),
    Case("deepseek_v3", "EP2 x PP2"),
    Case("qwen3_moe", "balance loss"),
    Case("deepseek_v3", "balance loss, one row per micro-batch"),
    Case("qwen3_moe", "balance loss, recomputed, PP2"),
    Case("deepseek_v3", "balance loss, CP2"),
    Case("qwen3_moe", "balance loss, EP2 x TP2"),
]
HALF = [Case("qwen3_moe", name) for name in LAYOUTS if name.startswith("bf16")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def found(root: Path) -> dict[Case, dict[str, Any]]:
    """Of every case; the ranks are started once for one, two and four processes."""
    return run([*CASES, *HALF], root)


@pytest.fixture(scope="module")
def references(root: Path) -> References:
    return References(root)


def test_every_layout_of_the_table_is_among_the_cases():
    assert {c.layout for c in CASES} == {name for name, layout in LAYOUTS.items() if layout.in_table}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.layout}")
def test_loss_gradients_and_trained_weights_are_those_of_transformers(found, references, case):
    """Plan 44, 74, 79: metrics too, and a step at a rate of 0 leaves every weight as it was."""
    assert found[case]["round_trip"], "the export differs from the checkpoint"
    assert found[case]["unmoved"]
    for name, difference in differences(found[case], references.of(case)).items():
        assert difference < 1e-5, name


@pytest.mark.parametrize("case", [c for c in CASES if c.layout in GRID], ids=lambda c: c.layout)
def test_gradients_do_not_depend_on_the_number_of_micro_batches(found, references, case):
    """Plan 44: one micro-batch, and nearly one for each row."""
    one, many = found[case]["splits"]
    assert one["num_micro_batches"] == 1
    assert many["num_micro_batches"] >= 3
    expected = {n: v for n, v in references.of(case).items() if n != "weights"}
    for split in (one, many):
        for name, difference in differences(split, expected).items():
            assert difference < 1e-5, name


@pytest.mark.parametrize("case", [c for c in CASES if c.layout in FIRST_STEP], ids=lambda c: c.layout)
def test_adams_first_step_is_the_learning_rate_against_the_gradients_sign(found, references, case):
    """Plan 57: whatever the gradient's size, so that only the gradients tell a loss that is scaled."""
    model, moved = oracle.load(references.root / case.model), 0
    before = oracle.checkpoint_names({n: p.detach() for n, p in model.named_parameters()})
    for name, gradient in references.of(case)["gradients"].items():
        clear = gradient.abs() > 1e-5  # the signs of smaller ones are those of rounding
        expected = before[name] - oracle.LR * gradient.sign()
        torch.testing.assert_close(found[case]["first_step"][name][clear], expected[clear], rtol=0, atol=1e-6)
        moved += int(clear.sum())
    assert moved > 10_000


def test_the_balance_loss_moves_the_router(references, found):
    """Without it the comparison above would say nothing."""
    balanced = references.of(Case("qwen3_moe", "balance loss"))["gradients"]
    plain = references.of(Case("qwen3_moe", "one process"))["gradients"]
    name = "model.layers.0.mlp.gate.weight"
    assert (balanced[name] - plain[name]).norm() > 0.1 * plain[name].norm()


@pytest.mark.parametrize("case", HALF[1:], ids=lambda c: c.layout)
def test_bfloat16_on_two_data_parallel_ranks_is_that_of_one(found, case):
    """Plan 44 in bfloat16: sums of gradients and master weights are float32."""
    alone, two = found[HALF[0]], found[case]
    assert two["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert two["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
    for name, value in alone["weights"].items():
        assert value.dtype == (torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16)
        torch.testing.assert_close(two["weights"][name], value, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("case", HALF, ids=lambda c: c.layout)
def test_steps_too_small_for_bfloat16_add_up_in_float32(found, case):
    """Without master weights, none of them would ever be seen."""
    before, after_one, after_all = found[case]["small_steps"]
    moved = total = 0
    for name, start in before.items():
        large = start.abs() > 0.5
        assert torch.equal(after_one[name][large], start[large])
        for sign in (-1, 1):
            rounded = start.clone()
            for _ in range(oracle.NUM_SMALL_STEPS):
                rounded += sign * oracle.SMALL_LR
            assert torch.equal(rounded[large], start[large])
        distance = (after_all[name].float() - start.float())[large].abs()
        moved += int((distance > oracle.NUM_SMALL_STEPS * oracle.SMALL_LR / 2).sum())
        total += int(large.sum())
    assert total > 200
    assert moved > 0.9 * total
