"""Samples and bare tokens as rows."""

from __future__ import annotations

import numpy as np

from vime_trainers.batching.rows import rows_of_tokens


def test_a_row_ends_with_the_last_prediction_that_is_wanted() -> None:
    ids = np.arange(10, 16, dtype=np.int32)
    masks = [np.array(m, bool) for m in ([0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0])]
    rows = rows_of_tokens([ids, ids, ids], masks)
    assert [row.inputs.tolist() for row in rows] == [[10, 11, 12, 13], [], [10]]
    assert rows[0].targets.tolist() == [11, 12, 13, 14]
    assert rows[0].mask.tolist() == [False, True, False, True]
    assert [row.offset for row in rows] == [0, 4, 4]


def test_without_masks_every_prediction_is_wanted() -> None:
    rows = rows_of_tokens([np.array([7], np.int32), np.array([7, 8, 9], np.int32)])
    assert [row.inputs.tolist() for row in rows] == [[], [7, 8]]
    assert rows[1].mask.all()
