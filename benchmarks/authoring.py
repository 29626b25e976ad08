"""Environments: a turn, many at once, make_vec; a calculator in vime-agents, gem, verifiers, inspect_ai."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

import vime_agents as vime
from benchmarks.measure import interleaved, median_ratio, report
from vime_agents import messages as msg
from vime_agents.spaces import Messages, Reply
from vime_agents.threads import MAX_THREADS
from vime_agents.vector_env import AgentVectorEnv

ARMS = Path(__file__).parent / "authoring_arms"
CACHE = Path(os.environ.get("VIME_AGENTS_CACHE", Path.home() / ".cache" / "vime-agents"))
PEERS = {
    "gem": ("gem-llm==0.1.0", "openai==3.57.0"),
    # The last release that runs an env's tools in its own process; 0.4 starts a program for each episode.
    "verifiers": ("verifiers==0.3.1",),
    "inspect_ai": ("inspect-ai==0.3.285", "openai==3.57.0"),
}
"""Library -> what its own venv holds."""
TURNS = 2_000
EPISODES = 200
CONCURRENCY = 64
NUM_SYNC_ENVS = 1_000
WORK_S = 0.01
IDEAL_S = math.ceil(NUM_SYNC_ENVS / MAX_THREADS) * WORK_S
"""Of many envs at once: that of the threads alone, if they cost nothing."""
INSTALL_S = 1_800
"""Most time that the installation of a library may take."""
PLAY_S = 300
"""Most time that one of its runs may take."""


# --------------------------------------------------------------------------------------------- one turn


class Product(vime.ToolEnv):
    """One tool, and as many turns as there is time for."""

    max_turns = 1_000_000_000

    def make_task(self, rng: Any) -> dict[str, int]:
        """Nothing to choose."""
        return {"a": 3, "b": 4}

    def prompt(self) -> str:
        """Short."""
        return "What is 3 * 4?"

    @vime.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers.

        Args:
            a: the one.
            b: the other.
        """
        return str(a * b)

    def score(self, text: str) -> float:
        """Never asked for."""
        return 1.0


def turn_overhead_us() -> float:
    """CPU microseconds of a turn with one tool call, less those of calling the function."""
    return asyncio.run(_turn_overhead_us())


async def _turn_overhead_us() -> float:
    env = Product()
    await env.areset(seed=0)
    call = msg.assistant("", [msg.tool_call("multiply", {"a": 3, "b": 4}, "call-0")])
    started = time.process_time()
    for _ in range(TURNS):
        await env.astep(call)
    turns_s = time.process_time() - started
    started = time.process_time()
    for _ in range(TURNS):
        await type(env).multiply.function(env, 3, 4)
    functions_s = time.process_time() - started
    await env.aclose()
    return (turns_s - functions_s) / TURNS * 1e6


# ------------------------------------------------------------------------------------ many sync envs at once


class Sleeper(vime.AgentEnv):
    """A plain `def` hook that takes its time."""

    def make_task(self, rng: Any) -> dict[str, int]:
        """Nothing to choose."""
        return {}

    def prompt(self) -> str:
        """Short."""
        return "Wait."

    def score(self, text: str) -> float:
        """The work."""
        time.sleep(WORK_S)
        return 1.0


def envs_at_once() -> float:
    """Wall time of a step of many envs at once, over that of their work if threads cost nothing."""
    return asyncio.run(_envs_at_once())


async def _envs_at_once() -> float:
    envs = [Sleeper() for _ in range(NUM_SYNC_ENVS)]
    for env in envs:
        await env.areset(seed=0)
    started = time.perf_counter()
    await asyncio.gather(*(env.astep("ok") for env in envs))
    return (time.perf_counter() - started) / IDEAL_S


def pool_alone() -> float:
    """The same for their work alone, in the standard library's pool of as many threads."""
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        started = time.perf_counter()
        for _ in pool.map(time.sleep, [WORK_S] * NUM_SYNC_ENVS):
            pass
        return (time.perf_counter() - started) / IDEAL_S


# ------------------------------------------------------------------------------------------------ make_vec


def _work() -> float:
    """What a step of CartPole costs: some twenty microseconds of arithmetic."""
    total = 0.0
    for number in range(200):
        total += math.sin(number)
    return total


class PlainText(gymnasium.Env[Any, Any]):
    """The smallest text env there can be, in plain Gymnasium."""

    def __init__(self) -> None:
        self.observation_space: Any = gymnasium.spaces.Dict({"messages": Messages()})
        self.action_space: Any = Reply()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start."""
        super().reset(seed=seed)
        return {"messages": (msg.user("go"),)}, {}

    def step(self, action: Any) -> Any:
        """Work and answer."""
        _work()
        return {"messages": (msg.user("go on"),)}, 0.0, False, False, {}


class Agent(vime.AgentEnv):
    """The same as an AgentEnv, with plain hooks as the other's are."""

    max_turns = 1_000_000_000

    def make_task(self, rng: Any) -> dict[str, int]:
        """Nothing to choose."""
        return {}

    def prompt(self) -> str:
        """Short."""
        return "go"

    def respond(self, message: msg.Message) -> list[msg.Message]:
        """Work and answer."""
        _work()
        return [msg.user("go on")]

    def score(self, text: str) -> float:
        """Never asked for."""
        return 1.0


class AsyncAgent(Agent):
    """One hook is a coroutine, which needs the background loop."""

    async def respond(self, message: msg.Message) -> list[msg.Message]:
        """Work and answer."""
        return super().respond(message)


class Waiting(vime.ToolEnv):
    """A tool that waits, as one does that asks a server."""

    max_turns = 1_000_000_000

    def make_task(self, rng: Any) -> dict[str, int]:
        """Nothing to choose."""
        return {}

    def prompt(self) -> str:
        """Short."""
        return "go"

    @vime.tool
    async def wait(self) -> str:
        """Wait."""
        await asyncio.sleep(WORK_S)
        return "done"

    def score(self, text: str) -> float:
        """Never asked for."""
        return 1.0


OWN = "own"
"""Our vector env; the other modes are Gymnasium's."""


def vector_env(entry_point: type[Any], mode: str, num_envs: int) -> Any:
    """Reset, and ready to step."""
    if mode == OWN:
        envs: Any = AgentVectorEnv([entry_point() for _ in range(num_envs)])
    else:
        env_id = f"{entry_point.__name__}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point)
        kwargs = {"shared_memory": False} if mode == "async" else {}
        envs = gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, vector_kwargs=kwargs)
    envs.reset(seed=0)
    return envs


def vector_step_us(entry_point: type[Any], mode: str) -> float:
    """Wall microseconds of a step of four envs, over the four."""
    envs = vector_env(entry_point, mode, 4)
    started = time.perf_counter()
    for _ in range(TURNS // 4):
        envs.step(("ok",) * 4)
    us = (time.perf_counter() - started) / TURNS * 1e6
    envs.close()
    return us


def waits_per_step(mode: str) -> float:
    """Wall time of a step of eight envs that each wait once, in waits."""
    envs = vector_env(Waiting, mode, 8)
    call = msg.assistant("", [msg.tool_call("wait", {}, "1")])
    started = time.perf_counter()
    for _ in range(20):
        envs.step((call,) * 8)
    waits = (time.perf_counter() - started) / 20 / WORK_S
    envs.close()
    return waits


# ------------------------------------------------------------------------------------- beside other libraries


def author_lines(file: Path) -> int:
    """Lines of code: without blank ones, comments and docstrings."""
    source = file.read_text(encoding="utf-8")
    lines = {
        number for number, line in enumerate(source.splitlines(), 1) if line.strip()[:1] not in ("", "#")
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def interpreter_of(library: str) -> str:
    """The Python that has it; its venv is made on first use, under the cache folder."""
    if library == "vime_agents":
        return sys.executable
    folder = CACHE / "benchmarks" / f"authoring-{library}"
    python, ready = folder / "bin" / "python", folder / "ready.json"
    wanted = json.dumps(PEERS[library])
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"installing {', '.join(PEERS[library])} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PEERS[library]], check=True, timeout=INSTALL_S)
        ready.write_text(wanted, encoding="utf-8")
    return str(python)


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """The base URL of a scripted model."""
    server = subprocess.Popen([sys.executable, str(ARMS / "server.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}/v1"
    finally:
        server.terminate()
        server.wait()


def cpu_ms_per_episode(library: str, url: str) -> float:
    """Play the calculator; every episode must be right, or the number means nothing."""
    command = [interpreter_of(library), str(ARMS / "play.py"), library, url, str(EPISODES), str(CONCURRENCY)]
    env = {k: v for k, v in os.environ.items() if library == "vime_agents" or k != "PYTHONPATH"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=env | offline, capture_output=True, text=True, check=False, timeout=PLAY_S
    )
    if done.returncode:
        raise RuntimeError(f"{library} failed:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["right"] != EPISODES:
        raise RuntimeError(f"{library}: {result['right']} of {EPISODES} episodes are right")
    return result["cpu_s"] / EPISODES * 1000


def own_measures(repeats: int) -> None:
    """A turn, many envs at once, make_vec."""
    arms: dict[str, Callable[[], float]] = {"ToolEnv turn, less the function (CPU)": turn_overhead_us}
    envs = {"plain Env": PlainText, "AgentEnv": Agent, "AgentEnv, an async hook": AsyncAgent}
    for mode in ("sync", "async", OWN):
        for label, env in envs.items():
            if mode != OWN or env is not PlainText:
                arms[f"make_vec {mode}: {label}"] = lambda env=env, mode=mode: vector_step_us(env, mode)
    rows = interleaved(arms, 3 * repeats)  # each takes a tenth of a second
    slow = {"1000 envs at once": envs_at_once, "1000 in a pool alone": pool_alone}
    slow |= {f"8 envs wait, {mode}": partial(waits_per_step, mode) for mode in ("sync", OWN)}
    at_once = interleaved(slow, repeats)
    middle = {name: statistics.median(values) for name, values in (rows | at_once).items()}

    def over_plain(mode: str, label: str = "AgentEnv") -> float:
        plain = "sync" if mode == OWN else mode
        return median_ratio(rows[f"make_vec {mode}: {label}"], rows[f"make_vec {plain}: plain Env"])

    report(
        "authoring",
        rows,
        "us",
        {
            "turn overhead (target: at most 100)": middle["ToolEnv turn, less the function (CPU)"],
            "1000 sync envs (target: 1.3)": middle["1000 envs at once"],
            "  their work in a pool, alone": middle["1000 in a pool alone"],
            "make_vec (target: 1)": over_plain(OWN),
            "  with an async hook": over_plain(OWN, "AgentEnv, an async hook"),
            "  mode sync, of Gymnasium": over_plain("sync"),
            "  with an async hook, sync": over_plain("sync", "AgentEnv, an async hook"),
            "  mode async, four processes": over_plain("async"),
            "  with an async hook, async": over_plain("async", "AgentEnv, an async hook"),
            "8 envs that wait, in waits (ideal: 1)": middle[f"8 envs wait, {OWN}"],
            "  in mode sync": middle["8 envs wait, sync"],
        },
    )


def beside_peers(repeats: int) -> None:
    """The calculator in four libraries."""
    for library in PEERS:
        interpreter_of(library)
    with model_server() as url:
        libraries = ["vime_agents", *PEERS]
        arms = {name: lambda name=name: cpu_ms_per_episode(name, url) for name in libraries}
        rows = interleaved(arms, repeats)
    best_peer = min(statistics.median(rows[name]) for name in PEERS)
    results: dict[str, Any] = {f"lines to author: {n}": author_lines(ARMS / f"{n}_env.py") for n in libraries}
    results["ours over the best (target: below 1)"] = statistics.median(rows["vime_agents"]) / best_peer
    report("authoring-peers", rows, "CPU ms per episode", results)


def main(argv: list[str] | None = None) -> None:
    """Measure and print; the targets stand beside what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks authoring", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    args = parser.parse_args(argv)
    own_measures(args.repeats)
    if not args.no_peers:
        beside_peers(args.repeats)


if __name__ == "__main__":
    main(sys.argv[1:])
