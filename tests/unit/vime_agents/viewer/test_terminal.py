"""What stands on the terminal, and in a file when it is none."""

from __future__ import annotations

import io
import json
import re

import pytest

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import HOSTILE, game_episode, tool_episode, unstarted_episode
from vime_agents.storage.stored_episodes import StoredEpisode
from vime_agents.viewer.listing import row_of
from vime_agents.viewer.terminal import print_list, print_transcript
from vime_agents.viewer.transcript import transcript


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def stored(*episodes, source: str = "episodes") -> list[StoredEpisode]:
    return [StoredEpisode(number=n, source=source, episode=e) for n, e in enumerate(episodes, start=1)]


def shown(episode) -> str:
    out = io.StringIO()
    print_transcript(transcript(stored(episode)[0]), out)
    return out.getvalue()


def test_the_list_is_plain_and_aligned():
    out = io.StringIO()
    rows = [row_of(s) for s in stored(make_episode("漢字"), game_episode(), unstarted_episode())]
    print_list(rows, "the sum", out)
    assert out.getvalue().splitlines() == [
        "#  EPISODE    TASK  STATUS         STOP   REWARD              TURNS  TOKENS",
        "1  漢字       t     ok             done   1                   1      3",
        "2  game       t     ok             done   first 1, second -1  2      6",
        "3  unstarted  t     error:sandbox  error  -                   0      -",
        "the sum",
    ]


def test_of_several_files_the_list_names_each():
    out = io.StringIO()
    both = [
        *stored(make_episode("a"), source="eval-000000"),
        *stored(make_episode("b"), source="rollout-000000"),
    ]
    print_list([row_of(s) for s in both], "", out)
    assert [line.split()[1] for line in out.getvalue().splitlines()[:3]] == [
        "SOURCE",
        "eval-000000",
        "rollout-000000",
    ]


def test_an_episode_is_shown_whole():
    lines = shown(tool_episode("4")).splitlines()
    sampled = "version 0, mean log-prob -0.583; sampled by the policy"  # of -0.5, -1 and -0.25
    assert lines[:3] == ["#1  episodes/tools", "environment  4", "task         4"]
    assert "end          cut: max_turns: 4" in lines
    assert "counters     tool_calls 1" in lines
    assert "reward       0.75 = 1.5 x 4 0.5; metrics: len 3" in lines
    assert lines[lines.index("[system]") :] == [
        "[system]",
        "4",
        "",
        "[user]",
        "4",
        "",
        "[assistant  turn 0: 2 prompt tokens, 3 sampled, tool_calls, 0.5 s + 0.2 s of the env, "
        "tokens 2 to 5 of segment 0 in the loss]",
        "4",
        'call add4 {"a": 2}',
        "",
        "[tool add4]",
        "4",
        "",
        "[assistant  turn 1: 7 prompt tokens, 3 sampled, 4, 0.5 s + 0.2 s of the env, reward 0.75, "
        "tokens 7 to 10 of segment 0 in the loss]",
        "4",
        "",
        "[user]",
        "4",
        "",
        "segment 0: 10 tokens, 6 in the loss",
        "        0 to 2       -     user of turn 0; user text",
        f"        2 to 5       loss  sampled of turn 0; {sampled}",
        "        5 to 7       -     tool of turn 1; tool text",
        f"        7 to 10      loss  sampled of turn 1; {sampled}",
    ]


def test_each_agent_of_a_game_has_its_side():
    lines = shown(game_episode()).splitlines()
    second = lines[lines.index("agent second") :]
    assert second[1:4] == [
        "policy       policy, which is not trained",
        "reward       -1 = score -1",
        "end          illegal_move: no such cell",
    ]
    assert lines.index("agent first") < lines.index("agent second")


def test_an_error_is_shown_where_there_is_nothing_else():
    assert "end          failed (sandbox), error: no space left\n" in shown(unstarted_episode())


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_hostile_text_reaches_no_terminal(encoding):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    hostile = tool_episode(HOSTILE, json.dumps({HOSTILE: HOSTILE}), HOSTILE)
    print_transcript(transcript(stored(hostile)[0]), out)
    print_list([row_of(stored(hostile)[0])], "", out)
    out.flush()
    text = raw.getvalue().decode(encoding)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800]", text)
    assert "\\x1b[2J" in text


def test_a_terminal_gets_colours_and_its_own_pager(monkeypatch):
    paged = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda self, content: paged.append(content))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("LESS", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    rows = [row_of(s) for s in stored(make_episode("long" * 30), unstarted_episode())]
    print_list(rows, "the sum", Terminal())
    (content,) = paged
    lines = content.splitlines()
    assert len(lines) == 4  # cropped, not wrapped
    assert lines[2].startswith("\x1b[31m2  unstarted")
