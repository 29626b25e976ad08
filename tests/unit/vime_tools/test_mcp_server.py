"""MCP servers in a local sandbox. These speak the protocol by the standard library alone."""

from __future__ import annotations

import asyncio

import pytest

from vime_agents.env import ToolEnv
from vime_agents.errors import CommandNotFound, EnvFault, SandboxDead, ToolError
from vime_agents.sandbox import Sandbox, SandboxSpec
from vime_agents.tools import CallableTool, run_off_loop
from vime_sandboxes.local import LocalSandboxProvider
from vime_tools.mcp_server import McpServer

SERVER = """\
import json, os, sys, time
calls = 0
def answer(id, **rest): print(json.dumps({"jsonrpc": "2.0", "id": id, **rest}), flush=True)
def tool(name): return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}}
def text(t, **rest): return {"content": [{"type": "text", "text": t}], **rest}
names = ("count", "fail", "hang", "die", "garbage", "flood", "picture", "structured", "where")
for line in sys.stdin:
    m = json.loads(line); id = m.get("id"); method = m["method"]; p = m.get("params") or {}
    if id is None: continue
    if method == "initialize":
        answer(id, result={"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}},
                           "serverInfo": {"name": "stdlib", "version": "1"}})
    elif method == "tools/list":
        start = int(p.get("cursor") or 0)
        result = {"tools": [tool(n) for n in names[start:start + 5]]}
        if start + 5 < len(names): result["nextCursor"] = str(start + 5)
        answer(id, result=result)
    elif method == "tools/call":
        name = p["name"]; calls += 1
        if name == "count": answer(id, result=text(f"{calls} {p['arguments']}"))
        elif name == "fail": answer(id, result=text("it failed", isError=True))
        elif name == "hang": time.sleep(600)
        elif name == "die": print("oh no", file=sys.stderr, flush=True); os._exit(3)
        elif name == "garbage": print("no JSON", flush=True); answer(id, result=text("after garbage"))
        elif name == "flood": sys.stdout.write("x" * (20 << 20)); sys.stdout.flush(); time.sleep(600)
        elif name == "picture":
            answer(id, result={"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]})
        elif name == "structured": answer(id, result={"content": [], "structuredContent": {"a": 1}})
        elif name == "where":
            answer(id, result=text(f"{os.getcwd()} {os.environ.get('COLOUR')} {os.uname().nodename}"))
    else: answer(id, error={"code": -32601, "message": "no such method"})
"""
NAMES = ["count", "fail", "hang", "die", "garbage", "flood", "picture", "structured", "where"]
COMMAND = ["python3", "-IS", "server.py"]


@pytest.fixture
async def provider():
    made = LocalSandboxProvider()
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider):
    return await provider.create(SandboxSpec(memory_mb=256, files={"server.py": SERVER}))


@pytest.fixture
async def server(sandbox: Sandbox):
    started = await McpServer.start(sandbox, COMMAND, env={"COLOUR": "red"}, call_timeout_s=20.0)
    yield started
    await started.aclose()


async def call(server: McpServer, name: str, arguments: str = "{}") -> str:
    return await server.tools[name].call(arguments, run_off_loop)


async def servers_inside(sandbox: Sandbox) -> int:
    command = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '[s]erver.py'"]
    return int((await sandbox.exec(command)).text)


async def test_its_tools_are_tools(server: McpServer) -> None:
    assert list(server.tools) == NAMES
    assert all(isinstance(tool, CallableTool) for tool in server.tools.values())
    assert server.tools["count"].schema == {
        "type": "function",
        "function": {"name": "count", "description": "Does count.", "parameters": {"type": "object"}},
    }


async def test_it_is_one_process_in_the_sandbox_that_stays(server: McpServer) -> None:
    assert await call(server, "count", '{"a": "é"}') == "1 {'a': 'é'}"
    assert await call(server, "count", "") == "2 {}"
    assert await call(server, "where") == "/work red sandbox"
    assert await call(server, "picture") == "[image/png, which is not shown]"
    assert await call(server, "structured") == '{"a": 1}'
    assert await call(server, "garbage") == "after garbage"


async def test_errors_are_the_models_to_see(server: McpServer) -> None:
    for name, arguments, words in (
        ("fail", "{}", "^it failed$"),
        ("count", "{", "not valid JSON"),
        ("count", "[1]", "must be a JSON object"),
        ("count", '{"a": "\\ud800"}', "not valid Unicode"),
    ):
        with pytest.raises(ToolError, match=words):
            await call(server, name, arguments)
    assert await call(server, "count") == "2 {}"  # only the first one has reached it


async def test_a_call_has_a_deadline(sandbox: Sandbox) -> None:
    server = await McpServer.start(sandbox, COMMAND, call_timeout_s=0.5)
    with pytest.raises(ToolError, match=r"hang took longer than 0.5 s"):
        await call(server, "hang")
    await server.aclose()
    assert await servers_inside(sandbox) == 0


@pytest.mark.parametrize(("name", "words"), [("die", "exit 3. oh no"), ("flood", "a message of more than")])
async def test_a_servers_end_is_the_tools_error(server: McpServer, name: str, words: str) -> None:
    for tool in (name, "count"):
        with pytest.raises(ToolError, match=f"the MCP server has ended: .*{words}"):
            await call(server, tool)


async def test_a_sandboxs_end_is_not(server: McpServer, sandbox: Sandbox) -> None:
    waiting = asyncio.ensure_future(call(server, "hang"))
    await sandbox.close()
    with pytest.raises(SandboxDead):
        await waiting
    with pytest.raises(SandboxDead):
        await call(server, "count")


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (["no-such-server"], CommandNotFound, "no-such-server"),
        (["sh", "-c", "echo bad >&2; exit 5"], EnvFault, "exit 5. bad"),
        (["cat"], EnvFault, "cat"),
        (["sleep", "600"], EnvFault, "did not start in 1 s"),
    ],
)
async def test_a_server_that_does_not_start(
    sandbox: Sandbox, command: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await McpServer.start(sandbox, command, start_timeout_s=1.0)
    left = await sandbox.exec(["sh", "-c", "for p in /proc/[0-9]*; do read -r c < $p/comm; echo $c; done"])
    assert not {"cat", "sleep"} & set(left.text.split())


class Counting(ToolEnv):
    sandbox_spec = SandboxSpec(memory_mb=256, files={"server.py": SERVER})

    def tasks(self):
        return [{"x": 1}]

    def prompt(self) -> str:
        return "Count."

    async def setup(self) -> None:
        self.server = await McpServer.start(await self.sandbox(), COMMAND, prefix="mcp_")
        self.tools |= self.server.tools

    async def teardown(self) -> None:
        await self.server.aclose()

    def score(self, text: str) -> float:
        return float(text == "done")


async def test_an_env_offers_them_to_its_agent() -> None:
    env = Counting()
    for _ in range(2):  # each episode has a server of its own
        await env.areset(seed=0)
        assert "mcp_count" in [s["function"]["name"] for s in env.tool_schemas]
        call = {"id": "1", "type": "function", "function": {"name": "mcp_count", "arguments": "{}"}}
        observation, *_ = await env.astep({"role": "assistant", "content": "", "tool_calls": [call]})
        assert [m["content"] for m in observation["messages"]] == ["1 {}"]
        _, reward, terminated, _, _ = await env.astep("done")
        assert (reward, terminated) == (1.0, True)
    await env.aclose()
