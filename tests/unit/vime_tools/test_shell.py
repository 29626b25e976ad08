from __future__ import annotations

import asyncio

import pytest

from tests.unit.vime_tools.hosts import Host
from vime_agents.env import ToolEnv
from vime_agents.errors import SandboxDead, ToolError
from vime_agents.messages import assistant, tool_call
from vime_agents.sandbox import SandboxSpec
from vime_tools import session
from vime_tools.shell import Shell

LOST = "[The next call starts a new shell: the variables, functions and programs are lost.]"


@pytest.fixture
async def shell(host: Host):
    made = Shell(host)
    yield made
    await made.close()


async def programs_inside(host: Host) -> list[str]:
    script = "for p in /proc/[0-9]*; do read -r c < $p/comm && echo $c; done"
    return (await (await host.sandbox()).exec(["sh", "-c", script])).text.split()


async def test_the_shell_stays(shell: Shell) -> None:
    assert await shell.bash("mkdir a && cd a && N=3; f() { echo f$1; }; export E=é") == "[no output]"
    assert await shell.bash("pwd; echo $N; f 4\nsh -c 'echo $E'") == "/work/a\n3\nf4\né"
    assert await shell.bash("printf 'no line feed'") == "no line feed"
    assert await shell.bash("echo out; echo err >&2; echo out") == "out\nerr\nout"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("false", "[no output]\n[exit status 1]"),
        ("echo x; exit_status() { return 7; }; exit_status", "x\n[exit status 7]"),
        ("cat", "[no output]"),  # no input to wait for
        ("printf '\\377'", "\ufffd"),
        ("echo \"it's\" '$HOME' `echo b`", "it's $HOME b"),
        ("printf 'a\\0b\\u2028c\\n\\n'", "a\0b\u2028c\n"),
        ("cat <<E\n1\nE\n", "1"),
        ("", "[no output]"),
    ],
)
async def test_answers(shell: Shell, command: str, answer: str) -> None:
    assert await shell.bash(command) == answer


async def test_what_is_no_command_is_told_and_the_shell_stays(shell: Shell) -> None:
    await shell.bash("N=3")
    for command, words in (("a\0b", "a NUL character in the command"), ("echo \ud800", "not valid Unicode")):
        with pytest.raises(ToolError, match=words):
            await shell.bash(command)
    for command, words in (("echo 'a", "matching"), ("no-such-program", "not found"), ("if", "syntax error")):
        answer = await shell.bash(command)
        assert words in answer
        assert "[exit status " in answer
    assert await shell.bash("echo $N") == "3"


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    shell: Shell, host: Host
) -> None:
    shell.timeout_s = 0.4
    await shell.bash("cd /tmp; N=3")
    answer = await shell.bash("echo before; sleep 600 & python3 -c 'while True: pass'")
    assert answer == f"before\n[The command took longer than 0.4 s. The shell was ended with it.]\n{LOST}"
    while {"sleep", "python3"} & set(await programs_inside(host)):  # killed, and perhaps not yet gone
        await asyncio.sleep(0.02)
    assert host.counters == {"bash_timeouts": 1}
    shell.timeout_s = 20.0
    assert await shell.bash("pwd; echo [$N]") == "/tmp\n[]"  # the directory is kept


@pytest.mark.parametrize(
    ("command", "how"), [("echo x; exit 3", "exit 3"), ("echo x; kill -9 $$", "signal 9")]
)
async def test_the_shells_end_is_told(shell: Shell, command: str, how: str) -> None:
    assert await shell.bash(command) == f"x\n[The shell has ended: {how}.]\n{LOST}"
    assert await shell.bash("echo again") == "again"


async def test_a_shell_that_ends_between_calls_is_told_with_the_next(shell: Shell) -> None:
    assert await shell.bash("(sleep 0.1; kill -9 $$) & echo x") == "x"
    await asyncio.sleep(0.5)
    answer = await shell.bash("echo y")
    assert answer in (
        # Depending on whether the pipe still took the command.
        "y\n[This is a new shell: signal 9. Its variables, functions and programs were lost.]",
        f"[The shell has ended: signal 9.]\n{LOST}",
    )
    assert await shell.bash("echo z") == "z"


async def test_much_output_keeps_both_ends(shell: Shell) -> None:
    # Characters of three bytes, so that both cuts would fall into one.
    answer = await shell.bash(
        """printf 'start'; python3 -c 'print("\u20ac" * 200_000, end="")'; printf 'end'"""
    )
    head, note, tail = answer.partition("\n[... ")
    cut, _, tail = tail.partition(" bytes were cut ...]\n")
    assert note
    assert head == "start" + "\u20ac" * (len(head) - 5)
    assert tail == "\u20ac" * (len(tail) - 3) + "end"
    assert len(head.encode()) + int(cut) + len(tail.encode()) == 8 + 3 * 200_000
    assert session.KEPT_BYTES - 3 <= len(head.encode()) <= session.KEPT_BYTES


async def test_a_flood_is_ended(shell: Shell, monkeypatch) -> None:
    monkeypatch.setattr(session, "MAX_ANSWER_BYTES", 1 << 20)
    answer = await shell.bash("yes")
    assert answer.startswith("y\ny\n")
    assert answer.endswith(f"\n[The shell has ended: more than 1 MiB of output.]\n{LOST}")
    assert await shell.bash("echo again") == "again"


async def test_calls_at_once_are_served_one_after_the_other(shell: Shell) -> None:
    answers = await asyncio.gather(*(shell.bash(f"N=$((N + {n})); echo $N") for n in range(1, 5)))
    assert answers == ["1", "3", "6", "10"]


async def test_programs_in_the_background_go_on_and_are_heard_later(shell: Shell) -> None:
    assert await shell.bash("(sleep 0.2; echo late) & echo now") == "now"
    assert await shell.bash("wait; echo then") == "late\nthen"


async def test_a_command_cannot_forge_the_end_of_a_later_one(shell: Shell) -> None:
    assert await shell.bash("exec >/dev/null; echo lost") == "[no output]"  # the marker has a way of its own
    assert await shell.bash("exec >&9; echo found; false") == "found\n[exit status 1]"


async def test_a_cancelled_call_ends_the_shell_and_the_next_one_says_so(shell: Shell, host: Host) -> None:
    waiting = asyncio.ensure_future(shell.bash("sleep 600"))
    while "sleep" not in await programs_inside(host):
        await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    while "sleep" in await programs_inside(host):  # killed, and perhaps not yet gone
        await asyncio.sleep(0.02)
    answer = await shell.bash("echo x")
    lost = "Its variables, functions and programs were lost."
    assert answer == f"x\n[This is a new shell: the call before was cut off. {lost}]"


async def test_a_dead_sandbox_is_not_the_models_mistake(shell: Shell, host: Host) -> None:
    await shell.bash("echo x")
    await (await host.sandbox()).close()
    with pytest.raises(SandboxDead):
        await shell.bash("echo y")


async def test_an_episode_has_a_shell_of_its_own() -> None:
    class Shelled(ToolEnv):
        sandbox_spec = SandboxSpec(memory_mb=128)
        toolsets = (Shell,)
        tool_timeout_s = 1.0

        def tasks(self):
            return [{"x": 1}]

        def prompt(self):
            return "go"

        def score(self, text):
            return 1.0

    def action(*commands: str):
        return assistant("", [tool_call("bash", {"command": c}, c) for c in commands])

    env = Shelled()
    for _ in range(2):
        await env.areset(seed=0)
        observation, *_ = await env.astep(action("N=${N:-1}$N; echo $N", "echo $N"))
        assert [m["content"] for m in observation["messages"]] == ["1", "1"]
        await env.astep("done")
    # The env's own deadline comes first: the next call is told.
    await env.areset(seed=0)
    observation, *_ = await env.astep(action("sleep 600"))
    assert observation["messages"][0]["content"] == "Error: bash took longer than 1 s"
    observation, *_ = await env.astep(action("echo x"))
    assert "the call before was cut off" in observation["messages"][0]["content"]
    await env.aclose()
