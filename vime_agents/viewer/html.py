"""Episodes -> a folder of HTML that needs no server and no network: a list, and a page for each episode.

An episode is hostile text. All of it is escaped; and the pages' own policy lets no script run but that of the
list, which is known by its hash, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from pathlib import Path

from vime_agents.errors import ConfigError
from vime_agents.storage.json_lines import write_atomically
from vime_agents.storage.stored_episodes import StoredEpisode
from vime_agents.viewer.listing import Row, Totals, row_of
from vime_agents.viewer.text import one_line, visible
from vime_agents.viewer.transcript import Facts, ShownAgent, ShownSegment, Transcript, transcript

_MARK = '<meta name="generator" content="vime-agents view">'
_MOST_SHOWN = 1_000_000
"""Characters of one text; browsers get slow on more."""
_IN_LOSS = '<td class="loss">in the loss</td>'
_HEADS = (
    ("#", 0),
    ("source", 1),
    ("episode", 2),
    ("task", 3),
    ("status", 4),
    ("stop", 5),
    ("reward", 7),
    ("turns", 8),
    ("tokens", 9),
)
"""(title, what index.js sorts by)."""


def write_html(
    episodes: Iterable[StoredEpisode], out: str | Path, *, title: str, totals: Totals | None = None
) -> int:
    """Write the folder; how many episodes it shows.

    Args:
        episodes: what to show.
        out: folder; one that holds an earlier view is replaced.
        title: of the list.
        totals: where `num_seen` is counted, if some are left out.

    Raises:
        ConfigError: the folder holds something else, or cannot be made.
        DatasetError: a line of the store is no episode.
    """
    out = Path(out)
    _prepare(out)
    totals = totals or Totals()
    rows: list[Row] = []
    previous: Row | None = None
    for stored, following in _with_next(episodes):
        row = row_of(stored)
        page = _episode_page(transcript(stored), previous, following)
        (out / "episodes" / _file_name(row.number)).write_text(page, encoding="utf-8")
        rows.append(row)
        totals.add(row)
        previous = row
    totals.num_seen = max(totals.num_seen, totals.num_listed)
    write_atomically(out / "index.html", _index_page(title, rows, str(totals)))
    return len(rows)


def _prepare(out: Path) -> None:
    """An empty folder `episodes` in `out`, and no list that promises more."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--html: {out} is a file; give a folder")
    index = out / "index.html"
    foreign = {p.name for p in out.iterdir()} - {index.name, "episodes"} if out.exists() else set()
    if foreign or (index.exists() and _MARK not in index.read_text(encoding="utf-8", errors="replace")):
        name = min(foreign, default=index.name)
        raise ConfigError(f"--html: {out} holds something else ({name!r}); give a new folder")
    pages = out / "episodes"
    if pages.exists() and any(not re.fullmatch(r"\d{6,}\.html", p.name) for p in pages.iterdir()):
        raise ConfigError(f"--html: {pages} holds something else; give a new folder")
    try:
        index.unlink(missing_ok=True)
        if pages.exists():
            shutil.rmtree(pages)
        pages.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--html: cannot make the folder {out}: {error.strerror}") from error


def _with_next(episodes: Iterable[StoredEpisode]) -> Iterator[tuple[StoredEpisode, int | None]]:
    """Each episode and the number of the one after it."""
    held: StoredEpisode | None = None
    for stored in episodes:
        if held is not None:
            yield held, stored.number
        held = stored
    if held is not None:
        yield held, None


def _file_name(number: int) -> str:
    return f"{number:06d}.html"


# --------------------------------------------------------------------------------------------- the list


def _index_page(title: str, rows: list[Row], summary: str) -> str:
    script = _asset("index.js")
    data = [
        [
            row.number,
            one_line(row.source),
            one_line(row.id),
            one_line(row.task_id),
            row.status,
            one_line(row.stop),
            one_line(row.rewards) or "-",
            row.reward,
            row.num_turns,
            row.num_sampled_tokens,
            row.failed,
        ]
        for row in rows
    ]
    # Inside a script element nothing but its end tag and comments have a meaning: no < at all.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    heads = "".join(f'<th data-column="{column}">{name}</th>' for name, column in _HEADS)
    body = f"""<h1>{_text(title)}</h1>
<p>{_text(summary)}</p>
<noscript><p>The list needs JavaScript; the pages are in <a href="episodes">episodes</a>.</p></noscript>
<p><input id="find" type="search" placeholder="words">
<select id="status"><option value="">any status</option></select>
<select id="source"><option value="">any source</option></select>
<button id="previous">previous</button><button id="next">next</button><span id="where"></span></p>
<table id="list"><thead><tr>{heads}</tr></thead><tbody id="body"></tbody></table>
<script type="application/json" id="rows">{text}</script>
<script>{script}</script>"""
    return _page(title, body, script=script)


# ------------------------------------------------------------------------------------------- an episode


def _episode_page(shown: Transcript, previous: Row | None, following: int | None) -> str:
    links = ['<a href="../index.html">all episodes</a>']
    if previous is not None:
        links.append(f'<a href="{_file_name(previous.number)}">previous</a>')
    if following is not None:
        links.append(f'<a href="{_file_name(following)}">next</a>')
    title = f"#{shown.number} {one_line(shown.title, 200)}"
    agents = "\n".join(_agent(agent, named=len(shown.agents) > 1) for agent in shown.agents)
    body = f"""<nav>{" · ".join(links)}</nav>
<h1>{_text(title)}</h1>
{_facts(shown.facts)}
{agents}"""
    return _page(title, body)


def _agent(agent: ShownAgent, *, named: bool) -> str:
    parts = [f"<h2>{_text(agent.name)}</h2>"] if named else []
    parts.append(_facts(agent.facts))
    for message in agent.messages:
        head = f"<h3>{_text(one_line(message.head, 300))}</h3>"
        # An HTML parser drops one newline after <pre>.
        parts.append(
            f'<article class="{_text(message.role)}">{head}<pre>\n{_text(message.text)}</pre></article>'
        )
    parts += [_segment(number, segment) for number, segment in enumerate(agent.segments)]
    return "\n".join(parts)


def _segment(number: int, segment: ShownSegment) -> str:
    bars = "".join(
        f'<rect class="loss" x="{span.start}" y="0" width="{span.end - span.start}" height="1"/>'
        for span in segment.spans
        if span.in_loss
    )
    rows = "".join(
        f"<tr><td>{span.start} to {span.end}</td>"
        f"{_IN_LOSS if span.in_loss else '<td>-</td>'}<td>{_text(span.text)}</td></tr>"
        for span in segment.spans
    )
    return (
        f"<h3>segment {number}: {segment.num_tokens} tokens, {segment.num_in_loss} in the loss</h3>"
        f'<svg viewBox="0 0 {segment.num_tokens} 1" preserveAspectRatio="none">{bars}</svg>'
        f"<table>{rows}</table>"
    )


def _facts(facts: Facts) -> str:
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts)
    return f'<table class="facts">{rows}</table>'


def _text(text: str) -> str:
    """What may stand in an element, and what is left out of it."""
    cut = len(text) - _MOST_SHOWN
    if cut > 0:
        text = (
            f"{text[:_MOST_SHOWN]}\n... {cut} more characters: `vime-agents view FOLDER EPISODE` shows them"
        )
    return escape(visible(text))


# ---------------------------------------------------------------------------------------------- the page


def _page(title: str, body: str, *, script: str = "") -> str:
    style = _asset("page.css")
    policy = f"default-src 'none'; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src {_hash(script)}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{_MARK}
<meta name="viewport" content="width=device-width">
<title>{_text(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files("vime_agents.viewer").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
