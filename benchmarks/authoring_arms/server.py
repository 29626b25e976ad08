"""A server that speaks OpenAI's chat API and plays the calculator right. It prints its port."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

_QUESTION = re.compile(r"What is (\d+) \* (\d+)\?")
_RESULT = re.compile(r"<result>(\d+)</result>")


def reply_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant's message: first a call of `multiply`, then the answer.

    A request without `tools` is answered in text: `<multiply>17,4</multiply>`, for libraries that have no
    native calls; their tool's answer is looked for between `<result>` tags.
    """
    messages = body["messages"]
    last = _text(messages[-1])
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": f"The answer is {last.strip()}"}
    result = None if body.get("tools") else _RESULT.search(last)
    if result is not None:
        return {"role": "assistant", "content": f"The answer is {result[1]}"}
    question = next(found for m in messages if (found := _QUESTION.search(_text(m))))
    if not body.get("tools"):
        return {"role": "assistant", "content": f"<multiply>{question[1]},{question[2]}</multiply>"}
    function = {"name": "multiply", "arguments": f'{{"a": {question[1]}, "b": {question[2]}}}'}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def complete(request: web.Request) -> web.Response:
    """POST /v1/chat/completions."""
    message = reply_to(await request.json())
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return web.json_response(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
        }
    )


async def serve() -> None:
    """Until it is killed."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
