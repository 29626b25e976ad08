"""Look a key up in a table that lies in a sandbox: the smallest tool that really acts on one."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from vime_agents.errors import SandboxError
from vime_agents.sandbox import Sandbox

_MISSING = 3
_PROGRAM = f"""\
import json, sys
with open(sys.argv[1], encoding="ascii") as file:
    table = json.load(file)
key = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
if key not in table:
    sys.exit({_MISSING})
sys.stdout.buffer.write(table[key].encode("utf-8", "surrogatepass"))
"""

# Sandbox -> path -> the write of that table. Two look-ups at once must share one write.
_writes: WeakKeyDictionary[Sandbox, dict[str, asyncio.Future[None]]] = WeakKeyDictionary()


async def look_up(
    sandbox: Sandbox, table: Mapping[str, str], key: str, *, timeout_s: float = 10.0
) -> str | None:
    """The value of `key`, found by a program inside `sandbox`; None when the table has no such key.

    The table is written into the sandbox once, on first use.

    Raises:
        SandboxError: the program failed, which is not the key's fault.
    """
    content = json.dumps(dict(table)).encode("ascii")
    path = f"tables/{hashlib.sha256(content).hexdigest()[:16]}.json"
    writes = _writes.setdefault(sandbox, {})
    if path not in writes:
        writes[path] = asyncio.ensure_future(sandbox.write(path, content))
    await asyncio.shield(writes[path])
    result = await sandbox.exec(
        ["python3", "-IS", "-c", _PROGRAM, path],
        stdin=key.encode("utf-8", "surrogatepass"),
        timeout_s=timeout_s,
    )
    if result.exit_code == _MISSING:
        return None
    if not result.ok or result.truncated:
        raise SandboxError(f"look-up of {key!r:.80} in {path} failed: {result!r:.500}")
    return result.stdout.decode("utf-8", "surrogatepass")
