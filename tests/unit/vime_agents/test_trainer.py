"""A training sample cannot hold what the loss would misread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vime_agents.errors import RecordError
from vime_agents.trainer import TopTokens, TrainingSample

MASK = np.array([0, 1, 0, 1], bool)


def sample(**changes: Any) -> TrainingSample:
    fields: dict[str, Any] = {
        "id": "e/agent/0",
        "episode_id": "e",
        "group_id": "g",
        "agent": "agent",
        "token_ids": np.arange(4, dtype=np.int32),
        "loss_mask": MASK,
        "rollout_logprobs": np.float32([np.nan, -0.5, np.nan, -0.25]),
        "advantages": np.float32([0, 1, 0, 1]),
        "weights": np.float32([0, 0.5, 0, 0.5]),
        "weight_versions": np.int32([-1, 0, -1, 0]),
    }
    return TrainingSample(**fields | changes)


def test_text_of_others_has_no_log_probs_at_all() -> None:
    assert np.isnan(sample(rollout_logprobs=np.full(4, np.nan, np.float32)).rollout_logprobs).all()


@pytest.mark.parametrize("values", [[0, -0.5, 0, np.nan], [0, -0.5, 0, -np.inf], [0, -np.inf, 0, -np.inf]])
def test_some_log_probs_missing_is_an_error_and_never_a_zero(values: list[float]) -> None:
    with pytest.raises(RecordError, match=r"e/agent/0: a trainable token has no log-prob"):
        sample(rollout_logprobs=np.float32(values))


@pytest.mark.parametrize("name", ["old_logprobs", "reference_logprobs", "teacher_logprobs"])
def test_log_probs_of_other_policies_cover_the_trainable_tokens(name: str) -> None:
    good = np.float32([np.nan, -1, np.nan, -2])
    assert getattr(sample(**{name: good}), name) is good
    for bad in (np.float32([0, -1, 0, np.nan]), np.float32([-1, -2])):
        with pytest.raises(RecordError, match=name):
            sample(**{name: bad})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loss_mask": np.array([1, 1, 0, 1], bool)}, "token 0"),
        ({"loss_mask": np.zeros(4, bool)}, ">= 1 trainable"),
        ({"advantages": np.float32([1, 1, 0, 1])}, "advantages"),
        ({"advantages": np.float32([0, np.inf, 0, 1])}, "advantages"),
        ({"weights": np.float32([0, 0, 0, 1])}, "weights"),
        ({"weights": np.float32([0, 1])}, "weights"),
    ],
)
def test_masks_advantages_and_weights_agree(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        sample(**changes)


def test_top_tokens_have_a_row_for_each_trainable_token() -> None:
    top = TopTokens(ids=np.int32([[5, 2], [0, 7]]), logprobs=np.log(np.float32([[0.5, 0.3, 0.2]] * 2)))
    assert sample(teacher_top=top).teacher_top is top
    one = TopTokens(ids=top.ids[:1], logprobs=top.logprobs[:1])
    with pytest.raises(RecordError, match="e/agent/0: teacher_top has 1 rows for 2 trainable tokens"):
        sample(teacher_top=one)


@pytest.mark.parametrize(
    ("ids", "probabilities", "told"),
    [
        ([[5, 2]], [[0.5, 0.3]], r"\(1, 2\) and log-probs \(1, 2\)"),
        ([[5, 2]], [[0.5, 0.3, 0.5]], "sum to 1.3, not 1"),
        ([[5, 5]], [[0.5, 0.3, 0.2]], "twice"),
        ([[5, -1]], [[0.5, 0.3, 0.2]], "negative"),
        ([[5, 2]], [[1.0, 0.0, 0.0]], "not finite"),
        ([[5, 2]], [[0.5, 0.3, np.nan]], "sum to nan"),
    ],
)
def test_top_tokens_that_are_no_distribution_are_refused(ids: Any, probabilities: Any, told: str) -> None:
    with np.errstate(divide="ignore"), pytest.raises(RecordError, match=told):
        TopTokens(ids=np.int32(ids), logprobs=np.log(np.float32(probabilities)))
