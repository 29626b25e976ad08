"""A model behind a real HTTP server, for the commands that ask one."""

import asyncio
import json
import re
import threading

from aiohttp import web


class ChatServer:
    """Answers sums with a tool call and then the number, after one 429 or none; in a thread of its own."""

    def __init__(self, *, busy_at_first=True):
        self.busy_at_first = busy_at_first
        self.says = ""
        """If anything, what it answers to everything."""
        self.requests = []
        self.usage = {"prompt_tokens": 10, "completion_tokens": 2}
        self.url = ""
        self._started, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *exc):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _chat(self, request):
        body = await request.json()
        self.requests.append((body, request.headers.get("Authorization")))
        if len(self.requests) == 1 and self.busy_at_first:
            return web.Response(status=429, text="slow down", headers={"Retry-After": "0"})
        last = body["messages"][-1]
        if self.says:
            message, reason = {"content": self.says}, "stop"
        elif last["role"] == "tool":
            message, reason = {"content": last["content"]}, "stop"
        else:
            a, b = map(int, re.findall(r"\d+", last["content"]))
            function = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
            call = {"id": "c1", "type": "function", "function": function}
            message, reason = {"content": None, "tool_calls": [call]}, "tool_calls"
        return web.json_response(
            {
                "choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}],
                "usage": self.usage,
            }
        )

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()
