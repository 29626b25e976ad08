"""`vime-agents init`: a new environment in a package of its own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import string
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import vime_agents
from vime_agents import registry
from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError, did_you_mean
from vime_agents.registry import ENVS_GROUP, MULTI_AGENT_ENVS_GROUP

KINDS = {
    "single": "one question, one reply, a score",
    "tool": "several turns with tools that are plain Python",
    "sandbox": "a shell in a sandbox, judged by what is there in the end",
    "game": "two players, in turns",
}
SUMMARIES = {
    "single": "Word problems with one answer, for vime-agents.",
    "tool": "Orders to add up with a tool that knows the prices, for vime-agents.",
    "sandbox": "Log files to search with a shell in a sandbox, for vime-agents.",
    "game": "A game of stones for two, for vime-agents.",
}
TEMPLATES = Path(__file__).parent.parent / "templates"
# Template -> file. Templates end in .tmpl, so that nothing takes them for code of vime-agents.
_FILES = {
    "common/pyproject.toml.tmpl": "pyproject.toml",
    "common/README.md.tmpl": "README.md",
    "common/gitignore.tmpl": ".gitignore",
    "common/init.py.tmpl": "$package/__init__.py",
    "$kind/env.py.tmpl": "$package/env.py",
    "$kind/test_env.py.tmpl": "tests/test_env.py",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_NAME = 50


def run(argv: Sequence[str]) -> int:
    """Write the package and say what to do next."""
    kinds = "\n".join(f"  {name:<9}{text}" for name, text in KINDS.items())
    parser = Parser(
        "init",
        "Write a package with a new environment that works: its code, its tests, its entry point.",
        group="",
        usage="NAME --kind KIND",
        epilog=f"kinds:\n{kinds}\n\nThe folder NAME is made here; nothing that exists is overwritten.",
    )
    parser.add_argument("name", metavar="NAME", help="of the package and the folder: lower_case")
    parser.add_argument("--kind", required=True, metavar="KIND", help="see below")
    flags = parser.parse(argv)
    check_kind(flags.kind)
    folder = Path(flags.name)
    check_free(folder)
    names = names_of(flags.name)
    for path in write_package(folder, flags.kind, names):
        print(f"wrote {folder / path}")
    print(
        f"\nNext:\n"
        f"  pip install -e '{folder}[test]'\n"
        f"  pytest {folder}\n"
        + (f"  vime-agents check {names['env_id']}\n" if flags.kind != "game" else "")
        + f"  vime-agents play {names['env_id']}\n"
        f"  vime-agents eval {names['env_id']} --policy gold -n 20"
    )
    return 0


def check_kind(kind: str) -> None:
    """Raises ConfigError, with the nearest kind."""
    if kind in KINDS:
        return
    hint = did_you_mean(kind, KINDS)
    raise ConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {kind!r}.{hint}")


def check_free(folder: Path) -> None:
    """Raises ConfigError: something is there."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists already; nothing was written. Move it, or choose another name")


def names_of(name: str) -> dict[str, str]:
    """The names of a new package and what is in it: package, distribution, class_name, env_id.

    Raises:
        ConfigError: the name cannot be one, or would hide something that is installed.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        close = suggested(name)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ConfigError(
            "NAME: must be lower-case letters and digits, in words joined by _, with a letter first, "
            f"at most {_MAX_NAME} characters; got {name!r}.{hint}"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(
            f"NAME: {name!r} is a word of Python's own; choose another name, such as '{name}_env'"
        )
    if name in sys.stdlib_module_names or name == "tests" or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"NAME: a module {name!r} exists already and would be hidden; choose another name, such as "
            f"'{name}_env'"
        )
    class_name = "".join(word.capitalize() for word in name.split("_"))
    env_id = f"{class_name}-v0"
    if env_id in registry.env_entry_points():
        raise ConfigError(f"NAME: the environment {env_id!r} exists already; choose another name")
    return {
        "package": name,
        "distribution": name.replace("_", "-"),
        "class_name": class_name,
        "env_id": env_id,
    }


def suggested(name: str) -> str | None:
    """The valid name nearest to one that is not: `My-Env` -> `my_env`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    close = re.sub(r"[^a-z0-9]+", "_", words).lstrip("_0123456789")[:_MAX_NAME].rstrip("_")
    return close if _NAME.fullmatch(close) else None


def write_package(folder: Path, kind: str, names: Mapping[str, str]) -> list[str]:
    """Write the files of a kind; their paths in `folder`, which is there as a whole or not at all.

    Raises:
        ConfigError: `folder` exists, or cannot be made.
    """
    check_free(folder)
    values = {
        **names,
        "kind": kind,
        "summary": SUMMARIES[kind],
        "version": vime_agents.__version__,
        "group": MULTI_AGENT_ENVS_GROUP if kind == "game" else ENVS_GROUP,
    }
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
            paths = _write_files(Path(draft) / folder.name, values)
            (Path(draft) / folder.name).rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    return paths


def _write_files(folder: Path, values: Mapping[str, str]) -> list[str]:
    paths = []
    for template, target in _FILES.items():
        text = (TEMPLATES / string.Template(template).substitute(values)).read_text(encoding="utf-8")
        path = string.Template(target).substitute(values)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(string.Template(text).substitute(values), encoding="utf-8")
        paths.append(path)
    return paths
