"""`vime-agents envs`."""

import json

import pytest

from vime_agents import registry
from vime_agents.cli import envs, main


@pytest.fixture
def known(monkeypatch):
    """The registry with the envs of conftest, one that cannot be loaded, and one that is not ours."""
    monkeypatch.setattr(
        envs.registry,
        "entry_points",
        lambda group: {
            "Sum-v0": "cli_envs:Sum",
            "OnlyTest-v0": "cli_envs:OnlyTest",
            "Gone-v0": "not_there:X",
            "Plain-v0": "gymnasium:Env",
        },
    )


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`Sum-v0`, as the package `adders` 1.2.3 would register it."""
    info = tmp_path / "modules" / "adders-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adders\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text("[vime_agents.envs]\nSum-v0 = cli_envs:Sum\n")
    registry.entry_points.cache_clear()
    yield
    monkeypatch.undo()
    registry.entry_points.cache_clear()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("argv", [["envs"], ["envs", "list"]])
def test_the_list_has_tools_and_task_counts_and_survives_a_broken_plug_in(capsys, argv):
    assert main(argv) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["ID"].split() == ["ID", "TRAIN", "TEST", "TURNS", "TOOLS", "FROM", "WHAT"]
    assert rows["Sum-v0"].split()[:5] == ["Sum-v0", "10000", "10000", "3", "add"]
    assert rows["Sum-v0"].endswith("  Adds with a tool.")
    assert rows["OnlyTest-v0"].split()[:4] == ["OnlyTest-v0", "-", "1", "3"]
    assert "cannot be loaded" in rows["Gone-v0"]
    assert "not_there" in rows["Gone-v0"]
    assert rows["Plain-v0"].split()[:5] == ["Plain-v0", "-", "-", "-", "-"]


@pytest.mark.usefixtures("known")
def test_the_list_as_json_has_what_the_table_has_and_the_schemas(capsys):
    assert main(["envs", "--json"]) == 0
    found = {f["id"]: f for f in json.loads(capsys.readouterr().out)}
    assert sorted(found) == ["Gone-v0", "OnlyTest-v0", "Plain-v0", "Sum-v0"]
    assert found["Sum-v0"]["num_tasks"] == {"train": 10000, "test": 10000}
    assert found["OnlyTest-v0"]["num_tasks"] == {"train": None, "test": 1}
    assert found["Sum-v0"]["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]
    assert "not_there" in found["Gone-v0"]["error"]
    assert found["Plain-v0"]["max_turns"] is None


@pytest.mark.usefixtures("installed")
def test_an_env_says_which_package_it_comes_from(capsys):
    assert main(["envs", "show", "Sum-v0"]) == 0
    assert "from: adders 1.2.3" in capsys.readouterr().out
    assert main(["envs", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "  adders 1.2.3  " in rows["Sum-v0"]
    assert "  built in  " in rows["Calculator-v0"]


def test_one_env_is_shown_with_its_tools_tasks_and_text(capsys):
    assert main(["envs", "show", "cli_envs:Sum"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["cli_envs:Sum  (cli_envs:Sum)", "from: not registered"]
    assert "Longer text." in lines
    assert lines[-10:] == [
        "tasks    train: 10000, test: 10000",
        "turns    at most 3",
        "reward   0 to 1",
        "gold     1 = score 1",
        "sandbox  none",
        "tools",
        "  add(a, b)",
        "    Add two numbers.",
        "      a: integer  one.",
        "      b: integer  the other.",
    ]


def test_gold_that_cannot_be_played_says_why_and_hides_nothing_else(capsys):
    assert main(["envs", "show", "cli_envs:Broken"]) == 0
    out = capsys.readouterr().out
    assert "gold     cannot be played: EnvFault: the adding machine is on fire" in out
    assert "  add(a, b)" in out


def test_an_env_of_one_split_is_shown_from_that_split(capsys):
    assert main(["envs", "show", "cli_envs:OnlyTest", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["num_tasks"] == {"train": None, "test": 1}
    assert shown["gold"]["status"] == "ok"
    assert shown["gold"]["rewards"][0]["components"] == {"score": 1.0}


def test_a_sandbox_is_shown_by_what_is_asked_of_it(capsys):
    assert main(["envs", "show", "KeyLookup-v0"]) == 0
    out = capsys.readouterr().out
    assert "sandbox  local, memory_mb 256\n" in out
    assert "gold     1 = 0.3 x call 1 + 0.7 x answer 1; metrics: success 1\n" in out


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["sum"], ["Sum-v0"]),
        (["ADD", "numbers"], ["OnlyTest-v0", "Sum-v0"]),
        (["training"], ["OnlyTest-v0"]),
        (["cli_envs", "longer"], ["Sum-v0"]),
    ],
)
def test_search_finds_what_has_all_the_words(capsys, words, ids):
    assert main(["envs", "search", *words, "--json"]) == 0
    assert [f["id"] for f in json.loads(capsys.readouterr().out)] == ids
    assert main(["envs", "search", *words]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ID", *ids]


@pytest.mark.usefixtures("known")
def test_search_that_finds_nothing_says_so_and_exits_with_1(capsys):
    assert main(["envs", "search", "Sun-v0"]) == 1
    assert capsys.readouterr().out == "no environment has 'Sun-v0'. Did you mean 'Sum-v0'?\n"
    assert main(["envs", "search", "Sun-v0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == []


def test_help_needs_no_env(capsys):
    assert main(["envs", "--help"]) == 0
    assert "usage: vime-agents envs [COMMAND]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["show", "Calculater-v0"], "Did you mean 'Calculator-v0'?"),
        (["Calculator-v0"], "write: vime-agents envs show Calculator-v0"),
        (["cli_envs:Sum"], "write: vime-agents envs show cli_envs:Sum"),
        (["Calculater-v0"], "Did you mean 'envs show Calculator-v0'?"),
        (["shwo", "x"], "Did you mean 'envs show'?"),
        (["list", "--jsn"], "Did you mean --json?"),
        (["show"], "ID"),
        (["search"], "WORD"),
        (["show", "a", "b"], "unexpected argument 'b'"),
    ],
)
def test_what_is_not_understood_is_a_usage_error_with_the_fix(capsys, argv, told):
    assert main(["envs", *argv]) == 2
    assert told in capsys.readouterr().err
