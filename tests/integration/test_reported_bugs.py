"""Bugs that users of other libraries reported, played against this one from outside.

Each docstring names the report. What is not here is tested where it belongs: training that is interrupted
and an engine that is killed (NVIDIA-NeMo/RL#2305) in tests/e2e, engines that leave out ids or log-probs
(NVIDIA-NeMo/Gym#1612, rllm-org/rllm#352) under serving, masks and lost tokens under learning.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import gymnasium
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel, Field

import vime_agents as vime
from vime_agents.checking.author import AuthorCode
from vime_agents.checking.blocking import LoopWatch
from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.episode import Episode
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.judge import Judge
from vime_agents.messages import assistant, tool_call
from vime_agents.policy import Generation
from vime_agents.reward import reward
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.sandbox import SandboxSpec
from vime_agents.storage.episodes import read_episodes
from vime_agents.task import Task
from vime_envs.games.tic_tac_toe import TicTacToe
from vime_tools.shell import Shell


class Says:
    """Says one thing after the other, in every episode."""

    name, exact_tokens = "says", False

    def __init__(self, *replies: Any) -> None:
        self.replies, self.calls = replies, 0

    async def act(self, conversation: Any, *, sampling: Any, timeout_s: float | None = None) -> Generation:
        self.calls += 1
        reply = self.replies[min(conversation.turn, len(self.replies) - 1)]
        message = assistant(reply) if isinstance(reply, str) else reply
        return Generation(message=message, finish_reason="stop")

    async def aclose(self) -> None:
        pass


def call(name: str, **arguments: Any) -> Any:
    return assistant("", [tool_call(name, arguments, "call-0")])


def requests(number: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(task=Task(id=str(i), inputs={}), group_id=str(i), episode_id=str(i), seed=i)
        for i in range(number)
    ]


async def play(make_env: Callable[[], Any], policy: Any, number: int = 1, **kwargs: Any) -> list[Episode]:
    runner = Runner(make_env, policy, env_id="bug", max_retries=0, **kwargs)
    return [episode async for episode in runner.run(requests(number))]


def messages_of(episode: Episode) -> list[Any]:
    trajectory = episode.trajectories[0]
    return [m for turn in trajectory.turns for m in turn.messages] + list(trajectory.final_messages)


class Terminal(ToolEnv):
    """A shell in a sandbox."""

    max_turns = 4
    sandbox_spec = SandboxSpec()

    class Shell1s(Shell):
        timeout_s = 1.0

    toolsets = (Shell1s,)

    def make_task(self, rng: Any) -> Any:
        return {}

    def prompt(self) -> str:
        return "Use the shell."

    def score(self, text: str) -> float:
        return 1.0


class Bare(AgentEnv):
    """Three turns."""

    max_turns = 3

    def make_task(self, rng: Any) -> Any:
        return {}

    def prompt(self) -> str:
        return "go"

    async def respond(self, message: Any) -> Any:
        return [{"role": "user", "content": "on"}]

    def score(self, text: str) -> float:
        return 1.0


def _running(text: str) -> list[int]:
    """Processes of this machine that have `text` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if text.encode() in command:
                found.append(int(folder.name))
    return found


# ------------------------------------------------------------------------------------------ sandboxes


@pytest.mark.integration
async def test_an_endless_command_is_ended_with_its_process_and_the_model_is_told() -> None:
    """UKGovernmentBEIS/inspect_ai#1585, #2779: the time-out fired, the process ran on."""
    mark = f"endless_{os.getpid()}"
    endless = call("bash", command=f"python3 -c 'while True: pass  # {mark}'")
    (episode,) = await play(Terminal, Says(endless, call("bash", command="echo still here"), "done"))
    answers = [m["content"] for m in messages_of(episode) if m["role"] == "tool"]
    assert "took longer than 1 s" in answers[0]
    assert "still here" in answers[1]
    assert (episode.outcome.stop, episode.reward) == ("done", 1.0)
    assert _running(mark) == []


@pytest.mark.integration
async def test_a_command_is_cut_by_its_own_limit_and_the_episode_is_not() -> None:
    """coder/xum#1539: a command of 10 s under a limit of 2 s was reported as the episode's time-out."""
    slow = call("bash", command="sleep 10; echo never")
    (episode,) = await play(Terminal, Says(slow, "done"), limits=Limits(episode_s=60))
    (answer,) = [m["content"] for m in messages_of(episode) if m["role"] == "tool"]
    assert "took longer than 1 s" in answer
    assert "never" not in answer
    assert episode.outcome.stop == "done"
    assert episode.metrics["bash_timeouts"] == 1


@pytest.mark.integration
async def test_a_sandbox_that_dies_is_no_reward_of_zero_and_ends_the_episode() -> None:
    """UKGovernmentBEIS/inspect_ai#4709: the sandbox was gone, the model was asked on, the score was 0."""

    class Dies(Terminal):
        async def respond(self, message: Any) -> Any:
            if self.turn == 3:
                await (await self.sandbox()).close()
            return await super().respond(message)

    policy = Says(call("bash", command="echo 1"))
    (episode,) = await play(Dies, policy)
    assert (episode.outcome.kind, episode.outcome.cause) == ("failed", "sandbox")
    assert episode.reward is None
    assert policy.calls == 3


@pytest.mark.integration
async def test_an_agent_that_writes_the_verdict_itself_gets_nothing() -> None:
    """valbaudo/dawn#14: a reward file and a conftest.py that the agent wrote were believed."""

    class Solve(vime.SandboxEnv):
        def make_task(self, rng: Any) -> Any:
            return {}

        def prompt(self) -> str:
            return "Write solution.py with double(n)."

        async def score(self, text: str) -> float:
            test = "from solution import double\n\ndef test_it():\n    assert double(4) == 8\n"
            return float((await self.grade_tests({"test_it.py": test})).all_passed)

    cheat = (
        "mkdir -p /logs/verifier; echo 1 | tee reward.txt /logs/verifier/reward.txt; "
        "printf 'import os\\nos._exit(0)\\n' | tee conftest.py sitecustomize.py > solution.py"
    )
    honest = "printf 'def double(n):\\n    return 2 * n\\n' > solution.py"
    for command, expected in ((cheat, 0.0), ("true", 0.0), (honest, 1.0)):
        (episode,) = await play(Solve, Says(call("bash", command=command), "done"))
        # A grader that the agent broke is a failure of the episode, never a reward.
        assert episode.reward == expected or (command == cheat and episode.reward is None)


# ------------------------------------------------------------------------------------- whole evaluations

PACED = """
import asyncio
import vime_agents as vime

class Paced(vime.AgentEnv):
    def make_task(self, rng):
        return {"digit": int(rng.integers(10))}

    def prompt(self):
        return "say\\u2028it\\x85now"

    async def respond(self, message):
        await asyncio.sleep(0.05)
        if self.task["digit"] == 3:
            raise vime.EnvFault("down")

    def score(self, text):
        return float(self.task["digit"] % 2)

    def gold(self):
        return "a\\u2028b\\x85c\\x0bd\\x0ce"
"""


@pytest.mark.integration
def test_an_evaluation_that_is_killed_half_way_comes_to_what_it_would_have(tmp_path: Path) -> None:
    """verifiers#1961, tinker-cookbook#610: what was played was lost or counted twice; verifiers#1644: text
    with U+2028 and other separators broke the log, and with it the resume."""
    (tmp_path / "paced.py").write_text(PACED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    def start(out: Path) -> subprocess.Popen[bytes]:
        flags = [
            "paced:Paced",
            "-m",
            "scripted:gold",
            "-n",
            "40",
            "--max-retries",
            "0",
            "--max-error-rate",
            "1",
        ]
        command = [sys.executable, "-m", "vime_agents", "eval", *flags, "-c", "2", "--out", str(out)]
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def lines(out: Path) -> int:
        file = out / "episodes.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole).wait(60) == 0, (tmp_path / "log").read_text()
    killed = start(cut)
    while lines(cut) < 10:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait(10)
    num_played = lines(cut)
    assert 10 <= num_played < 40
    with (cut / "episodes.jsonl").open("ab") as file:
        file.write(b'{"id": "eval-39')  # a line that the kill tore
    assert start(cut).wait(60) == 0, (tmp_path / "log").read_text()
    reports = [json.loads((folder / "report.json").read_text()) for folder in (whole, cut)]
    usages = [report.pop("usage") for report in reports]
    for report in reports:
        for name in ("duration_s", "call_p50_s", "call_p95_s", "config", "argv"):
            report.pop(name)
    assert reports[0] == reports[1]
    # The calls of the two episodes that were in flight were made, so they count, though they were made again.
    assert usages[0]["calls"] == 40 <= usages[1]["calls"] <= 42
    episodes = list(read_episodes(cut / "episodes.jsonl"))
    assert len({e.id for e in episodes}) == len(episodes) == reports[1]["n"] == 40
    assert reports[1]["errors"] == {"env": sum(e.outcome.kind == "failed" for e in episodes)}
    assert 0 < reports[1]["errors"]["env"] < 20
    played = next(e for e in episodes if e.outcome.kind == "terminated")
    assert "say\u2028it\x85now" in str(messages_of(played)[0]["content"])


async def test_one_episode_of_many_that_raises_costs_nothing_but_itself() -> None:
    """THUDM/slime#2078, NovaSky-AI/SkyRL#1613: one that raised ended the run, or was called cancelled."""

    class OneBreaks(Bare):
        async def respond(self, message: Any) -> Any:
            if self.task["number"] == 250:
                raise ZeroDivisionError("number 250")
            return None

    runner = Runner(OneBreaks, Says("x"), env_id="bug", max_retries=0, concurrency=64)
    asked = [replace(r, task=Task(id=r.task.id, inputs={"number": int(r.task.id)})) for r in requests(500)]
    episodes = [episode async for episode in runner.run(asked)]
    failed = [e for e in episodes if e.outcome.kind == "failed"]
    assert (len(episodes), [e.id for e in failed]) == (500, ["250"])
    assert "ZeroDivisionError('number 250')" in failed[0].outcome.detail


class Mixed(Bare):
    """Two right, four wrong, two that nobody could play."""

    async def respond(self, message: Any) -> Any:
        if self.task["number"] > 5:
            raise vime.EnvFault("down")

    def score(self, text: str) -> float:
        return float(self.task["number"] < 2)


async def test_errors_are_left_out_of_the_mean_and_also_counted_as_zero() -> None:
    """UKGovernmentBEIS/inspect_ai#2914: 2 right of 8 with 2 errors was one number, and not said which."""
    tasks = [Task(id=str(i), inputs={"number": i}) for i in range(8)]
    report = await evaluate(f"{__name__}:Mixed", Says("x"), num_tasks=8, tasks=tasks, max_retries=0)
    assert (report.n, report.n_scored, sum(report.errors.values())) == (8, 6, 2)
    assert report.mean == pytest.approx(2 / 6)
    assert report.mean_errors_as_zero == pytest.approx(2 / 8)


# --------------------------------------------------------------------------------- the loop and the tools


async def test_sync_steps_that_wait_do_so_beside_each_other() -> None:
    """NovaSky-AI/SkyRL#53: 256 sync episodes of 3 steps of 0.2 s took 150 s, one after the other."""
    running, most = 0, 0

    class Slow(Bare):
        def respond(self, message: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.02)
            running -= 1
            return [{"role": "user", "content": "on"}]

    episodes = await play(Slow, Says("x"), 64, concurrency=64)
    assert [e.outcome.stop for e in episodes] == ["max_turns"] * 64
    assert most > 8


async def test_an_async_step_that_blocks_is_named_by_its_line() -> None:
    """NovaSky-AI/SkyRL#53, its async twin: the loop stood still and nothing said where."""

    class Blocks(Bare):
        async def respond(self, message: Any) -> Any:
            time.sleep(0.15)
            return None

    env = Blocks()
    async with LoopWatch(AuthorCode(Blocks), least_s=0.025) as watch:
        await env.areset(seed=0)
        await env.astep("x")
    (line,) = watch.lag_s
    assert line.endswith("in respond")


async def test_tool_arguments_that_are_no_json_are_told_or_repaired_and_the_episode_goes_on() -> None:
    """PrimeIntellect-ai/verifiers#1763, UKGovernmentBEIS/inspect_ai#4822: they ended the rollout."""

    class Adds(ToolEnv):
        max_turns = 5

        def make_task(self, rng: Any) -> Any:
            return {}

        def prompt(self) -> str:
            return "add"

        @vime.tool
        async def add(self, a: int, b: int) -> str:
            """Add.

            Args:
                a: one.
                b: the other.
            """
            return str(a + b)

        def score(self, text: str) -> float:
            return float(text == "5")

    cut = assistant("", [tool_call("add", '{"a": 2, "b"', "call-0")])
    quoted = assistant("", [tool_call("add", '{"a": 2, "b": 3}""', "call-1")])
    (episode,) = await play(Adds, Says(cut, quoted, "5"))
    first, second = [m["content"] for m in messages_of(episode) if m["role"] == "tool"]
    assert first.startswith("Error: ")
    assert second.endswith("5")
    assert (episode.outcome.stop, episode.reward) == ("done", 1.0)
    counters = {name: episode.metrics.get(name, 0) for name in ("tool_calls", "tool_errors", "tool_repairs")}
    assert counters == {"tool_calls": 2, "tool_errors": 1, "tool_repairs": 1}


# ---------------------------------------------------------------------------------------------- judges


class Marks(BaseModel):
    """Eight criteria, and what follows from them."""

    criteria: Annotated[list[int], Field(min_length=8, max_length=8)]
    score: Annotated[int, Field(ge=0, le=10)]


@pytest.fixture
async def judge_server() -> AsyncIterator[tuple[str, list[Any]]]:
    """(URL, what it says next: texts and statuses; the last one for ever)."""
    script: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        said = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(said, int):
            return web.Response(status=said, headers={"Retry-After": "0"})
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return web.json_response({"choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/v1")), script
    await server.close()


async def test_a_judge_that_miscounts_talks_and_breaks_down_invents_no_score(
    judge_server: tuple[str, list[Any]],
) -> None:
    """OpenPipe/ART#825, NVIDIA-NeMo/Evaluator#1094, OpenAgentHQ/openagent-eval#74: 0 or 0.5 was invented."""
    url, script = judge_server

    class Judged(AgentEnv):
        quality = reward(
            Judge(url, "judge", prompt="Rate {text}.", verdict=Marks, scale=(0, 10), timeout_s=1.0),
            name="quality",
        )

        def make_task(self, rng: Any) -> Any:
            return {}

        def prompt(self) -> str:
            return "write"

    seven, eight = (json.dumps({"criteria": [8] * n, "score": 8}) for n in (7, 8))
    script[:] = [seven, "There are 5 reasons for it: score 9", eight]
    (episode,) = await play(Judged, Says("text"))
    assert episode.reward == pytest.approx(0.8)
    assert episode.metrics["judge_calls"] == 3
    assert episode.metrics["judge_prompt_tokens"] == 300
    script[:] = [seven, 500]
    (episode,) = await play(Judged, Says("text"))
    assert episode.reward is None
    assert episode.outcome.kind == "failed"
    assert episode.outcome.cause in ("judge", "grader")


# --------------------------------------------------------------------------------------- games, aliasing


async def test_each_seat_sees_its_own_side_and_a_garbled_first_move_is_explained() -> None:
    """TextArena/TextArena#160, #109, PrimeIntellect-ai/verifiers#965: seats got each other's prompts."""
    players = {"X": Says("garbage \x00", "4", "0", "8"), "O": Says("1", "2", "5")}
    (episode,) = await play(TicTacToe, players)
    x, o = episode.trajectories
    assert (x.agent, o.agent) == ("X", "O")
    assert [turn.reply["content"] for turn in x.turns] == ["garbage \x00", "4", "0", "8"]
    assert [turn.reply["content"] for turn in o.turns] == ["1", "2"]
    for seat in (x, o):
        prompts = [m["content"] for turn in seat.turns for m in turn.messages]
        assert all(f"You play {seat.agent}." in prompt for prompt in prompts)
    assert "not a legal move" in x.turns[1].messages[0]["content"]
    assert "\n3 X 5\n" in o.turns[0].messages[0]["content"]
    assert (x.reward.value, o.reward.value) == (1.0, -1.0)


async def test_the_record_keeps_what_was_said_when_the_env_uses_its_objects_again() -> None:
    """Farama-Foundation/Gymnasium#1132: an env that returns one dict for ever rewrote what was recorded."""

    class Reuses(gymnasium.Env[Any, Any]):
        message: ClassVar[Any] = {"role": "user", "content": "turn 0"}
        observation: ClassVar[Any] = {"messages": [message]}
        info: ClassVar[dict[str, Any]] = {}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.turn = 0
            return self.observation, self.info

        def step(self, action: Any) -> Any:
            self.turn += 1
            self.message["content"] = f"turn {self.turn}"
            return self.observation, 0.0, self.turn == 3, False, self.info

    (episode,) = await play(Reuses, Says("x"))
    assert [m["content"] for m in messages_of(episode)] == ["turn 0", "turn 1", "turn 2", "turn 3"]
