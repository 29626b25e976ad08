"""`vime-agents sandboxes`."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.e2e.commands import ROOT
from vime_agents import registry
from vime_agents.cli import main, sandboxes
from vime_agents.cli.sandboxes_flags import spec_of
from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.sandbox import SandboxInfo, SandboxSpec
from vime_sandboxes import doctor
from vime_sandboxes.doctor import Diagnosis, Finding
from vime_sandboxes.local import LocalSandboxProvider
from vime_sandboxes.reaper import Found

COMMAND = [sys.executable, "-m", "vime_agents", "sandboxes"]
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def own_ledger(tmp_path, monkeypatch):
    """The commands see this test's ledger, no daemon and no account."""
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-daemon.sock")
    monkeypatch.delenv("E2B_API_KEY", raising=False)


# --------------------------------------------------------------------------------------- flags


def test_a_text_names_a_spec():
    assert spec_of("local") == SandboxSpec(backend="local")
    assert spec_of("docker:python:3.12-slim") == SandboxSpec(backend="docker", image="python:3.12-slim")
    assert spec_of("Calculator-v0") == SandboxSpec(memory_mb=128, max_processes=32, max_file_mb=1)
    text = (
        '{"memory_mb": 64, "network": ["pypi.org"], "setup": [["touch", "x"]], "env": {"A": "1"}, "cpus": 1}'
    )
    assert spec_of(text) == SandboxSpec(
        memory_mb=64, network=("pypi.org",), setup=(("touch", "x"),), env={"A": "1"}, cpus=1.0
    )


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("locl", UnknownIdError, "'local'"),
        ("Calculater-v0", UnknownIdError, "'Calculator-v0'"),
        ("docker:", ConfigError, "docker:IMAGE"),
        ("gymnasium:Env", ConfigError, "declares no sandbox"),
        ('{"memory": 3}', ConfigError, "'memory_mb'"),
        ('{"memory_mb": "much"}', ConfigError, "memory_mb"),
        ('{"backend": "dockr"}', UnknownIdError, "'docker'"),
        ("{nonsense", ConfigError, "not JSON"),
    ],
)
def test_a_wrong_spec_is_an_error_that_helps(text, error, said):
    with pytest.raises(error, match=re.escape(said)):
        spec_of(text)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["lst"], "Did you mean 'list'?"),
        (["list", "--jsn"], "Did you mean --json?"),
        (["list", "more"], "unexpected argument 'more'"),
        (["reap", "--dry"], "unknown flag --dry"),
        (["reap", "--backend", "dokcer"], "'docker'"),
        (["doctor", "--backend", "Calculator-v0"], "unknown sandbox backend"),
        (["shell"], "SPEC"),
        (["serve-e2b", "--port", "99999"], "0 to 65535"),
        (["serve-e2b", "--max-sandboxes", "0"], "at least 1"),
    ],
)
def test_wrong_arguments_are_usage_errors(argv, said, capsys):
    assert main(["sandboxes", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", sandboxes.COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main(["sandboxes", name, "--help"])
    assert end.value.code == 0
    assert f"usage: vime-agents sandboxes {name}" in capsys.readouterr().out
    assert main(["sandboxes", "--help"]) == 0
    assert name in capsys.readouterr().out


# --------------------------------------------------------------------------------------- list, reap


def test_the_table_tells_who_owns_what():
    here = SandboxInfo(id="a", backend="local", labels={"vime.owner": "h:b:12:3", "vime.run": "r"})
    far = SandboxInfo(id="b", backend="docker", labels={}, created_at=time.time() - 3725, expires_at=0.0)
    table = sandboxes._table([Found(here, False, "dead"), Found(far, None, None)])
    head, second, first = table.splitlines()
    assert head.split() == ["ID", "BACKEND", "STATE", "OWNER", "RUN", "AGE", "EXPIRES"]
    assert first.split() == ["a", "local", "running", "12", "dead", "r", "-", "-"]
    assert second.split()[:7] == ["b", "docker", "running", "unknown", "-", "1h", "2m"]
    assert second.split()[7].startswith("-")
    assert sandboxes._table([]) == "no sandboxes"


def test_a_backend_that_was_asked_for_and_does_not_answer_is_a_failure(capsys):
    assert main(["sandboxes", "list", "--backend", "docker", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["sandboxes"] == []
    assert "no-daemon.sock" in found["unavailable"]["docker"]
    assert main(["sandboxes", "reap", "--backend", "docker"]) == 1
    output = capsys.readouterr()
    assert output.out == "ended 0, failed 0, kept 0\n"
    assert "docker cannot be asked" in output.err


@pytest.mark.integration
def test_a_living_owners_sandbox_is_listed_and_kept_and_ends_with_its_owner(capsys):
    with subprocess.Popen(
        [*COMMAND, "shell", "local", "--command", "echo up; cat"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        assert main(["sandboxes", "reap", "--backend", "local", "--json"]) == 0
        kept = {f["owner_pid"]: f for f in json.loads(capsys.readouterr().out)["kept"]}
        assert (kept[shell.pid]["owner_alive"], kept[shell.pid]["run"]) == (True, "shell")
        assert kept[shell.pid]["expires_at"] > time.time()
        shell.kill()
    until(lambda: shell.pid not in owners(capsys))


def owners(capsys) -> set[int]:
    """Processes that own a local sandbox."""
    assert main(["sandboxes", "list", "--backend", "local", "--json"]) == 0
    return {f["owner_pid"] for f in json.loads(capsys.readouterr().out)["sandboxes"]}


def until(condition) -> None:
    """Wait for it."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "still not so"
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------- shell


@pytest.mark.integration
def test_lines_go_in_output_comes_out_and_the_exit_code_is_the_shells():
    done = subprocess.run(
        [*COMMAND, "shell", "local"],
        cwd=ROOT,
        input=b"echo out; echo err >&2; cd /tmp\npwd; exit 7\n",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n/tmp\n", b"err\n")
    done = subprocess.run(
        [*COMMAND, "shell", "local", "--command", "kill -TERM $$"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM


class Terminal:
    """The command at a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(sys.executable, [*COMMAND, *arguments])
        self._seen = b""

    def expect(self, text: bytes) -> None:
        """Wait until it shows `text`."""
        end = time.monotonic() + DEADLINE_S
        while text not in self._seen:
            assert time.monotonic() < end, self._seen
            if select.select([self._fd], [], [], 0.2)[0]:
                self._seen += os.read(self._fd, 4096)
        self._seen = self._seen.partition(text)[2]

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self._fd, data)

    def exit_code(self) -> int:
        """Wait for its end."""
        try:
            while os.read(self._fd, 4096):
                pass
        except OSError:  # how a terminal ends
            os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.integration
def test_ctrl_c_interrupts_the_program_inside_and_ctrl_d_ends_the_shell(capsys):
    terminal = Terminal("shell", "local")
    terminal.expect(b"$ ")
    # One program that says when it is in the foreground: the shell itself would not be ended by the key.
    terminal.type(b"sh -c \"echo u''p; sleep 1000\"\n")
    terminal.expect(b"\nup")
    terminal.type(b"\x03")
    terminal.expect(b"$ ")
    terminal.type(b"echo st''ill\n")
    terminal.expect(b"still")
    terminal.expect(b"$ ")
    terminal.type(b"\x04")
    assert terminal.exit_code() == 0
    assert terminal.pid not in owners(capsys)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_command_ends_the_sandbox_first(number, capsys):
    terminal = Terminal("shell", "local")
    terminal.expect(b"$ ")
    os.kill(terminal.pid, number)
    assert terminal.exit_code() == 128 + number
    assert terminal.pid not in owners(capsys)


# ------------------------------------------------------------------------------------------ doctor


def test_a_backend_is_ok_when_it_works_and_everything_holds():
    assert Diagnosis("x", findings=[Finding("a", "b", "holds")]).ok
    assert not Diagnosis("x", findings=[Finding("a", "b", "not held")]).ok
    assert not Diagnosis("x", problem="no").ok


def test_the_doctor_says_why_a_backend_does_not_work(capsys):
    assert main(["sandboxes", "doctor", "--backend", "docker"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("docker: does not work here\n")
    assert "no-daemon.sock" in out


class Leaky(LocalSandboxProvider):
    """Says that there is no network inside, and gives one."""

    async def create(self, spec, **wanted):
        sandbox = await super().create(replace(spec, network=True), **wanted)
        sandbox.enforced |= {"network"}
        return sandbox


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_doctor_finds_a_wall_that_does_not_hold(monkeypatch, capsys):
    monkeypatch.setattr(registry, "sandbox_provider", lambda name: Leaky())
    monkeypatch.setattr(doctor, "ROUNDS", 1)
    assert main(["sandboxes", "doctor", "--backend", "local"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "local: works, but NOT everything holds"
    assert [line.split()[1] for line in lines if line.startswith("  broken ")] == ["network"]
    assert [line for line in lines if line.startswith("  not held")] == []


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_doctor_finds_that_local_sandboxes_hold(capsys):
    code = main(["sandboxes", "doctor", "--backend", "local", "--json"])
    found = json.loads(capsys.readouterr().out)
    (local,) = found["backends"]
    assert {f["name"]: (f["state"], f["detail"]) for f in local["findings"]} == dict.fromkeys(
        (
            "host files",
            "host processes",
            "network",
            "privileges",
            "memory",
            "processes",
            "file size",
            "time limit",
        ),
        ("holds", ""),
    )
    assert (code, found["ok"], local["ok"], local["problem"]) == (0, True, True, None)
    assert {name: t["rounds"] for name, t in local["latencies"].items()} == dict.fromkeys(
        ("boot", "exec", "close"), 10
    )
    assert all(0 < t["p50_s"] <= t["p95_s"] for t in local["latencies"].values())


# --------------------------------------------------------------------------------------- serve-e2b

CLIENT = """
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run("echo from inside").stdout)
"""


@pytest.mark.integration
def test_e2bs_client_works_with_what_the_server_announces(capsys):
    with subprocess.Popen(
        [*COMMAND, "serve-e2b", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        variables = dict(
            part.split("=", 1) for part in server.stdout.readline().removeprefix("export ").split()
        )
        assert variables.keys() == {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"}
        done = subprocess.run(
            [sys.executable, "-c", CLIENT],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "from inside\n\n"
        assert server.pid in owners(capsys)  # the client went away and left it
        server.send_signal(signal.SIGINT)
        assert server.wait(DEADLINE_S) == 130
    assert server.pid not in owners(capsys)
