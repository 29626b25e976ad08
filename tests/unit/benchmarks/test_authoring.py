"""What the benchmark of environments counts, and the model that plays in it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.authoring import ARMS, author_lines
from benchmarks.authoring_arms.server import reply_to

QUESTION = {"role": "user", "content": "What is 120 * 34? End with the number."}
TOOLS = [{"type": "function", "function": {"name": "multiply", "parameters": {}}}]


def test_lines_of_code_are_counted_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "env.py"
    code = "import os  # why\n\n\n# a comment\ndef f():\n    return os\n"
    file.write_text(f'"""One.\n\nTwo.\n"""\n\n{code}')
    assert author_lines(file) == 3
    assert author_lines(ARMS / "vime_agents_env.py") <= 20


def test_the_model_calls_the_tool_and_then_says_what_it_answered() -> None:
    call = reply_to({"messages": [QUESTION], "tools": TOOLS})
    (made,) = call["tool_calls"]
    assert made["function"] == {"name": "multiply", "arguments": '{"a": 120, "b": 34}'}
    result = {"role": "tool", "content": "4080", "tool_call_id": made["id"]}
    assert reply_to({"messages": [QUESTION, call, result], "tools": TOOLS})["content"] == "The answer is 4080"


def test_without_tools_it_writes_its_calls() -> None:
    first = reply_to({"messages": [QUESTION]})
    assert first["content"] == "<multiply>120,34</multiply>"
    result = {"role": "user", "content": "<result>4080</result>"}
    assert reply_to({"messages": [QUESTION, first, result]})["content"] == "The answer is 4080"


def test_content_in_parts_is_read() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}
    assert "tool_calls" in reply_to({"messages": [parts], "tools": TOOLS})
