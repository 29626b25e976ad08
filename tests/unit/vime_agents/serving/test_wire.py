"""The wire of vLLM's generate endpoint, without a server."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from vime_agents.errors import EngineError
from vime_agents.policy import Sampling
from vime_agents.serving.wire import generate_body, parse_answer, parse_prompt_logprobs, prompt_logprobs_body


def choice(**changes: Any) -> dict[str, Any]:
    base = {
        "token_ids": [7, 9],
        "finish_reason": "length",
        "stop_reason": None,
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 9, "logprob": -2.0}]},
    }
    return {"choices": [base | changes]}


def test_a_well_formed_answer_is_read_whole():
    answer = parse_answer(choice(stop_reason="END", finish_reason="stop"), where="e")
    assert answer.sampled.token_ids == (7, 9)
    assert answer.sampled.logprobs == (-0.5, -2.0)
    assert answer.sampled.versions == ((3, 0, 2),)
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "END")


def test_the_older_log_prob_form_gives_the_same_answer():
    content = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:9", "logprob": -2.0}]
    assert parse_answer(choice(logprobs={"content": content}), where="e") == parse_answer(choice(), where="e")


def test_a_label_that_is_no_number_is_no_version():
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    answer = parse_answer(choice(weight_versions=spans), where="e")
    assert answer.sampled.versions == ((None, 0, 1), (4, 1, 2))


def test_a_server_without_versions_gives_one_span_without_version():
    assert parse_answer(choice(weight_versions=None), where="e").sampled.versions == ((None, 0, 2),)


def test_an_answer_without_tokens_is_empty():
    answer = parse_answer(
        choice(token_ids=[], logprobs=None, weight_versions=[], finish_reason="abort"), where="e"
    )
    assert (answer.sampled.token_ids, answer.sampled.versions, answer.finish_reason) == ((), (), "abort")


def test_a_log_prob_a_hair_above_zero_is_rounding():
    content = [{"token_id": 7, "logprob": 1e-7}, {"token_id": 9, "logprob": -2.0}]
    assert parse_answer(choice(logprobs={"content": content}), where="e").sampled.logprobs == (0.0, -2.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": None}, "2 sampled ids but no log-probs"),
        ({"logprobs": {"content": [{"token_id": 7, "logprob": -0.5}]}}, "2 sampled ids but 1 log-probs"),
        (
            {"logprobs": {"content": [{"token_id": 7, "logprob": -1}, {"token_id": 8, "logprob": -1}]}},
            "log-prob 1 is of token 8, sampled was 9",
        ),
        (
            {"logprobs": {"content": [{"token_id": 7, "logprob": -1}, {"token_id": 9, "logprob": None}]}},
            "TypeError",
        ),
        (
            {"logprobs": {"content": [{"token_id": 7, "logprob": -1}, {"token_id": 9, "logprob": math.nan}]}},
            "log-prob 1 is nan",
        ),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 1}]}, "cover 1 of 2 tokens"),
        ({"weight_versions": [{"version": "1", "start": 1, "end": 2}]}, "do not tile"),
    ],
)
def test_an_answer_that_cannot_be_true_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(EngineError, match=f"http://e.*{said}"):
        parse_answer(choice(**changes), where="http://e")


@pytest.mark.parametrize("payload", [None, [], {}, {"choices": []}, {"choices": [{"text": "hi"}]}])
def test_an_answer_of_another_endpoint_is_refused(payload: Any):
    with pytest.raises(EngineError, match=r"malformed answer.*--enable-scale-out"):
        parse_answer(payload, where="e")


def test_every_sampling_value_is_sent():
    sampling = Sampling(temperature=0.3, top_p=0.9, top_k=40, max_tokens=5, stop=("x",), seed=11)
    body = json.loads(generate_body([1, 2], sampling, request_id="r", model="m"))
    assert (body["token_ids"], body["request_id"], body["model"]) == ([1, 2], "r", "m")
    params = body["sampling_params"]
    expected = {"temperature": 0.3, "top_p": 0.9, "top_k": 40, "max_tokens": 5, "stop": ["x"], "seed": 11}
    assert params.items() >= expected.items()
    neutral = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert params.items() >= neutral.items()
    assert params["logprobs"] == 0
    assert params["include_stop_str_in_output"] is True


def test_text_is_made_only_for_stop_strings():
    without = json.loads(generate_body([1], Sampling(), request_id="r", model=None))
    assert without["sampling_params"]["detokenize"] is False
    assert "model" not in without


def test_prompt_log_probs_are_looked_up_by_token():
    payload = {"prompt_logprobs": [None, {"5": {"logprob": -1.5}, "8": {"logprob": -0.1}}]}
    first, second = parse_prompt_logprobs(payload, [4, 5], where="e")
    assert math.isnan(first)
    assert second == -1.5
    assert json.loads(prompt_logprobs_body([4, 5], request_id="r", model=None))["token_ids"] == [4, 5]


@pytest.mark.parametrize("entries", [None, [None], [None, {"6": {"logprob": -1}}], [None, None]])
def test_prompt_log_probs_of_other_tokens_are_refused(entries: Any):
    with pytest.raises(EngineError, match="http://e"):
        parse_prompt_logprobs({"prompt_logprobs": entries}, [4, 5], where="http://e")
