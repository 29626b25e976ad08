"""MCP servers of this machine: a real one, written with the package `mcp`, over both transports."""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from vime_agents.env import ToolEnv
from vime_agents.errors import ConfigError, ToolError, ToolServerError
from vime_agents.messages import assistant, tool_call
from vime_agents.tools import CallableTool, run_off_loop
from vime_tools.mcp_client import McpClient
from vime_tools.mcp_host import HttpMcpServer, StdioMcpServer, mcp_http, mcp_stdio

pytestmark = pytest.mark.integration

PROGRAM = str(Path(__file__).with_name("notes_server.py"))
STDIO = (sys.executable, PROGRAM, "stdio")
NAMES = ["add_note", "read_note", "where", "hang", "die"]


class HttpProgram:
    """The server as a process, at an address of its own."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, "http", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def ready(self) -> HttpProgram:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                assert self.process.poll() is None
                await asyncio.sleep(0.05)
            else:
                return self

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
async def http_program() -> AsyncIterator[HttpProgram]:
    program = HttpProgram()
    yield await program.ready()
    program.end()


@pytest.fixture(params=["stdio", "http"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[McpClient]:
    if request.param == "stdio":
        made = await StdioMcpServer.start(*STDIO, call_timeout_s=20.0)
        yield made
        await made.aclose()
    else:
        program = await HttpProgram().ready()
        made = await HttpMcpServer.connect(program.url, call_timeout_s=20.0)
        yield made
        await made.aclose()
        program.end()


async def call(server: McpClient, name: str, arguments: str = "{}") -> str:
    return await server.tools[name].call(arguments, run_off_loop)


async def test_tools_of_a_server_are_tools_until_it_ends(server: McpClient) -> None:
    assert list(server.tools) == NAMES
    assert all(isinstance(tool, CallableTool) for tool in server.tools.values())
    # The schema is the server's own.
    assert server.tools["add_note"].schema == {
        "type": "function",
        "function": {
            "name": "add_note",
            "description": "Keep a note; how many there are.",
            "parameters": {
                "type": "object",
                "title": "add_noteArguments",
                "properties": {
                    "text": {"title": "Text", "type": "string"},
                    "times": {"default": 1, "title": "Times", "type": "integer"},
                },
                "required": ["text"],
            },
        },
    }
    # Right.
    assert await call(server, "add_note", '{"text": "é\\u2028"}') == "1"
    assert await call(server, "add_note", '{"text": "b", "times": 2}') == "3"
    assert await call(server, "read_note", '{"number": 0}') == "é\u2028"
    # Wrong and hostile: the model's to see, and the server lives.
    for name, arguments, words in (
        ("add_note", "{", "not valid JSON"),
        ("add_note", "[1]", "must be a JSON object"),
        ("add_note", '{"text": 3}', "Input should be a valid string"),
        ("read_note", '{"number": 9}', "read_note"),
        ("add_note", '{"text": "\\ud800"}', "not valid Unicode in the arguments"),
    ):
        with pytest.raises(ToolError, match=words):
            await call(server, name, arguments)
    assert await call(server, "add_note", '{"text": "\\u0000"}') == "4"
    assert await call(server, "add_note", '{"text": "' + "x" * 1_000_000 + '"}') == "5"
    # Many at once.
    counts = await asyncio.gather(*(call(server, "add_note", '{"text": "c"}') for _ in range(8)))
    assert sorted(map(int, counts)) == list(range(6, 14))
    # A deadline.
    server._call_timeout_s = 0.3
    with pytest.raises(ToolError, match=r"hang took longer than 0\.3 s"):
        await call(server, "hang")
    server._call_timeout_s = 20.0
    assert await call(server, "read_note", '{"number": 1}') == "b"
    # Its end: never a tool's answer, for the one who caused it, for who waits, and for who comes later.
    waiting = asyncio.ensure_future(call(server, "hang"))
    await asyncio.sleep(0.1)
    last_words = "oh no" if isinstance(server, StdioMcpServer) else ""
    for pending in (call(server, "die"), waiting, call(server, "add_note", '{"text": "a"}')):
        with pytest.raises(ToolServerError, match=f"has ended: .*{last_words}") as caught:
            await pending
        assert caught.value.failure_class == "tool"
        assert caught.value.retryable


async def test_a_program_has_little_of_our_environment_and_ends_with_us(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    server = await StdioMcpServer.start(*STDIO, env={"COLOUR": "red"}, cwd=tmp_path, prefix="notes_")
    assert list(server.tools) == [f"notes_{name}" for name in NAMES]
    pid, *rest = (await call(server, "notes_where")).split()
    assert rest == [str(tmp_path), "red", "None"]
    await server.aclose()
    await server.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    with pytest.raises(ToolServerError, match="has ended"):
        await call(server, "notes_where")


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ((), ConfigError, "needs a command"),
        (("no-such-server",), ConfigError, "no-such-server"),
        (("sh", "-c", "echo bad >&2; exit 5"), ToolServerError, "has ended: bad"),
        (("cat",), ToolServerError, "cat"),
        (
            ("sh", "-c", "while true; do echo garbage; sleep 0.01; done"),
            ToolServerError,
            r"did not start in 0\.5 s",
        ),
    ],
)
async def test_a_program_that_is_no_server(command: tuple[str, ...], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        await StdioMcpServer.start(*command, start_timeout_s=0.5)


class Failing(http.server.BaseHTTPRequestHandler):
    """Answers everything with one status."""

    status = 503
    authorizations: ClassVar[set[str | None]] = set()

    def do_POST(self) -> None:
        self.authorizations.add(self.headers["Authorization"])
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"sorry")

    do_GET = do_DELETE = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def failing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/mcp"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [503, 401, 404, 200])
async def test_an_address_that_is_no_server(failing: str, status: int, monkeypatch) -> None:
    monkeypatch.setattr(Failing, "status", status)
    monkeypatch.setattr(Failing, "authorizations", set())
    with pytest.raises(ToolServerError, match=str(status) if status in (401, 503) else failing):
        await HttpMcpServer.connect(failing, headers={"Authorization": "Bearer x"}, start_timeout_s=5.0)
    assert Failing.authorizations == {"Bearer x"}


async def test_an_address_where_nobody_listens() -> None:
    with pytest.raises(ConfigError, match="begins with http"):
        await HttpMcpServer.connect("localhost:80")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ToolServerError, match="ConnectError"):
            await HttpMcpServer.connect(f"http://127.0.0.1:{unused.getsockname()[1]}/mcp")


async def test_an_env_offers_them_and_fails_with_them(http_program: HttpProgram) -> None:
    class Notes(ToolEnv):
        toolsets = (mcp_stdio(*STDIO), mcp_http(http_program.url, prefix="web_"))

        def tasks(self):
            return [{"x": 1}]

        def prompt(self) -> str:
            return "Write."

        def score(self, text: str) -> float:
            return 1.0

    def action(name: str, arguments: dict):
        return assistant("", [tool_call(name, arguments, "1")])

    env = Notes()
    for count in ("1", "2"):
        await env.areset(seed=0)
        assert list(env.tools) == [*NAMES, *(f"web_{name}" for name in NAMES)]
        observation, *_ = await env.astep(action("add_note", {"text": "a"}))
        assert observation["messages"][0]["content"] == "1"  # the program is the episode's own
        observation, *_ = await env.astep(action("web_add_note", {"text": "a"}))
        assert observation["messages"][0]["content"] == count  # the address is everybody's
    http_program.end()
    with pytest.raises(ToolServerError, match="has ended"):
        await env.astep(action("web_add_note", {"text": "a"}))
    await env.aclose()
