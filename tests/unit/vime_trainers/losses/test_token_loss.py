import math

import numpy as np
import pytest
import torch

from vime_agents.errors import ContractError
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.histogram import NUM_BINS
from vime_trainers.losses.metrics import metrics_of
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.token_loss import SUMS, TokenInputs, token_loss

LOG_PROBS = [-0.9, -0.5, -1.6]
ROLLOUT = [-1.2, -1.5, -1.5]
ADVANTAGES = [1.0, -2.0, 0.5]
WEIGHTS = [0.5, 0.25, 0.25]
ENTROPY = [1.0, 2.0, 3.0]


def as_tensor(values):
    return torch.as_tensor(values, dtype=torch.float64)


def run(config: LossConfig, **known):
    """The loss, its gradient and sums by name; `known` replaces or adds fields."""
    log_probs = as_tensor(known.pop("log_probs", LOG_PROBS)).requires_grad_()
    fields = {
        "entropy": ENTROPY,
        "rollout_log_probs": ROLLOUT,
        "advantages": ADVANTAGES,
        "weights": WEIGHTS,
    }
    rows = known.pop("rows", None)
    tensors = {name: as_tensor(values) for name, values in (fields | known).items()}
    result = token_loss(config, TokenInputs(log_probs=log_probs, rows=rows, **tensors))
    (gradient,) = torch.autograd.grad(result.loss, log_probs)
    return result, gradient.tolist(), dict(zip(SUMS, result.sums.tolist(), strict=True))


def two_rows(*index: int) -> Rows:
    return Rows(torch.tensor(index), 2)


@pytest.mark.parametrize("pg_loss_type", ["ppo", "reinforce", "gspo", "cispo"])
def test_on_policy_gradient_of_every_loss_is_minus_weight_times_advantage(pg_loss_type):
    """Bit for bit: with one update a batch the ratio is 1, so none of them may differ."""
    _, gradient, _ = run(LossConfig(pg_loss_type=pg_loss_type))
    assert gradient == [-0.5, 0.5, -0.125]


def test_tis_multiplies_each_token_by_its_truncated_ratio():
    _, gradient, sums = run(LossConfig(tis_clip=2.0))
    ratios = [math.exp(0.3), 2.0, math.exp(-0.1)]
    expected = [-w * a * r for w, a, r in zip(WEIGHTS, ADVANTAGES, ratios, strict=True)]
    assert gradient == pytest.approx(expected)
    assert sums["tis_clipped"] == 1
    assert sums["is_weight"] == pytest.approx(sum(ratios))
    assert sums["is_weight_squared"] == pytest.approx(sum(r * r for r in ratios))


def test_bypass_takes_the_ratio_against_the_rollout():
    _, gradient, sums = run(LossConfig(old_logprobs="rollout", eps_clip=0.2, eps_clip_high=0.28))
    # Token 0: exp(0.3) = 1.35 > 1.28 at A > 0 is clipped; token 1: A < 0, not clipped; token 2: inside.
    expected = [0.0, 0.25 * 2 * math.exp(1.0), -0.25 * 0.5 * math.exp(-0.1)]
    assert gradient == pytest.approx(expected)
    assert sums["clipped"] == 1
    assert sums["ratio"] == pytest.approx(math.exp(0.3) + math.exp(1.0) + math.exp(-0.1))


def test_entropy_and_kl_terms_use_the_same_weights():
    """Plan 46."""
    plain, _, _ = run(LossConfig())
    full, gradient, _ = run(LossConfig(entropy_coef=0.1, kl_loss_coef=0.2, kl_loss_type="k2"))
    d = [a - b for a, b in zip(LOG_PROBS, ROLLOUT, strict=True)]
    extra = sum(w * (0.2 * x * x / 2 - 0.1 * h) for w, x, h in zip(WEIGHTS, d, ENTROPY, strict=True))
    assert (full.loss - plain.loss).item() == pytest.approx(extra)
    expected = [w * (0.2 * x - a) for w, x, a in zip(WEIGHTS, d, ADVANTAGES, strict=True)]
    assert gradient == pytest.approx(expected)


def test_reported_sums():
    result, _, sums = run(LossConfig())
    d = [0.3, 1.0, -0.1]
    assert sums["count"] == 3
    assert sums["entropy"] == pytest.approx(6.0)
    assert sums["abs_diff"] == pytest.approx(1.4)
    assert result.max_abs_diff.item() == pytest.approx(1.0)
    assert sums["kl_k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in d))
    assert sums["loss"] == sums["pg_loss"] == pytest.approx(result.loss.item())


def test_the_sequence_weight_is_the_product_over_the_row():
    _, gradient, _ = run(LossConfig(tis_clip=10.0, tis_level="sequence"), rows=two_rows(0, 0, 1))
    products = [math.exp(1.3), math.exp(1.3), math.exp(-0.1)]
    expected = [-w * a * p for w, a, p in zip(WEIGHTS, ADVANTAGES, products, strict=True)]
    assert gradient == pytest.approx(expected)


@pytest.mark.parametrize(
    ("level", "index", "expected"),
    [
        # exp(0.3), exp(1), exp(-0.1) inside [0.5, 2]: the second is not.
        ("token", (0, 0, 1), [math.exp(0.3), 0.0, math.exp(-0.1)]),
        # Products exp(0.3) and exp(0.9): the second row is out.
        ("sequence", (0, 1, 1), [math.exp(0.3), 0.0, 0.0]),
    ],
)
def test_masking_instead_of_truncating_takes_the_gradient_outside_the_bounds(level, index, expected):
    config = LossConfig(tis_clip=2.0, tis_clip_low=0.5, tis_mode="mask", tis_level=level)
    _, gradient, sums = run(config, rows=two_rows(*index))
    assert gradient == pytest.approx(
        [-w * a * x for w, a, x in zip(WEIGHTS, ADVANTAGES, expected, strict=True)]
    )
    assert sums["tis_clipped"] == expected.count(0.0)


def test_a_rejected_row_leaves_every_term_of_the_loss_and_keeps_its_share_of_the_denominator():
    """Geometric means exp(0.3) and exp(0.45): the second row is out; the first one's weight does not grow."""
    config = LossConfig(rs_upper_bound=1.4, entropy_coef=0.1, kl_loss_coef=0.2)
    result, gradient, sums = run(config, rows=two_rows(0, 1, 1))
    _, kept_gradient, _ = run(LossConfig(entropy_coef=0.1, kl_loss_coef=0.2))
    assert gradient == pytest.approx([kept_gradient[0], 0.0, 0.0])
    alone = WEIGHTS[0] * (-ADVANTAGES[0] - 0.1 * ENTROPY[0] + 0.2 * 0.3**2 / 2)
    assert result.loss.item() == pytest.approx(alone)
    # The share of rejected tokens is over all of them, or it would always read 0.
    assert (sums["rejected"], sums["count"]) == (2, 3)


def test_rejection_keeps_the_original_denominator():
    """Plan 25: Losses 1, 2, 3, 4 with the second one rejected: 8 / 4, not 8 / 3."""
    log_probs = [-1.0, -2.0, -3.0, -4.0]
    result, _, _ = run(
        LossConfig(pg_loss_type="reinforce", rs_veto_threshold=1e-4),
        log_probs=log_probs,
        rollout_log_probs=[-1.0, -2.0 + 10, -3.0, -4.0],
        advantages=[1.0] * 4,
        weights=[0.25] * 4,
        entropy=[0.0] * 4,
        rows=Rows(torch.arange(4), 4),
    )
    assert result.loss.item() == pytest.approx(2.0)


def test_one_impossible_token_vetoes_its_row_alone():
    config = LossConfig(rs_veto_threshold=1e-3)
    _, gradient, sums = run(config, rollout_log_probs=[-1.2, 6.5, -1.5], rows=two_rows(0, 1, 0))
    assert gradient == pytest.approx([-0.5, 0.0, -0.125])
    assert sums["rejected"] == 1


def test_kl_in_the_reward_moves_the_advantage_and_not_the_rest():
    _, gradient, _ = run(LossConfig(kl_coef=0.5))
    d = [0.3, 1.0, -0.1]
    expected = [-w * (a - 0.5 * x) for w, a, x in zip(WEIGHTS, ADVANTAGES, d, strict=True)]
    assert gradient == pytest.approx(expected)


def test_the_reference_of_the_samples_is_held_on_to_when_asked_for():
    config = LossConfig(kl_loss_coef=0.2, kl_reference="sample")
    _, gradient, _ = run(config, reference_log_probs=[-1.9, -0.5, -1.6])
    assert gradient == pytest.approx([0.5 * (0.2 * 1.0 - 1.0), 0.5, -0.125])


def test_another_teacher_is_another_gradient():
    """Plan 35: What a mean log-ratio in the loss would not give: its gradient has no teacher in it."""
    config = LossConfig(opd_kl_coef=0.5)
    _, first, _ = run(config, teacher_log_probs=[-1.5, -1.0, -0.5], advantages=[0.0] * 3)
    _, second, _ = run(config, teacher_log_probs=[-1.5, -2.0, -0.5], advantages=[0.0] * 3)
    gaps = [0.6, 0.5, -1.1]  # log-probs minus the first teacher's
    assert first == pytest.approx([w * 0.5 * g for w, g in zip(WEIGHTS, gaps, strict=True)])
    assert second[1] == pytest.approx(0.25 * 0.5 * 1.5)
    assert (second[0], second[2]) == (first[0], first[2])


def test_the_divergence_from_a_teachers_top_tokens_replaces_that_of_the_sampled_one():
    """0.5 ln(5/7) + 0.5 ln(5/3), 0.8 ln(4/3) + 0.2 ln(1/2), and 0 where both agree."""
    student, teacher = [[0.5, 0.5], [0.8, 0.2], [0.1, 0.9]], [[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]]
    top = {"top_log_probs": np.log(student), "teacher_top_log_probs": np.log(teacher)}
    config = LossConfig(opd_kl_coef=0.5, opd_top_k=1)
    plain, _, _ = run(LossConfig())
    result, gradient, sums = run(config, **top)
    divergences = [0.087177, 0.8 * math.log(4 / 3) + 0.2 * math.log(0.5), 0.0]
    extra = sum(w * 0.5 * x for w, x in zip(WEIGHTS, divergences, strict=True))
    assert (result.loss - plain.loss).item() == pytest.approx(extra, abs=1e-6)
    assert sums["pg_loss"] == pytest.approx(plain.loss.item())
    assert gradient == run(LossConfig())[1]  # the sampled token's log-prob has no part in it
    found = metrics_of(sums, 0.0, torch.zeros(NUM_BINS), config)
    assert found["kl_teacher"] == pytest.approx(sum(divergences) / 3, abs=1e-6)
    assert found["opd_top_mass"] == pytest.approx(1.4 / 3)
    assert found["opd_teacher_top_mass"] == pytest.approx(1.4 / 3)


def test_a_rejected_row_does_not_distil():
    top = {"top_log_probs": np.log([[0.5, 0.5]] * 3), "teacher_top_log_probs": np.log([[0.7, 0.3]] * 3)}
    settings = {"opd_kl_coef": 0.5, "opd_top_k": 1}
    result, _, _ = run(LossConfig(rs_upper_bound=1.4, **settings), rows=two_rows(0, 1, 1), **top)
    assert result.loss.item() == pytest.approx(WEIGHTS[0] * (-ADVANTAGES[0] + 0.5 * 0.087177), abs=1e-6)


def test_likelihood_takes_samples_that_nobody_sampled():
    result, gradient, _ = run(LossConfig(loss_type="sft_loss"), rollout_log_probs=[math.nan] * 3)
    assert gradient == [-0.5, -0.25, -0.25]
    assert result.loss.item() == pytest.approx(0.5 * 0.9 + 0.25 * 0.5 + 0.25 * 1.6)
    assert torch.isfinite(result.sums).all()


def test_mismatch_metrics_do_not_change_the_loss():
    """The same batch with and without a gap to the engine: only the metrics see it."""
    _, with_gap, sums = run(LossConfig())
    _, without, none = run(LossConfig(), rollout_log_probs=LOG_PROBS)
    assert with_gap == without
    assert (sums["abs_diff"], none["abs_diff"]) == (pytest.approx(1.4), 0)


def test_clamped_ratios_are_counted():
    _, gradient, sums = run(LossConfig(old_logprobs="rollout"), rollout_log_probs=[-51.0, -0.5, -1.6])
    assert sums["clamped"] == 1
    assert all(math.isfinite(x) for x in gradient)


def test_no_token_at_all_is_a_loss_of_zero_in_the_graph():
    empty = {name: [] for name in ("entropy", "rollout_log_probs", "advantages", "weights")}
    config = LossConfig(pg_loss_type="gspo", rs_lower_bound=0.9, tis_clip=2.0, tis_level="sequence")
    result, gradient, sums = run(
        config, log_probs=[], rows=Rows(torch.zeros(0, dtype=torch.int64), 3), **empty
    )
    assert result.loss.item() == 0
    assert gradient == []
    assert set(sums.values()) == {0.0}


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(entropy_coef=0.1, kl_loss_coef=0.2, tis_clip=1.5),
        LossConfig(pg_loss_type="gspo", old_logprobs="rollout", eps_clip=0.5, eps_clip_high=0.5),
        LossConfig(tis_clip=5.0, tis_level="sequence", rs_lower_bound=0.7, rs_upper_bound=1.6),
        LossConfig(pg_loss_type="cispo", old_logprobs="rollout", kl_coef=0.3),
    ],
)
def test_loss_and_gradient_do_not_depend_on_the_split_into_micro_batches_or_the_order(config):
    """Plan 41."""
    rng = np.random.default_rng(0)
    sizes = [3, 1, 4, 2]
    index = np.repeat(np.arange(4), sizes)
    columns = {
        "log_probs": -rng.uniform(0.2, 2, 10),
        "rollout_log_probs": -rng.uniform(0.2, 2, 10),
        "advantages": rng.normal(size=10),
        "weights": np.full(10, 0.1),
        "entropy": rng.uniform(0, 2, 10),
    }

    def total(parts):
        loss, gradient = 0.0, np.zeros(10)
        for part in parts:
            chosen = np.concatenate([np.flatnonzero(index == row) for row in part])
            number = {row: n for n, row in enumerate(part)}
            rows = Rows(torch.tensor([number[i] for i in index[chosen]]), len(part))
            result, slope, _ = run(config, rows=rows, **{n: c[chosen].tolist() for n, c in columns.items()})
            loss += result.loss.item()
            gradient[chosen] = slope
        return loss, gradient

    whole = total([[0, 1, 2, 3]])
    assert np.abs(whole[1]).sum() > 0
    for parts in ([[0], [1], [2], [3]], [[2, 0], [3, 1]], [[3, 1, 0], [2]]):
        found = total(parts)
        assert found[0] == pytest.approx(whole[0], abs=1e-12)
        np.testing.assert_allclose(found[1], whole[1], atol=1e-12)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (LossConfig(old_logprobs="sample"), "old_log_probs"),
        (LossConfig(kl_coef=0.1, kl_reference="sample"), "reference_log_probs"),
        (LossConfig(opd_kl_coef=0.1), "teacher_log_probs"),
        (LossConfig(opd_kl_coef=0.1, opd_top_k=4), "top_log_probs"),
    ],
)
def test_what_a_loss_reads_and_is_not_there_is_named(config, told):
    with pytest.raises(ContractError, match=told):
        run(config)


def test_divergences_from_reference_and_teacher_are_summed_where_they_are_known():
    """-0.9 + 1.9, -0.5 - -0.5, -1.6 + 2.1 of the reference; of the teacher the second alone: -0.5 + 1.25."""
    _, gradient, sums = run(
        LossConfig(),
        reference_log_probs=[-1.9, -0.5, -2.1],
        teacher_log_probs=[math.nan, -1.25, math.nan],
    )
    assert sums["kl_reference"] == pytest.approx(1.5)
    assert sums["kl_teacher"] == pytest.approx(0.75)
    assert gradient == run(LossConfig())[1]
    config = LossConfig(kl_coef=0.1, kl_reference="sample")
    found = metrics_of(sums, 0.0, torch.zeros(NUM_BINS), config)
    assert found["kl_reference"] == pytest.approx(0.5)
    assert "kl_teacher" not in found
    assert "kl_reference" not in metrics_of(sums, 0.0, torch.zeros(NUM_BINS), LossConfig())
