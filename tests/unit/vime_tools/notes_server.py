"""A server for the tests of MCP, written with the package `mcp`: `stdio`, or `http PORT`."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="CRITICAL")
notes: list[str] = []


@server.tool()
def add_note(text: str, times: int = 1) -> int:
    """Keep a note; how many there are."""
    notes.extend([text] * times)
    return len(notes)


@server.tool()
def read_note(number: int) -> str:
    """A note."""
    return notes[number]


@server.tool()
def where() -> str:
    """Where the server runs."""
    return f"{os.getpid()} {os.getcwd()} {os.environ.get('COLOUR')} {os.environ.get('SECRET')}"


@server.tool()
async def hang() -> str:
    """Never answer."""
    await asyncio.sleep(600)
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    sys.stderr.write("oh no\n")
    sys.stderr.flush()
    os._exit(3)


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[2]))
