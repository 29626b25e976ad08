"""`vime-agents init`: what it writes works, and what it refuses."""

import json
import sys
import tomllib

import pytest

from vime_agents import registry
from vime_agents.cli import main
from vime_agents.cli.init import _FILES, KINDS, SUMMARIES, TEMPLATES, names_of, suggested
from vime_agents.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    for module in ("my_first", "my_first.env"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gold_of_a_new_environment_gets_everything(here, capsys, monkeypatch, kind):
    assert main(["init", "my_first", "--kind", kind]) == 0
    out = capsys.readouterr().out
    written = [line.removeprefix("wrote ") for line in out.splitlines() if line.startswith("wrote ")]
    assert sorted(written) == sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_file())
    monkeypatch.syspath_prepend(here / "my_first")
    assert main(["eval", "my_first.env:MyFirst", "--policy", "gold", "-n", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    # Gold against gold: what one wins in a zero-sum game, the other loses.
    assert (report["mean"], report["ok"]) == (0.0 if kind == "game" else 1.0, 3)
    assert main(["eval", "my_first.env:MyFirst", "--policy", "wrong", "-n", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mean"], report["ok"]) == (0.0, 3)


def test_every_template_is_used_and_has_no_name_left(here):
    used = {t.replace("$kind", kind) for t in _FILES for kind in KINDS}
    assert used == {str(p.relative_to(TEMPLATES)) for p in TEMPLATES.rglob("*") if p.is_file()}
    assert SUMMARIES.keys() == KINDS.keys()
    for kind in KINDS:
        assert main(["init", f"my_{kind}", "--kind", kind]) == 0
    for path in here.rglob("*"):
        assert "$" not in path.name
        assert path.is_dir() or "${" not in path.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_gymnasium_is_told_of_what_it_can_make_alone(here, kind):
    assert main(["init", "my_first", "--kind", kind]) == 0
    project = tomllib.loads((here / "my_first" / "pyproject.toml").read_text())["project"]
    group = "vime_agents.multi_agent_envs" if kind == "game" else "vime_agents.envs"
    assert project["entry-points"] == {group: {"MyFirst-v0": "my_first.env:MyFirst"}}


def test_what_exists_is_never_touched(here, capsys):
    (here / "mine").mkdir()
    (here / "mine" / "env.py").write_text("mine")
    assert main(["init", "mine", "--kind", "tool"]) == 2
    assert "mine exists already; nothing was written" in capsys.readouterr().err
    assert [p.name for p in here.rglob("*")] == ["mine", "env.py"]
    (here / "link").symlink_to(here / "nowhere")
    assert main(["init", "link", "--kind", "tool"]) == 2
    assert not (here / "nowhere").exists()


def test_a_folder_that_cannot_be_written_leaves_nothing(here, capsys, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vime_agents.cli.init._write_files", full)
    assert main(["init", "mine", "--kind", "tool"]) == 2
    assert "cannot write mine: No space left on device" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My-Env", "Did you mean 'my_env'?"),
        ("myEnv2", "Did you mean 'my_env2'?"),
        ("a b", "Did you mean 'a_b'?"),
        ("2fast", "Did you mean 'fast'?"),
        ("a__b", "Did you mean 'a_b'?"),
        ("../up", "Did you mean 'up'?"),
        ("_", "got '_'"),
        ("x" * 51, "at most 50 characters"),
        ("wörld", "got 'wörld'"),
        ("class", "a word of Python's own; choose another name, such as 'class_env'"),
        ("match", "a word of Python's own"),
        ("json", "a module 'json' exists already"),
        ("numpy", "a module 'numpy' exists already"),
        ("vime_envs", "a module 'vime_envs' exists already"),
        ("tests", "a module 'tests' exists already"),
        ("calculator", "the environment 'Calculator-v0' exists already"),
        ("kuhn_poker", "the environment 'KuhnPoker-v0' exists already"),
    ],
)
def test_a_name_that_cannot_be_one_says_what_could(here, capsys, name, told):
    assert main(["init", name, "--kind", "tool"]) == 2
    assert told in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_names_follow_from_one_name():
    assert names_of("my_2nd_env") == {
        "package": "my_2nd_env",
        "distribution": "my-2nd-env",
        "class_name": "My2ndEnv",
        "env_id": "My2ndEnv-v0",
    }


@pytest.mark.parametrize("name", ["MyEnv", "my env", "__x__", "9", "a.b-c", "-", "Ünï"])
def test_a_suggested_name_is_a_valid_one(name):
    close = suggested(name)
    if close is not None:
        assert names_of(close)["package"] == close


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["mine", "--kind", "tols"], "Did you mean 'tool'?"),
        (["mine", "--kind", "x"], "must be one of single, tool, sandbox, game, got 'x'"),
        (["mine"], "--kind"),
        (["--kind", "tool"], "NAME"),
        (["mine", "--kind", "tool", "--knd", "x"], "Did you mean --kind?"),
        (["mine", "more", "--kind", "tool"], "unexpected argument 'more'"),
    ],
)
def test_what_is_not_understood_is_a_usage_error(here, capsys, flags, told):
    assert main(["init", *flags]) == 2
    assert told in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_name_that_somebody_registered_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "env_entry_points", lambda: {"Mine-v0": "x:Y"})
    with pytest.raises(ConfigError, match="'Mine-v0' exists already"):
        names_of("mine")
