from __future__ import annotations

import pytest

from vime_agents.errors import SandboxDead, ToolError
from vime_agents.sandbox import SandboxSpec
from vime_agents.tools import tools_of
from vime_sandboxes.local import LocalSandboxProvider
from vime_tools import calculator
from vime_tools.calculator import CalculatorTools


class Owner(CalculatorTools):
    def __init__(self, box) -> None:
        self.box = box

    async def sandbox(self):
        return self.box


@pytest.fixture
async def owner():
    provider = LocalSandboxProvider()
    yield Owner(await provider.create(SandboxSpec(memory_mb=128)))
    await provider.aclose()


async def test_the_answer_is_worked_out_in_the_sandbox(owner: Owner) -> None:
    assert await owner.calculator("123456789 ** 3") == str(123456789**3)
    assert await owner.calculator("7 / 2") == "3.5"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("open('/etc/passwd')", "only numbers"),
        ("1 / 0", "division by zero"),
        ("9" * 2_000_000, "2000000 characters"),
        ("\ud800", "not an arithmetic expression"),
        ("--" * 490 + "x", "only numbers|nested too deeply|not an arithmetic"),
    ],
)
async def test_the_models_mistakes_come_back_in_words(owner: Owner, expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        await owner.calculator(expression)


async def test_slow_and_broken_evaluators_are_the_tools_answer(owner: Owner, monkeypatch) -> None:
    owner.calculator_timeout_s = 0.3
    monkeypatch.setattr(calculator, "_program", lambda: "while True: pass")
    with pytest.raises(ToolError, match=r"longer than 0\.3 s"):
        await owner.calculator("1")
    monkeypatch.setattr(calculator, "_program", lambda: "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(ToolError, match="signal 11"):
        await owner.calculator("1")


async def test_a_dead_sandbox_is_not_the_models_mistake(owner: Owner) -> None:
    await owner.box.close()
    with pytest.raises(SandboxDead):
        await owner.calculator("1 + 1")


def test_the_schema_tells_the_model_what_to_write() -> None:
    (schema,) = [t.schema for t in tools_of(Owner(None)).values()]
    function = schema["function"]
    assert function["name"] == "calculator"
    assert function["parameters"]["required"] == ["expression"]
    assert function["parameters"]["properties"]["expression"]["type"] == "string"
    assert "operators" in function["parameters"]["properties"]["expression"]["description"]
