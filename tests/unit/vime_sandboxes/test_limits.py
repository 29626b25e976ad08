from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vime_sandboxes import limits


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that behaves like the root of a version 2 tree: new groups come with their files."""
    make = Path.mkdir

    def mkdir(self: Path, *args, **kwargs) -> None:
        if self.exists():
            return
        make(self, *args, **kwargs)
        for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs"):
            (self / name).write_text("")

    def rmdir(self: Path) -> None:
        for file in self.iterdir():
            file.unlink()
        os.rmdir(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    return tmp_path


def test_version_2_limits_are_written_where_the_kernel_reads_them(version_2: Path) -> None:
    group = limits.make_control_group(
        "box", memory_mb=100, max_processes=20, mounts=f"cgroup2 {version_2} cgroup2 rw 0 0\n"
    )
    assert group.controllers == {"memory", "pids"}
    folder = version_2 / "box"
    assert (folder / "memory.max").read_text() == str((100 + limits.RUNNER_MB) * 1024 * 1024)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "28"
    group.add(4321)
    assert (folder / "cgroup.procs").read_text() == "4321"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n")
    assert group.oom_kills() == 3
    assert group.remove()
    assert not folder.exists()
    assert group.remove()


def test_a_tree_without_controllers_enforces_nothing_and_is_left_clean(tmp_path: Path) -> None:
    group = limits.make_control_group(
        "box", memory_mb=100, max_processes=20, mounts=f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    )
    assert group.controllers == frozenset()
    assert group.oom_kills() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_tree_enforces_nothing() -> None:
    group = limits.make_control_group(
        "box", memory_mb=100, max_processes=20, mounts="cgroup2 /proc/nowhere cgroup2 ro 0 0\n"
    )
    assert group.controllers == frozenset()


def test_version_1_counts_oom_kills(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert limits.ControlGroup({"memory": tmp_path}).oom_kills() == 2


def test_only_groups_of_dead_owners_are_orphans(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = tmp_path / limits.group_name()
    orphan = tmp_path / f"{limits.PREFIX}-{ended.pid}-ab"
    other = tmp_path / "somebody-elses"
    for folder in (mine, orphan, other):
        folder.mkdir()
    limits.remove_orphans(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])


def test_users_are_never_shared() -> None:
    uids = [limits.take_uid() for _ in range(200)]
    assert len(set(uids)) == 200
    assert all(limits.FIRST_UID <= uid < limits.FIRST_UID + limits.NUM_UIDS for uid in uids)
    for uid in uids:
        limits.give_uid_back(uid)
    assert not limits._uids_in_use.intersection(uids)
