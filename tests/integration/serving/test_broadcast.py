"""Weights broadcast over TCP into a running engine: as exact as through a file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from safetensors.torch import load_file

from vime_agents.errors import WeightSyncError
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig
from vime_trainers.sync import gloo_group
from vime_trainers.sync.broadcast import WeightBroadcast
from vime_trainers.sync.probe import probe_tokens
from vime_trainers.sync.publisher import WeightPublisher

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PROBE = probe_tokens(512)


async def test_broadcast_weights_are_exact_and_a_wrong_announcement_is_refused(
    tiny_qwen3: Path, other_tiny_qwen3: Path, tmp_path: Path, hf_logprobs, monkeypatch: pytest.MonkeyPatch
):
    config = VllmServerConfig(
        model=tiny_qwen3,
        max_model_len=256,
        kv_cache_bytes=2**26,
        weight_transfer="gloo",
        log_path=tmp_path / "log",
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with VllmServer(config) as server:
        client = EngineClient(server.url, timeout_s=120)
        broadcast = await WeightBroadcast.open([client], address="127.0.0.1", port=port)
        publisher = WeightPublisher([client], probe_tokens=PROBE)
        for version, folder in ((1, other_tiny_qwen3), (2, tiny_qwen3)):
            weights = list(load_file(folder / "model.safetensors").items())
            report = await publisher.publish(
                broadcast.update_info(weights),
                version,
                trainer_logprobs=hf_logprobs(folder, PROBE),
                send=lambda weights=weights: broadcast.send(weights),
            )
            assert report.max_probe_logprob_diff < 1e-4
            assert await client.weight_version() == version
        # Refused before a byte is received, so nobody may send.
        with pytest.raises(WeightSyncError, match="lacks 1 of 46 tensors"):
            await publisher.publish(
                broadcast.update_info(weights[1:]), 3, trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE)
            )
        assert await publisher.probe(hf_logprobs(tiny_qwen3, PROBE)) < 1e-4
        # Plan 77: what arrives is not what its checksum is of. The engine says so, and takes the next.
        monkeypatch.setattr(gloo_group, "checksum", lambda data: "0" * 16)
        with pytest.raises(WeightSyncError, match=rf"failed at `update`.*{weights[0][0]} arrived damaged"):
            await publisher.publish(
                broadcast.update_info(weights),
                3,
                trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE),
                send=lambda: broadcast.send(weights),
            )
        assert await publisher.probe(hf_logprobs(tiny_qwen3, PROBE)) < 1e-4  # not one was loaded
        monkeypatch.undo()
        await publisher.publish(
            broadcast.update_info(weights),
            4,
            trainer_logprobs=hf_logprobs(tiny_qwen3, PROBE),
            send=lambda: broadcast.send(weights),
        )
        await client.aclose()
