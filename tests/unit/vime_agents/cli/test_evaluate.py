"""`vime-agents eval` end to end: scripted policies, and a model behind a real HTTP server."""

import json
import re

import pytest

from tests.unit.vime_agents.cli.chat_server import ChatServer
from vime_agents.cli import main
from vime_agents.cli.evaluate import run
from vime_agents.config import EvalConfig
from vime_agents.storage.episodes import read_episodes


@pytest.fixture
def server():
    with ChatServer() as running:
        yield running


def test_gold_prints_the_mean_its_interval_and_the_counts(capsys):
    assert main(["eval", "cli_envs:Sum", "--model", "scripted:gold", "-n", "20", "-c", "4"]) == 0
    captured = capsys.readouterr()
    assert "cli_envs:Sum (test, 20 tasks x 1, seed 0) played by scripted:gold" in captured.out
    # Wilson's lower bound at n of n: n / (n + z^2).
    assert f"reward    1.0000   95 % interval {20 / (20 + 1.959964**2):.4f} to 1.0000 (wilson" in captured.out
    assert "episodes  20: 20 ok, 0 truncated, 0 failed" in captured.out
    assert captured.err.splitlines()[-1] == "20/20 episodes, reward 1.000, 0 failed"
    assert len(captured.err.splitlines()) == 10


def test_json_is_one_line_and_wrong_scores_nothing(capsys):
    flags = ["--env", "cli_envs:Sum", "--model", "scripted:wrong", "-n", "3", "-k", "2", "--json"]
    assert main(["eval", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mean"], report["n"], report["ok"]) == (0.0, 6, 6)
    assert report["pass_at_k"] == {"1": 0.0, "2": 0.0}


def test_out_holds_episodes_report_and_a_config_that_runs_again(tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["cli_envs:Sum", "-m", "scripted:gold", "-n", "5", "--out", str(out)]
    assert main(["eval", *flags]) == 0
    episodes = list(read_episodes(out / "episodes.jsonl"))
    assert len({e.task_id for e in episodes}) == len(episodes) == 5
    report = json.loads((out / "report.json").read_text())
    assert (report["mean"], report["config"]["num_tasks"]) == (1.0, 5)
    assert "packages" in report
    assert EvalConfig.from_yaml((out / "config.yaml").read_text()).model == "scripted:gold"
    assert main(["eval", *flags]) == 2
    assert "--out" in capsys.readouterr().err
    again = ["--config", str(out / "config.yaml"), "--out", str(tmp_path / "again")]
    assert main(["eval", *again]) == 0


def test_a_model_behind_a_server_plays_with_tools_through_a_429(server, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert main(["eval", "cli_envs:Sum", "-m", f"{server.url}#m", "-n", "8", "-c", "2"]) == 0
    out = capsys.readouterr().out
    assert "reward    1.0000" in out
    assert "8: 8 ok, 0 truncated, 0 failed" in out
    assert "160 tokens read, 32 sampled, 2.00 turns an episode" in out
    assert "  retries   1 (1 HTTP 429); at most 2 calls at once" in out
    assert len(server.requests) == 8 * 2 + 1
    body, key = server.requests[-1]
    assert (body["model"], body["temperature"], key) == ("m", 0.0, "Bearer k")
    assert body["tools"][0]["function"]["name"] == "add"


def test_no_more_calls_are_at_a_server_than_max_connections(server, capsys):
    flags = ["eval", "cli_envs:Sum", "-m", f"{server.url}#m", "-n", "20", "-c", "10", "--json"]
    assert main([*flags, "--max-connections", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["most_calls_at_once"] == 3
    assert main([*flags, "--max-connections", "0"]) == 2
    assert "--max-connections: must be a whole number >= 1" in capsys.readouterr().err


def test_without_retries_there_is_nothing_to_say_of_them(capsys):
    assert main(["eval", "cli_envs:Sum", "-m", "scripted:gold", "-n", "2"]) == 0
    assert "retries" not in capsys.readouterr().out


def test_a_spent_budget_ends_cleanly_and_more_of_it_goes_on(server, capsys, tmp_path):
    out = tmp_path / "run"
    flags = ["eval", "cli_envs:Sum", "-m", f"{server.url}#m", "-n", "8", "-c", "1", "--out", str(out)]
    # An episode takes two calls of 10 tokens read and 2 written: 24 tokens, 28 millionths of a dollar.
    budget = ["--price", "1,2", "--max-cost", "0.00008"]
    assert main([*flags, *budget]) == 4
    captured = capsys.readouterr()
    assert "reward    1.0000" in captured.out
    assert "3: 3 ok, 0 truncated, 0 failed" in captured.out
    assert "cost      $0.0001, 60 tokens read, 12 sampled," in captured.out
    assert "the budget is spent ($0.0001 of $8e-05) after 3 of 8 episodes" in captured.err
    assert not (out / "report.json").exists()
    assert len(server.requests) == 3 * 2 + 1
    # What was spent before counts: nothing more is played.
    assert main([*flags, *budget]) == 4
    assert len(server.requests) == 3 * 2 + 1
    assert main([*flags, "--price", "1,2", "--max-total-tokens", "200"]) == 0
    assert len(server.requests) == 8 * 2 + 1
    report = json.loads((out / "report.json").read_text())
    assert (report["n"], report["mean"], report["budget_spent"]) == (8, 1.0, "")
    assert report["usage"] == {
        "calls": 16,
        "calls_without_usage": 0,
        "prompt_tokens": 160,
        "cached_prompt_tokens": 0,
        "sampled_tokens": 32,
        "retries": {"HTTP 429": 1},  # in the first of three starts
        "most_calls_at_once": 1,
    }
    assert report["cost"] == pytest.approx(224e-6)
    assert "8/8 episodes, reward 1.000, 0 failed, 192 tokens, $0.0002" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--max-cost", "1"], "--max-cost: nothing is known of the cost; give --price IN,OUT"),
        (["--price", "3"], "--price: must be IN,OUT or IN,OUT,CACHED"),
        (["--max-total-tokens", "0"], "--max-total-tokens: must be a whole number >= 1"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_refused(capsys, flags, problem):
    assert main(["eval", "cli_envs:Sum", "-m", "http://127.0.0.1:1/v1#m", *flags]) == 2
    assert problem in capsys.readouterr().err


def test_a_script_has_no_cost(capsys):
    assert main(["eval", "cli_envs:Sum", "-m", "scripted:gold", "--price", "1,2"]) == 2
    assert "--price: scripted:gold reads and writes no tokens" in capsys.readouterr().err


def test_too_many_infrastructure_errors_have_their_own_code(capsys):
    flags = ["eval", "cli_envs:Broken", "-m", "scripted:gold", "-n", "4", "--max-retries", "0"]
    assert main(flags) == 3
    captured = capsys.readouterr()
    assert "0 ok, 0 truncated, 4 failed" in captured.out
    assert "the adding machine is on fire" in captured.out
    assert "100.0% of the episodes failed" in captured.err
    assert main([*flags, "--max-error-rate", "1"]) == 0


@pytest.mark.parametrize(
    ("script", "least", "code"),
    [("gold", 1, 0), ("gold", 1.001, 1), ("wrong", 0, 0), ("wrong", 0.001, 1), ("wrong", -1, 0)],
)
def test_a_mean_below_the_least_fails_and_says_so(capsys, tmp_path, script, least, code):
    out = tmp_path / "run"
    flags = ["-m", f"scripted:{script}", "-n", "3", "--fail-under", str(least), "--out", str(out), "--json"]
    assert main(["eval", "cli_envs:Sum", *flags]) == code
    captured = capsys.readouterr()
    told = f"the mean reward is {float(script == 'gold'):g}, less than --fail-under {least:g}"
    assert (told in captured.err) == (code == 1)
    assert json.loads(captured.out)["n"] == 3
    assert (out / "report.json").exists()


def test_rounding_in_a_mean_is_no_failure(capsys, tmp_path, monkeypatch):
    (tmp_path / "modules" / "tenth.py").write_text(
        "import cli_envs\n\n\nclass Tenth(cli_envs.Sum):\n    def score(self, text):\n        return 0.1\n"
    )
    flags = ["-m", "scripted:wrong", "-n", "6", "--json"]
    assert main(["eval", "tenth:Tenth", *flags, "--fail-under", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] < 0.1  # six tenths are less than 0.6, as floats add
    assert main(["eval", "tenth:Tenth", *flags, "--fail-under", "0.1000001"]) == 1


def test_nothing_scored_is_below_every_least_but_infrastructure_wins(capsys):
    flags = ["eval", "cli_envs:Broken", "-m", "scripted:gold", "-n", "4", "--max-retries", "0"]
    assert main([*flags, "--fail-under", "-5", "--max-error-rate", "1"]) == 1
    assert "no episode has a reward, and --fail-under asks for a mean of -5" in capsys.readouterr().err
    assert main([*flags, "--fail-under", "-5"]) == 3
    captured = capsys.readouterr().err
    assert "--max-error-rate" in captured
    assert "--fail-under" in captured


def test_a_spent_budget_wins_over_a_low_mean(server, capsys):
    flags = ["-m", f"{server.url}#m", "-n", "8", "-c", "1", "--max-total-tokens", "30", "--fail-under", "2"]
    assert main(["eval", "cli_envs:Sum", *flags]) == 4
    captured = capsys.readouterr().err
    assert "the budget is spent" in captured
    assert "the mean reward is 1, less than --fail-under 2" in captured


def test_calls_and_the_servers_prefix_cache_are_in_the_report(server, capsys):
    server.usage["prompt_tokens_details"] = {"cached_tokens": 4}
    assert main(["eval", "cli_envs:Sum", "-m", f"{server.url}#m", "-n", "4"]) == 0
    out = capsys.readouterr().out
    assert "80 tokens read (32 cached, 40.0%), 16 sampled" in out
    p50, p95 = map(float, re.search(r"^  calls     (\S+) s \(p50\), (\S+) s \(p95\)$", out, re.M).groups())
    assert 0 < p50 <= p95 < 120


def test_truncated_episodes_have_their_share(capsys):
    # Its tool is called in each of three turns, and no answer is ever given.
    assert main(["eval", "cli_envs:Loop", "-m", "scripted:gold", "-n", "4"]) == 0
    assert "4: 0 ok, 4 truncated (100.0%), 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["cli_envs:Sum", "-m", "scripted:silver"], ["--model", "scripted:gold", "'scripted:silver'"]),
        (["cli_envs:Sum", "-m", "gpt"], ["--model", "'gpt'"]),
        (["cli_envs:Sum", "-m", "vllm:"], ["--model", "'vllm:'"]),
        (["cli_envs:Sum", "-m", "http://h/v1"], ["--model", "http://h/v1#NAME"]),
        (["cli_envs:Sum"], ["--model: required"]),
        (["Calculatr-v0", "-m", "scripted:gold"], ["'Calculatr-v0'", "'Calculator-v0'"]),
        (["cli_envs:Nope", "-m", "scripted:gold"], ["'cli_envs:Nope'"]),
        (["cli_envs:OnlyTest", "-m", "scripted:gold", "--split", "train"], ["(train) is empty"]),
    ],
)
def test_what_cannot_be_evaluated_is_a_usage_error(capsys, flags, told):
    assert main(["eval", *flags]) == 2
    err = capsys.readouterr().err
    for part in told:
        assert part in err


def test_help_shows_short_flags_and_defaults(capsys):
    with pytest.raises(SystemExit) as end:
        run(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "-n N, --num-tasks N" in out
    assert "(default: 100)" in out
