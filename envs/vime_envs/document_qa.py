"""DocumentQa-v0: answer questions about an archipelago that is in no other text than these documents."""

from __future__ import annotations

import re
import string
from importlib.resources import files
from pathlib import Path
from typing import Any

from vime_agents.env import ToolEnv
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.task import TaskSet
from vime_agents.tasks import load_tasks
from vime_tools.document_search import document_search

_HERE = Path(str(files("vime_envs")))
_ANSWER = re.compile(r"^[*_# ]*answer[*_ ]*:(.*)$", re.IGNORECASE | re.MULTILINE)
MAX_ANSWER = 200
"""Characters; a longer answer is none."""


class DocumentQa(ToolEnv):
    """One question, whose answer takes one document or two; the reward is 1 for exactly the right answer."""

    max_turns = 8
    toolsets = (document_search(_HERE / "library"),)

    def tasks(self) -> TaskSet:  # noqa: D102
        return load_tasks(_HERE / "library_questions.jsonl", split=self.split, split_key="split")

    def prompt(self) -> str:  # noqa: D102
        return (
            f"{self.task['question']}\n\nLook it up in the documents about the Selkirk Ring. End your reply "
            "with a "
            "line like `Answer: 1850` that holds the answer and nothing else."
        )

    def score(self, text: str) -> float:  # noqa: D102
        answers = _ANSWER.findall(text)
        return float(bool(answers) and _plain(answers[-1]) == _plain(self.task["answer"]))

    def gold(self) -> list[str | Message]:  # noqa: D102
        search = tool_call("search", {"query": self.task["question"]}, "gold-search")
        reads = [
            tool_call("read_document", {"document": name}, f"gold-{n}")
            for n, name in enumerate(self.task["documents"])
        ]
        return [assistant("", [search]), assistant("", reads), f"Answer: {self.task['answer']}"]


def _plain(answer: str) -> str:
    """Without case, marks around it and a leading article."""
    if len(answer) > MAX_ANSWER:
        return ""
    words: Any = answer.casefold().strip(string.whitespace + string.punctuation).split()
    return " ".join(words[1:] if words[:1] in (["the"], ["a"], ["an"]) else words)
