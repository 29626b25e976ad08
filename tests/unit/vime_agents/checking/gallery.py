"""Environments with one fault each, and what `vime-agents check` must say of them: that, and nothing else.

A class's `FINDS` is the id of the check that catches it; `FINDS = None` is an env without a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import tempfile
import threading
import time
import uuid
from typing import Any, ClassVar

import numpy as np

import vime_agents as vime
from vime_agents import messages as msg
from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.episode import RewardResult
from vime_agents.sandbox import SandboxSpec
from vime_agents.task import Task

GALLERY: dict[str, type[AgentEnv]] = {}


def exhibit(cls: Any) -> Any:
    """Add an env to the gallery."""
    GALLERY[cls.__name__] = cls
    return cls


# ------------------------------------------------------------------------------------------- good ones


@exhibit
class Sum(ToolEnv):
    """Adds with a tool."""

    FINDS: ClassVar[str | None] = None
    max_turns = 3

    def make_task(self, rng: np.random.Generator) -> Any:
        a, b = (int(n) for n in rng.integers(1_000, 1_000_000, 2))
        return {"a": a, "b": b}

    def prompt(self) -> Any:
        return f"What is {self.task['a']} + {self.task['b']}? End with the number."

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the one.
            b: the other.
        """
        return str(a + b)

    def score(self, text: str) -> Any:
        numbers = re.findall(r"\d+", text)
        return float(bool(numbers) and numbers[-1] == str(self.task["a"] + self.task["b"]))

    def gold(self) -> Any:
        call = msg.tool_call("add", {"a": self.task["a"], "b": self.task["b"]}, "gold")
        return [msg.assistant("", [call]), f"It is {self.task['a'] + self.task['b']}"]


@exhibit
class SingleTurn(AgentEnv):
    """No tools, one turn."""

    FINDS: ClassVar[str | None] = None

    def make_task(self, rng: np.random.Generator) -> Any:
        return {"word": "".join(chr(97 + i) for i in rng.integers(0, 26, 12))}

    async def prompt(self) -> Any:
        return f"Spell {self.task['word']} backwards, nothing else."

    async def score(self, text: str) -> Any:
        return float(text.strip() == self.task["word"][::-1])

    def gold(self) -> Any:
        return self.task["word"][::-1]


# ------------------------------------------------------------------------------------------- interface


@exhibit
class NeedsAnArgument(Sum):
    FINDS = "plays"

    def __init__(self, table: dict[str, str]) -> None:
        super().__init__()
        self.table = table


@exhibit
class PromptFails(Sum):
    FINDS = "plays"

    def prompt(self) -> Any:
        return self.task["question"]


@exhibit
class ScoreWantsANumber(SingleTurn):
    FINDS = "plays"

    async def score(self, text: str) -> Any:
        return float(int(text) == 3)


@exhibit
class WaitsForever(SingleTurn):
    FINDS = "plays"

    async def prompt(self) -> Any:
        await asyncio.Event().wait()


@exhibit
class ClosesTwiceBadly(SingleTurn):
    FINDS = "close"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = {"open": True}

    async def aclose(self) -> None:
        await super().aclose()
        del self.table


@exhibit
class PlaysOn(SingleTurn):
    FINDS = "step-after-end"

    async def astep(self, action: Any) -> Any:
        if not self._playing:
            return self._observe([]), 0.0, True, False, {}
        return await super().astep(action)


@exhibit
class SplitsAtEquals(SingleTurn):
    FINDS = "random-actions"

    async def score(self, text: str) -> Any:
        if text.count("=") == 1 and len(text) < 40:  # the second half of "x = 1"
            float(text.split("=")[1])
        return await super().score(text)


Misnamed = type("NotItsName", (SingleTurn,), {"FINDS": "spec", "__module__": __name__})
GALLERY["Misnamed"] = Misnamed


@exhibit
class RendersNoText(SingleTurn):
    FINDS = "gymnasium"

    def render(self) -> Any:
        return self.messages


# ------------------------------------------------------------------------------------------------ tasks


class SevenIds:
    """A task set that counts to seven."""

    name = "seven"

    def __init__(self, make: Any, split: str) -> None:
        self.make, self.split = make, split

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int, /) -> Task:
        rng = np.random.default_rng([len(self.split), index])
        return Task(id=str(index % 7), inputs=self.make(rng), split=self.split)


@exhibit
class SameIds(SingleTurn):
    FINDS = "task-ids"

    def tasks(self) -> Any:
        return SevenIds(self.make_task, self.split)


@exhibit
class ShuffledTasks(SingleTurn):
    FINDS = "task-ids"

    def tasks(self) -> Any:
        rows = [self.make_task(np.random.default_rng([len(self.split), n])) for n in range(50)]
        np.random.default_rng().shuffle(rows)
        return rows


@exhibit
class TaskWithASet(SingleTurn):
    FINDS = "task-json"

    def make_task(self, rng: np.random.Generator) -> Any:
        return {**super().make_task(rng), "seen": {1, 2}}


@exhibit
class TestIsTrain(SingleTurn):
    FINDS = "split-overlap"
    __test__ = False

    def tasks(self) -> Any:
        return [self.make_task(np.random.default_rng(n)) for n in range(20)]


@exhibit
class IgnoresOptions(SingleTurn):
    FINDS = "task-options"

    async def areset(self, *, seed: Any = None, options: Any = None) -> Any:
        return await super().areset(seed=seed)


@exhibit
class NoGold(SingleTurn):
    FINDS = "gold"
    gold = AgentEnv.gold


@exhibit
class GoldIsTooShort(Sum):
    FINDS = "gold"

    def gold(self) -> Any:
        return super().gold()[:1]


# ------------------------------------------------------------------------------------------ determinism


@exhibit
class GlobalRandom(SingleTurn):
    FINDS = "global-rng"

    async def prompt(self) -> Any:
        return f"{random.choice(('Please spell', 'Spell'))} {self.task['word']} backwards."


@exhibit
class GlobalSeed(SingleTurn):
    FINDS = "global-rng"

    def setup(self) -> None:
        np.random.seed(0)


@exhibit
class Uuid(SingleTurn):
    FINDS = "same-seed"

    async def prompt(self) -> Any:
        return f"Session {uuid.uuid4()}: spell {self.task['word']} backwards."


@exhibit
class OneSeed(SingleTurn):
    FINDS = "seeds-differ"

    async def areset(self, *, seed: Any = None, options: Any = None) -> Any:
        return await super().areset(seed=0, options=options)


@exhibit
class OrderOfASet(SingleTurn):
    FINDS = "fresh-processes"

    async def prompt(self) -> Any:
        letters = " ".join(set(self.task["word"]))
        return f"Spell {self.task['word']} backwards. Its letters: {letters}"


# -------------------------------------------------------------------------------------------- isolation


@exhibit
class ClassCounter(SingleTurn):
    FINDS = "shared-state"
    played = 0

    def setup(self) -> None:
        type(self).played += 1


_SEEN: list[str] = []


@exhibit
class ModuleList(SingleTurn):
    FINDS = "shared-state"

    async def prompt(self) -> Any:
        _SEEN.append(self.task["word"])
        return f"Spell {_SEEN[-1]} backwards."


@exhibit
class RemembersTheLastEpisode(SingleTurn):
    FINDS = "reset-isolation"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_played = 0

    async def prompt(self) -> Any:
        self.num_played += 1
        return f"Question {self.num_played}: spell {self.task['word']} backwards."


@exhibit
class EatsItsTask(SingleTurn):
    FINDS = "reset-isolation"

    def tasks(self) -> Any:
        rng = np.random.default_rng(len(self.split))
        return [{**self.make_task(rng), "hints": ["no spaces", "lower case"]} for _ in range(8)]

    async def prompt(self) -> Any:
        hints: list[str] = self.task["hints"]
        hint = hints.pop() if hints else "none"
        return f"Spell {self.task['word']} backwards. Hint: {hint}"


@exhibit
class OneFileForAll(SingleTurn):
    FINDS = "instances"

    @property
    def path(self) -> str:
        return os.path.join(tempfile.gettempdir(), f"vime-check-gallery-{os.getpid()}")

    async def prompt(self) -> Any:
        with open(self.path, "w") as file:
            file.write(self.task["word"])
        return f"Spell {self.task['word']} backwards."

    async def score(self, text: str) -> Any:
        with open(self.path) as file:
            return float(text.strip() == file.read()[::-1])


@exhibit
class OneInfo(Sum):
    FINDS = "aliasing"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shown: dict[str, Any] = {}

    def _info(self) -> Any:
        self.shown.clear()
        self.shown.update(super()._info(), turn=self.turn)
        return self.shown


@exhibit
class OwnMessages(Sum):
    FINDS = "aliasing"

    def _observe(self, new: Any) -> Any:
        return {"messages": tuple(new)}

    def score(self, text: str) -> Any:
        return super().score(text) * float("What is" in self.messages[0]["content"])


# ------------------------------------------------------------------------------------------ bad replies


@exhibit
class FirstWord(SingleTurn):
    FINDS = "first-action"

    async def score(self, text: str) -> Any:
        return float(text.split()[0] == self.task["word"][::-1])


@exhibit
class TrustsToolNames(Sum):
    FINDS = "first-action"

    async def respond(self, message: Any) -> Any:
        for call in message.get("tool_calls", ()):
            _ = self.tools[call["function"]["name"]]
        return await super().respond(message)


@exhibit
class IntOfDigits(SingleTurn):
    FINDS = "hostile-text"

    async def score(self, text: str) -> Any:
        if text.isdecimal():
            int(text)  # more than 4300 digits are refused
        return await super().score(text)


@exhibit
class EncodesTheReply(SingleTurn):
    FINDS = "hostile-text"

    async def score(self, text: str) -> Any:
        return float(text.strip().encode() == self.task["word"][::-1].encode())


@exhibit
class BytesInInfo(SingleTurn):
    FINDS = "observation-json"

    def _info(self) -> Any:
        return {**super()._info(), "image": b"\x89PNG"}


@exhibit
class Surrogate(SingleTurn):
    FINDS = "observation-json"

    async def prompt(self) -> Any:
        return f"Spell {self.task['word']} backwards. \udcff"


@exhibit
class HugePrompt(SingleTurn):
    FINDS = "observation-size"

    async def prompt(self) -> Any:
        return f"Spell {self.task['word']} backwards." + " " * 1_000_000


# ------------------------------------------------------------------------------------------------ tools


class _Loose(Sum):
    """A tool with a schema of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tools["add"] = SchemaTool(self.tools["add"], self.change)  # type: ignore[assignment]

    def change(self, function: dict[str, Any]) -> None:
        raise NotImplementedError


class SchemaTool:
    def __init__(self, tool: Any, change: Any) -> None:
        self._tool, self.name = tool, tool.name
        self.schema = {**tool.schema, "function": dict(tool.schema["function"])}
        change(self.schema["function"])

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self._tool.call(*args, **kwargs)


@exhibit
class SpaceInToolName(_Loose):
    FINDS = "tool-schemas"

    def change(self, function: dict[str, Any]) -> None:
        function["name"] = "add numbers"


@exhibit
class ToolWithoutTypes(_Loose):
    FINDS = "tool-schemas"

    def change(self, function: dict[str, Any]) -> None:
        described = {"description": "a number"}
        function["parameters"] = {"type": "object", "properties": {"a": described, "b": described}}


@exhibit
class ToolWithABadMinimum(_Loose):
    FINDS = "tool-json-schema"

    def change(self, function: dict[str, Any]) -> None:
        number = {"type": "integer", "description": "a number", "minLength": -1}
        function["parameters"] = {"type": "object", "properties": {"a": number, "b": number}}


@exhibit
class ToolNobodyUses(Sum):
    FINDS = "tools-used"

    @vime.tool
    def subtract(self, a: int, b: int) -> str:
        """Subtract b from a.

        Args:
            a: the one.
            b: the other.
        """
        return str(a - b)


@exhibit
class ToolDivides(Sum):
    FINDS = "tool-arguments"

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the one.
            b: the other.
        """
        return str(int((a / b + 1) * b + 0.5))


@exhibit
class ToolBlamesInfrastructure(Sum):
    FINDS = "tool-arguments"

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the one.
            b: the other.
        """
        if a < 0 or b < 0:
            raise vime.EnvFault("no negative numbers")
        return str(a + b)


# ---------------------------------------------------------------------------------------------- rewards


@exhibit
class OutOfRange(SingleTurn):
    FINDS = "reward-range"

    async def score(self, text: str) -> Any:
        return 100 * await super().score(text) - 1


@exhibit
class NotANumber(SingleTurn):
    FINDS = "reward-range"

    async def score(self, text: str) -> Any:
        return float("nan") if "know" in text else await super().score(text)


@exhibit
class WrongSum(SingleTurn):
    FINDS = "reward-parts"

    async def score(self, text: str) -> Any:
        value = await super().score(text)
        return RewardResult(value=value, components={"a": value, "b": 0.5}, weights={"a": 0.5, "b": 0.5})


@exhibit
class PartsComeAndGo(SingleTurn):
    FINDS = "reward-parts"

    async def score(self, text: str) -> Any:
        value = await super().score(text)
        return {"right": value, "bonus": (1.0, 0.0)} if value else {"right": value}


@exhibit
class PaysEverybody(SingleTurn):
    FINDS = "gold-wins"

    async def score(self, text: str) -> Any:
        return 1.0


@exhibit
class GoldIsWrong(SingleTurn):
    FINDS = "gold-wins"

    def gold(self) -> Any:
        return self.task["word"]


@exhibit
class PaysForLength(SingleTurn):
    FINDS = "garbage-pays"

    async def score(self, text: str) -> Any:
        return 1.0 if len(text) >= 1_000 else await super().score(text)


@exhibit
class PaysForTheFormat(SingleTurn):
    FINDS = "garbage-pays"

    async def score(self, text: str) -> Any:
        return float(re.fullmatch("[a-z]{12}", text.strip()) is not None)


@exhibit
class LooksForIt(SingleTurn):
    FINDS = "hedging-pays"

    async def score(self, text: str) -> Any:
        return float(self.task["word"][::-1] in text)


@exhibit
class TagsThatNobodyIsToldOf(SingleTurn):
    FINDS = "answer-form"

    async def score(self, text: str) -> Any:
        found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        return await super().score(found[-1]) if found else 0.0

    def gold(self) -> Any:
        return f"<answer>{self.task['word'][::-1]}</answer>"


@exhibit
class TagsThatThePromptShows(TagsThatNobodyIsToldOf):
    FINDS = None

    async def prompt(self) -> Any:
        return f"{await super().prompt()} Write it between <answer> and </answer>."


@exhibit
class ScoresTheLastMessage(Sum):
    FINDS = "partial-score"

    def score(self, text: str) -> Any:
        if self.messages[-1]["role"] != "assistant" and self.turn < self.max_turns:
            raise ValueError("the episode is not over")
        return super().score(text)


# ----------------------------------------------------------------------------------------------- limits


@exhibit
class NeverEnds(Sum):
    FINDS = "turn-limit"

    async def astep(self, action: Any) -> Any:
        most = self.max_turns
        self.max_turns = 1_000  # type: ignore[misc]
        try:
            return await super().astep(action)
        finally:
            self.max_turns = most  # type: ignore[misc]


@exhibit
class NoStop(SingleTurn):
    FINDS = "turn-limit"

    async def astep(self, action: Any) -> Any:
        *values, info = await super().astep(action)
        info.pop("stop", None)
        return (*values, info)


@exhibit
class SwallowsCancelling(Sum):
    FINDS = "cancellation"

    async def respond(self, message: Any) -> Any:
        if message.get("tool_calls") and self.task_id == "train-0":
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.02)
        return await super().respond(message)


def _run(code: str) -> str:
    """As `exec` would, but not for ever."""
    until = time.monotonic() + (1.5 if "while True" in code else 0.0)
    while time.monotonic() < until:
        time.sleep(0.01)
    return "done"


@exhibit
class RunsCodeInAThread(Sum):
    FINDS = "endless-code"

    @vime.tool
    def python(self, code: str) -> str:
        """Run a program.

        Args:
            code: the program.
        """
        return _run(code)

    def gold(self) -> Any:
        return [msg.assistant("", [msg.tool_call("python", {"code": "1"}, "gold")]), *super().gold()]


@exhibit
class ScoresByRunning(SingleTurn):
    FINDS = "endless-code"

    def score(self, text: str) -> Any:
        _run(text)
        return float(text.strip() == self.task["word"][::-1])


# -------------------------------------------------------------------------------------------- event loop


@exhibit
class Sleeps(SingleTurn):
    FINDS = "loop-blocking"
    HOLD_S = 0.07

    async def score(self, text: str) -> Any:
        if self.task_id == "train-0" and "know" in text:
            time.sleep(self.HOLD_S)  # the fault
        return await super().score(text)


# ------------------------------------------------------------------------------------------------ leaks


@exhibit
class LeaksFiles(SingleTurn):
    FINDS = "leak-files"

    def setup(self, _kept: Any = []) -> None:  # noqa: B006 - the fault
        _kept.append(os.open(os.devnull, os.O_RDONLY))


@exhibit
class LeaksThreads(SingleTurn):
    FINDS = "leak-threads"

    def setup(self) -> None:
        threading.Thread(target=RELEASE.wait, name="gallery", daemon=True).start()


RELEASE = threading.Event()
"""Ends what the leaking envs left."""


@exhibit
class LeaksTasks(SingleTurn):
    FINDS = "leak-tasks"

    async def prompt(self, _kept: Any = []) -> Any:  # noqa: B006 - asyncio itself keeps weak references only
        _kept.append(asyncio.ensure_future(asyncio.sleep(600)))
        return await super().prompt()


@exhibit
class LeaksProcesses(SingleTurn):
    FINDS = "leak-processes"

    def setup(self, _started: Any = []) -> None:  # noqa: B006 - so that the tests can end them
        _started.append(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL))


def end_leaked() -> None:
    """End the processes and close the files that the envs above keep."""
    (started,) = LeaksProcesses.setup.__defaults__
    while started:
        process = started.pop()
        process.kill()
        process.wait()
    (kept,) = LeaksFiles.setup.__defaults__
    while kept:
        os.close(kept.pop())


@exhibit
class LeaksFolders(SingleTurn):
    FINDS = "leak-folders"

    def setup(self) -> None:
        tempfile.mkdtemp()


@exhibit
class BelievesTheVerdict(SingleTurn):
    FINDS = "sandbox-verdict"
    REAL_SANDBOXES = True
    sandbox_spec = SandboxSpec()

    async def score(self, text: str) -> Any:
        if self.has_sandbox:
            verdict = await (await self.sandbox()).exec(["cat", "reward.txt"])
            if verdict.ok:
                return float(verdict.text)
        return await super().score(text)


@exhibit
class HandsOutItsEnvironment(SingleTurn):
    FINDS = "sandbox-walls"
    REAL_SANDBOXES = True
    sandbox_spec = SandboxSpec()

    def setup(self) -> None:
        mine = {name: value for name, value in os.environ.items() if name.startswith("VIME_")}
        self.sandbox_spec = SandboxSpec(env=mine)  # pyright: ignore[reportAttributeAccessIssue]


@exhibit
class LeaksSandboxes(SingleTurn):
    FINDS = "leak-sandboxes"
    sandbox_spec = SandboxSpec()

    async def prompt(self) -> Any:
        assert self._provider is not None
        await self._provider.create(SandboxSpec())
        return await super().prompt()


@exhibit
class LeaksMemory(SingleTurn):
    FINDS = "leak-memory"

    def setup(self, _kept: Any = []) -> None:  # noqa: B006 - the fault
        _kept.append(bytearray(40_000))


# ---------------------------------------------------------------------------------------- whole processes


@exhibit
class Exits(SingleTurn):
    FINDS = "crash"

    async def score(self, text: str) -> Any:
        if "\u202e" in text:
            os._exit(3)
        return await super().score(text)


@exhibit
class BlocksForGood(SingleTurn):
    FINDS = "hang"

    async def score(self, text: str) -> Any:
        if "\u202e" in text:
            time.sleep(600)  # the fault
        return await super().score(text)
