"""New weights in a running engine: exact, at an exact token, and refused when they are not the trainer's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors.torch import load_file

from tests.integration.serving.engine_metrics import sampled_tokens, wait_until_sampling
from vime_agents.errors import WeightSyncError
from vime_agents.policy import Sampling
from vime_agents.serving.engine_client import EngineClient
from vime_trainers.sync.probe import probe_tokens, worst_difference
from vime_trainers.sync.publisher import PHASES, WeightPublisher
from vime_trainers.sync.weight_file import WeightFile, layout_of, write_weight_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PROBE = probe_tokens(512)
PROMPT = [1, 87, 75, 69, 82, 2, 203, 1]


def weights_of(folder: Path, path: Path, version: int, **changed: torch.Tensor) -> WeightFile:
    weights = load_file(folder / "model.safetensors") | changed
    return write_weight_file(path, layout_of(weights), weights.items(), version=version)


@pytest.fixture
async def publisher(
    client: EngineClient, tiny_qwen3: Path, tmp_path: Path, hf_logprobs
) -> AsyncIterator[WeightPublisher]:
    """A publisher of the shared server; afterwards the server holds its first weights again."""
    publisher = WeightPublisher([client], probe_tokens=PROBE)
    yield publisher
    first = weights_of(tiny_qwen3, tmp_path / "first.safetensors", 0)
    await publisher.publish(first, 0, trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE))


async def still_serves(client: EngineClient, folder: Path, hf_logprobs) -> float:
    """Difference to `folder`'s weights; the engine must not be paused."""
    engine = await client.prompt_logprobs(PROBE, timeout_s=20)
    return worst_difference(PROBE, engine, hf_logprobs(folder, PROBE)).value


async def test_published_weights_are_exact_with_tied_embeddings(
    publisher: WeightPublisher,
    client: EngineClient,
    tiny_qwen3: Path,
    other_tiny_qwen3: Path,
    tmp_path,
    hf_logprobs,
):
    """Plan 78."""
    old, new = hf_logprobs(tiny_qwen3, PROBE), hf_logprobs(other_tiny_qwen3, PROBE)
    assert worst_difference(PROBE, old, new).value > 0.1  # so that "not synced" cannot pass
    weights = weights_of(other_tiny_qwen3, tmp_path / "w.safetensors", 7)
    report = await publisher.publish(weights, 7, trainer_logprobs=new)
    assert report.max_probe_logprob_diff < 1e-4
    assert tuple(report.seconds) == PHASES
    assert report.num_bytes == sum(
        t.numel() * 4 for t in load_file(other_tiny_qwen3 / "model.safetensors").values()
    )
    assert await client.weight_version() == 7


async def test_requests_in_flight_change_weights_at_an_exact_token(
    publisher: WeightPublisher,
    client: EngineClient,
    tiny_qwen3: Path,
    other_tiny_qwen3: Path,
    tmp_path,
    hf_logprobs,
):
    weights = weights_of(other_tiny_qwen3, tmp_path / "w.safetensors", 1)
    new = hf_logprobs(other_tiny_qwen3, PROBE)
    before = await sampled_tokens(client.url)
    requests = [
        asyncio.ensure_future(client.generate(PROMPT, Sampling(max_tokens=500, seed=s))) for s in range(6)
    ]
    await wait_until_sampling(client.url, since=before, at_least=6)
    await publisher.publish(weights, 1, trainer_logprobs=new)
    answers = await asyncio.gather(*requests)
    assert any([v for v, _, _ in a.sampled.versions] == [0, 1] for a in answers)
    for answer in answers:
        ids = PROMPT + list(answer.sampled.token_ids)
        for version, start, end in answer.sampled.versions:
            folder = (tiny_qwen3, other_tiny_qwen3)[version]
            reference = hf_logprobs(folder, ids)[len(PROMPT) + start : len(PROMPT) + end]
            sampled = answer.sampled.logprobs[start:end]
            assert max(abs(a - b) for a, b in zip(sampled, reference, strict=True)) < 1e-4


async def test_a_file_that_lacks_a_tensor_leaves_the_engine_as_it_was(
    publisher: WeightPublisher, client: EngineClient, tiny_qwen3: Path, tmp_path, hf_logprobs
):
    tensors = load_file(tiny_qwen3 / "model.safetensors")
    tensors.pop("model.layers.2.mlp.up_proj.weight")
    weights = write_weight_file(tmp_path / "w.safetensors", layout_of(tensors), tensors.items(), version=3)
    with pytest.raises(WeightSyncError, match=r"failed at `update`.*lacks 1 of 46.*layers\.2\.mlp\.up_proj"):
        await publisher.publish(weights, 3, trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE))
    assert await still_serves(client, tiny_qwen3, hf_logprobs) < 1e-4
    assert await client.weight_version() == 0


async def test_a_stale_file_is_refused_by_its_version(
    publisher: WeightPublisher,
    client: EngineClient,
    tiny_qwen3: Path,
    other_tiny_qwen3: Path,
    tmp_path,
    hf_logprobs,
):
    stale = weights_of(other_tiny_qwen3, tmp_path / "w.safetensors", 1)
    info = {"path": str(stale.path), "version": "2"}
    with pytest.raises(WeightSyncError, match="holds weight version 1, not 2"):
        await publisher.publish(info, 2, trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE))
    assert await still_serves(client, tiny_qwen3, hf_logprobs) < 1e-4


async def test_a_bit_that_flipped_in_the_file_leaves_the_engine_as_it_was(
    publisher: WeightPublisher,
    client: EngineClient,
    tiny_qwen3: Path,
    other_tiny_qwen3: Path,
    tmp_path,
    hf_logprobs,
):
    """Plan 77. The lowest bit of the last number: no probe would see it."""
    weights = weights_of(other_tiny_qwen3, tmp_path / "w.safetensors", 3)
    whole = bytearray(weights.path.read_bytes())
    whole[-4] ^= 1
    weights.path.write_bytes(whole)
    with pytest.raises(WeightSyncError, match=r"failed at `update`.*is damaged: checksum"):
        await publisher.publish(weights, 3, trainer_logprobs=hf_logprobs(other_tiny_qwen3, PROBE))
    assert await still_serves(client, tiny_qwen3, hf_logprobs) < 1e-4
    assert await client.weight_version() == 0


async def test_one_wrong_tensor_is_found_by_the_probe(
    publisher: WeightPublisher, client: EngineClient, other_tiny_qwen3: Path, tmp_path, hf_logprobs
):
    """Plan 77."""
    name = "model.layers.1.self_attn.v_proj.weight"
    wrong = load_file(other_tiny_qwen3 / "model.safetensors")[name].flip(0).contiguous()
    weights = weights_of(other_tiny_qwen3, tmp_path / "w.safetensors", 4, **{name: wrong})
    with pytest.raises(WeightSyncError, match=r"does not hold the trainer's weights: at position \d+"):
        await publisher.publish(weights, 4, trainer_logprobs=hf_logprobs(other_tiny_qwen3, PROBE))
    assert await still_serves(client, other_tiny_qwen3, hf_logprobs) < 100  # answers: it is not left paused


async def test_a_reload_that_skips_the_tied_output_layer_is_found_by_the_probe(
    publisher: WeightPublisher, client: EngineClient, other_tiny_qwen3: Path, hf_logprobs
):
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(other_tiny_qwen3)}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{client.url}/collective_rpc", json=body) as response,
    ):
        assert response.status == 200  # vLLM's own reload says that all went well
    with pytest.raises(WeightSyncError, match="does not hold the trainer's weights"):
        await publisher.probe(hf_logprobs(other_tiny_qwen3, PROBE))
