"""ShellTasks-v0: bring the files of a folder into a state, with a shell in a sandbox."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime_agents.env import ToolEnv
from vime_agents.errors import SandboxFileNotFound
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.sandbox import SandboxSpec
from vime_tools.shell import Shell

MAX_STATE = 1 << 20
"""Bytes of all files with their names, as a tar archive; more is no state that a task asks for."""
_WORDS = """
    amber birch cedar delta ember fjord grove heath inlet jetty kelp larch maple north oasis pearl
""".split()  # noqa: SIM905 - a list that one can read

Tree = dict[str, str]
"""Path -> what is there: `file TEXT`, `program TEXT` (one that may be executed), `link TARGET`, `folder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a template makes."""

    prompt: str
    files: Mapping[str, str]
    goal: Mapping[str, str]
    """Path -> text, of the files in the end; folders on their way are meant too."""
    command: str
    """One that does it."""
    programs: frozenset[str] = frozenset()
    """Of the goal's files, those that may be executed."""
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    """That stay, though nothing is in them."""


class _Draw:
    """Random parts of one job."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def number(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self._rng.integers(low, high + 1))

    def words(self, count: int) -> list[str]:
        """Different ones."""
        return [str(w) for w in self._rng.choice(_WORDS, count, replace=False)]

    def one_of(self, *values: str) -> str:
        """One of them."""
        return values[int(self._rng.integers(len(values)))]

    def text(self) -> str:
        """A few lines."""
        return "".join(f"{word} {self.number(1, 99)}\n" for word in self.words(self.number(1, 4)))


def _by_ending(d: _Draw) -> _Job:
    files = {f"{word}.{d.one_of('txt', 'csv', 'md')}": d.text() for word in d.words(d.number(5, 9))}
    return _Job(
        prompt="Move each file into a folder that is named after its ending: a.txt becomes txt/a.txt.",
        files=files,
        goal={f"{name.rpartition('.')[2]}/{name}": text for name, text in files.items()},
        command='for f in *.*; do mkdir -p "${f##*.}"; mv "$f" "${f##*.}/"; done',
    )


def _lower_names(d: _Draw) -> _Job:
    names = [f"{a.title()} {d.one_of('Report', 'NOTES', 'Plan')} {n}.txt" for n, a in enumerate(d.words(5))]
    files = {name: d.text() for name in names}
    return _Job(
        prompt="Rename each file: all letters in lower case, and each space as an underscore.",
        files=files,
        goal={name.lower().replace(" ", "_"): text for name, text in files.items()},
        command='for f in *; do mv "$f" "$(echo "$f" | tr \'A-Z \' \'a-z_\')"; done',
    )


def _collect_lines(d: _Draw) -> _Job:
    level = d.one_of("ERROR", "WARN")
    files = {}
    for name in d.words(3):
        levels = [level, *(d.one_of("INFO", "WARN", "ERROR") for _ in range(d.number(4, 12)))]
        files[f"{name}.log"] = "".join(
            f"{n:02d} {it} {name}: no ERROR or WARN\n" for n, it in enumerate(levels)
        )
    lines = [line for name in sorted(files) for line in files[name].splitlines() if line.split()[1] == level]
    return _Job(
        prompt="Write to found.txt, for all *.log files in alphabetical order, their lines whose second "
        "word is "
        f"{level}, as they stand. The log files stay.",
        files=files,
        goal={**files, "found.txt": "".join(f"{line}\n" for line in lines)},
        command=f"cat *.log | grep '^[0-9]* {level} ' > found.txt",
    )


def _clean_up(d: _Draw) -> _Job:
    top, *names = d.words(9)
    places = [d.one_of("", f"{top}/", f"{top}/deep/") + name for name in names]
    keep = {f"{path}.txt": d.text() for path in places[:4]}
    keep["tmp.txt"] = d.text()
    away = {
        f"{places[4]}.tmp": d.text(),
        f"{places[5]}.txt~": d.text(),
        f"{places[6]}.txt": "",
        "a b.tmp": "x\n",
    }
    folders = {part for path in away for part in _folders_of(path)}
    return _Job(
        prompt="Delete, in this folder and all below it, the files whose name ends in .tmp or ~, and those "
        "that are "
        "empty. Everything else stays, folders too.",
        files={**keep, **away},
        goal=keep,
        folders=frozenset(folders),
        command="find . -type f \\( -name '*.tmp' -o -name '*~' -o -empty \\) -delete",
    )


def _make_executable(d: _Draw) -> _Job:
    files = {}
    for name in d.words(7):
        first = d.one_of("#!/bin/sh", "#!/usr/bin/env python3", "# not a program")
        files[f"bin/{name}"] = f"{first}\n{d.text()}"
    files["bin/last"] = "#!/bin/sh\n"
    programs = frozenset(path for path, text in files.items() if text.startswith("#!"))
    return _Job(
        prompt="Make the files in bin that begin with #! executable for everybody, and no others.",
        files=files,
        goal=files,
        programs=programs,
        command='for f in bin/*; do if [ "$(head -c 2 "$f")" = \'#!\' ]; then chmod a+x "$f"; fi; done',
    )


def _replace_setting(d: _Draw) -> _Job:
    old, new, *names = d.words(6)
    files = {
        f"{name}.conf": f"host={old}\nname={old}-{d.number(1, 9)}\nport={d.number(1000, 9999)}\n#host={old}\n"
        for name in names
    }
    files["notes.txt"] = f"host={old}\n"
    return _Job(
        prompt=f"In all *.conf files, the lines that are host={old} shall be host={new}. Nothing else "
        "changes.",
        files=files,
        goal={
            path: text.replace(f"host={old}\n", f"host={new}\n", 1) if path.endswith(".conf") else text
            for path, text in files.items()
        },
        command=f"sed -i 's/^host={old}$/host={new}/' *.conf",
    )


def _newest_version(d: _Draw) -> _Job:
    versions = {(d.number(1, 3), d.number(0, 12), d.number(0, 20)) for _ in range(6)}
    names = {version: "v" + ".".join(map(str, version)) for version in versions}
    files = {f"{name}/app.txt": d.text() for name in names.values()}
    return _Job(
        prompt="Make a symbolic link `current` whose target is the name of the folder with the highest "
        "version; "
        "v1.10.0 is higher than v1.9.3.",
        files=files,
        goal=files,
        links={"current": names[max(versions)]},
        command='ln -s "$(ls -d v* | sort -V | tail -n 1)" current',
    )


def _add_up(d: _Draw) -> _Job:
    things = d.words(4)
    files, totals = {}, dict.fromkeys(things, 0)
    for month in ("jan", "feb", "mar"):
        rows = []
        for _ in range(d.number(3, 7)):
            thing, pieces = d.one_of(*things), d.number(1, 60)
            totals[thing] += pieces
            rows.append(f"{thing},{pieces}\n")
        files[f"sales/{month}.csv"] = "".join(rows)
    lines = [f"{thing},{total}\n" for thing, total in sorted(totals.items()) if total]
    return _Job(
        prompt="The lines of sales/*.csv are `thing,pieces`. Write totals.csv: a line `thing,sum` for each "
        "thing, in "
        "alphabetical order. The other files stay.",
        files=files,
        goal={**files, "totals.csv": "".join(lines)},
        command="awk -F, '{n[$1] += $2} END {for (t in n) print t \",\" n[t]}' sales/*.csv | LC_ALL=C sort "
        "> totals.csv",
    )


_TEMPLATES: tuple[Callable[[_Draw], _Job], ...] = (
    _by_ending,
    _lower_names,
    _collect_lines,
    _clean_up,
    _make_executable,
    _replace_setting,
    _newest_version,
    _add_up,
)


class ShellTasks(ToolEnv):
    """Files to be moved, renamed, cleaned up, edited; the reward is 1 when the folder is exactly as asked.

    Looked at from outside, after the last turn: nothing that the agent wrote is run.
    """

    max_turns = 12
    sandbox_spec = SandboxSpec(memory_mb=128, max_processes=32, max_file_mb=8)
    toolsets = (Shell,)

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:  # noqa: D102
        job = _TEMPLATES[int(rng.integers(len(_TEMPLATES)))](_Draw(rng))
        return {
            "prompt": job.prompt,
            "files": dict(job.files),
            "goal": _tree(job),
            "command": job.command,
        }

    async def setup(self) -> None:
        """The folder as the agent finds it."""
        sandbox = await self.sandbox()
        for path, text in self.task["files"].items():
            await sandbox.write(path, text.encode())

    def prompt(self) -> str:  # noqa: D102
        return f"You are in a folder with files. {self.task['prompt']} Then say that you are done."

    async def score(self, text: str) -> float:  # noqa: D102
        return float(await self.read_tree() == self.task["goal"])

    async def read_tree(self) -> Tree | None:
        """What the working directory holds; None: more than MAX_STATE, or what cannot be read."""
        try:
            archive = await (await self.sandbox()).exec(
                ["tar", "-cf", "-", "."], timeout_s=10, max_output=2 * MAX_STATE
            )
        except SandboxFileNotFound:  # the agent took its own folder away
            return None
        if not archive.ok or archive.truncated or len(archive.stdout) > MAX_STATE:
            return None
        with tarfile.open(fileobj=io.BytesIO(archive.stdout), errors="backslashreplace") as tar:
            return {
                entry.name.removeprefix("./"): _content(tar, entry)
                for entry in tar
                if entry.name.removeprefix("./") not in ("", ".")
            }

    def gold(self) -> list[str | Message]:  # noqa: D102
        return [assistant("", [tool_call("bash", {"command": self.task["command"]}, "gold")]), "Done."]


def _tree(job: _Job) -> Tree:
    tree = {
        path: f"{'program' if path in job.programs else 'file'} {text}" for path, text in job.goal.items()
    }
    tree |= {path: f"link {target}" for path, target in job.links.items()}
    return tree | dict.fromkeys({f for path in tree for f in _folders_of(path)} | job.folders, "folder")


def _folders_of(path: str) -> list[str]:
    """Those on the way to it."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    if entry.isdir():
        return "folder"
    if entry.issym():
        return f"link {entry.linkname}"
    file = tar.extractfile(entry) if entry.isfile() else None
    if file is None:  # a pipe, a device, a hard link
        return "something else"
    executable = entry.mode & 0o111 == 0o111
    return f"{'program' if executable else 'file'} {file.read().decode(errors='backslashreplace')}"
