"""A policy over any server that speaks OpenAI's chat API. Gives text, not tokens: for evaluation only."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from vime_agents import messages as msg
from vime_agents.deadlines import Deadline, off_the_clock
from vime_agents.errors import ContractError, EngineError, EngineRejected
from vime_agents.messages import Message, ToolCall
from vime_agents.policies.admission import REFUSALS, Admission, AdmittedCall
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Sampling, Usage

_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_MAX_WAIT_S = 30.0
_JITTER = random.Random()  # not the shared generator: who seeds that gets the same numbers, retried or not


class _Retry(Exception):
    """An answer that may be different next time; `wait_s` is what the server asks for."""

    def __init__(self, kind: str, detail: str, *, wait_s: float | None = None, refused: bool = False) -> None:
        self.kind, self.problem, self.wait_s, self.refused = kind, f"{kind}: {detail}", wait_s, refused
        super().__init__(self.problem)


class OpenAIChatPolicy:
    """Sends the whole conversation each turn; tools in the native way.

    Raises (from `act`): EngineError once the retries are used up, EngineRejected for what no retry mends,
    ContextLengthExceeded, TimeoutError.
    """

    exact_tokens = False

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        max_retries: int = 4,
        backoff_s: float = 0.5,
        admission: Admission | None = None,
    ) -> None:
        """Describe the server; nothing is opened yet.

        Args:
            base_url: up to and with `/v1`.
            model: the name that the server knows it by.
            api_key: sent as a bearer token.
            max_retries: further tries of one call after 429, 5xx and lost connections. With an admission,
                those after 429, 503 and 529 have its limits of time instead.
            backoff_s: first wait; doubles each time, with jitter. The server's Retry-After wins.
            admission: where calls wait for a place, off the clock of whatever limits them; shared by all
                policies of a server. None: each is sent at once, and waits between tries count.
        """
        self.base_url, self.model, self.name = base_url.rstrip("/"), model, model
        self.max_retries, self.backoff_s = max_retries, backoff_s
        self.admission = admission
        self.retries: Counter[str] = Counter()
        """Further tries so far, by what was wrong with the one before: HTTP 429, no connection, ..."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def most_calls_at_once(self) -> int:
        """Most that the server ever had at once, those of other policies included; 0: without admission."""
        return 0 if self.admission is None else self.admission.most_at_once

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """One call of /chat/completions, with retries, within `timeout_s`.

        With an admission, that is what its tries take at the server.
        """
        body = request_body(self.model, conversation, sampling)
        async with Deadline(timeout_s):
            return await self.complete(body)

    async def complete(self, body: Mapping[str, Any]) -> Generation:
        """One call with a body of the caller's own, with retries and no limit of time."""
        return parse_answer(await self._post(body))

    async def aclose(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, body: Mapping[str, Any]) -> Any:
        call = None if self.admission is None else self.admission.call()
        tries = failures = 0
        while True:
            tries += 1
            try:
                return await self._post_once(body) if call is None else await self._post_admitted(call, body)
            except _Retry as retry:
                if call is not None and retry.refused:
                    give_up = not call.patient
                else:
                    failures += 1
                    give_up = failures > self.max_retries
                if give_up:
                    many = f"after {tries} tries" if tries > 1 else "and no retries are allowed"
                    raise EngineError(f"{self.base_url}: {retry.problem}, {many}") from retry
                self.retries[retry.kind] += 1
                await self._back_off(retry, tries)

    async def _back_off(self, retry: _Retry, tries: int) -> None:
        wait_s = self.backoff_s * 2 ** min(tries - 1, 16) * _JITTER.uniform(0.5, 1.5)
        if self.admission is None:
            await asyncio.sleep(min(retry.wait_s if retry.wait_s is not None else wait_s, _MAX_WAIT_S))
        elif retry.wait_s is None or tries > self.max_retries:
            # Else nobody is let in before that; but "Retry-After: 0" for ever must not become a loop.
            with off_the_clock():
                await asyncio.sleep(min(wait_s, _MAX_WAIT_S))

    async def _post_admitted(self, call: AdmittedCall, body: Mapping[str, Any]) -> Any:
        async with call.place() as place:
            try:
                answer = await self._post_once(body)
            except _Retry as retry:
                if retry.refused:
                    place.refused()
                raise
            except (EngineRejected, ContextLengthExceeded):
                place.answered()
                raise
            place.answered()
            return answer

    async def _post_once(self, body: Mapping[str, Any]) -> Any:
        if self._session is None:
            # The runner bounds what is in flight, `act` bounds the time.
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            )
        try:
            async with self._session.post(f"{self.base_url}/chat/completions", json=body) as response:
                text = await response.text(errors="replace")
                status, wait_s = response.status, _retry_after_s(response.headers)
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry("no connection", str(error) or repr(error)) from error
        if wait_s is not None and self.admission is not None:
            self.admission.pause(wait_s)
        if status in _RETRIED:
            raise _Retry(f"HTTP {status}", text[:500], wait_s=wait_s, refused=status in REFUSALS)
        if status != 200:
            self._refuse(status, text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise _Retry("the answer is not JSON", repr(text[:200])) from error

    def _refuse(self, status: int, text: str) -> None:
        lengths = re.search(r"maximum context length is (\d+)", text)
        if lengths or "context_length_exceeded" in text:
            asked = re.search(r"(?:requested|resulted in|has|contains at least) (\d+)", text)
            raise ContextLengthExceeded(int(asked[1]) if asked else -1, int(lengths[1]) if lengths else -1)
        raise EngineRejected(f"{self.base_url}: HTTP {status} for model {self.model!r}: {text[:500]}")


def request_body(model: str, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
    """The body of one call. What OpenAI's own server does not know is sent only where it has an effect."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(m) for m in conversation.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    if sampling.top_k != -1:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if conversation.tools:
        body["tools"] = list(conversation.tools)
    return body


def parse_answer(answer: Any) -> Generation:
    """The reply in an answer of the chat API. Raises EngineError where it has another shape."""
    try:
        choice = answer["choices"][0]
        reply = choice["message"]
        calls = [_tool_call(call, at) for at, call in enumerate(reply.get("tool_calls") or ())]
        content = reply.get("content")
        message: Message = msg.assistant("" if content is None else content, calls)
        usage = answer.get("usage") or {}
        generation = Generation(
            message=msg.check_message(message),
            finish_reason=choice.get("finish_reason") or "stop",
            usage=Usage(
                prompt_tokens=usage.get("prompt_tokens"),
                sampled_tokens=usage.get("completion_tokens"),
                cached_prompt_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            ),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ContractError) as error:
        raise EngineError(f"not an answer of the chat API ({error!r}): {str(answer)[:200]}") from error
    return generation


def _tool_call(call: Any, position: int) -> ToolCall:
    function = call["function"]
    # Some servers answer with an object where the API says text.
    return msg.tool_call(function["name"], function["arguments"], call.get("id") or f"call-{position}")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds, also where it is a date; None without one, and for nonsense."""
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    until = _posix_s(text)
    if until is None:
        return None
    now = _posix_s(headers.get("Date", ""))  # the server's clock, which need not agree with ours
    return max(0.0, until - (time.time() if now is None else now))


def _posix_s(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
