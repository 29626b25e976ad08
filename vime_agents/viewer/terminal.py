"""Episodes at the terminal: coloured and paged there, plain text elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from vime_agents.viewer.listing import Row
from vime_agents.viewer.text import one_line, visible
from vime_agents.viewer.transcript import Facts, ShownAgent, ShownSegment, Transcript

_STYLES = {"system": "bold magenta", "user": "bold cyan", "assistant": "bold green", "tool": "bold yellow"}

Line = tuple[str, str]
"""(text, style)."""


def print_list(rows: Sequence[Row], summary: str, stream: TextIO) -> None:
    """A line for each episode and one for all of them."""
    _print([*_list_lines(rows), (summary, "bold")], stream, crop=True)


def print_transcript(shown: Transcript, stream: TextIO) -> None:
    """One episode, whole."""
    _print(_transcript_lines(shown), stream)


def _list_lines(rows: Sequence[Row]) -> Iterator[Line]:
    heads = ("#", "SOURCE", "EPISODE", "TASK", "STATUS", "STOP", "REWARD", "TURNS", "TOKENS")
    table = [
        (
            str(row.number),
            one_line(row.source),
            one_line(row.id),
            one_line(row.task_id),
            row.status,
            one_line(row.stop),
            one_line(row.rewards) or "-",
            str(row.num_turns),
            "-" if row.num_sampled_tokens is None else str(row.num_sampled_tokens),
        )
        for row in rows
    ]
    several = len({row.source for row in rows}) > 1
    columns = [i for i in range(len(heads)) if several or heads[i] != "SOURCE"]
    widths = {i: max(map(cell_len, (heads[i], *(cells[i] for cells in table)))) for i in columns}

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cells[i] + " " * (widths[i] - cell_len(cells[i])) for i in columns).rstrip()

    if rows:
        yield line(heads), "bold"
    for row, cells in zip(rows, table, strict=True):
        yield line(cells), "red" if row.failed else "yellow" if row.status == "truncated" else ""


def _transcript_lines(shown: Transcript) -> Iterator[Line]:
    yield f"#{shown.number}  {one_line(shown.title, 200)}", "bold"
    yield from _fact_lines(shown.facts)
    for agent in shown.agents:
        yield from _agent_lines(agent, named=len(shown.agents) > 1)


def _agent_lines(agent: ShownAgent, *, named: bool) -> Iterator[Line]:
    if named:
        yield "", ""
        yield f"agent {one_line(agent.name)}", "bold"
    yield from _fact_lines(agent.facts)
    for message in agent.messages:
        yield "", ""
        yield f"[{one_line(message.head, 300)}]", _STYLES.get(message.role, "bold")
        if message.text:
            yield visible(message.text), ""
    for number, segment in enumerate(agent.segments):
        yield "", ""
        yield from _segment_lines(number, segment)


def _segment_lines(number: int, segment: ShownSegment) -> Iterator[Line]:
    yield f"segment {number}: {segment.num_tokens} tokens, {segment.num_in_loss} in the loss", "bold"
    for span in segment.spans:
        place = "loss" if span.in_loss else "-"
        text = f"  {span.start:>7} to {span.end:<7} {place:<5} {one_line(span.text, 200)}"
        yield text, "green" if span.in_loss else ""


def _fact_lines(facts: Facts) -> Iterator[Line]:
    for name, value in facts:
        yield f"{name:<12} {visible(value)}", ""


def _print(lines: Iterable[Line], stream: TextIO, *, crop: bool = False) -> None:
    encoding = stream.encoding or "utf-8"
    plain = ((t.encode(encoding, "backslashreplace").decode(encoding), style) for t, style in lines)
    if not stream.isatty():
        for text, _ in plain:
            print(text, file=stream)
        return
    # As git does: quit when it fits on the screen, keep colours, leave the text there.
    os.environ.setdefault("LESS", "FRX")
    console = Console(file=stream, highlight=False)
    with console.pager(styles=True):
        for text, style in plain:
            console.print(Text(text, style=style), no_wrap=crop, overflow="ellipsis" if crop else "fold")
