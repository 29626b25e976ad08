from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.trainer import TopTokens, TrainingSample
from vime_trainers.batching.pack import pack
from vime_trainers.batching.rows import VALUES, rows_of_samples, rows_of_tokens


def rows_of_lengths(lengths):
    """Rows of so many inputs, every token id different."""
    start, rows = 0, []
    for length in lengths:
        rows.append(np.arange(start, start + length + 1, dtype=np.int32))
        start += length + 1
    return rows_of_tokens(rows)


@given(
    st.lists(st.integers(1, 25), max_size=8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]),
)
def test_context_parallel_shares_hold_every_prediction_once(lengths, cp_size, tp_size):
    rows = rows_of_lengths(lengths)
    shares = [pack(rows, cp_rank=r, cp_size=cp_size, tp_size=tp_size) for r in range(cp_size)]
    assert len({s.input_ids.shape for s in shares}) == 1
    assert shares[0].input_ids.shape[1] % tp_size == 0
    assert shares[0].bounds[-1] == cp_size * shares[0].input_ids.shape[1]
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
    first = pack(rows, cp_rank=0, cp_size=2)
    second = pack(rows, cp_rank=1, cp_size=2)
    assert first.input_ids[0].tolist() == [0, 1, 6, 7, 9, 0]
    assert second.input_ids[0].tolist() == [2, 3, 4, 5, 10, 11]
    assert first.bounds.tolist() == [0, 8, 12]


def test_the_longest_row_is_announced_never_the_total():
    micro = pack(rows_of_lengths([5, 9, 2]))
    assert micro.longest == 9


def test_no_row_at_all_is_one_row_of_padding_without_predictions():
    micro = pack([], cp_rank=1, cp_size=2, tp_size=2)
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
    micro = pack(rows_of_samples([sample]))
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
        share = pack(rows, cp_rank=rank, cp_size=cp_size)
        assert share.num_rows == len(lengths)
        assert share.rows.tolist() == sorted(share.rows.tolist())
        for slot, row in zip(share.slots.tolist(), share.rows.tolist(), strict=True):
            assert rows[row].offset <= slot < rows[row].offset + len(rows[row].inputs)
        counts += np.bincount(share.rows.numpy(), minlength=len(lengths))
    assert counts.tolist() == lengths


@pytest.mark.parametrize(
    ("length", "num_answered", "expected"),
    [(10, 7, [[3], [4, 5, 6, 7, 8, 9]]), (8, 2, [[7], [6]])],
)
def test_which_rank_predicts_which_token_under_context_parallelism(length, num_answered, expected):
    """Plan 58: chunks 0 and 3 are rank 0's. Every token of the answer is predicted once, by one rank."""
    mask = np.arange(length) >= length - num_answered
    rows = rows_of_tokens([np.arange(length, dtype=np.int32)], [mask])
    shares = [pack(rows, cp_rank=rank, cp_size=2) for rank in range(2)]
    assert [share.targets.tolist() for share in shares] == expected


def test_a_stop_token_that_is_the_padding_too_is_trained_where_it_was_sampled():
    """Plan 61, pitfall 42: masks are by place, whatever the ids."""
    mask = np.array([False, False, True, True])
    rows = rows_of_tokens([np.array([7, 8, 9, 0], np.int32), np.array([5, 0], np.int32)], [mask, mask[2:]])
    micro = pack(rows, tp_size=4)
    assert micro.input_ids[0].tolist() == [7, 8, 9, 5]
    assert micro.targets.tolist() == [9, 0, 0]
    assert micro.selected.tolist() == [1, 2, 3]


@pytest.mark.parametrize("cp_size", [1, 2])
def test_a_teachers_top_tokens_stay_with_their_predictions(cp_size):
    """Each prediction's top token is marked by its target id, whatever rank has it."""
    rng = np.random.default_rng(0)
    rows = []
    for row, length in zip(rows_of_lengths([9, 1, 6]), (9, 1, 6), strict=True):
        mask = rng.random(length) < 0.6
        mask[-1] = True
        ids = np.stack([row.targets[mask], row.targets[mask] + 1000], 1).astype(np.int32)
        shares = np.tile(np.float32([0.5, 0.3, 0.2]), (len(ids), 1))
        rows.append(replace(row, mask=mask, teacher_top=TopTokens(ids=ids, logprobs=np.log(shares))))
    count = 0
    for rank in range(cp_size):
        share = pack(rows, cp_rank=rank, cp_size=cp_size)
        assert share.teacher_top.ids.tolist() == [[t, t + 1000] for t in share.targets.tolist()]
        assert share.teacher_top.log_probs.shape == (len(share.targets), 3)
        count += len(share.targets)
    assert count == sum(row.mask.sum() for row in rows)
    assert pack([]).teacher_top is None
