"""Look a word up with a tool, then report what it said: the smallest real tool-use task.

The prompt is plain text with two worked examples, so that a small base model can begin to play:

    red -> get(red) = 4 => 4
    sun -> get(sun) = 7 => 7
    cat ->

The policy continues ` get(cat)`; the tool answers ` = 2 =>`; the policy finishes ` 2`. The value is random in
each task and known only to the tool, whose code runs in the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vime_agents.env import ToolEnv
from vime_agents.messages import Message, ToolCall, tool_call
from vime_agents.sandbox import SandboxSpec
from vime_agents.tools import tool
from vime_tools.table_lookup import look_up

_WORDS = """
    red blue green cat dog sun moon tree fish bird milk salt rain snow lamp door ship book ring gold
    king queen horse house mouse river stone bread apple grass cloud chair table water fire earth wind
    leaf root seed rose sand star iron wood wool silk corn rice bean meat cake wine beer soup hand foot
    head nose hair back bone skin road path hill lake farm town city wall roof room gate coat shoe belt
    sock desk clock glass plate knife spoon rope nail wheel train plane boat sail flag song drum bell
    game ball card coin bank shop park
""".split()  # noqa: SIM905 - a list that one can read
_NUM_TRAIN_WORDS = 84
_CALL = re.compile(r"\s*get\((\w+)\)\s*")


class KeyLookup(ToolEnv):
    """Two turns: call the tool on the right word, then copy its answer. Test words never occur in train."""

    max_turns = 2
    prompt_style = "text"
    sandbox_spec = SandboxSpec(memory_mb=256)

    @property
    def words(self) -> Sequence[str]:
        """The words of this split."""
        return _WORDS[:_NUM_TRAIN_WORDS] if self.split == "train" else _WORDS[_NUM_TRAIN_WORDS:]

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A table of random digits, the word to look up, and two words for the examples."""
        table = {word: str(rng.integers(10)) for word in self.words}
        word, *examples = (str(w) for w in rng.choice(self.words, 3, replace=False))
        return {"table": table, "word": word, "examples": examples}

    def prompt(self) -> str:
        """Two worked examples and the word."""
        table = self.task["table"]
        shots = "".join(f"{w} -> get({w}) = {table[w]} => {table[w]}\n" for w in self.task["examples"])
        return f"{shots}{self.task['word']} ->"

    def stop_strings(self) -> Sequence[str]:
        """A call ends with its bracket, an answer with its line."""
        return (")",) if self.turn == 0 else ("\n",)

    def max_tokens(self) -> int:
        """Both replies are short."""
        return 8

    @tool
    async def get(self, key: str) -> str:
        """Look a word up.

        Args:
            key: the word.
        """
        value = await look_up(await self.sandbox(), self.task["table"], key)
        return "?" if value is None else value

    def parse_calls(self, text: str) -> Sequence[ToolCall]:
        """`get(word)`, written as text."""
        call = _CALL.fullmatch(text)
        return () if call is None else (tool_call("get", {"key": call[1]}, f"call_{self.turn}"),)

    def format_result(self, result: str, call: ToolCall) -> Message:
        """Continue the line as in the examples."""
        return super().format_result(f" = {result} =>", call)

    def score(self, text: str) -> Mapping[str, float | tuple[float, float]]:
        """0.3 for the right call, 0.7 more for the right answer; `success` is a metric."""
        replies = [m["content"] for m in self.messages if m["role"] == "assistant"]
        call = _CALL.fullmatch(replies[0])
        called = call is not None and call[1] == self.task["word"]
        value = self.task["table"][self.task["word"]]
        answered = called and len(replies) == 2 and text.endswith("\n") and text.strip() == value
        return {
            "call": (float(called), 0.3),
            "answer": (float(answered), 0.7),
            "success": (float(answered), 0.0),
        }

    def gold(self) -> list[str]:
        """The two right replies."""
        word = self.task["word"]
        return [f" get({word})", f" {self.task['table'][word]}\n"]
