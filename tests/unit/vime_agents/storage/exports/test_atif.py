"""ATIF documents, against the fields and rules of its specification, and Harbor's models where installed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import HOSTILE, game_episode, tool_episode, unstarted_episode
from vime_agents.messages import assistant
from vime_agents.storage.exports.atif import ATIF_VERSION, atif_documents
from vime_agents.storage.exports.json_text import json_line
from vime_agents.storage.stored_episodes import StoredEpisode

# Field -> type of ATIF-v1.7, of what is written here; a trailing ! marks what must be there.
FIELDS: dict[str, dict[str, Any]] = {
    "trajectory": {
        "schema_version!": str,
        "session_id": str,
        "trajectory_id": str,
        "agent!": dict,
        "steps!": list,
        "final_metrics": dict,
        "extra": dict,
    },
    "agent": {"name!": str, "version!": str, "model_name": str, "extra": dict},
    "step": {
        "step_id!": int,
        "source!": str,
        "message!": str,
        "tool_calls": list,
        "observation": dict,
        "metrics": dict,
        "is_copied_context": bool,
        "llm_call_count": int,
        "extra": dict,
    },
    "call": {"tool_call_id!": str, "function_name!": str, "arguments!": dict, "extra": dict},
    "result": {"source_call_id": str, "content": str, "extra": dict},
    "metrics": {
        "prompt_tokens": int,
        "completion_tokens": int,
        "prompt_token_ids": list,
        "completion_token_ids": list,
        "logprobs": list,
        "extra": dict,
    },
    "final_metrics": {
        "total_prompt_tokens": int,
        "total_completion_tokens": int,
        "total_steps": int,
        "extra": dict,
    },
}


def check_fields(kind: str, value: dict[str, Any]) -> None:
    known = {name.rstrip("!"): of for name, of in FIELDS[kind].items()}
    assert value.keys() <= known.keys()
    assert {name[:-1] for name in FIELDS[kind] if name.endswith("!")} <= value.keys()
    for name, part in value.items():
        assert type(part) is known[name], (kind, name, part)


def check_document(document: dict[str, Any]) -> None:
    check_fields("trajectory", document)
    check_fields("agent", document["agent"])
    check_fields("final_metrics", document["final_metrics"])
    assert document["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    assert document["steps"]
    for step in document["steps"]:
        check_fields("step", step)
        assert step["source"] in ("system", "user", "agent")
        if step["source"] != "agent":
            assert not step.keys() & {"tool_calls", "metrics"}
        if step.get("llm_call_count") == 0:
            assert "metrics" not in step
        for call in step.get("tool_calls", ()):
            check_fields("call", call)
        if "metrics" in step:
            check_fields("metrics", step["metrics"])
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": []})["results"]:
            check_fields("result", result)
            assert result.get("source_call_id") in {*calls, None}


def documents(episode, **options) -> list[dict[str, Any]]:
    stored = StoredEpisode(number=1, source="episodes", episode=episode)
    found = [json.loads(json_line(d)) for d in atif_documents(stored, version="1.2.3", **options)]
    for document in found:
        check_document(document)
    return found


def test_a_tools_answer_is_the_observation_of_the_step_that_called_it():
    (document,) = documents(tool_episode("4"))
    assert document["schema_version"] == ATIF_VERSION
    assert document["agent"] == {
        "name": "vime-agents",
        "version": "1.2.3",
        "model_name": "4",
        "extra": {"agent": "agent"},
    }
    first, second, called, answered, last = document["steps"]
    assert (first["source"], second["source"], last["source"]) == ("system", "user", "user")
    assert called["tool_calls"] == [
        {"tool_call_id": "call-1", "function_name": "add4", "arguments": {"a": 2}}
    ]
    assert called["observation"] == {"results": [{"content": "4", "source_call_id": "call-1"}]}
    assert called["metrics"] == {"prompt_tokens": 2, "completion_tokens": 3}
    assert (answered["message"], answered["extra"]["reward"]) == ("4", 0.75)
    assert document["final_metrics"] == {
        "total_prompt_tokens": 9,
        "total_completion_tokens": 6,
        "total_steps": 5,
        "extra": {"tool_calls": 1.0},
    }
    assert document["extra"]["reward"]["components"] == {"4": 0.5, "len": 3.0}
    assert datetime.fromisoformat(document["extra"]["started_at"]).timestamp() == 1_700_000_000.5


def test_tokens_are_those_of_each_call():
    (document,) = documents(tool_episode(), tokens=True)
    first, second = (s["metrics"] for s in document["steps"] if s["source"] == "agent")
    assert first["prompt_token_ids"] == [10, 11]
    assert first["completion_token_ids"] == [20, 21, 22]
    assert second["prompt_token_ids"] == [10, 11, 20, 21, 22, 11, 11]
    assert second["logprobs"] == [-0.5, -1.0, -0.25]
    assert second["extra"] == {"loss_mask": [True, True, True], "weight_versions": [0]}


@pytest.mark.parametrize(
    "arguments", ["", "{", "[1]", "null", '{"a": NaN}', "[" * 100_000, '{"a":' * 100 + "1" + "}" * 100]
)
def test_arguments_that_are_no_object_stand_beside_an_empty_one(arguments):
    (document,) = documents(tool_episode(arguments=arguments))
    (call,) = document["steps"][2]["tool_calls"]
    assert (call["arguments"], call["extra"]) == ({}, {"arguments_text": arguments})


def test_each_agent_of_a_game_has_a_document_of_the_same_session():
    first, second = documents(game_episode())
    assert first["session_id"] == second["session_id"] == "episodes/game"
    assert (first["trajectory_id"], second["trajectory_id"]) == (
        "episodes/game/first",
        "episodes/game/second",
    )
    assert second["extra"]["stop"] == "illegal_move"


def test_an_episode_that_never_started_says_so():
    (document,) = documents(unstarted_episode())
    assert document["steps"] == [
        {
            "step_id": 1,
            "source": "system",
            "message": "The episode ended before its first message (error): no space left",
        }
    ]
    assert document["extra"]["reward"] is None


def test_examples_are_copied_context_and_answers_to_nobody_have_no_reference():
    (trajectory,) = make_episode().trajectories
    stray = {"role": "tool", "content": "7", "tool_call_id": "gone", "name": "add"}
    turn = replace(trajectory.turns[0], messages=(stray, assistant("as I did before"), stray))
    (document,) = documents(replace(make_episode(), trajectories=(replace(trajectory, turns=(turn,)),)))
    nobody, example, reply = document["steps"]
    result = {"content": "7", "extra": {"tool_call_id": "gone", "name": "add"}}
    assert (nobody["source"], nobody["observation"]) == ("system", {"results": [result]})
    assert (example["is_copied_context"], example["llm_call_count"]) == (True, 0)
    assert example["observation"] == {"results": [result]}
    assert reply["llm_call_count"] == 1


def test_harbors_own_models_take_it():
    models = pytest.importorskip(
        "harbor.models.trajectories", reason="pip install --no-deps harbor (needs no more than pydantic here)"
    )
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    hostile = replace(tool_episode(HOSTILE, arguments=json.dumps({HOSTILE: HOSTILE})), info={"deep": deep})
    for episode in (tool_episode(), hostile, game_episode(), unstarted_episode()):
        for document in documents(episode, tokens=True):
            models.Trajectory.model_validate_json(json_line(document))
