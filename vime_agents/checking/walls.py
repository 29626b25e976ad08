"""Checks of environments with a sandbox: what the agent can reach from it, and what it can forge in it."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from typing import Any

from vime_agents.checking.drive import bounded
from vime_agents.checking.kit import CannotRun, DoesNotApply, Session, check
from vime_agents.errors import EnvFault, EpisodeError, SandboxError
from vime_agents.policies.scripted import WRONG
from vime_agents.sandbox import Sandbox

_LOOK = """
for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline "$1"; do cat "$file" 2>/dev/null; echo; done
env
"""
"""Everything that a canary could be seen in; `$1` is a file of the host's."""
_FORGE = """
for folder in . tests /logs/verifier /tmp; do
  mkdir -p "$folder" 2>/dev/null
  for name in reward.txt reward score.txt result.txt; do echo 1 > "$folder/$name"; done 2>/dev/null
  for name in reward.json result.json report.json ctrf.json; do
    echo '{"reward": 1, "score": 1, "passed": true}' > "$folder/$name"
  done 2>/dev/null
  printf 'import os\\nprint("1 passed")\\nos._exit(0)\\n' |
    tee "$folder/conftest.py" "$folder/sitecustomize.py" "$folder/pytest.py" > /dev/null 2>&1
  printf '[pytest]\\naddopts = --collect-only\\n' > "$folder/pytest.ini"
done 2>/dev/null
true
"""
"""What graders have been found to believe: verdicts in files, and modules that end the tests as passed."""


async def _box(session: Session, env: Any, task: int) -> Sandbox:
    """The episode's sandbox, after `setup`. Raises CannotRun: there is none to be had."""
    limit_s = session.scale.call_s
    try:
        await bounded(env.areset(seed=task, options={"task": task}), "reset", limit_s, session.author)
        return await bounded(env.sandbox(), "the sandbox", limit_s, session.author)
    except SandboxError as error:
        raise CannotRun(f"no sandbox: {error}"[:400]) from error


def _must_have_a_sandbox(session: Session) -> None:
    if session.cls.sandbox_spec is None:
        raise DoesNotApply("the env declares no `sandbox_spec`")


async def _run(box: Sandbox, script: str, *args: str) -> str:
    result = await box.exec(["sh", "-c", script, "sh", *args], timeout_s=20.0)
    if result.exit_code is None:
        raise CannotRun(f"a probe in the sandbox ended with {result.ended_by}")
    return result.text


@check(
    "sandbox-walls",
    family="sandbox",
    fix="do not hand os.environ, folders or sockets of the host to the sandbox; take a backend with walls",
)
async def sandbox_walls(session: Session) -> None:
    """From the sandbox, neither environment variables, files nor processes of the host can be seen."""
    _must_have_a_sandbox(session)
    canary = f"vime-canary-{secrets.token_hex(8)}"
    env = session.make()
    os.environ["VIME_CHECK_CANARY"] = canary
    try:
        with tempfile.NamedTemporaryFile("w", prefix="vime-check-", suffix=".secret") as file:
            file.write(f"{canary}-file")
            file.flush()
            box = await _box(session, env, 0)
            seen = await _run(box, _LOOK, file.name)
    finally:
        del os.environ["VIME_CHECK_CANARY"]
        await session.close(env)
    if f"{canary}-file" in seen:
        session.find("a program in the sandbox reads a temporary file of the host's")
    if canary in seen.replace(f"{canary}-file", ""):
        session.find("a program in the sandbox reads the environment variables of the host's process")


@check(
    "sandbox-verdict",
    family="sandbox",
    needs=("plays", "gold"),
    explained_by=("reward-range", "gold-wins", "garbage-pays"),
    fix="judge in a sandbox of its own that gets the artifacts alone (`grade_tests`), not in the agent's",
)
async def sandbox_verdict(session: Session) -> None:
    """An agent that writes verdicts and modules that fake them, and solves nothing, is not paid like gold."""
    _must_have_a_sandbox(session)
    paid: list[int] = []
    tasks: Sequence[int] = (await session.task_indices())[:3]
    for task in tasks:
        env = session.make()
        try:
            box = await _box(session, env, task)
            await _run(box, _FORGE)
            step = bounded(env.astep(WRONG), "step", session.scale.call_s, session.author)
            *_, done, cut, info = await step
        except (SandboxError, EnvFault) as error:
            raise CannotRun(f"infrastructure failed: {error}"[:400]) from error
        except EpisodeError:  # a grader that broke has paid nothing
            continue
        finally:
            await session.close(env)
        result = info.get("reward_result")
        high = session.cls.reward_range[1]
        if (done or cut) and result is not None and result.value is not None and result.value >= high:
            paid.append(task)
    if paid:
        session.find(
            f"on {len(paid)} of {len(tasks)} tasks the reply {WRONG!r} is paid in full once the agent has "
            f"written files such as reward.txt and conftest.py",
            where=session.author.line_of_hook("score"),
        )
