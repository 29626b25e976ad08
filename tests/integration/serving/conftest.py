"""The reference: the same weights in transformers, in float32."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.vllm_server import VllmServer

Score = Callable[..., list[float]]


@lru_cache(maxsize=4)
def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def hf_logprobs() -> Score:
    """`hf_logprobs(folder, token_ids, temperature=1.0)`: entry i is of token i; entry 0 is NaN."""
    import torch

    @torch.no_grad()
    def score(folder: Path, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        ids = torch.tensor([list(token_ids)])
        rows = (_load(folder)(ids).logits[0, :-1] / temperature).log_softmax(-1)
        return [float("nan"), *rows.gather(1, ids[0, 1:, None])[:, 0].tolist()]

    return score


@pytest.fixture
async def client(tiny_server: VllmServer) -> AsyncIterator[EngineClient]:
    """A client of the shared server."""
    client = EngineClient(tiny_server.url)
    yield client
    await client.aclose()
