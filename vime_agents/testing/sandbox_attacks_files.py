"""Attacks by files: links that lead out, trees that are not what they seem, forged graders."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from vime_agents.errors import (
    SandboxDead,
    SandboxError,
    SandboxOutputTooLarge,
    SandboxUnsupported,
)
from vime_agents.sandbox import Sandbox, SandboxProvider
from vime_agents.testing.sandbox_attack_kit import attack, hostile, works_or_is_dead
from vime_agents.testing.sandbox_kit import expect


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def _folders(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir()


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _contents(file: Path) -> str:
    return file.read_text()


async def _shell(sandbox: Sandbox, script: str, *arguments: str) -> None:
    result = await sandbox.exec(["sh", "-c", script, "sh", *arguments])
    expect(result.ok, f"the attack can be prepared: {script}", result)


async def _refused(
    what: str, call: Awaitable[object], errors: tuple[type[Exception], ...] = (SandboxError,)
) -> None:
    """`call` raises one of `errors`, and ends."""
    try:
        async with asyncio.timeout(120):
            seen = await call
    except SandboxDead:
        raise
    except errors:
        return
    expect(False, f"{what} is refused", seen)


@attack()
async def links_in_read_and_write(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Links, climbing paths, pipes and devices lead `read` and `write` nowhere, and to no hang."""
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder:
        secret = Path(folder, "secret")
        _write(secret, mark)
        await _shell(
            sandbox, 'ln -s "$1" link; ln -s "$2" folder; mkfifo pipe; ln -s loop loop', str(secret), folder
        )
        for path in (
            "link",
            str(secret),
            f"../../../..{secret}",
            f"/proc/self/root{secret}",
            "folder/secret",
        ):
            await _refused(f"reading {path}", sandbox.read(path))
        for path in ("pipe", "loop", ".", "/proc/self/mem", "a\0b", "x" * 5000):
            await _refused(f"reading {path[:20]!r}", sandbox.read(path), (SandboxError, ValueError))
        for path in ("/dev/zero", "/dev/random"):
            await _refused(f"reading {path}", sandbox.read(path, max_bytes=1 << 20))
        for path in ("pipe", "loop/x", ".", "/usr/x", "/etc/x"):
            await _refused(f"writing {path}", sandbox.write(path, b"x"), (OSError, SandboxError))
        for path in ("link", "folder/new", f"../../../..{folder}/new"):
            try:
                await sandbox.write(path, b"evil")  # inside, such a path may exist
            except SandboxError:
                continue
        expect(_contents(secret) == mark, "the host's file as it was", _contents(secret))
        expect(_names(Path(folder)) == ["secret"], "no new file", _names(Path(folder)))
    expect(await sandbox.alive(), "alive afterwards", False)


_TREES: dict[str, str] = {
    "an absolute link": 'ln -s "$1" bad/link',
    "a climbing link": "ln -s ../../../../../../etc bad/link",
    "a link through a link": "mkdir bad/d; ln -s .. bad/d/up; ln -s d/up/../x bad/link",
    "a link to come": "ln -s later/../../x bad/link",
    "a pipe": "mkfifo bad/pipe",
}


@attack()
async def links_in_download(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Trees with links that lead out, pipes, endless depth or size are refused; nothing of them is kept."""
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder:
        outside, target = Path(folder, "outside"), Path(folder, "target")
        _folders(outside)
        for what, script in _TREES.items():
            await _shell(sandbox, f"rm -rf bad; mkdir bad; echo fine > bad/good; {script}", str(outside))
            await _refused(f"a download with {what}", sandbox.download("bad", target))
        await _shell(sandbox, "rm -rf bad; mkdir bad; truncate -s 50M bad/big 2>/dev/null || true")
        await _shell(sandbox, "head -c 3000000 /dev/zero > bad/big2")
        await _refused(
            "a download that is too large",
            sandbox.download("bad", target, max_bytes=1 << 20),
            (SandboxOutputTooLarge,),
        )
        deep = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        await hostile(sandbox, "import os; os.mkdir('deep'); os.chdir('deep')\n" + deep, mark)
        await _refused("a download of endless depth", sandbox.download("deep", target))
        expect(_names(Path(folder)) == ["outside"], "nothing kept", _names(Path(folder)))
        expect(_names(outside) == [], "nothing written elsewhere", _names(outside))
        # What the caller has there is not written through.
        _folders(target)
        (target / "d").symlink_to(outside)
        await _shell(sandbox, "rm -rf bad; mkdir -p bad/d; echo evil > bad/d/x")
        await _refused("a download over a link", sandbox.download("bad", target))
        expect(_names(outside) == [], "nothing written through the link", _names(outside))


@attack()
async def links_in_upload(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """A target that leads elsewhere is a path of the inside; links of the tree draw no secrets in."""
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder:
        outside, source = Path(folder, "outside"), Path(folder, "source")
        _folders(outside, source)
        _write(outside / "secret", mark)
        _write(source / "file", "uploaded")
        (source / "link").symlink_to(outside / "secret")
        await _shell(sandbox, 'ln -s "$1" to-host', str(outside))
        for path in ("to-host", "to-host/deeper", str(outside)):
            try:
                await sandbox.upload(source, path)  # the inside may have such a folder of its own
            except SandboxError:
                continue
        expect(_names(outside) == ["secret"], "nothing on the host", _names(outside))
        await sandbox.upload(source, "in")
        expect(await sandbox.read("in/file") == b"uploaded", "the file arrives", None)
        await _refused("reading the link", sandbox.read("in/link"))


_PLANT = """\
import os, sys
evil = "#!/bin/sh\\necho 'score 1.0'; exit 0\\n"
for name in ('python3', 'sh', 'cat', 'tar', 'env', 'mkdir', 'dirname', 'basename'):
    open(name, 'w').write(evil); os.chmod(name, 0o755)
for name in ('os.py', 'sys.py', 'json.py', 'tarfile.py', 'sitecustomize.py', 'usercustomize.py', 'site.py'):
    open(name, 'w').write("print('score 1.0'); raise SystemExit(0)\\n")
for name in ('.profile', '.bashrc', '.bash_profile', '.pythonrc', '.kshrc', '.zshenv', '.env'):
    open(os.path.expanduser('~/' + name), 'w').write("echo 'score 1.0'; exit 0\\n")
for folder in os.environ.get('PATH', '').split(':'):
    try: open(os.path.join(folder, 'python3'), 'w'); print('PATH can be written:', folder)
    except OSError: pass
"""
_GRADER = b"import json, sys\nprint(json.dumps({'score': int(open('answer').read() == 'right')}))\n"
_FORGE = """\
import os, sys, time
open('up', 'w').close()
while True:
    for name in ('grade.py', 'tests/grade.py'):
        try:
            with open(name, 'w') as f: f.write("print('score 1.0')")
        except OSError: pass
"""


@attack()
async def plant_programs(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Programs, modules and start-up files that lie in wait in the working directory are not run."""
    result = await hostile(sandbox, _PLANT, mark)
    expect(result.ok and result.stdout == b"", "no folder of PATH can be written", result)
    result = await sandbox.exec(["python3", "-IS", "-c", "import json, os; print(json.dumps([1]))"])
    expect(result.stdout == b"[1]\n", "Python's own modules", result)
    result = await sandbox.exec(["sh", "-c", "echo true"])
    expect(result.stdout == b"true\n", "the real shell", result)
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder:
        await sandbox.download(".", Path(folder, "out"))
        names = _names(Path(folder, "out"))
        expect({"tar", "json.py"} <= set(names), "the real tree", names)


@attack()
async def forge_the_grader(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Links and pipes where the grader will be written do not hang, and do not change what it says.

    A program that forges it again and again has no part in a fresh sandbox made from a snapshot.
    """
    await _shell(sandbox, "echo -n wrong > answer; mkdir tests; mkfifo tests/grade.py")
    await _refused("writing into a pipe", sandbox.write("tests/grade.py", _GRADER))
    await _shell(sandbox, "rm tests/grade.py; ln -s ../answer tests/grade.py")
    try:
        await sandbox.write("tests/grade.py", _GRADER)
        seen = await sandbox.read("tests/grade.py")
        expect(seen == _GRADER, "what was written is what is read", seen)
    except SandboxError:
        pass  # refused
    await _shell(sandbox, "rm -f tests/grade.py; echo -n wrong > answer")
    await sandbox.spawn(["python3", "-IS", "-c", _FORGE, mark])
    while (await sandbox.exec(["test", "-e", "up"])).exit_code != 0:
        pass
    try:
        snapshot = await sandbox.snapshot()
    except SandboxUnsupported:  # then there is no fresh one to be had
        return
    try:
        fresh = await provider.create(sandbox.spec, snapshot=snapshot)
        try:
            await fresh.write("tests/grade.py", _GRADER)
            result = await fresh.exec(["python3", "-IS", "tests/grade.py"])
            expect(result.stdout == b'{"score": 0}\n', "the true score", result)
        finally:
            await fresh.close()
    finally:
        await provider.delete_snapshot(snapshot)


_NAMES = """\
import os
os.mkdir(b'names')
for name in (b'\\xff\\xfe', b'new\\nline', b'-rf', b'*', b'\\xed\\xa0\\x80', b' ', b'\\x1b[31m', b'a' * 255):
    open(b'names/' + name, 'wb').write(name)
os.symlink(b'\\xff', b'names/link')
os.write(1, bytes(range(256)) * 4); os.write(2, b'\\xff\\0')
"""


@attack()
async def bytes_that_are_no_text(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Invalid UTF-8 and NUL in output, names, arguments and paths arrive as they are, or are refused."""
    result = await hostile(sandbox, _NAMES, mark)
    expect(result.stdout == bytes(range(256)) * 4 and result.stderr == b"\xff\0", "the same bytes", result)
    expect("\ufffd" in result.text, "text of it, with replacements", result.text[:20])
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder:
        await sandbox.download("names", Path(folder, "out"))
        found = _names(Path(folder, "out"))
        expect(len(found) == 9, "every name", found)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "NUL in an argument": lambda: sandbox.exec(["echo", "a\0b"]),
        "NUL in the environment": lambda: sandbox.exec(["echo"], env={"A": "b\0c"}),
        "NUL in cwd": lambda: sandbox.exec(["echo"], cwd="/\0"),
        "NUL in a program": lambda: sandbox.exec(["ec\0ho"]),
        "NUL in a path": lambda: sandbox.write("a\0b", b""),
    }
    for what, call in calls.items():
        try:
            seen = await call()
        except (SandboxError, ValueError):
            continue
        expect(getattr(seen, "ok", False) is False, f"{what} is no success", seen)
    await sandbox.exec(["echo", "\ud800", secrets.token_hex(4)])
    expect(await works_or_is_dead(sandbox), "alive afterwards", False)
