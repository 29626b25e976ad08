"""Golden values of advantages, losses and aggregation; `make golden` prints them.

Each case has the value as it was worked out beforehand, the same by plain numpy from the formula, and what
the library computes. The test asserts that all three agree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vime_agents.learning.advantages import (
    discounted_returns,
    dr_grpo,
    gae,
    grpo,
    maxrl,
    overlong_penalty,
    rloo,
    token_rewards,
    whiten,
)
from vime_agents.learning.aggregation import loss_weights
from vime_trainers.losses import corrections, kl
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.distillation import top_k_reverse_kl
from vime_trainers.losses.distribution import log_probs_and_entropy
from vime_trainers.losses.gspo import gspo_loss
from vime_trainers.losses.policy_gradient import cispo_loss, ppo_clip_loss
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.supervised import value_loss
from vime_trainers.losses.token_loss import TokenInputs, token_loss


@dataclass(frozen=True)
class Case:
    """One line of the report."""

    name: str
    golden: Any
    """Worked out beforehand, to 6 digits."""
    formula: Any
    """By numpy."""
    computed: Any
    """By the library."""

    @property
    def error(self) -> float:
        """Largest difference of the library from the formula, relative where the value is above 1."""
        formula = np.asarray(self.formula, float)
        return float(np.max(np.abs(np.asarray(self.computed, float) - formula) / np.maximum(1, abs(formula))))


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient_of(function: Callable[[Tensor], Tensor], at: Any) -> list[float]:
    """By autograd."""
    x = tensor(at).requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0].tolist()


def slope_of(function: Callable[[np.ndarray], Any], at: Any) -> list[float]:
    """By central differences."""
    at, slopes = np.array(at, float), []
    for i in range(at.size):
        step = np.zeros_like(at)
        step[i] = 1e-6
        slopes.append(float((np.sum(function(at + step)) - np.sum(function(at - step))) / 2e-6))
    return slopes


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def softmax(z: Any) -> np.ndarray:
    e = np.exp(np.asarray(z, float))
    return e / e.sum()


# ------------------------------------------------------------------------------------------ advantages

EIGHT = np.array([1.0, 0, 0, 1, 0, 0, 0, 0])
FOUR = np.array([1.0, 0, 0, 0])
MASK = np.array([1, 1, 0, 0, 1, 1], bool)
VALUES = np.array([0.5, 0.4, 9, 9, 0.3, 0.2])


def advantage_cases() -> list[Case]:
    return [
        Case(
            "GRPO, two of eight succeed",
            [1.620181675, -0.540060558],
            ((EIGHT - EIGHT.mean()) / (math.sqrt(1.5 / 7) + 1e-6))[:2],
            grpo(EIGHT.tolist())[:2],
        ),
        Case("Dr.GRPO", [0.75, -0.25], (EIGHT - EIGHT.mean())[:2], dr_grpo(EIGHT.tolist())[:2]),
        Case(
            "RLOO",
            [0.857142857, -0.285714286],
            [r - (EIGHT.sum() - r) / 7 for r in EIGHT[:2]],
            rloo(EIGHT.tolist())[:2],
        ),
        Case("RLOO, one of four", [1, -1 / 3], [1 - 0, 0 - 1 / 3], rloo(FOUR.tolist())[:2]),
        Case("MaxRL", [3, -1], (EIGHT / EIGHT.mean() - 1)[:2], maxrl(EIGHT.tolist())[:2]),
        Case("a group of one", [0], [0], grpo([0.7])),
        Case("a group of equals", [0, 0, 0], [0, 0, 0], grpo([0.3, 0.3, 0.3])),
        Case(
            "REINFORCE++ returns over a tool's answer, gamma 0.9",
            [0.729, 0.81, 0, 0, 0.9, 1],
            [0.9**3, 0.9**2, 0, 0, 0.9, 1],
            discounted_returns(token_rewards(MASK, 1.0), MASK, 0.9),
        ),
        *_gae_cases(),
        *_whitening_cases(),
        Case(
            "overlong penalty at 80, 90, 95, 100 of 100, buffer 20",
            [0, -0.5, -0.75, -1],
            [min(0, (80 - n) / 20) for n in (80, 90, 95, 100)],
            [overlong_penalty(n, max_length=100, buffer=20) for n in (80, 90, 95, 100)],
        ),
    ]


def _gae_cases() -> list[Case]:
    golden = {
        (1.0, 1.0): [0.5, 0.6, 0, 0, 0.7, 0.8],
        (1.0, 0.95): [0.40065, 0.527, 0, 0, 0.66, 0.8],
        (0.99, 0.95): [0.374433479, 0.5087012, 0, 0, 0.6504, 0.8],
    }
    cases = []
    for (gamma, lambd), expected in golden.items():
        v, r = VALUES[MASK], [0, 0, 0, 1]
        deltas = [r[k] + gamma * (v[k + 1] if k < 3 else 0) - v[k] for k in range(4)]
        plain = [sum((gamma * lambd) ** (j - k) * deltas[j] for j in range(k, 4)) for k in range(4)]
        formula = np.zeros(6)
        formula[MASK] = plain
        found, _ = gae(token_rewards(MASK, 1.0), VALUES, MASK, gamma=gamma, lambd=lambd)
        cases.append(
            Case(f"GAE over a tool's answer, gamma {gamma}, lambda {lambd}", expected, formula, found)
        )
    ends_on_a_tool = np.array([1, 1, 0, 0], bool)
    found, _ = gae(token_rewards(ends_on_a_tool, 1.0), VALUES[:4], ends_on_a_tool)
    cases.append(
        Case(
            "the reward of an episode that ends on a tool's answer",
            [0.5, 0.6, 0, 0],
            [1 - 0.5, 1 - 0.4, 0, 0],
            found,
        )
    )
    return cases


def _whitening_cases() -> list[Case]:
    x, m = np.array([1.0, 2, 3, 100, -1]), np.array([1, 1, 1, 0, 1], bool)
    mean, sd = x[m].mean(), math.sqrt(x[m].var(ddof=1) + 1e-8)
    return [
        Case(
            "whitening",
            [-0.146385, 0.439155, 1.024695, 0, -1.317465],
            np.where(m, (x - mean) / sd, 0),
            whiten([x], [m])[0],
        ),
        Case(
            "whitening, scale only",
            [0.585540, 1.171080, 1.756620, 0, -0.585540],
            np.where(m, x / sd, 0),
            whiten([x], [m], shift=False)[0],
        ),
    ]


# ---------------------------------------------------------------------------------------------- losses


def ppo_cases() -> list[Case]:
    table = [
        (1.0, 1.0, -1.0, -1.0),
        (1.25, 1.0, -1.25, -1.25),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, -1.0, 0.8, 0.0),
        (4.0, -1.0, 3.0, 0.0),
    ]
    cases = []
    for ratio, advantage, loss, gradient in table:

        def formula(x: np.ndarray, a: float = advantage) -> Any:
            r = np.exp(x + 1)
            value = np.maximum(-r * a, -np.clip(r, 0.8, 1.28) * a)
            return np.minimum(value, -3 * a) if a < 0 else value

        def ours(x: Tensor, a: float = advantage) -> Tensor:
            return ppo_clip_loss(
                x, tensor([-1.0]), tensor([a]), ones(1), eps_clip=0.2, eps_clip_high=0.28, dual_clip=3.0
            )[0]

        at = [math.log(ratio) - 1]
        cases.append(
            Case(
                f"PPO 0.2/0.28, dual clip 3, ratio {ratio}, advantage {advantage:+g}",
                [loss, gradient],
                [formula(np.array(at))[0], slope_of(formula, at)[0]],
                [ours(tensor(at)).item(), gradient_of(ours, at)[0]],
            )
        )
    return cases


def cispo_cases() -> list[Case]:
    table = [
        (1.0, 1.0, 1.0, -1.0),
        (1.5, 1.0, 1.28, -1.28),
        (0.5, 1.0, 0.8, -0.8),
        (1.5, -1.0, -1.28, 1.28),
        (0.5, -1.0, -0.8, 0.8),
    ]
    cases = []
    for ratio, advantage, loss, gradient in table:
        old, weight = [-1 - math.log(ratio)], np.clip(ratio, 0.8, 1.28)

        def ours(x: Tensor, old: list[float] = old, a: float = advantage) -> Tensor:
            return cispo_loss(x, tensor(old), tensor([a]), ones(1), eps_clip=0.2, eps_clip_high=0.28)[0]

        cases.append(
            Case(
                f"CISPO 0.8/1.28, ratio {ratio}, advantage {advantage:+g}",
                [loss, gradient],
                [weight * advantage, -weight * advantage],
                [ours(tensor([-1.0])).item(), gradient_of(ours, [-1.0])[0]],
            )
        )
    return cases


def gspo_cases() -> list[Case]:
    gaps = [0.1, -0.3, 0.5]

    def formula(x: np.ndarray) -> Any:
        return -np.exp(x.mean())

    def ours(x: Tensor) -> Tensor:
        old, advantages = torch.zeros_like(x), torch.ones_like(x)
        loss = gspo_loss(
            x, old, advantages, ones(3), Rows.single(x), eps_clip=0.2, eps_clip_high=0.28, dual_clip=None
        )[0]
        return loss.sum() / 3

    return [
        Case("GSPO loss of a row", [-1.105170918], [formula(np.array(gaps))], [ours(tensor(gaps)).item()]),
        Case("GSPO gradient of a row", [-0.368390306] * 3, slope_of(formula, gaps), gradient_of(ours, gaps)),
    ]


def decoupled_cases() -> list[Case]:
    config = LossConfig(old_logprobs="sample", eps_clip=0.2, eps_clip_high=0.28, tis_clip=2.0)
    table = [
        (-0.9, 1.0, -1.349859, -1.349859),
        (-0.5, 1.0, -1.563396, 0.0),
        (-1.6, -1.0, 0.977122, 0.0),
        (-0.9, -1.0, 1.349859, 1.349859),
    ]
    cases = []
    for log_prob, advantage, loss, gradient in table:

        def formula(x: np.ndarray, a: float = advantage) -> Any:
            r = np.exp(x + 1)
            return min(math.exp(-1 + 1.2), 2) * np.maximum(-r * a, -np.clip(r, 0.8, 1.28) * a)

        def ours(x: Tensor, a: float = advantage) -> Tensor:
            tokens = TokenInputs(
                log_probs=x,
                entropy=torch.zeros_like(x),
                rollout_log_probs=tensor([-1.2]),
                advantages=tensor([a]),
                weights=tensor([1.0]),
                old_log_probs=tensor([-1.0]),
            )
            return token_loss(config, tokens).loss

        cases.append(
            Case(
                f"three policies: rollout -1.2, old -1, current {log_prob}, advantage {advantage:+g}",
                [loss, gradient],
                [formula(np.array([log_prob]))[0], slope_of(formula, [log_prob])[0]],
                [ours(tensor([log_prob])).item(), gradient_of(ours, [log_prob])[0]],
            )
        )
    return cases


LOG_RHO = [0.1, -0.2, 1.0, -3.0, 0.0]


def correction_cases() -> list[Case]:
    rho, old, engine, mask = np.exp(LOG_RHO), tensor(LOG_RHO), torch.zeros(5, dtype=torch.float64), ones(5)
    pair, row = (old, engine, mask), Rows.single(old)
    short, long = tensor([math.log(1.1)] * 10), tensor([math.log(1.1)] * 100)

    def product(gaps: Tensor) -> float:
        zero = torch.zeros_like(gaps)
        weights, _ = corrections.sequence_tis(gaps, zero, gaps == gaps, Rows.single(gaps), clip=math.inf)
        return weights[0].item()

    return [
        Case(
            "token TIS at most 2",
            [1.105171, 0.818731, 2, 0.049787, 1],
            np.minimum(rho, 2),
            corrections.token_tis(*pair, clip=2.0)[0],
        ),
        Case(
            "token TIS in 0.5 .. 2",
            [1.105171, 0.818731, 2, 0.5, 1],
            np.clip(rho, 0.5, 2),
            corrections.token_tis(*pair, clip=2.0, clip_low=0.5)[0],
        ),
        Case(
            "IcePop 0.5 .. 2",
            [1.105171, 0.818731, 0, 0, 1],
            np.where((rho >= 0.5) & (rho <= 2), rho, 0),
            corrections.icepop(*pair, low=0.5, high=2.0)[0],
        ),
        Case(
            "sequence TIS: the product",
            [0.122456],
            [rho.prod()],
            corrections.sequence_tis(*pair, row, clip=2.0)[0][:1],
        ),
        Case("k2 of trainer and engine", [1.005], [np.square(LOG_RHO).mean() / 2], [kl.k2(*pair).mean()]),
        Case(
            "k3 of trainer and engine",
            [0.558394],
            [np.mean(rho - 1 - np.array(LOG_RHO))],
            [kl.k3(engine, old, mask).mean()],
        ),
        Case(
            "bounds 0.1 .. 1.2 act on rho, not on 1 / rho",
            [1, 1, 0, 0, 1],
            (rho >= 0.1) & (rho <= 1.2),
            corrections.icepop(*pair, low=0.1, high=1.2)[0] > 0,
        ),
        Case(
            "1.1 for each of 10 and of 100 tokens",
            [2.593742, 13780.612332],
            [1.1**10, 1.1**100],
            [product(short), product(long)],
        ),
        Case(
            "effective sample share of 1, 1, 1, 5",
            [0.571429],
            [8**2 / (4 * 28)],
            [corrections.effective_sample_share(8, 28, 4)],
        ),
    ]


LOG_PROBS, REFERENCE = [-1.0, -2.0, -0.5], [-1.2, -1.5, -0.5]
THETA, OTHER = [0.2, -0.1, 0.4], [0.0, 0.3, -0.2]


def kl_cases() -> list[Case]:
    reference = tensor(REFERENCE)
    formulas: dict[str, Callable[[np.ndarray], Any]] = {
        "k1": lambda x: x - REFERENCE,
        "k2": lambda x: (x - REFERENCE) ** 2 / 2,
        "k3": lambda x: np.exp(REFERENCE - x) - 1 + x - REFERENCE,
    }
    formulas["k3+"] = formulas["k3"]
    golden = {
        "k1": ([0.2, -0.5, 0], [1, 1, 1]),
        "k2": ([0.02, 0.125, 0], [0.2, -0.5, 0]),
        "k3": ([0.018730753, 0.148721271, 0], [0.181269247, -0.648721271, 0]),
        "k3+": ([0.018730753, 0.148721271, 0], [0.2, -0.5, 0]),
    }
    cases = []
    for name, (value, gradient) in golden.items():

        def ours(x: Tensor, name: str = name) -> Tensor:
            return kl.ESTIMATORS[name](x, reference, ones(3))

        # k3+ has the gradient of k2, whatever its value.
        slopes = slope_of(formulas["k2" if name == "k3+" else name], LOG_PROBS)
        cases.append(
            Case(
                f"KL {name}: values and gradients",
                [*value, *gradient],
                [*formulas[name](np.array(LOG_PROBS)), *slopes],
                [*ours(tensor(LOG_PROBS)).tolist(), *gradient_of(ours, LOG_PROBS)],
            )
        )
    return cases + _expected_kl_cases()


def _expected_kl_cases() -> list[Case]:
    """Exact sums over a vocabulary of three: E over the policy of each estimator's gradient."""
    other = softmax(OTHER)

    def reverse(theta: np.ndarray) -> Any:
        p = softmax(theta)
        return np.sum(p * np.log(p / other))

    def forward(theta: np.ndarray) -> Any:
        return np.sum(other * np.log(other / softmax(theta)))

    reverse_slope, forward_slope = slope_of(reverse, THETA), slope_of(forward, THETA)
    reverse_golden = [-0.005022383, -0.153773939, 0.158796322]
    wanted = {
        "k1": ([0, 0, 0], [0, 0, 0]),
        "k2": (reverse_golden, reverse_slope),
        "k3": ([0.021986704, -0.175923738, 0.153937034], forward_slope),
        "k3+": (reverse_golden, reverse_slope),
        "r k1": (reverse_golden, reverse_slope),
        "r k3": (reverse_golden, reverse_slope),
        "k1 in the reward": (reverse_golden, reverse_slope),
    }
    cases = [
        Case("KL(policy || reference)", [0.082224646], [reverse(np.array(THETA))], [_expected("k1", THETA)])
    ]
    for name, (golden, formula) in wanted.items():
        found = gradient_of(lambda t, name=name: _expectation(name, t), THETA)
        cases.append(Case(f"expected gradient of {name}", golden, formula, found))
    return cases


def _expectation(name: str, theta: Tensor) -> Tensor:
    log_probs = torch.log_softmax(theta, 0)
    probs, reference = log_probs.detach().exp(), torch.log_softmax(tensor(OTHER), 0)
    if name == "k1 in the reward":
        advantages = kl.penalised(torch.zeros(3).double(), log_probs, reference, ones(3), 1.0)
        return (probs * -advantages * log_probs).sum()
    if name.startswith("r "):
        estimator = kl.ESTIMATORS[name[2:]]
        return (probs * kl.ratio_weighted(estimator, log_probs, log_probs.detach(), reference, ones(3))).sum()
    return (probs * kl.ESTIMATORS[name](log_probs, reference, ones(3))).sum()


def _expected(name: str, theta: list[float]) -> float:
    return _expectation(name, tensor(theta)).item()


def distribution_cases() -> list[Case]:
    z = [2.0, 1.0, 0.0]
    table = tensor(z)[None]

    def entropy(theta: np.ndarray) -> Any:
        p = softmax(theta)
        return -np.sum(p * np.log(p))

    def nll(logits: np.ndarray) -> Any:
        return -np.log(softmax(logits)[1])

    def ours_entropy(t: Tensor) -> Tensor:
        return log_probs_and_entropy(t[None], torch.tensor([0]))[1]

    def ours_nll(t: Tensor) -> Tensor:
        return -log_probs_and_entropy(t[None], torch.tensor([1]))[0]

    def all_log_probs(temperature: float) -> list[float]:
        rows = table.expand(3, 3)
        return log_probs_and_entropy(rows, torch.arange(3), temperature=temperature)[0].tolist()

    padded = torch.cat([table, torch.zeros(1, 2).double()], 1)
    unpadded = [x.item() for x in log_probs_and_entropy(padded, torch.tensor([1]), vocab_size=3)]
    return [
        Case("entropy", [1.078500614], [entropy(np.array(THETA))], ours_entropy(tensor(THETA)).tolist()),
        Case(
            "entropy's gradient",
            [0.002511191, 0.076886969, -0.079398161],
            slope_of(entropy, THETA),
            gradient_of(ours_entropy, THETA),
        ),
        Case(
            "negative log-likelihood and its gradient",
            [1.407606, 0.665241, -0.755272, 0.090031],
            [nll(np.array(z)), *slope_of(nll, z)],
            [ours_nll(tensor(z)).item(), *gradient_of(ours_nll, z)],
        ),
        Case(
            "log-probs at temperature 0.5",
            [-0.142932, -2.142932, -4.142932],
            np.log(softmax(np.array(z) / 0.5)),
            all_log_probs(0.5),
        ),
        Case(
            "log-probs at temperature 2",
            [-0.680270, -1.180270, -1.680270],
            np.log(softmax(np.array(z) / 2)),
            all_log_probs(2.0),
        ),
        Case(
            "log-prob and entropy without a padded vocabulary",
            [-1.407606, 0.832396],
            [-nll(np.array(z)), entropy(np.array(z))],
            unpadded,
        ),
    ]


def other_loss_cases() -> list[Case]:
    v, old, target = [0.9, 0.2], [0.5, 0.1], [1.0, 0.0]
    clipped = np.clip(v, np.array(old) - 0.2, np.array(old) + 0.2)
    formula = np.maximum((np.array(v) - target) ** 2, (clipped - target) ** 2) / 2
    teacher = [-1.5, -1.0, -0.5]
    student, known = np.array([[0.5, 0.3, 0.2]]), np.array([[0.7, 0.2, 0.1]])
    whole = np.log([student, known])
    top = np.log([np.stack([x[:, 0], x[:, 1:].sum(1)], 1) for x in (student, known)])
    distilled = kl.penalised(torch.zeros(3).double(), tensor(LOG_PROBS), tensor(teacher), ones(3), 0.5)
    return [
        Case(
            "value loss, clipped at 0.2",
            [0.045, 0.02],
            formula,
            value_loss(tensor(v), tensor(old), tensor(target), ones(2), value_clip=0.2)[0],
        ),
        Case(
            "on-policy distillation: advantages at coefficient 0.5",
            [-0.25, 0.5, 0],
            -0.5 * (np.array(LOG_PROBS) - teacher),
            distilled,
        ),
        Case(
            "reverse KL, the teacher's likeliest token of three and the rest; all three",
            [0.087177, 0.092033],
            [np.sum(np.exp(p) * (p - q)) for p, q in (top, whole)],
            [top_k_reverse_kl(tensor(p), tensor(q), ones(1)).item() for p, q in (top, whole)],
        ),
    ]


# ----------------------------------------------------------------------------------------- aggregation

ROWS = [[1.0, 2, 3, 4], [10, 20, 0, 0], [6, 0, 0, 0], [7, 7, 7, 7]]
MASKS = [[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def aggregation_cases() -> list[Case]:
    """Row sums 7, 30, 6 over 3, 2, 1 trainable tokens; the row without any counts nowhere."""

    def total(name: str, norm_length: int | None = None) -> list[float]:
        masks = [np.array(m, bool) for m in MASKS]
        weights = loss_weights(masks, [0, 0, 1, 2], name, group_ids=[0, 0, 1, 1], norm_length=norm_length)
        return [sum(float((w.astype(float) * np.array(f)).sum()) for w, f in zip(weights, ROWS, strict=True))]

    return [
        Case("token-mean", [7.166667], [43 / 6], total("token-mean")),
        Case("seq-mean-token-mean", [7.777778], [(7 / 3 + 30 / 2 + 6) / 3], total("seq-mean-token-mean")),
        Case("seq-mean-token-sum", [14.333333], [43 / 3], total("seq-mean-token-sum")),
        Case("seq-mean-token-sum-norm, 8", [1.791667], [43 / 3 / 8], total("seq-mean-token-sum-norm", 8)),
        Case("episode-mean", [6.7], [(37 / 5 + 6) / 2], total("episode-mean")),
        Case("prompt-mean", [6.7], [(37 / 5 + 6) / 2], total("prompt-mean")),
    ]


def all_cases() -> list[Case]:
    """Every case."""
    parts = (
        advantage_cases,
        ppo_cases,
        cispo_cases,
        gspo_cases,
        decoupled_cases,
        correction_cases,
        kl_cases,
        distribution_cases,
        other_loss_cases,
        aggregation_cases,
    )
    return [case for part in parts for case in part()]


def written(values: Any) -> str:
    """To 6 digits."""
    return " ".join(f"{float(x):.6g}" for x in np.asarray(values, float).ravel())


def table() -> str:
    """The golden values as they stand in docs/golden.md."""
    names = ((case.name.replace("|", "\\|"), written(case.golden)) for case in all_cases())
    return "\n".join(
        ["| case | values |", "|---|---|", *(f"| {name} | {values} |" for name, values in names)]
    )


def main() -> None:
    """Print the report; with `--table`, that of the docs."""
    if sys.argv[1:] == ["--table"]:
        print(table())  # noqa: T201
        return
    cases = all_cases()
    width = max(len(c.name) for c in cases)
    for case in cases:
        print(f"{case.name:{width}}  error {case.error:7.1e}  {written(case.computed)}")  # noqa: T201
    worst = max(c.error for c in cases)
    print(f"{len(cases)} cases, largest difference from the formula {worst:.1e}")  # noqa: T201


if __name__ == "__main__":
    main()
