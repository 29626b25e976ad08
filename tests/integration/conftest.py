"""Real services, started once for all tests that can share them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig


@pytest.fixture(scope="session")
def tiny_server(tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A running vLLM server of `tiny_qwen3`. Whoever changes its weights puts version 0 back."""
    config = VllmServerConfig(
        model=tiny_qwen3,
        max_model_len=1024,
        kv_cache_bytes=128 * 2**20,
        log_path=tmp_path_factory.mktemp("vllm") / "server.log",
    )
    server = VllmServer(config)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
