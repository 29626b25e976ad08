"""The watch over the event loop."""

import asyncio
import threading

from vime_agents.checking.blocking import LoopWatch


class Author:
    """Sees one line of its own on each stack, and lets the loop go on once it has been seen for long."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.num_looks = 0

    def line_of_frame(self, frame):
        self.num_looks += 1
        if self.num_looks > 20:
            self.go_on.set()
        return "env.py:5 in score"


async def test_a_line_that_blocks_the_loop_is_named_with_how_long():
    author = Author()
    async with LoopWatch(author, least_s=0.025) as watch:
        await asyncio.sleep(0)
        author.go_on.wait()
    assert list(watch.lag_s) == ["env.py:5 in score"]
    assert watch.lag_s["env.py:5 in score"] > 0.05
