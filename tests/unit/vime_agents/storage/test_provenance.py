"""Where a result came from."""

import platform
import subprocess

from vime_agents.storage.provenance import git_state, provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_versions_are_those_installed():
    found = provenance()
    assert found["python"] == platform.python_version()
    assert set(found["packages"]) >= {"vime-agents", "gymnasium", "numpy"}


def test_a_tracked_file_has_its_commit_and_says_whether_the_checkout_changed(tmp_path):
    git(tmp_path, "init", "-q")
    file = tmp_path / "a.py"
    file.write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(file) == {"commit": commit, "changed": False}
    file.write_text("2")
    assert git_state(file) == {"commit": commit, "changed": True}


def test_a_copy_installed_inside_somebodys_checkout_has_no_commit(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1")
    assert git_state(tmp_path / "a.py") is None
