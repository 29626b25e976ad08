"""A process that owns Docker sandboxes, to be killed by a test: `python docker_owner.py IMAGE COUNT`.

It writes a line for each sandbox that is up, and then waits for ever.
"""

from __future__ import annotations

import asyncio
import sys

from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.docker import DockerSandboxProvider


async def main(image: str, count: int) -> None:
    provider = DockerSandboxProvider()
    spec = SandboxSpec(backend="docker", image=image)

    async def one() -> None:
        sandbox = await provider.create(spec)
        sys.stdout.write(f"{sandbox.id}\n")
        sys.stdout.flush()
        await sandbox.exec(["sleep", "1000"], timeout_s=1000)

    await asyncio.gather(*(one() for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
