from __future__ import annotations

import asyncio

import pytest

from vime_agents.errors import SandboxDead, SandboxError
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.local import LocalSandboxProvider
from vime_tools.table_lookup import look_up

TABLE = {"red": "4", "": "empty", "é\n": "ü\0", "\ud800": "lone"}


@pytest.fixture
async def sandbox():
    provider = LocalSandboxProvider()
    yield await provider.create(SandboxSpec(memory_mb=128))
    await provider.aclose()


async def test_values_are_exact_and_missing_keys_are_none(sandbox) -> None:
    for key, value in TABLE.items():
        assert await look_up(sandbox, TABLE, key) == value
    for key in ("blue", "Red", "red ", "x" * 1_000_000):
        assert await look_up(sandbox, TABLE, key) is None


async def test_a_table_is_written_once(sandbox) -> None:
    answers = await asyncio.gather(*(look_up(sandbox, TABLE, "red") for _ in range(4)))
    assert answers == ["4"] * 4
    (file,) = (await sandbox.exec(["ls", "tables"])).text.split()
    # What the inside changes stays changed: nothing writes the table again.
    await sandbox.write(f"tables/{file}", b'{"red": "changed"}')
    assert await look_up(sandbox, TABLE, "red") == "changed"


async def test_tables_do_not_mix(sandbox) -> None:
    assert await look_up(sandbox, {"a": "1"}, "a") == "1"
    assert await look_up(sandbox, {"a": "2"}, "a") == "2"


async def test_failures_are_infrastructure(sandbox) -> None:
    await look_up(sandbox, TABLE, "red")
    await sandbox.exec(["rm", "-r", "tables"])
    with pytest.raises(SandboxError, match="No such file"):
        await look_up(sandbox, TABLE, "red")
    await sandbox.close()
    with pytest.raises(SandboxDead):
        await look_up(sandbox, TABLE, "red")
