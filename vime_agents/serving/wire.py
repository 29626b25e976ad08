"""vLLM's token-in/token-out wire (`POST /inference/v1/generate`): bodies out, answers in. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vime_agents.errors import EngineError, RecordError
from vime_agents.policy import Sampling
from vime_agents.token_log import SampledTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What the engine sampled in one call."""

    sampled: SampledTokens
    finish_reason: str
    """stop, length, abort."""
    stop_reason: str | int | None
    """The stop string or stop token that fired; None for the end-of-turn token."""


def generate_body(
    token_ids: Sequence[int], sampling: Sampling, *, request_id: str, model: str | None
) -> bytes:
    """The request for one sampled continuation."""
    return _body(token_ids, _sampling_json(sampling), request_id, model)


def prompt_logprobs_body(token_ids: Sequence[int], *, request_id: str, model: str | None) -> bytes:
    """The request for the log-probs of the prompt itself; the one sampled token is of no interest."""
    params = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
    return _body(token_ids, json.dumps(params), request_id, model)


def _body(token_ids: Sequence[int], sampling_json: str, request_id: str, model: str | None) -> bytes:
    # Joined by hand: the sampling parameters are the same in thousands of calls, and are serialised once.
    name = "" if model is None else f',"model":{json.dumps(model)}'
    ids = json.dumps(list(token_ids), separators=(",", ":"))
    return (
        f'{{"request_id":"{request_id}","token_ids":{ids},"sampling_params":{sampling_json}{name}}}'.encode()
    )


@lru_cache(maxsize=64)
def _sampling_json(sampling: Sampling) -> str:
    """Every value explicit, so that no default of the server or of the model's folder applies."""
    return json.dumps(
        {
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": sampling.max_tokens,
            "min_tokens": 0,
            "ignore_eos": False,
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "detokenize": bool(sampling.stop),  # only stop strings need text
            "seed": sampling.seed,
            "logprobs": 0,  # the sampled token's own
        }
    )


def parse_answer(payload: Any, *, where: str) -> EngineAnswer:
    """Read a generate answer.

    Raises:
        EngineError: ids and log-probs do not belong together, or a field is missing. Names `where`.
    """
    try:
        choice = payload["choices"][0]
        ids = tuple(choice["token_ids"])
        content = (choice["logprobs"] or {}).get("content") if ids else []
        if content is None or len(content) != len(ids):
            held = "no" if content is None else len(content)
            raise _malformed(where, f"{len(ids)} sampled ids but {held} log-probs")
        logprobs = tuple(float(entry["logprob"]) for entry in content)
        for at, (token_id, entry) in enumerate(zip(ids, content, strict=True)):
            if _entry_id(entry) != token_id:
                raise _malformed(
                    where, f"log-prob {at} is of token {_entry_id(entry)}, sampled was {token_id}"
                )
            if not math.isfinite(logprobs[at]):
                raise _malformed(where, f"log-prob {at} is {logprobs[at]}")
        spans = choice.get("weight_versions") or (
            [{"version": None, "start": 0, "end": len(ids)}] if ids else []
        )
        versions = tuple((_version(s["version"]), int(s["start"]), int(s["end"])) for s in spans)
        # Rounding in the kernel may leave a log-prob a hair above zero.
        logprobs = tuple(min(value, 0.0) if value < 1e-4 else value for value in logprobs)
        sampled = SampledTokens(token_ids=ids, logprobs=logprobs, versions=versions)
        return EngineAnswer(
            sampled=sampled, finish_reason=choice["finish_reason"], stop_reason=choice.get("stop_reason")
        )
    except (KeyError, IndexError, TypeError, ValueError, RecordError) as error:
        raise _malformed(where, f"{type(error).__name__}: {error}") from error


def parse_prompt_logprobs(payload: Any, token_ids: Sequence[int], *, where: str) -> list[float]:
    """Log-prob of each prompt token given those before it; entry 0 is NaN: nothing predicts it.

    Raises:
        EngineError: malformed, or not of these tokens.
    """
    try:
        entries = payload["prompt_logprobs"]
        if len(entries) != len(token_ids):
            raise _malformed(where, f"{len(token_ids)} prompt tokens but {len(entries)} prompt log-probs")
        pairs = zip(entries[1:], token_ids[1:], strict=True)
        return [math.nan, *(_of_token(entry, token_id) for entry, token_id in pairs)]
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(where, f"prompt log-probs: {type(error).__name__}: {error}") from error


def _of_token(entry: Mapping[str, Any], token_id: int) -> float:
    return float(entry[str(token_id)]["logprob"])


def _entry_id(entry: Mapping[str, Any]) -> int:
    """Of either wire form: `"token_id": 5`, or `"token": "token_id:5"` of older servers."""
    if "token_id" in entry:
        return int(entry["token_id"])
    return int(str(entry["token"]).removeprefix("token_id:"))


def _version(label: object) -> int | None:
    """Published updates have integer labels; somebody else's server may say `default`."""
    try:
        return int(str(label))
    except ValueError:
        return None


def _malformed(where: str, what: str) -> EngineError:
    return EngineError(f"{where}: malformed answer: {what}. Is it vLLM 0.32 with --enable-scale-out?")
