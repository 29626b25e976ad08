"""HTML in which an episode is text and nothing else, however hostile."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import HOSTILE, game_episode, tool_episode, unstarted_episode
from vime_agents.episode import Outcome, RewardResult
from vime_agents.errors import ConfigError
from vime_agents.storage.stored_episodes import StoredEpisode
from vime_agents.viewer.html import write_html
from vime_agents.viewer.text import visible

MINE = """
html head meta title style body nav a h1 h2 h3 p span pre article noscript script
table thead tbody tr th td input select option button svg rect
"""


class Elements(HTMLParser):
    """The elements and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Mapping[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.in_script = tag == "script"
        if self.in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.in_script = False

    def handle_data(self, data):
        if self.in_script:
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def foreign(self) -> list[str]:
        """What an episode must not be able to make."""
        return [
            f"{tag} {name}"
            for tag, attributes in self.found
            for name in (None, *attributes)
            if tag not in MINE.split() or (name or "").startswith("on") or name in ("src", "style", "srcdoc")
        ]


def hostile_episode():
    """Hostile text in every field that can hold text."""
    episode = tool_episode(HOSTILE, json.dumps({HOSTILE: HOSTILE}), HOSTILE)
    (trajectory,) = episode.trajectories
    strange = {"role": f'"{HOSTILE}', "content": HOSTILE, "name": HOSTILE}
    spans = tuple(replace(s, reason=HOSTILE) for s in trajectory.segments[0].spans)
    first = replace(
        trajectory,
        agent=HOSTILE,
        segments=(replace(trajectory.segments[0], spans=spans),),
        final_messages=(strange,),
        outcome=Outcome(kind="failed", stop=HOSTILE, cause="tool", detail=HOSTILE),
    )
    unscored = RewardResult(value=None, status="error", detail=HOSTILE)
    return replace(
        episode,
        outcome=Outcome(kind="failed", stop=HOSTILE, cause="env", detail=HOSTILE),
        trajectories=(first, replace(first, agent="second", reward=unscored)),
        metrics={HOSTILE: 1.0},
    )


def written(out: Path, *episodes, source: str = "episodes", title: str = "runs/a") -> int:
    stored = [StoredEpisode(number=n, source=source, episode=e) for n, e in enumerate(episodes, start=1)]
    return write_html(stored, out, title=title)


def rows_of(index: Path) -> list:
    (text,) = re.findall(
        r'<script type="application/json" id="rows">(.*?)</script>', index.read_text("utf-8")
    )
    return json.loads(text)


def test_no_element_comes_of_hostile_text(tmp_path: Path) -> None:
    assert Elements(HOSTILE).foreign  # the check sees what it is meant for
    written(tmp_path / "out", hostile_episode(), source=HOSTILE, title=HOSTILE)
    page = Elements((tmp_path / "out" / "episodes" / "000001.html").read_text(encoding="utf-8"))
    assert page.foreign == []
    assert [tag for tag, _ in page.found if tag == "script"] == []
    text = "".join(page.texts)
    assert text.count("<img src=x onerror=alert(1)>") > 25
    assert visible(HOSTILE) in text
    index = Elements((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert index.foreign == []
    assert len([tag for tag, _ in index.found if tag == "script"]) == 2
    assert rows_of(tmp_path / "out" / "index.html")[0][2].startswith("</script></pre><img src=x")


def test_the_policy_lets_the_lists_own_script_run_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path / "out", make_episode())
    for name, has_script in (("index.html", True), ("episodes/000001.html", False)):
        page = Elements((tmp_path / "out" / name).read_text(encoding="utf-8"))
        (policy,) = (a["content"] for _, a in page.found if a.get("http-equiv") == "Content-Security-Policy")
        assert policy is not None
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert ("script-src" in rules) == has_script
        if has_script:
            digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
            assert rules["script-src"] == f"'sha256-{digest}'"


def test_nothing_is_loaded(tmp_path: Path) -> None:
    written(tmp_path / "out", make_episode(), tool_episode())
    for file in (tmp_path / "out").rglob("*.html"):
        page = Elements(file.read_text(encoding="utf-8"))
        links = [a["href"] for _, a in page.found if "href" in a]
        assert all(not re.match("[a-z]+:|//", link or "") for link in links)
        assert "@import" not in "".join(page.texts)
        assert "url(" not in "".join(page.texts)


def test_the_list_has_a_row_for_each_episode_and_a_page_behind_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert written(out, tool_episode("4"), game_episode(), unstarted_episode()) == 3
    assert rows_of(out / "index.html") == [
        [1, "episodes", "tools", "4", "truncated", "max_turns", "0.75", 0.75, 2, 6, False],
        [2, "episodes", "game", "t", "ok", "done", "first 1, second -1", None, 2, 6, False],
        [3, "episodes", "unstarted", "t", "error:sandbox", "error", "-", None, 0, None, True],
    ]
    assert "3 episodes, 1 failed; mean reward 0.7500 of 1" in (out / "index.html").read_text("utf-8")
    middle = Elements((out / "episodes" / "000002.html").read_text(encoding="utf-8"))
    assert [a["href"] for tag, a in middle.found if tag == "a"] == [
        "../index.html",
        "000001.html",
        "000003.html",
    ]


def test_a_page_has_messages_tool_calls_rewards_and_the_loss(tmp_path: Path) -> None:
    written(tmp_path / "out", tool_episode("\nfour"))
    page = Elements((tmp_path / "out" / "episodes" / "000001.html").read_text(encoding="utf-8"))
    roles = [a["class"] for tag, a in page.found if tag == "article"]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    text = "".join(page.texts)
    assert 'call add\nfour {"a": 2}' in text
    assert "0.75 = 1.5 x \nfour 0.5; metrics: len 3" in text
    assert "segment 0: 10 tokens, 6 in the loss" in text
    bars = [(a["x"], a["width"]) for tag, a in page.found if tag == "rect"]
    assert bars == [("2", "3"), ("7", "3")]
    # The parser of a browser drops the newline after <pre>; that of the text must stay.
    assert "<pre>\n\nfour</pre>" in (tmp_path / "out" / "episodes" / "000001.html").read_text("utf-8")


def test_a_text_of_millions_of_characters_is_cut_and_says_so(tmp_path: Path) -> None:
    (trajectory,) = make_episode().trajectories
    last = ({"role": "tool", "content": "z" * 10_000_000},)
    written(
        tmp_path / "out", replace(make_episode(), trajectories=(replace(trajectory, final_messages=last),))
    )
    text = (tmp_path / "out" / "episodes" / "000001.html").read_text(encoding="utf-8")
    assert "... 9000000 more characters: `vime-agents view FOLDER EPISODE` shows them" in text
    assert text.count("z") < 1_000_100


def test_an_earlier_view_is_replaced_and_anything_else_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(out, make_episode("a"), make_episode("b"))
    written(out, make_episode("c"))
    assert sorted(p.name for p in out.rglob("*")) == ["000001.html", "episodes", "index.html"]
    assert rows_of(out / "index.html")[0][2] == "c"


@pytest.mark.parametrize("name", ["notes.txt", "index.html", "episodes/rollout-000000.jsonl"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"--html: .* holds something else"):
        written(tmp_path / "out", make_episode())
    assert file.read_text() == "mine"


def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        written(tmp_path / "file", make_episode())
    with pytest.raises(ConfigError, match="cannot make the folder"):
        written(tmp_path / "file" / "out", make_episode())
