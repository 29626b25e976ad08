"""What the engine itself says that it is doing: tests wait for that, since machines differ in speed."""

from __future__ import annotations

import asyncio

import aiohttp


async def metric(url: str, name: str) -> float:
    """The sum of a Prometheus metric over its labels."""
    async with aiohttp.request("GET", f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


async def sampled_tokens(url: str) -> float:
    """Tokens sampled since the engine started."""
    return await metric(url, "vllm:generation_tokens_total")


async def running_requests(url: str) -> float:
    """Requests that the engine works on."""
    return await metric(url, "vllm:num_requests_running")


async def wait_until_sampling(url: str, *, since: float, at_least: int) -> None:
    """Returns once `at_least` more tokens are sampled than `since`."""
    async with asyncio.timeout(60):
        while await sampled_tokens(url) < since + at_least:
            await asyncio.sleep(0.005)
