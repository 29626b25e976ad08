"""The process in which checks are run: request on stdin -> one JSON line for each event on a pipe.

`{"begin": id}`, `{"end": result}`, and `{"stuck": line}` when the env blocks the event loop for good. It ends
early after a call that had to be given up: what such a call left running would spoil the checks after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from vime_agents.checking.catalog import CHECKS, GAME_CHECKS
from vime_agents.checking.finding import CheckResult
from vime_agents.checking.games.session import open_session
from vime_agents.checking.scale import Scale

STUCK = 70
"""Exit status after `{"stuck": ...}`, and when whoever started it is gone."""
CLOSE_S = 30.0
"""Longest that closing the sandboxes may take."""


class Worker:
    """Runs the checks of one request."""

    def __init__(self, request: dict[str, Any], pipe: int) -> None:
        self._pipe = pipe
        self._ids: list[str] = request["checks"]
        scale = Scale(**request["scale"])
        self._session = open_session(request["env"], split=request["split"], scale=scale)
        for result in map(CheckResult.from_dict, request["results"]):
            self._session.results[result.id] = result
        self._beat = time.monotonic()
        self._main_thread = threading.get_ident()
        self._parent = os.getppid()

    async def run(self) -> None:
        """All of them, in order."""
        heart = asyncio.ensure_future(self._keep_beating())
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            for name in self._ids:
                self._tell({"begin": name})
                result = await self._session.run(name)
                self._tell({"end": result.to_dict()})
                if self._session.hung:
                    return
        finally:
            heart.cancel()
            with contextlib.suppress(TimeoutError):  # they end with this process in any case
                await asyncio.wait_for(self._session.sandboxes.aclose(), CLOSE_S)

    def _tell(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        while line:
            line = line[os.write(self._pipe, line) :]

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(0.2)

    def _watch(self) -> None:
        limit_s = self._session.scale.call_s
        while time.monotonic() - self._beat < limit_s:
            time.sleep(0.2)
            if os.getppid() != self._parent:
                os._exit(STUCK)  # nobody listens any more
        frame = sys._current_frames().get(self._main_thread)
        self._tell({"stuck": self._session.author.line_of_frame(frame), "seconds": limit_s})
        os._exit(STUCK)  # the main thread cannot be asked to


def main() -> None:
    """Serve one request."""
    assert CHECKS
    assert GAME_CHECKS
    worker = Worker(json.loads(sys.stdin.buffer.read()), int(sys.argv[1]))
    asyncio.run(worker.run())
    os._exit(0)  # a thread that never comes back must not hold up the end


if __name__ == "__main__":
    main()
