import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError
from vime_agents.trainer import TrainingSample
from vime_trainers.megatron.micro_batches import VALUES, pack, plan, rows_of_samples, rows_of_tokens

CPU = torch.device("cpu")


def rows_of_lengths(lengths):
    """Rows of so many inputs, every token id different."""
    start, rows = 0, []
    for length in lengths:
        rows.append(np.arange(start, start + length + 1, dtype=np.int32))
        start += length + 1
    return rows_of_tokens(rows)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
)
def test_every_row_is_planned_once_within_the_budget_and_ranks_have_equal_counts(lengths, num_ranks, align):
    rows = rows_of_lengths(lengths)
    layout = plan(rows, max_tokens=32, num_ranks=num_ranks, align=align)
    assert len(layout) == num_ranks
    assert len({len(rank) for rank in layout}) == 1
    placed = sorted(i for rank in layout for micro in rank for i in micro)
    assert placed == [i for i, length in enumerate(lengths) if length]
    for rank in layout:
        for micro in rank:
            assert sum(-(-lengths[i] // align) * align for i in micro) <= 32


def test_a_row_over_the_budget_is_refused_with_its_name_and_the_flag():
    with pytest.raises(ConfigError, match=r"row 1 needs 9 .*--max-tokens-per-gpu"):
        plan(rows_of_lengths([3, 9]), max_tokens=8, num_ranks=1)


@given(
    st.lists(st.integers(1, 25), max_size=8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]),
)
def test_context_parallel_shares_hold_every_prediction_once(lengths, cp_size, tp_size):
    rows = rows_of_lengths(lengths)
    shares = [pack(rows, cp_rank=r, cp_size=cp_size, tp_size=tp_size, device=CPU) for r in range(cp_size)]
    assert len({s.input_ids.shape for s in shares}) == 1
    assert shares[0].input_ids.shape[1] % tp_size == 0
    assert shares[0].packed.cu_seqlens_q[-1] == cp_size * shares[0].input_ids.shape[1]
    seen = {}
    for share in shares:
        for position, target, slot in zip(share.selected, share.targets, share.slots, strict=True):
            assert slot.item() not in seen
            # Token ids count up, so each input is the id before its target.
            assert share.input_ids[0, position].item() == target.item() - 1
            seen[slot.item()] = target.item()
    assert sorted(seen) == list(range(sum(lengths)))


def test_context_parallel_chunks_are_dealt_from_both_ends():
    rows = rows_of_lengths([8, 3])  # the second is padded to 4
    first = pack(rows, cp_rank=0, cp_size=2, tp_size=1, device=CPU)
    second = pack(rows, cp_rank=1, cp_size=2, tp_size=1, device=CPU)
    assert first.input_ids[0].tolist() == [0, 1, 6, 7, 9, 0]
    assert second.input_ids[0].tolist() == [2, 3, 4, 5, 10, 11]
    assert first.packed.cu_seqlens_q.tolist() == [0, 8, 12]


def test_the_longest_row_is_announced_never_the_total():
    micro = pack(rows_of_lengths([5, 9, 2]), cp_rank=0, cp_size=1, tp_size=1, device=CPU)
    assert micro.packed.max_seqlen_q == 9


def test_no_row_at_all_is_one_row_of_padding_without_predictions():
    micro = pack([], cp_rank=1, cp_size=2, tp_size=2, device=CPU)
    assert micro.input_ids.shape == (1, 4)
    assert micro.selected.numel() == 0


def test_a_sample_is_cut_after_its_last_trainable_token_and_shifted_by_one():
    mask = np.array([0, 0, 1, 0, 1, 0, 0], bool)
    where = lambda values: np.where(mask, values, 0).astype(np.float32)  # noqa: E731
    sample = TrainingSample(
        id="e/agent/0",
        episode_id="e",
        group_id="g",
        agent="agent",
        token_ids=np.arange(10, 17, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -np.arange(7.0), np.nan).astype(np.float32),
        advantages=where(np.arange(7.0)),
        weights=where(np.full(7, 0.5)),
        weight_versions=np.zeros(7, np.int32),
        teacher_logprobs=np.float32([-1 - x for x in range(7)]),
    )
    micro = pack(rows_of_samples([sample]), cp_rank=0, cp_size=1, tp_size=1, device=CPU)
    assert micro.input_ids[0].tolist() == [10, 11, 12, 13]
    assert micro.selected.tolist() == [1, 3]
    assert micro.targets.tolist() == [12, 14]
    known = dict(zip(VALUES, micro.values.tolist(), strict=True))
    assert known["rollout_logprobs"] == [-2.0, -4.0]
    assert known["advantages"] == [2.0, 4.0]
    assert known["weights"] == [0.5, 0.5]
    assert known["teacher_logprobs"] == [-3.0, -5.0]
    assert micro.values[list(VALUES).index("old_logprobs")].isnan().all()
    assert micro.values[list(VALUES).index("reference_logprobs")].isnan().all()


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=8),
    st.sampled_from([1, 2, 4]),
)
def test_every_prediction_knows_its_row_on_every_context_parallel_rank(lengths, cp_size):
    rows = rows_of_lengths(lengths)
    counts = np.zeros(len(lengths), int)
    for rank in range(cp_size):
        share = pack(rows, cp_rank=rank, cp_size=cp_size, tp_size=1, device=CPU)
        assert share.num_rows == len(lengths)
        assert share.rows.tolist() == sorted(share.rows.tolist())
        for slot, row in zip(share.slots.tolist(), share.rows.tolist(), strict=True):
            assert rows[row].offset <= slot < rows[row].offset + len(rows[row].inputs)
        counts += np.bincount(share.rows.numpy(), minlength=len(lengths))
    assert counts.tolist() == lengths
