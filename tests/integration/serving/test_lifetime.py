"""Whatever dies, nothing of a server is left behind, and callers get an error at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serving.engine_metrics import wait_until_sampling
from vime_agents.errors import EngineError, ServingError
from vime_agents.policy import Sampling
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

OWNER = """
import asyncio, json, sys, time
from pathlib import Path
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig

async def main():
    model, logs = Path(sys.argv[1]), Path(sys.argv[2])
    servers = [
        VllmServer(VllmServerConfig(model=model, max_model_len=1024, kv_cache_bytes=2**26, log_path=log))
        for log in (logs / "0.log", logs / "1.log")
    ]
    await asyncio.gather(*(s.start() for s in servers))
    print(json.dumps([[s.url, s._process.pid] for s in servers]), flush=True)

asyncio.run(main())
time.sleep(600)
"""


def processes_below(root: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {root}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found


async def all_gone(pids: set[int]) -> bool:
    for _ in range(300):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        await asyncio.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def owner(
    tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[str], list[tuple[str, int]]]]:
    """A process that owns two servers; (url, pid of the supervisor) of each."""
    command = [sys.executable, "-c", OWNER, str(tiny_qwen3), str(tmp_path_factory.mktemp("owned"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, json.loads(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


async def sample_long(url: str) -> str:
    """How it ended."""
    client = EngineClient(url)
    try:
        answer = await client.generate([1, 87, 75, 69], Sampling(max_tokens=1000, temperature=0.0))
        return answer.finish_reason
    finally:
        await client.aclose()


async def in_the_middle_of_a_request(url: str) -> asyncio.Future[str]:
    """A request of which some tokens are sampled; held there, so that a fast engine does not finish it."""
    request = asyncio.ensure_future(sample_long(url))
    await wait_until_sampling(url, since=0, at_least=1)
    client = EngineClient(url)
    await client.pause()
    await client.aclose()
    assert not request.done()
    return request


async def test_a_server_killed_in_the_middle_of_a_request_is_an_engine_error_and_leaves_nothing(owner):
    (url, supervisor), _ = owner[1]
    pids = processes_below(supervisor)
    assert len(pids) >= 4  # supervisor, API server, engine core, worker
    request = await in_the_middle_of_a_request(url)
    api_server = next(
        p for p in pids if "api_server" in Path(f"/proc/{p}/cmdline").read_text() and p != supervisor
    )
    os.kill(api_server, signal.SIGKILL)
    with pytest.raises(EngineError):
        await request
    # The supervisor itself stays a zombie until its owner looks.
    assert await all_gone(pids - {supervisor})


async def test_an_owner_killed_by_sigkill_leaves_nothing(owner):
    process, (_, (url, supervisor)) = owner
    pids = processes_below(supervisor)
    assert len(pids) >= 4
    request = await in_the_middle_of_a_request(url)
    process.kill()
    process.wait()
    # A server that is told to end may still answer with what it has; a player takes that as an error.
    with contextlib.suppress(EngineError):
        assert await request == "abort"
    assert await all_gone(pids)


async def test_a_server_that_dies_while_starting_is_reported_with_its_own_words(
    tiny_qwen3: Path, tmp_path: Path
):
    config = VllmServerConfig(model=tiny_qwen3, max_model_len=999_999, log_path=tmp_path / "server.log")
    server = VllmServer(config)
    with pytest.raises(ServingError, match=r"999999.*is greater than the derived max_model_len.*server\.log"):
        await server.start()
    assert not server.alive()
