"""People who only evaluate install no torch: the wheel alone, in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {n.partition("/")[0] for n in names if ".dist-info" not in n}
    packages = {"vime_agents", "vime_envs", "vime_tools", "vime_sandboxes", "vime_trainers"}
    assert top == packages
    assert {f"{p}/py.typed" for p in packages} <= set(names)


def test_the_base_install_evaluates_without_torch(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)], check=True
    )
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True).stdout
    for heavy in ("torch", "vllm", "ray", "docker", "transformers", "megatron-core"):
        assert f"\n{heavy} " not in listed
    command = [venv / "bin" / "vime-agents", "eval", "Calculator-v0", "--model", "scripted:gold", "-n", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1.000" in done.stdout
    refused = subprocess.run(
        [
            venv / "bin" / "vime-agents",
            "train",
            "--env",
            "Calculator-v0",
            "--hf-checkpoint",
            "x",
            "--run-dir",
            "y",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "pip install 'vime-agents[train]'" in refused.stderr
