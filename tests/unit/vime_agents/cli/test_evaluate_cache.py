"""`vime-agents eval --cache`, with a real server that counts what it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vime_agents.cli.chat_server import ChatServer
from tests.unit.vime_agents.full_disk import full_disk
from vime_agents.cli import main
from vime_agents.storage.episodes import read_episodes

DIFFERS = {"duration_s", "usage", "cost", "call_p50_s", "call_p95_s", "cache_hits"}
"""What a report of answers that were there says otherwise than the first one."""


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(busy_at_first=False) as running:
        yield running


@pytest.fixture
def flags(server: ChatServer, tmp_path: Path) -> list[str]:
    model = ["-m", f"{server.url}#m", "--cache", str(tmp_path / "kept" / "answers.sqlite")]
    return ["eval", "cli_envs:Sum", *model, "-n", "6", "--json"]


def report_of(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> dict[str, Any]:
    assert main(arguments) == code
    return json.loads(capsys.readouterr().out)


def test_the_same_evaluation_again_asks_nobody_and_says_the_same(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paid = [*flags, "--price", "1,2", "--out"]
    first = report_of(capsys, [*paid, str(tmp_path / "a")])
    assert (len(server.requests), first["cache_hits"], first["usage"]["calls"]) == (12, 0, 12)
    second = report_of(capsys, [*paid, str(tmp_path / "b")])
    assert len(server.requests) == 12
    assert {k: v for k, v in second.items() if k not in DIFFERS} == {
        k: v for k, v in first.items() if k not in DIFFERS
    }
    assert (second["cache_hits"], second["usage"]["calls"], second["cost"]) == (12, 0, 0.0)
    assert (second["call_p50_s"], second["sampled_tokens"]) == (None, 24)
    # The record of who was not asked says so, and is otherwise the same.
    one, two = (sorted(read_episodes(tmp_path / f / "episodes.jsonl"), key=lambda e: e.id) for f in "ab")
    for old, new in zip(one, two, strict=True):
        turns = old.trajectories[0].turns, new.trajectories[0].turns
        assert [t.reply for t in turns[0]] == [t.reply for t in turns[1]]
        assert [t.from_cache for t in (*turns[0], *turns[1])] == [False] * 2 + [True] * 2


def test_more_tasks_and_samples_cost_what_is_new(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    warm = [*flags, "--temperature", "1"]
    report_of(capsys, warm)
    more = report_of(capsys, [*warm, "-n", "8", "-k", "2"])
    assert (more["n"], more["cache_hits"], more["usage"]["calls"]) == (16, 12, 20)
    assert len(server.requests) == 12 + 20


@pytest.mark.parametrize(
    "changed",
    [
        ["--temperature", "0.5"],
        ["--max-response-len", "7"],
        ["--seed", "1"],
        ["-m", "{url}#n"],
        ["cli_envs:Other"],
    ],
)
def test_what_changes_the_answers_is_asked(
    server: ChatServer,
    flags: list[str],
    changed: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    lines = ["import cli_envs", "class Other(cli_envs.Sum):", "    def prompt(self):"]
    source = "\n".join([*lines, "        return super().prompt() + ' '", ""])
    (tmp_path / "modules" / "others.py").write_text(source)
    report_of(capsys, flags)
    given = [c.format(url=server.url) for c in changed]
    other = ["eval", "others:Other", *flags[2:]] if given == ["cli_envs:Other"] else [*flags, *given]
    assert report_of(capsys, other)["cache_hits"] == 0
    assert len(server.requests) == 24


def test_a_budget_is_not_spent_by_what_is_there(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report_of(capsys, flags)
    report = report_of(capsys, [*flags, "-n", "7", "-c", "1", "--max-total-tokens", "13"])
    assert (report["n"], report["usage"]["calls"], report["budget_spent"]) == (7, 2, "")


def test_a_killed_evaluation_leaves_answers_that_the_next_one_finds(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folders = [str(tmp_path / "modules"), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-m", "vime_agents", *flags, "-n", "400", "-c", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("40/400 episodes")  # the first thing that it tells
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = len(server.requests)
    assert 80 <= before < 800
    report = report_of(capsys, [*flags, "-n", "400"])
    assert report["mean"] == 1.0
    assert report["cache_hits"] + len(server.requests) - before == 800
    # All but what was in flight, or not yet written, in the moment of the kill.
    assert report["cache_hits"] >= 40


def test_two_evaluations_at_once_share_one_file(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folders = [str(tmp_path / "modules"), *sys.path]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "vime_agents", *flags, "-n", "40", "--seed", str(seed)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for seed in (1, 1, 2)
    ]
    reports = [json.loads(process.communicate()[0]) for process in started]
    assert [r["mean"] for r in reports] == [1.0] * 3
    assert [r["cache_failures"] for r in reports] == [0] * 3
    before = len(server.requests)
    for seed in ("1", "2"):
        assert report_of(capsys, [*flags, "-n", "40", "--seed", seed])["cache_hits"] == 80
    assert len(server.requests) == before


def test_opponents_behind_a_server_are_not_asked_again_either(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.says = "5"  # a move in the middle, which only the first of the two can make
    game = ["eval", "TicTacToe-v0", *flags[2:], "--agents", f"O={server.url}#n"]
    first = report_of(capsys, game)
    assert (first["n"], first["cache_hits"]) == (6, 0)
    asked = len(server.requests)
    second = report_of(capsys, game)
    assert len(server.requests) == asked
    # Those of --model alone are counted, as its tokens are.
    own = sum(body["model"] == "m" for body, _ in server.requests)
    assert second["cache_hits"] == first["usage"]["calls"] == own < asked


def test_a_full_disk_is_told_once_and_fails_no_episode(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, pages=4)
    assert main([*flags, "-n", "100", "--no-json"]) == 0
    captured = capsys.readouterr()
    assert "100: 100 ok, 0 truncated, 0 failed" in captured.out
    assert (
        captured.err.count("answers.sqlite: database or disk is full; what it lacks is asked of the model")
        == 1
    )
    (line,) = [line for line in captured.out.splitlines() if line.startswith("  cache  ")]
    assert line.startswith("  cache     0 answers were there, ")
    assert line.endswith(" lookups or stores failed")


def test_the_report_says_in_words_how_many_were_there(
    server: ChatServer, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--no-json"]) == 0
    assert "  cache " not in capsys.readouterr().out
    assert main([*flags, "--no-json"]) == 0
    out = capsys.readouterr().out
    assert "\n  cache     12 answers were there\n" in out
    assert "  calls " not in out
    assert "tokens read" not in out


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("scripted:gold", "--cache: scripted:gold asks no model, so that there is nothing to keep"),
        ("vllm:folder", "--cache: vllm:folder gives exact tokens, which a cache of texts does not hold"),
    ],
)
def test_what_has_nothing_to_keep_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, told: str
) -> None:
    assert main(["eval", "cli_envs:Sum", "-m", model, "--cache", str(tmp_path / "c")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_file_that_is_no_cache_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dry: list[str]
) -> None:
    (tmp_path / "c").write_text("none at all\n" * 200)
    flags = ["-m", "http://127.0.0.1:1/v1#m", "--cache", str(tmp_path / "c"), *dry]
    assert main(["eval", "cli_envs:Sum", *flags]) == 2
    assert f"--cache: {tmp_path}/c cannot be used (file is not a database)" in capsys.readouterr().err


def test_a_dry_run_makes_no_cache(flags: list[str], tmp_path: Path) -> None:
    assert main([*flags, "--dry-run"]) == 0
    assert not (tmp_path / "kept").exists()
