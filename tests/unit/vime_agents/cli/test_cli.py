"""The front door: commands, messages, exit codes."""

import os
import subprocess
import sys

import pytest

import vime_agents
from vime_agents import cli
from vime_agents.cli import main
from vime_agents.errors import ServingError


@pytest.fixture
def command(monkeypatch):
    """Makes `vime-agents fake` run a function."""

    def install(function):
        monkeypatch.setitem(cli.COMMANDS, "fake", ("x:y", "a fake"))
        known = cli.registry.load_object
        monkeypatch.setattr(
            cli.registry, "load_object", lambda path, what: function if path == "x:y" else known(path, what)
        )

    return install


def raising(error):
    def run(argv):
        raise error

    return run


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("train", "eval", "envs", "--debug"))


def test_each_exit_code_has_one_meaning_and_the_help_lists_them(capsys):
    codes = (
        cli.OK,
        cli.FAILED,
        cli.USAGE,
        cli.TOO_MANY_ERRORS,
        cli.BUDGET_SPENT,
        cli.INTERRUPTED,
        cli.UNREAD,
    )
    assert codes == (0, 1, 2, 3, 4, 130, 141)
    assert tuple(cli.EXIT_CODES) == codes
    main(["--help"])
    section = capsys.readouterr().out.partition("exit codes:\n")[2]
    assert [int(line.split()[0]) for line in section.splitlines() if line.strip()] == list(codes)


def test_nothing_at_all_is_a_usage_error_that_shows_the_help(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == vime_agents.__version__


def test_an_unknown_command_suggests_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "unknown command 'trian'. Did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--lrr", "1"],
        ["eval", "cli_envs:Sum", "--modle", "scripted:gold"],
        ["envs", "a", "b"],
        ["envs", "Calculatr-v0"],
    ],
)
def test_usage_errors_are_one_message_on_stderr_and_code_2(capsys, argv):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vime-agents: ")
    assert "Traceback" not in captured.err


def test_a_failed_run_has_code_1_and_its_traceback_only_with_debug(command, capsys):
    command(raising(ServingError("the engine died")))
    assert main(["fake"]) == 1
    assert capsys.readouterr().err == "vime-agents: the engine died\n"
    assert main(["fake", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("vime-agents: the engine died\n")


def test_an_interrupt_has_code_130(command, capsys):
    command(raising(KeyboardInterrupt()))
    assert main(["fake"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_missing_package_names_the_extra_that_installs_it(command, capsys):
    command(raising(ModuleNotFoundError("No module named 'ray.air'", name="ray.air")))
    assert main(["fake"]) == 1
    err = capsys.readouterr().err
    assert "'ray'" in err
    assert "pip install 'vime-agents[train]'" in err


def test_a_missing_package_of_somebody_elses_is_not_explained_away(command):
    command(raising(ModuleNotFoundError("No module named 'theirs'", name="theirs")))
    with pytest.raises(ModuleNotFoundError, match="theirs"):
        main(["fake"])


def test_a_command_gets_its_arguments_without_debug_and_gives_the_exit_code(command):
    seen = []
    command(lambda argv: seen.append(argv) or 7)
    assert main(["fake", "--a", "--debug", "b"]) == 7
    assert seen == [["--a", "b"]]


@pytest.mark.parametrize(
    "argv",
    [
        ["--version"],
        ["envs"],
        ["check", "--list"],
        ["play", "Calculator-v0", "--policy", "gold"],
        ["eval", "Calculator-v0", "--policy", "gold", "-n", "1"],
    ],
)
def test_output_that_nobody_reads_ends_a_command_quietly(argv):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "vime_agents", *argv], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert done.returncode == 141
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_no_error():
    script = '"$0" -m vime_agents --version >&-'
    done = subprocess.run(["bash", "-c", script, sys.executable], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


MANY_LINES = """
import sys, types
from vime_agents import cli

def run(argv):
    while True:
        print("a line", file=getattr(sys, argv[0]), flush=True)

sys.modules["many"] = types.ModuleType("many")
sys.modules["many"].run = run
cli.COMMANDS["many"] = ("many:run", "")
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_ends_with_head(stream):
    script = '"$0" -c "$1" many "$2" 2>&1 | head -n 1; echo ${PIPESTATUS[0]}'
    command = ["bash", "-c", script, sys.executable, MANY_LINES, stream]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("a line\n141\n", "")


@pytest.mark.parametrize(
    "error", [BrokenPipeError("theirs"), ExceptionGroup("two", [BrokenPipeError("theirs")])]
)
def test_a_pipe_of_something_else_is_not_taken_for_the_output(command, error):
    command(raising(error))
    with pytest.raises(type(error)):
        main(["fake"])


def test_python_dash_m_runs_it_and_help_needs_neither_http_nor_pydantic():
    code = (
        "import sys, runpy; sys.argv = ['vime-agents', 'train', '--help']\n"
        "try: runpy.run_module('vime_agents', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('aiohttp', 'pydantic', 'rich', 'torch', 'ray', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--tensor-model-parallel-size" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
