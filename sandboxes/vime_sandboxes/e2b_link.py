"""The runner inside an E2B sandbox, and the way to it."""

from __future__ import annotations

from e2b import AsyncSandbox

from vime_agents.errors import SandboxDead, SandboxNotReady, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import runner_bundle
from vime_sandboxes.e2b_channel import Channel
from vime_sandboxes.runner_link import RunnerLink

RUNNER_TTL_S = 20 * 24 * 3600
"""E2B holds the time to live; the runner only needs to outlast every sandbox."""
_NO_PYTHON = 97
# $1: `clean` to kill first whatever this user still runs (never as root, whose programs serve the sandbox);
# $2: the working directory.
_START = f"""\
[ "$1" = clean ] && [ "$(id -u)" != 0 ] && kill -9 -1 2>/dev/null
folder=${{2:-$HOME/work}}
shift 2
command -v python3 >/dev/null 2>&1 || exit {_NO_PYTHON}
mkdir -p "$folder" && cd "$folder" && exec python3 -IS -c "$0" "$@"
"""
# no_new_privs first: nothing that is started from here on becomes root, by sudo or otherwise.
_BOOT = f"""\
import ctypes, sys
if sys.version_info < (3, 9): sys.exit({_NO_PYTHON})
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
exec(compile(sys.argv.pop(1), "runner", "exec"))
"""


class Link(RunnerLink):
    """Speaks to the runner of one user of one sandbox."""

    channel: Channel
    dropped: str | None = None
    """Why its owner let go of it, so that what was under way knows."""

    @classmethod
    async def open(
        cls, remote: AsyncSandbox, spec: SandboxSpec, *, user: str | None, folder: str, clean: bool
    ) -> Link:
        """Start a runner in `folder`; "": `work` in the user's home.

        Raises what E2B's client raises, and SandboxUnsupported: no Python in the template; SandboxNotReady.
        """
        limits = (spec.memory_mb << 20, spec.max_processes, spec.max_file_mb << 20)
        arguments = (runner_bundle.source().decode(), str(RUNNER_TTL_S), *map(str, limits))
        start = ["/bin/sh", "-c", _START, _BOOT, "clean" if clean else "", folder]
        channel, reader, writer = await Channel.open(remote, [*start, *arguments], user=user)

        def worded(reason: str) -> str:
            said = channel.errors.decode(errors="replace").strip()
            return f"{reason}; {said}" if said else reason

        link = cls(reader, writer, worded)
        link.channel = channel
        try:
            await link.ready()
        except BaseException as error:
            await link.end()
            if channel.ended == f"exit status {_NO_PYTHON}":
                raise SandboxUnsupported("the template has no python3, 3.9 or later") from error
            if isinstance(error, SandboxDead):
                ended = channel.ended or channel.error or "the connection to it broke"
                raise SandboxNotReady(f"no runner in the sandbox: {ended}: {error}") from error
            raise
        return link

    async def end(self) -> None:
        """Let go of it."""
        self.close()
        await self.channel.close()
