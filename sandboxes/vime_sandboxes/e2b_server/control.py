"""E2B's control plane: REST about sandboxes, from outside of them."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vime_agents.errors import SandboxError
from vime_sandboxes.e2b_server.boxes import DEFAULT_TIMEOUT_S, Box, BoxError, Boxes

ENVD_VERSION = "0.6.7"
"""The version of E2B's in-sandbox service whose protocol is spoken."""
MAX_PAGE = 100
ALL_TRAFFIC = "0.0.0.0/0"


def routes(boxes: Boxes) -> list[Route]:
    """All of them; keys are checked elsewhere."""
    control = _Control(boxes)
    one = "/sandboxes/{id}"
    return [
        Route("/v2/sandboxes", control.create, methods=["POST"]),
        Route("/sandboxes", control.create, methods=["POST"]),
        Route("/v2/sandboxes", control.list, methods=["GET"]),
        Route(one, control.detail, methods=["GET"]),
        Route(one, control.kill, methods=["DELETE"]),
        Route(f"{one}/timeout", control.timeout, methods=["POST"]),
        Route(f"{one}/pause", control.pause, methods=["POST"]),
        *(
            Route(path, control.connect, methods=["POST"])
            for path in (f"/v2{one}/connect", f"{one}/connect", f"{one}/resume")
        ),
        Route(f"{one}/snapshots", control.snapshot, methods=["POST"]),
        Route(f"{one}/fork", control.fork, methods=["POST"]),
        Route(f"{one}/metrics", control.metrics, methods=["GET"]),
        Route(f"{one}/network", control.network, methods=["PUT"]),
        Route("/snapshots", control.snapshots, methods=["GET"]),
        Route("/templates/{id:path}", control.delete_snapshot, methods=["DELETE"]),
    ]


class _Control:
    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def create(self, request: Request) -> Response:
        body = await _body(request)
        for name in ("volumeMounts", "mcp", "iam"):
            if body.get(name):
                raise BoxError(400, f"{name} is not offered by this server")
        box = await self._boxes.create_once(
            request.headers.get("idempotency-key"),
            template=str(body.get("templateID") or "base"),
            timeout_s=_seconds(body.get("timeout", DEFAULT_TIMEOUT_S)),
            metadata=_texts(body, "metadata"),
            env=_texts(body, "envVars"),
            network=_network(body),
            pause_at_end=bool(body.get("autoPause")),
        )
        return JSONResponse(_connection(box), 201)

    async def list(self, request: Request) -> Response:
        query = request.query_params
        wanted = {
            urllib.parse.unquote(k): urllib.parse.unquote(v)
            for k, v in urllib.parse.parse_qsl(query.get("metadata", ""), keep_blank_values=True)
        }
        states = set(filter(None, query.get("state", "").split(","))) or {"running", "paused"}
        after = datetime.fromisoformat(query["startedAfter"]).timestamp() if "startedAfter" in query else 0.0
        found = [
            box
            for box in self._boxes.all()
            if box.state in states
            and wanted.items() <= box.metadata.items()
            and box.started_at >= after
            and query.get("template", box.template) == box.template
        ]
        ascending = query.get("order") == "asc"
        if ascending:
            found.reverse()
        # The token is the place of the last one that was sent; it stays right when that one is gone.
        if token := query.get("nextToken"):
            started, _, box_id = token.partition("_")
            last = (float(started), box_id)
            found = [b for b in found if ((b.started_at, b.id) > last) == ascending and b.id != box_id]
        page = found[: min(int(query.get("limit", MAX_PAGE)), MAX_PAGE)]
        headers = {}
        if len(page) < len(found):
            headers["X-Next-Token"] = f"{page[-1].started_at!r}_{page[-1].id}"
        return JSONResponse([_described(box) for box in page], headers=headers)

    async def detail(self, request: Request) -> Response:
        box = self._box(request)
        extra = {"envdAccessToken": box.token, "allowInternetAccess": bool(box.spec.network)}
        on_end = "pause" if box.pause_at_end else "kill"
        return JSONResponse(
            _described(box) | extra | {"lifecycle": {"onTimeout": on_end, "autoResume": False}}
        )

    async def kill(self, request: Request) -> Response:
        await self._boxes.kill(request.path_params["id"])
        return Response(status_code=204)

    async def timeout(self, request: Request) -> Response:
        box = self._box(request)
        await self._boxes.set_timeout(box, _seconds((await _body(request)).get("timeout")))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        await self._boxes.pause(self._box(request))
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        box = self._box(request)
        timeout = (await _body(request)).get("timeout")
        resumed = await self._boxes.resume(box, None if timeout is None else _seconds(timeout))
        return JSONResponse(_connection(box), 201 if resumed else 200)

    async def snapshot(self, request: Request) -> Response:
        name = (await _body(request)).get("name")
        snapshot_id, record = await self._boxes.snapshot(self._box(request), name and str(name))
        return JSONResponse({"snapshotID": snapshot_id, "names": list(record.names)}, 201)

    async def snapshots(self, request: Request) -> Response:
        query = request.query_params
        found = [
            {"snapshotID": snapshot_id, "names": list(record.names)}
            for snapshot_id, record in self._boxes.snapshots.items()
            if query.get("sandboxID", record.box_id) == record.box_id
            and ("name" not in query or query["name"] in (snapshot_id, *record.names))
        ]
        start = int(query.get("nextToken", 0))
        end = start + min(int(query.get("limit", MAX_PAGE)), MAX_PAGE)
        return JSONResponse(found[start:end], headers={"X-Next-Token": str(end)} if end < len(found) else {})

    async def delete_snapshot(self, request: Request) -> Response:
        await self._boxes.delete_snapshot(urllib.parse.unquote(request.path_params["id"]))
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        box, body = self._box(request), await _body(request)
        snapshot_id, _ = await self._boxes.snapshot(box, None)
        try:
            forks = [await self._fork(box, snapshot_id, body) for _ in range(int(body.get("count", 1)))]
        finally:
            await self._boxes.delete_snapshot(snapshot_id)
        return JSONResponse(forks, 201)

    async def _fork(self, box: Box, snapshot_id: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            made = await self._boxes.create(
                template=snapshot_id,
                timeout_s=_seconds(body.get("timeout", DEFAULT_TIMEOUT_S)),
                metadata=dict(box.metadata),
                env=dict(box.spec.env),
                network=box.spec.network,
                pause_at_end=box.pause_at_end,
            )
        except BoxError as error:
            return {"error": {"code": error.status, "message": error.message}}
        except SandboxError as error:
            return {"error": {"code": 500, "message": str(error)}}
        return {"sandbox": _connection(made)}

    async def metrics(self, request: Request) -> Response:
        box = self._box(request)
        if box.sandbox is None:
            return JSONResponse([])
        info, now = await box.sandbox.info(), time.time()
        sample = {
            "timestamp": _iso(now),
            "timestampUnix": int(now),
            "cpuCount": _cpus(box),
            "cpuUsedPct": 0.0 if info.cpu_s is None else 100 * info.cpu_s / max(now - box.started_at, 1e-3),
            "memUsed": info.memory_peak_bytes or 0,
            "memTotal": box.spec.memory_mb << 20,
            "memCache": 0,
            "diskUsed": 0,
            "diskTotal": box.spec.memory_mb << 20,
        }
        return JSONResponse([sample])

    async def network(self, request: Request) -> Response:
        self._box(request)
        raise BoxError(400, "the network of a running sandbox cannot be changed on this server")

    def _box(self, request: Request) -> Box:
        return self._boxes.get(request.path_params["id"])


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        body = json.loads(raw) if raw else {}
    except ValueError as error:
        raise BoxError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BoxError(400, "the body is not a JSON object")
    return body


def _seconds(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BoxError(400, f"timeout must be a number of seconds, got {value!r}")
    return value


def _texts(body: dict[str, Any], name: str) -> dict[str, str]:
    found = body.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BoxError(400, f"{name} must map strings to strings")
    return found


def _network(body: dict[str, Any]) -> bool | tuple[str, ...]:
    """What was asked for in so many words; E2B's default, everything, is not: here that must be asked for."""
    rules = body.get("network") or {}
    unknown = set(rules) - {"allowOut", "denyOut", "allowPublicTraffic"}
    if unknown:
        raise BoxError(400, f"network rules {sorted(unknown)} are not offered by this server")
    allowed, denied = list(rules.get("allowOut") or ()), list(rules.get("denyOut") or ())
    if denied not in ([], [ALL_TRAFFIC]):
        raise BoxError(400, f"only everything can be denied ({ALL_TRAFFIC}), got {denied}")
    if allowed and allowed != [ALL_TRAFFIC]:
        return tuple(allowed)
    return bool(body.get("allow_internet_access")) and not denied


def _cpus(box: Box) -> int:
    return math.ceil(box.spec.cpus or 1)


def _connection(box: Box) -> dict[str, Any]:
    return {
        "templateID": box.template,
        "sandboxID": box.id,
        "clientID": "local",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": box.token,
    }


def _described(box: Box) -> dict[str, Any]:
    return {
        "templateID": box.template,
        "alias": box.template,
        "sandboxID": box.id,
        "clientID": "local",
        "startedAt": _iso(box.started_at),
        "endAt": _iso(box.ends_at),
        "cpuCount": _cpus(box),
        "memoryMB": box.spec.memory_mb,
        "diskSizeMB": box.spec.memory_mb,
        "envdVersion": ENVD_VERSION,
        "state": box.state,
        "metadata": box.metadata,
    }


def _iso(unix_time: float) -> str:
    return datetime.fromtimestamp(unix_time, UTC).isoformat()
