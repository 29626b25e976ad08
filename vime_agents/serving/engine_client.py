"""Speaks to one vLLM server: token ids in; sampled ids, log-probs, weight versions out; weight sync."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from vime_agents.errors import EngineError, EngineRejected
from vime_agents.policy import ContextLengthExceeded, Sampling
from vime_agents.serving.wire import (
    EngineAnswer,
    generate_body,
    parse_answer,
    parse_prompt_logprobs,
    prompt_logprobs_body,
)

_GENERATE = "/inference/v1/generate"
_JSON: Final = {"Content-Type": "application/json"}
# vLLM 0.32: "This model's maximum context length is 256 tokens. However, you requested ..."
_CONTEXT_LENGTH = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)")


class EngineClient:
    """One engine. Use from one event loop; open connections are bounded and reused.

    Every method raises EngineError when the engine is unreachable, dead or answers nonsense (worth another
    attempt), EngineRejected when it refuses the request itself, and TimeoutError when the time is up.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        timeout_s: float = 600.0,
        max_connections: int = 1024,
    ) -> None:
        """A client; connects on first use.

        Args:
            url: `http://127.0.0.1:8000`, without a path.
            model: Sent as the model's name; None: whichever the server serves.
            timeout_s: Of one call, where the call does not say.
            max_connections: Further calls wait for a free connection.
        """
        self.url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._sampling_session: aiohttp.ClientSession | None = None
        self._control_session: aiohttp.ClientSession | None = None
        self._ids = map(
            "{}-{}".format, itertools.repeat(f"{os.getpid()}-{os.urandom(4).hex()}"), itertools.count()
        )
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session_id: str | None = None,
        timeout_s: float | None = None,
    ) -> EngineAnswer:
        """Sample after `token_ids`.

        Args:
            token_ids: The whole prompt.
            sampling: Every value is sent.
            session_id: Routing key: a router sends calls with the same one to the same engine.
            timeout_s: Of this call; when it passes the engine is told to stop sampling.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for a token.
        """
        request_id = next(self._ids)
        body = generate_body(token_ids, sampling, request_id=request_id, model=self._model)
        headers = _JSON if session_id is None else {**_JSON, "X-Session-ID": session_id}
        try:
            payload = await self._call("POST", _GENERATE, body, headers=headers, timeout_s=timeout_s)
        except TimeoutError:
            self._abort_soon(request_id)
            raise
        except EngineRejected as error:
            if limit := _CONTEXT_LENGTH.search(str(error)):
                raise ContextLengthExceeded(len(token_ids), int(limit[1])) from error
            raise
        return parse_answer(payload, where=self.url)

    async def prompt_logprobs(
        self, token_ids: Sequence[int], *, timeout_s: float | None = None
    ) -> list[float]:
        """Log-prob of each token given those before it, at temperature 1; NaN for the first."""
        body = prompt_logprobs_body(token_ids, request_id=next(self._ids), model=self._model)
        payload = await self._call("POST", _GENERATE, body, timeout_s=timeout_s)
        return parse_prompt_logprobs(payload, token_ids, where=self.url)

    async def health(self, *, timeout_s: float = 5.0) -> bool:
        """Whether the engine answers and says that it is well."""
        try:
            await self._call("GET", "/health", timeout_s=timeout_s)
        except (EngineError, TimeoutError):
            return False
        return True

    async def pause(self, mode: str = "keep") -> None:
        """Stop sampling.

        `keep`: requests in flight stay, and go on after `resume` from the tokens that they have, with their
        keys and values computed again under the new weights. `wait`: they are finished first. `abort`: they
        return what they have. New requests wait for `resume` in every mode.
        """
        await self._call("POST", f"/pause?mode={mode}")

    async def resume(self) -> None:
        """Go on sampling."""
        await self._call("POST", "/resume")

    async def init_weight_transfer(self, info: Mapping[str, Any]) -> None:
        """Set up the transfer once; what `info` holds is the backend's business."""
        await self._call("POST", "/init_weight_transfer_engine", _dump({"init_info": dict(info)}))

    async def start_weight_update(self) -> None:
        """Make the engine ready to receive."""
        await self._call("POST", "/start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Load weights; what `info` holds is the backend's business."""
        await self._call("POST", "/update_weights", _dump({"update_info": dict(info)}))

    async def finish_weight_update(self, version: int | None) -> None:
        """Put the loaded weights in place; tokens sampled from now on carry `version` (None: as before)."""
        body = {} if version is None else {"weight_version": str(version)}
        await self._call("POST", "/finish_weight_update", _dump(body))

    async def set_weight_version(self, version: int) -> None:
        """Label the weights that the engine holds."""
        await self._call("POST", "/update_weight_version", _dump({"new_version": str(version)}))

    async def weight_version(self) -> int | None:
        """The label of the weights; None where it is not a number of ours."""
        label = (await self._call("GET", "/weight_info"))["weight_version"]
        return int(label) if str(label).isdecimal() else None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        for session in (self._sampling_session, self._control_session):
            if session is not None:
                await session.close()
        self._sampling_session = self._control_session = None

    def _session(self, path: str) -> aiohttp.ClientSession:
        if path == _GENERATE:
            if self._sampling_session is None:
                # Shorter than the server's own keep-alive: a request never meets a closing connection.
                self._sampling_session = _open(limit=self._max_connections, keepalive_timeout=4.0)
            return self._sampling_session
        if self._control_session is None:
            # Each call on a connection of its own: after an error the server closes the connection, and a
            # `resume` that was lost to that would leave the engine paused for ever.
            self._control_session = _open(limit=self._max_connections, force_close=True)
        return self._control_session

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] = _JSON,
        timeout_s: float | None = None,
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s if timeout_s is None else timeout_s)
        try:
            async with self._session(path).request(
                method, self.url + path, data=body, headers=headers, timeout=timeout
            ) as response:
                raw = await response.read()
        except TimeoutError as error:
            raise TimeoutError(f"{self.url}{path}: no answer within {timeout.total} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if response.status >= 400:
            kind = EngineError if response.status >= 500 or response.status == 429 else EngineRejected
            raise kind(f"{self.url}{path}: HTTP {response.status}: {_message(raw)}")
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:
            raise EngineError(f"{self.url}{path}: the answer is not JSON: {raw[:200]!r}") from error

    def _abort_soon(self, request_id: str) -> None:
        """Tell the engine, without holding up the caller, whose time is already spent."""
        task = asyncio.create_task(self._abort(request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, request_id: str) -> None:
        # The engine knows the request under a prefixed id. Should this fail too, the closed connection
        # still makes the server drop the request.
        body = _dump({"request_ids": [request_id, f"generate-tokens-{request_id}"]})
        try:
            await self._call("POST", "/inference/v1/abort_requests", body, timeout_s=2.0)
        except (EngineError, TimeoutError):
            return


def _open(**connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(**connector), cookie_jar=aiohttp.DummyCookieJar()
    )


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()


def _message(raw: bytes) -> str:
    """The server's words out of an error answer."""
    text = raw.decode(errors="replace").strip()
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:500] or "(empty)"
