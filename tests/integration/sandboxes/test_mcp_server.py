"""A server written with the package `mcp`, inside a local sandbox, as tools."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from vime_agents.errors import ToolError
from vime_agents.sandbox import SandboxSpec
from vime_agents.tools import run_off_loop
from vime_sandboxes.local import LocalSandboxProvider
from vime_tools.mcp_server import McpServer

pytestmark = pytest.mark.integration
SERVER = """\
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
notes: list[str] = []

@server.tool()
def add_note(text: str) -> int:
    '''Keep a note; how many there are.'''
    notes.append(text)
    return len(notes)

@server.tool()
def where() -> str:
    '''Where the server runs.'''
    return f"{os.uname().nodename} {os.getuid()}"

server.run("stdio")
"""


def copy_packages(name: str, target: Path) -> None:
    """Copy an installed distribution, and all that it needs, as a folder for PYTHONPATH."""
    done: set[str] = set()
    todo = [name]
    while todo:
        wanted = re.split(r"[ ;<>=!~\[(]", todo.pop())[0]
        try:
            distribution = metadata.distribution(wanted)
        except metadata.PackageNotFoundError:  # needed on other systems only
            continue
        if distribution.name in done:
            continue
        done.add(distribution.name)
        todo += [r for r in distribution.requires or () if "extra ==" not in r]
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target / file)


async def test_a_real_server(tmp_path: Path) -> None:
    copy_packages("mcp", tmp_path / "packages")
    provider = LocalSandboxProvider()
    sandbox = await provider.create(
        SandboxSpec(memory_mb=1024, files={"server.py": SERVER}, env={"PYTHONPATH": "/work/packages"})
    )
    await sandbox.upload(tmp_path / "packages", "packages")
    server = await McpServer.start(sandbox, ["python3", "server.py"])
    assert list(server.tools) == ["add_note", "where"]
    function = server.tools["add_note"].schema["function"]
    assert function["description"] == "Keep a note; how many there are."
    assert function["parameters"]["properties"]["text"]["type"] == "string"
    assert function["parameters"]["required"] == ["text"]
    counts = [await server.tools["add_note"].call('{"text": "a"}', run_off_loop) for _ in range(3)]
    assert counts == ["1", "2", "3"]
    assert await server.tools["where"].call("{}", run_off_loop) == "sandbox 1000"
    with pytest.raises(ToolError, match="text"):
        await server.tools["add_note"].call("{}", run_off_loop)
    await server.aclose()
    assert await sandbox.alive()
    await provider.aclose()
