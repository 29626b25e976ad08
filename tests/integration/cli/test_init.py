"""A package that `vime-agents init` wrote: installed by pip, tested by its own tests, known everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime_agents.cli.init import KINDS

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


def run(*command: str, cwd: Path, path: Path) -> str:
    """Output of `python -m ...`, which finds what is installed in `path`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_new_package_pass(tmp_path: Path, kind: str) -> None:
    run("vime_agents", "init", "my_first", "--kind", kind, cwd=tmp_path, path=tmp_path)
    package = tmp_path / "my_first"
    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=package, path=package)


def test_a_new_package_is_known_once_it_is_installed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    run("vime_agents", "init", "my_first", "--kind", "tool", cwd=tmp_path, path=site)
    pip = ("pip", "install", "-q", "--no-deps", "--target", str(site))
    run(*pip, str(tmp_path / "my_first"), cwd=tmp_path, path=site)
    shown = json.loads(run("vime_agents", "envs", "show", "MyFirst-v0", "--json", cwd=tmp_path, path=site))
    assert (shown["package"], shown["package_version"]) == ("my-first", "0.1.0")
    assert shown["gold"]["rewards"][0]["value"] == 1.0
    evaluated = run(
        "vime_agents", "eval", "MyFirst-v0", "--policy", "gold", "-n", "3", "--json", cwd=tmp_path, path=site
    )
    assert json.loads(evaluated)["mean"] == 1.0
    made = "import vime_agents, gymnasium; e = gymnasium.make('vime_agents/MyFirst-v0'); e.reset(); e.close()"
    done = subprocess.run(
        [sys.executable, "-c", made],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))},
        check=False,
    )
    assert done.returncode == 0
