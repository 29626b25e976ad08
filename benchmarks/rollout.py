"""Runner, 32 single-turn episodes at once, against a bare client on the same vLLM server (target: 0.9)."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from benchmarks.measure import report
from vime_agents.env import AgentEnv
from vime_agents.policies.tokens import TokenPolicy
from vime_agents.policy import Sampling
from vime_agents.rendering.load import make_renderer
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig
from vime_agents.task import Task
from vime_trainers.models.smollm2 import ensure_smollm2

CONCURRENCY = 32
EPISODES = 64
MAX_TOKENS = 32
CONTEXT = 256


class Continue(AgentEnv):
    """One turn of free text."""

    prompt_style = "text"

    def prompt(self) -> str:
        """The task's text."""
        return self.task["text"]

    def score(self, text: str) -> float:
        """Anything will do."""
        return float(bool(text))


def _tasks() -> list[Task]:
    words = ["river", "stone", "bread", "apple", "grass", "cloud", "chair", "table"]
    return [
        Task(id=str(i), inputs={"text": f"Story {i}. Once upon a time a {words[i % 8]} met a"})
        for i in range(EPISODES)
    ]


async def _with_runner(url: str, renderer: Any, tasks: list[Task]) -> float:
    """Sampled tokens per second."""
    policy = TokenPolicy(EngineClient(url), renderer, max_context_tokens=CONTEXT)
    sampling = Sampling(max_tokens=MAX_TOKENS)
    runner = Runner(Continue, policy, env_id="bench", sampling=sampling, concurrency=CONCURRENCY)
    requests = [EpisodeRequest(task=t, group_id=t.id, episode_id=t.id, seed=int(t.id)) for t in tasks]
    started, tokens = time.perf_counter(), 0
    async for episode in runner.run(requests):
        tokens += episode.trajectories[0].num_sampled_tokens
    seconds = time.perf_counter() - started
    await policy.aclose()
    return tokens / seconds


async def _bare(url: str, prompts: list[list[int]]) -> float:
    """Sampled tokens per second of a loop that only posts and reads."""
    waiting = iter(enumerate(prompts))

    async def work(session: aiohttp.ClientSession) -> int:
        tokens = 0
        for number, ids in waiting:
            sampling: Mapping[str, Any] = {
                "max_tokens": MAX_TOKENS,
                "temperature": 1.0,
                "logprobs": 0,
                "seed": number * 1_000_003 & 0x7FFFFFFF,
            }
            body = {"token_ids": ids, "sampling_params": sampling}
            async with session.post(url + "/inference/v1/generate", json=body) as response:
                answer = json.loads(await response.read())
            tokens += len(answer["choices"][0]["token_ids"])
        return tokens

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        counts = await asyncio.gather(*(work(session) for _ in range(CONCURRENCY)))
        return sum(counts) / (time.perf_counter() - started)


async def _measure(repeats: int) -> dict[str, list[float]]:
    model, tasks = ensure_smollm2(), _tasks()
    renderer = make_renderer(str(model), prompt_style="text")
    prompts = [
        [
            i
            for p in renderer.initial([{"role": "user", "content": t.inputs["text"]}], ())
            for i in p.token_ids
        ]
        for t in tasks
    ]
    rows: dict[str, list[float]] = {"runner": [], "bare client": []}
    async with VllmServer(VllmServerConfig(model=model, max_model_len=CONTEXT)) as server:
        await _bare(server.url, prompts[:8])
        for number in range(repeats):
            for name in sorted(rows, reverse=bool(number % 2)):
                if name == "runner":
                    rows[name].append(await _with_runner(server.url, renderer, tasks))
                else:
                    rows[name].append(await _bare(server.url, prompts))
    return rows


def main(repeats: int = 5) -> None:
    """Measure and print."""
    rows = asyncio.run(_measure(repeats))
    ratio = statistics.median(rows["runner"]) / statistics.median(rows["bare client"])
    report("rollout", rows, "tokens/s", {"ratio": ratio, "concurrency": CONCURRENCY})


if __name__ == "__main__":
    main()
