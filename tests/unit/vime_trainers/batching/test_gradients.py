"""Packed rows through a transformer: the gradient is that of every row alone.

transformers' GPT-2 in float64, with a block mask and positions made of the pack's bounds; its positions are
learned, so that wrong ones show. Numbers are those of the test plan.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from benchmarks.trainer_arms.rows import conversation_batch, multi_turn_batch, one_row_per_turn
from vime_agents.learning.aggregation import AGGREGATIONS, loss_weights
from vime_agents.trainer import Batch, TrainingSample
from vime_trainers.batching.pack import MicroBatch, pack
from vime_trainers.batching.plan import plan
from vime_trainers.batching.rows import VALUES, Row, rows_of_samples
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.distribution import log_probs_and_entropy
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.token_loss import TokenInputs, token_loss

LOSS = LossConfig(pg_loss_type="reinforce", entropy_coef=0.05, kl_loss_coef=0.1)
VOCAB = 31
LENGTHS = (17, 12, 30, 21, 14)


@functools.cache
def model(kind: str = "gpt2", dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=16, n_layer=2, n_head=2)
    else:
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


def positions_of(micro: MicroBatch) -> torch.Tensor:
    lengths = micro.bounds.diff().tolist()
    return torch.cat([torch.arange(n) for n in lengths])[None]


def hidden_logits(
    net: torch.nn.Module, micro: MicroBatch, *, blocks: bool = True, reset: bool = True
) -> torch.Tensor:
    """[num_tokens, vocabulary]; `blocks`: rows do not see each other, `reset`: positions start anew."""
    size = micro.input_ids.shape[1]
    row_of = torch.repeat_interleave(torch.arange(len(micro.bounds) - 1), micro.bounds.diff())
    seen = torch.ones(size, size).tril().bool()
    if blocks:
        seen &= row_of[:, None] == row_of[None]
    dtype = next(net.parameters()).dtype
    mask = torch.zeros(size, size, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    positions = positions_of(micro) if reset else torch.arange(size)[None]
    return net(
        micro.input_ids, attention_mask=mask[None, None], position_ids=positions, use_cache=False
    ).logits[0]


def loss_of(net: torch.nn.Module, micro: MicroBatch, loss: LossConfig) -> torch.Tensor:
    log_probs, entropy = log_probs_and_entropy(hidden_logits(net, micro)[micro.selected], micro.targets)
    values = dict(zip(VALUES, micro.values.to(log_probs.dtype), strict=True))
    tokens = TokenInputs(
        log_probs=log_probs,
        entropy=entropy,
        rollout_log_probs=values["rollout_logprobs"],
        advantages=values["advantages"],
        weights=values["weights"],
        rows=Rows(micro.rows, micro.num_rows),
    )
    return token_loss(loss, tokens).loss


def gradient(
    micro_batches: Sequence[MicroBatch], net: torch.nn.Module | None = None, loss: LossConfig = LOSS
) -> torch.Tensor:
    net = net or model()
    net.zero_grad()
    for micro in micro_batches:
        if micro.selected.numel():
            loss_of(net, micro, loss).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def packed(rows: Sequence[Row], max_tokens: int, num_ranks: int = 1) -> list[MicroBatch]:
    """Every micro-batch of every rank."""
    layout = plan(rows, max_tokens=max_tokens, num_ranks=num_ranks)
    return [pack([rows[i] for i in micro]) for rank in layout.ranks for micro in rank]


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def with_weights(samples: Sequence[TrainingSample], aggregation: str) -> list[TrainingSample]:
    """Rows 0 and 1 are one episode, and rows 3 and 4; rows 0 to 2 are one group."""
    episodes, groups = [0, 0, 1, 2, 2], [0, 0, 0, 1, 1]
    norm = 7 if aggregation == "seq-mean-token-sum-norm" else None
    masks = [s.loss_mask for s in samples]
    weights = loss_weights(masks, episodes, aggregation, group_ids=groups, norm_length=norm)
    return [replace(s, weights=w) for s, w in zip(samples, weights, strict=True)]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_is_that_of_every_row_alone_however_rows_are_packed(aggregation: str) -> None:
    """Plan 41, 42, 46, 49: packing, accumulation, order and data-parallel ranks; entropy and KL terms too."""
    rows = rows_of_samples(with_weights(multi_turn_batch(LENGTHS, VOCAB).samples, aggregation))
    alone = gradient([pack([row]) for row in rows])
    assert far(gradient([pack(rows)]), alone) < 1e-12
    assert far(gradient([pack(rows[::-1])]), alone) < 1e-12
    assert far(gradient(packed(rows, 45)), alone) < 1e-12
    assert far(gradient(packed(rows, 45, num_ranks=3)), alone) < 1e-12
    assert far(gradient([pack(rows, tp_size=7)]), alone) < 1e-12  # a row of padding beside them


def test_without_a_boundary_rows_would_see_each_other() -> None:
    """Plan 49, guard: log-probs of the second row move by nats."""
    rows = rows_of_samples(multi_turn_batch(LENGTHS, VOCAB).samples)
    micro = pack(rows)
    with torch.no_grad():
        right = hidden_logits(model(), micro).log_softmax(-1)
        wrong = hidden_logits(model(), micro, blocks=False).log_softmax(-1)
    first = len(rows[0].inputs)
    assert torch.allclose(wrong[:first], right[:first])
    assert (wrong[first:] - right[first:]).abs().max() > 0.5


def test_means_of_micro_batches_would_be_another_gradient() -> None:
    """49, guard: token-mean in each micro-batch, and their mean."""
    samples = multi_turn_batch(LENGTHS, VOCAB).samples
    parts = [samples[:1], samples[1:]]
    local = []
    for part in parts:
        count = sum(int(s.loss_mask.sum()) for s in part)
        scaled = [replace(s, weights=(s.loss_mask / (2 * count)).astype(np.float32)) for s in part]
        local.append(pack(rows_of_samples(scaled)))
    assert far(gradient(local), gradient([pack(rows_of_samples(samples))])) > 0.05


def test_positions_start_anew_in_every_row() -> None:
    """Plan 50: with RoPE in blocks that cannot be told; with learned positions it can."""
    micro = pack(rows_of_samples(multi_turn_batch(LENGTHS, VOCAB).samples))
    with torch.no_grad():
        rope = [hidden_logits(model("llama"), micro, reset=reset) for reset in (True, False)]
        learned = [hidden_logits(model(), micro, reset=reset) for reset in (True, False)]
        ids = micro.input_ids[:, micro.bounds[1] : micro.bounds[2]]
        alone = model()(ids, use_cache=False).logits[0]
    assert torch.allclose(rope[0], rope[1], atol=1e-5)  # its norms are in float32
    part = slice(int(micro.bounds[1]), int(micro.bounds[2]))
    assert torch.allclose(learned[0][part], alone, atol=1e-10)
    assert (learned[1][part] - alone).abs().max() > 0.1


def test_a_row_merged_over_turns_has_the_gradient_of_one_row_for_each_turn() -> None:
    """Plan 51: under token-mean, with a fraction of the tokens."""
    merged = conversation_batch(3, prompt=3, turn=2, vocab_size=VOCAB)
    apart = one_row_per_turn(merged)
    assert (merged.num_tokens, apart.num_tokens) == (13, 27)
    expected = gradient([pack(rows_of_samples(merged.samples))])
    assert far(gradient([pack(rows_of_samples(apart.samples))]), expected) < 1e-12


def test_training_a_turn_twice_or_counting_turns_as_rows_would_be_another_gradient() -> None:
    """51, guards."""
    merged = conversation_batch(3, prompt=3, turn=2, vocab_size=VOCAB)
    apart = one_row_per_turn(merged).samples
    expected = gradient([pack(rows_of_samples(merged.samples))])
    again = replace(apart[0], id="again")
    assert far(gradient([pack(rows_of_samples([*apart, again]))]), expected) > 0.1
    uneven = multi_turn_batch([60], VOCAB)
    parts = one_row_per_turn(uneven).samples
    weights = loss_weights([s.loss_mask for s in parts], range(len(parts)), "seq-mean-token-mean")
    by_row = [replace(s, weights=w) for s, w in zip(parts, weights, strict=True)]
    expected = gradient([pack(rows_of_samples(uneven.samples))])
    assert far(gradient([pack(rows_of_samples(by_row))]), expected) > 0.1


def test_the_loss_reaches_the_logits_before_trainable_tokens_and_no_others() -> None:
    """Plan 52: mask 0001101 gives gradients at 2, 3 and 5; other ids at masked places only change values."""
    mask = np.array([0, 0, 0, 1, 1, 0, 1], bool)
    base = multi_turn_batch([7], VOCAB).samples[0]
    values = {"advantages": 1.0, "weights": 1 / 3, "rollout_logprobs": -3.0}
    fill = {k: np.where(mask, v, np.nan if "log" in k else 0).astype(np.float32) for k, v in values.items()}
    for changed in (False, True):
        ids = np.array([1, 2, 3, 4, 5, 6 + changed, 7], np.int32)
        sample = replace(base, token_ids=ids, loss_mask=mask, weight_versions=np.zeros(7, np.int32), **fill)
        micro = pack(rows_of_samples([sample]))
        logits = hidden_logits(model(), micro).detach().requires_grad_()
        log_probs, _ = log_probs_and_entropy(logits[micro.selected], micro.targets)
        log_probs.sum().backward()
        assert logits.grad.abs().sum(-1).nonzero().flatten().tolist() == [2, 3, 5]


def test_a_split_moves_log_probs_in_float32_by_less_than_the_noise_floor() -> None:
    """Plan 56: |difference| below 1e-5; the same split is bit-equal."""
    rows = rows_of_samples(multi_turn_batch(LENGTHS, VOCAB).samples)
    net = model(dtype=torch.float32)

    def log_probs(micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        flat = torch.zeros(sum(len(row.inputs) for row in rows))
        for micro in micro_batches:
            with torch.no_grad():
                found, _ = log_probs_and_entropy(hidden_logits(net, micro)[micro.selected], micro.targets)
            flat[micro.slots] = found
        return flat

    whole, split = log_probs([pack(rows)]), log_probs(packed(rows, 30))
    assert (whole - split).abs().max() < 1e-5
    assert torch.equal(split, log_probs(packed(rows, 30)))
    grads = [gradient(packed(rows, 30), net) for _ in range(2)]
    assert torch.equal(*grads)


def test_rows_without_an_advantage_add_nothing() -> None:
    """Plan 48: without KL and entropy terms, leaving them out changes no gradient while weights stay."""
    samples = multi_turn_batch(LENGTHS, VOCAB).samples
    idle = replace(samples[2], advantages=np.zeros_like(samples[2].advantages))
    everything = Batch(samples=(*samples[:2], idle, *samples[3:]), temperature=1.0)
    lean = [s for s in everything.samples if s.advantages.any()]
    plain = LossConfig(pg_loss_type="reinforce")
    found = [gradient([pack(rows_of_samples(part))], loss=plain) for part in (everything.samples, lean)]
    assert len(lean) == len(samples) - 1
    assert far(found[1], found[0]) < 1e-12


def test_rows_of_a_group_repeat_their_prompt_and_have_the_gradient_of_rows_apart() -> None:
    """Plan 54: no tree. Each row brings its own copy of the prompt; packed or not, the gradient is one."""
    base = multi_turn_batch([21, 17, 14], VOCAB).samples
    prompt = np.arange(8, dtype=np.int32)
    shared = [
        replace(s, token_ids=np.concatenate([prompt, s.token_ids[8:]]), loss_mask=s.loss_mask) for s in base
    ]
    rows = rows_of_samples(shared)
    assert all(row.inputs[:8].tolist() == prompt.tolist() for row in rows)
    alone = gradient([pack([row]) for row in rows])
    whole = pack(rows)
    assert whole.input_ids.shape[1] == sum(len(row.inputs) for row in rows)
    assert far(gradient([whole]), alone) < 1e-12


@pytest.mark.parametrize("pg_loss_type", ["ppo", "gspo", "cispo"])
def test_on_policy_every_loss_moves_the_model_alike(pg_loss_type: str) -> None:
    """Plan 21: bit for bit."""
    micro = [pack(rows_of_samples(multi_turn_batch(LENGTHS, VOCAB).samples))]
    expected = gradient(micro, loss=LossConfig(pg_loss_type="reinforce"))
    assert torch.equal(gradient(micro, loss=LossConfig(pg_loss_type=pg_loss_type)), expected)  # type: ignore[arg-type]
