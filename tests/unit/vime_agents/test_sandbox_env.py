"""SandboxEnv: ready tools, artifacts, and hidden tests against solutions that cheat. Real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

import vime_agents as vime
from vime_agents.errors import (
    ContractError,
    GraderCrashed,
    GraderError,
    GraderTimeout,
    SandboxUnsupported,
)
from vime_agents.hidden_tests import HiddenTestReport, run_hidden_tests
from vime_agents.messages import assistant, tool_call

TESTS = {
    "test_double.py": """
import unittest
from cases import PAIRS
from solution import double, half

def test_pairs():
    for value, twice in PAIRS:
        assert double(value) == twice, value

def test_zero():
    assert double(0) == 0

def test_raises():
    with unittest.TestCase().assertRaises(ValueError):
        half(1)
""",
    "cases.py": "PAIRS = [(7, 14), ('ab', 'abab'), ((1, 2), (1, 2, 1, 2)), (-3, -6)]\n",
}
GOLD = """
def double(value):
    return value * 2

def half(value):
    if value % 2:
        raise ValueError("odd")
    return value // 2
"""


class Doubles(vime.SandboxEnv):
    """Write `double` and `half`."""

    tests: Mapping[str, str] = TESTS
    report: HiddenTestReport | None = None

    def tasks(self) -> list[dict[str, Any]]:
        return [{"text": GOLD}]

    def prompt(self) -> str:
        return "Write double and half."

    async def score(self, text: str) -> dict[str, Any]:
        self.report = await self.grade_tests(self.tests, call_timeout_s=1.5)
        return {"passed": float(self.report.all_passed), "fraction": (self.report.fraction, 0.0)}

    def gold(self) -> Any:
        return self.gold_files({"solution.py": self.task["text"]})


@pytest.fixture
async def env() -> AsyncIterator[Doubles]:
    made = Doubles()
    yield made
    await made.aclose()


async def hand_in(env: Doubles, text: str) -> Any:
    await env.areset(seed=0)
    for reply in env.gold_files({"solution.py": text}):
        *_, info = await env.astep(reply)
    return info["reward_result"]


def failures(env: Doubles) -> list[str | None]:
    assert env.report is not None
    return [result.failure for result in env.report.results]


def test_the_ready_tools_are_known_before_an_episode() -> None:
    names = [schema["function"]["name"] for schema in Doubles().tool_schemas]
    assert names == ["bash", "view_file", "write_file", "edit_file", "submit"]


async def test_gold_passes_and_nothing_is_left_open(env: Doubles) -> None:
    result = await hand_in(env, GOLD)
    assert (result.value, result.components) == (1.0, {"passed": 1.0, "fraction": 1.0})
    assert env.report is not None
    assert [r.name for r in env.report.results] == [
        f"test_double.py::{name}" for name in ("test_pairs", "test_zero", "test_raises")
    ]
    stats: Any = await env.sandboxes().stats()  # pyright: ignore[reportAttributeAccessIssue]
    assert stats.lent == 0


async def test_mended_tests_judge_the_artifacts_that_were_stored(env: Doubles) -> None:
    env.keep_graded()
    result = await hand_in(env, GOLD.replace("value * 2", "value * 3"))
    assert (result.value, env.graded_record and env.graded_record.answer) == (0.0, "done")

    class Mended(Doubles):
        tests = MappingProxyType(
            {"test_one.py": "from solution import double\ndef test_one():\n    assert double(1) == 3\n"}
        )

    again = Mended()
    assert env.graded_record is not None
    try:
        mended = await again.grade_again(env.task_set()[0], env.messages, env.graded_record)
        assert (mended.value, mended.components["fraction"]) == (1.0, 1.0)
    finally:
        await again.aclose()


async def test_what_is_half_right_passes_its_share(env: Doubles) -> None:
    result = await hand_in(env, "def double(value):\n    return value + value if value == 0 else 14\n")
    assert (result.value, result.components["fraction"]) == (0.0, pytest.approx(1 / 3))
    assert failures(env)[0] == "AssertionError: ab"
    assert failures(env)[1] is None


PATCH_THE_RUNNER = """
import builtins, gc, inspect, sys, unittest
for name in ("AssertionError", "SystemExit"):
    setattr(builtins, name, type(name, (BaseException,), {}))
unittest.TestCase.assertRaises = unittest.TestCase.run = lambda *a, **k: None
main = sys.modules["__main__"]
for key in list(vars(main)):
    if not key.startswith("__"):
        setattr(main, key, lambda *a, **k: None)
"""
CHEATS = {
    "ends the process with status 0": "import os\nos._exit(0)\n",
    "raises SystemExit(0)": "raise SystemExit(0)\n",
    "prints that all passed": "print('3 passed in 0.01s\\nOK\\nPASS')\ndouble = half = lambda v: None\n",
    "patches the runner": PATCH_THE_RUNNER + "double = half = lambda v: None\n",
    "is always equal": "class Y:\n    def __eq__(self, other): return True\ndouble = half = lambda v: Y()\n",
    "is a number that is always equal": (
        "class Yes(int):\n    def __eq__(self, other): return True\ndouble = half = lambda v: Yes()\n"
    ),
    "writes verdicts into every open file": (
        "import os\nfor fd in range(64):\n    try:\n"
        '        os.write(fd, b\'["end", "test_double.py::test_zero", null]\\n["done"]\\n\')\n'
        "    except OSError: pass\n"
        "double = half = lambda v: 1\n"
    ),
    "floods its channel": (
        "import os\ndef double(v):\n    while True:\n        for fd in range(3, 9):\n"
        "            try: os.write(fd, b'x' * 65536)\n            except OSError: pass\nhalf = double\n"
    ),
    "looks for the tests": (
        "import glob\n"
        "paths = [p for top in ('/work', '/tmp') for p in glob.glob(f'{top}/**', recursive=True)]\n"
        "found = [p for p in paths if 'cases' in p]\n"
        "def double(v):\n    assert not found, 'found'\n    return 1\nhalf = double\n"
    ),
    "forks until there is no room, and goes": (
        "import os, time\nfor _ in range(200):\n    try:\n        if os.fork() == 0:\n"
        "            os.setsid()\n            time.sleep(30)\n    except OSError: pass\nos._exit(0)\n"
    ),
    "eats memory": "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
    "answers in two lines": (
        "import os\ndef double(v):\n    for fd in range(3, 9):\n"
        '        try: os.write(fd, b\'["value",1]\\r["value",1]\\r\\n\')\n'
        "        except OSError: pass\n    return 1\nhalf = double\n"
    ),
    "kills everything": "import os\nos.kill(-1, 9)\n",
    "answers with deep nesting": (
        "def double(v):\n    x = []\n    for _ in range(900): x = [x]\n    return x\nhalf = double\n"
    ),
}


async def test_who_cheats_gets_nothing() -> None:
    pool: Any = vime.registry.sandbox_pool(size=0)
    try:
        spec = vime.SandboxSpec(memory_mb=64, max_processes=16)
        judge, solution = [await pool.create(spec) for _ in range(2)]
        for cheat, text in CHEATS.items():
            await solution.write("solution.py", text.encode())
            report = await run_hidden_tests(
                judge, solution, TESTS, modules=["solution"], call_timeout_s=0.7, timeout_s=1.5
            )
            assert len(report.results) == 3, cheat
            assert report.fraction == 0.0, (cheat, report)
            if cheat == "looks for the tests":
                assert {"found" in str(result.failure) for result in report.results} == {False}
    finally:
        await pool.aclose()


async def test_a_call_that_does_not_end_fails_its_test_and_no_other(env: Doubles) -> None:
    loops = GOLD.replace("return value * 2", "while value == 'ab': pass\n    return value * 2")
    result = await hand_in(env, loops)
    assert result.components["fraction"] == pytest.approx(2 / 3)
    assert failures(env) == ["SolutionError: solution.double: no answer within 1.5 s", None, None]


async def test_nothing_but_the_artifacts_comes_along(env: Doubles) -> None:
    await env.areset(seed=0)
    (write, submit) = env.gold_files({"solution.py": "from helper import double, half\n", "helper.py": GOLD})
    await env.astep(write)
    *_, info = await env.astep(submit)
    assert info["reward_result"].value == 0.0
    assert "No module named 'helper'" in str(failures(env)[0])


@pytest.mark.parametrize(
    "command", ["mkfifo solution.py", "mkdir solution.py", "ln -s /dev/zero solution.py", "true"]
)
async def test_what_is_no_file_counts_as_missing(env: Doubles, command: str) -> None:
    await env.areset(seed=0)
    await env.astep(assistant("", [tool_call("bash", {"command": f"{command} solution.py"}, "1")]))
    *_, info = await env.astep("Done.")
    assert (info["reward_result"].value, info["reward_result"].status) == (0.0, "ok")


async def test_who_does_nothing_gets_nothing(env: Doubles) -> None:
    await env.areset(seed=0)
    *_, info = await env.astep("I will not.")
    assert info["reward_result"].value == 0.0


@pytest.mark.parametrize(
    ("tests", "error", "message"),
    [
        ({"test_x.py": "def test_x(: pass"}, GraderCrashed, "SyntaxError"),
        ({"test_x.py": "import os\nos._exit(0)"}, GraderCrashed, "exit 0"),
        ({"test_x.py": "x = 1"}, GraderError, "no function called test"),
        ({"cases.py": "x = 1"}, ContractError, r"no file of \['cases.py'\]"),
    ],
)
async def test_broken_tests_are_no_zero(env: Doubles, tests: Any, error: type, message: str) -> None:
    env.tests = tests
    with pytest.raises(error, match=message):
        await hand_in(env, GOLD)


async def test_tests_that_never_end_are_no_zero(env: Doubles) -> None:
    await env.areset(seed=0)
    with pytest.raises(GraderTimeout, match="longer than 1 s without a call"):
        await env.grade_tests({"test_x.py": "def test_x():\n    while True: pass\n"}, timeout_s=1)


async def test_an_artifact_must_be_a_module(env: Doubles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubles, "artifacts", ("my-solution.txt",))
    await env.areset(seed=0)
    with pytest.raises(ContractError, match=r"'my-solution.txt' is no Python module"):
        await env.grade_tests(TESTS)


async def test_gradings_at_once_do_not_wait_for_each_other_for_ever() -> None:
    pool: Any = vime.registry.sandbox_pool(size=0, max_sandboxes=3)
    envs = [Doubles(sandbox_provider=pool) for _ in range(3)]
    try:
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(hand_in(env, GOLD) for env in envs))
        assert [result.value for result in results] == [1.0, 1.0, 1.0]
    finally:
        for env in envs:
            await env.aclose()
        await pool.aclose()


async def test_without_room_for_two_a_grading_is_refused_and_does_not_wait() -> None:
    pool: Any = vime.registry.sandbox_pool(size=0, max_sandboxes=1)
    env = Doubles(sandbox_provider=pool)
    try:
        async with asyncio.timeout(60):
            with pytest.raises(SandboxUnsupported, match=r"2 sandboxes are needed at once.* --max-sandboxes"):
                await hand_in(env, GOLD)
        assert (await pool.stats()).open == 0
    finally:
        await env.aclose()
        await pool.aclose()
