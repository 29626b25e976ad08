"""Play one arm: `python play.py LIBRARY URL EPISODES CONCURRENCY` -> a line of JSON on stdout.

Runs under the library's own interpreter, so nothing of vime-agents is imported but in its own arm. A first
run warms it up; what is measured is the second, with the imports behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

WARM_UP = 16


def vime_agents(url: str, episodes: int, concurrency: int) -> int:
    """`evaluate`, as `vime-agents eval --out` calls it."""
    from vime_agents.evaluation.evaluate import evaluate
    from vime_agents.policies.openai_chat import OpenAIChatPolicy
    from vime_agents.storage.episodes import EpisodeWriter

    async def run(folder: str) -> int:
        policy = OpenAIChatPolicy(url, "scripted")
        writer = EpisodeWriter(Path(folder) / "episodes.jsonl")
        right = 0

        def finished(episode) -> None:
            nonlocal right
            writer.append(episode)
            right += episode.trajectories[0].reward.value == 1.0

        await evaluate(
            "vime_agents_env:Calculator",
            policy,
            num_tasks=episodes,
            concurrency=concurrency,
            on_episode=finished,
        )
        await policy.aclose()
        return right

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


def inspect_ai(url: str, episodes: int, concurrency: int) -> int:
    """`eval` with its log and without its display."""
    from inspect_ai import eval as inspect_eval
    from inspect_ai_env import calculator

    os.environ |= {"PEER_API_KEY": "none", "PEER_BASE_URL": url}
    with tempfile.TemporaryDirectory() as folder:
        (log,) = inspect_eval(
            calculator(episodes),
            model="openai-api/peer/scripted",
            display="none",
            log_dir=folder,
            max_connections=concurrency,
            max_samples=concurrency,
        )
    return round(log.results.scores[0].metrics["accuracy"].value * episodes)


def verifiers(url: str, episodes: int, concurrency: int) -> int:
    """`evaluate` in this process, with its results saved."""
    import verifiers.legacy as vf
    from verifiers_env import load_environment

    os.environ["PEER_API_KEY"] = "none"
    env = load_environment(episodes)
    client = vf.ClientConfig(api_base_url=url, api_key_var="PEER_API_KEY")
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(
            env.evaluate(
                client,
                "scripted",
                num_examples=episodes,
                rollouts_per_example=1,
                max_concurrent=concurrency,
                results_path=Path(folder),
                save_results=True,
            )
        )
    return sum(output["reward"] == 1.0 for output in results["outputs"])


def gem(url: str, episodes: int, concurrency: int) -> int:
    """It has no model client: the openai package's plays it, and nothing is recorded."""
    from gem_env import make
    from openai import AsyncOpenAI

    async def run() -> int:
        client, waiting = AsyncOpenAI(base_url=url, api_key="none"), iter(range(episodes))

        async def work() -> int:
            right = 0
            for seed in waiting:
                env, done = make(), False
                text, _ = env.reset(seed)
                messages = [{"role": "user", "content": text}]
                while not done:
                    completion = await client.chat.completions.create(model="scripted", messages=messages)
                    reply = completion.choices[0].message.content
                    text, reward, terminated, truncated, _ = env.step(reply)
                    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text}]
                    done = terminated or truncated
                right += reward == 1.0
            return right

        counts = await asyncio.gather(*(work() for _ in range(concurrency)))
        await client.close()
        return sum(counts)

    return asyncio.run(run())


LIBRARIES: dict[str, Callable[[str, int, int], int]] = {
    "vime_agents": vime_agents,
    "gem": gem,
    "verifiers": verifiers,
    "inspect_ai": inspect_ai,
}


def _cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, children))


def main(library: str, url: str, episodes: int, concurrency: int) -> None:
    """Warm up, measure, print."""
    with contextlib.redirect_stdout(sys.stderr):
        LIBRARIES[library](url, WARM_UP, concurrency)
        cpu_s, started = _cpu_s(), time.perf_counter()
        right = LIBRARIES[library](url, episodes, concurrency)
        cpu_s, wall_s = _cpu_s() - cpu_s, time.perf_counter() - started
    print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
