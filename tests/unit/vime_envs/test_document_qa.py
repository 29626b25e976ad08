"""DocumentQa: the documents hold the answers, search finds them, and only the right answer is paid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents  # noqa: F401 - registers the ids
from vime_agents.messages import assistant, tool_call
from vime_tools.document_search import DocumentIndex

pytest.importorskip("bm25s")
from vime_envs.document_qa import _HERE, DocumentQa


def tasks_of(split: str) -> list[Mapping[str, Any]]:
    tasks = DocumentQa(split=split).task_set()
    return [tasks[i].inputs for i in range(len(tasks))]


def words(text: str) -> str:
    return " ".join(text.split())


def test_questions_are_many_and_no_test_question_is_trained_on() -> None:
    train, test = tasks_of("train"), tasks_of("test")
    assert len(train) > len(test) >= 20
    assert not {task["question"] for task in train} & {task["question"] for task in test}
    assert {task["kind"] for task in test} == {"fact", "two documents"}


def test_each_answer_stands_in_its_last_document_and_the_first_leads_there() -> None:
    index = DocumentIndex(_HERE / "library")
    for task in tasks_of("train") + tasks_of("test"):
        texts = [words(index.documents[name]) for name in task["documents"]]
        assert task["answer"] in texts[-1], task
        if len(texts) == 2:
            title = texts[1].split("#")[1].strip()[:12]
            name = title.removeprefix("The ferry ").split(" The")[0].split()[0]
            assert name in texts[0], task


def test_a_search_for_the_names_in_the_question_finds_its_first_document() -> None:
    index = DocumentIndex(_HERE / "library")
    for task in tasks_of("train") + tasks_of("test"):
        names = " ".join(re.findall(r"(?<=\W)[A-Z]\w+", task["question"]))
        assert task["documents"][0] in {passage.document for passage in index.search(names, 10)}, task


@pytest.fixture
def env() -> DocumentQa:
    made = DocumentQa(split="test")
    made.reset(options={"task": 0})
    return made


def test_gold_looks_up_what_it_says() -> None:
    env = DocumentQa(split="test")
    for index in range(10):
        env.reset(options={"task": index})
        for reply in env.gold():
            _, reward, terminated, _, _ = env.step(reply)
        assert (reward, terminated) == (1.0, True)
        assert "tool_errors" not in env.counters
        assert env.task["answer"] in words(env.messages[-2]["content"])


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("It says so.\n\n**Answer:** {answer}.", 1.0),
        ("answer: The {answer}", 1.0),
        ("Answer: 3\nNo:\nAnswer: {answer}", 1.0),
        ("Answer: {answer}\nAnswer: 3", 0.0),
        ("Answer: {answer} or 3", 0.0),
        ("{answer}", 0.0),
        ("Answer:", 0.0),
        ("Answer: " + "{answer} " * 50, 0.0),
        ("", 0.0),
        ("Answer: \0\ud800", 0.0),
        ("answer:" * 200_000, 0.0),
        ("*" * 1_000_000, 0.0),
    ],
)
def test_replies_get_what_they_deserve(env: DocumentQa, reply: str, value: float) -> None:
    _, reward, terminated, _, info = env.step(reply.replace("{answer}", env.task["answer"]))
    assert (reward, terminated, info["reward_result"].ok) == (value, True, True)


def test_what_is_not_there_is_an_error_that_the_model_reads(env: DocumentQa) -> None:
    call = assistant("", [tool_call("read_document", {"document": "../document_qa.py"}, "1")])
    observation, *_ = env.step(call)
    assert observation["messages"][0]["content"].startswith("Error: ")
    assert env.counters == {"tool_calls": 1, "tool_errors": 1}


def test_gymnasium_finds_nothing_to_say() -> None:
    with gymnasium.make("vime_agents/DocumentQa-v0") as env:
        check_env(env.unwrapped)
