"""The commands over backends that are not on this machine by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.commands import ROOT
from tests.integration.sandboxes import docker_daemon
from tests.integration.sandboxes.test_docker_lifetime import names, start_owner
from vime_agents.cli import main
from vime_sandboxes import doctor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
DOCKER = f"docker:{docker_daemon.PYTHON_IMAGE}"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(doctor, "ROUNDS", 2)


def diagnosis(backend: str, capsys) -> dict[str, Any]:
    """What the doctor says of it: everything that it tried holds."""
    code = main(["sandboxes", "doctor", "--backend", backend, "--json"])
    found = json.loads(capsys.readouterr().out)
    (only,) = found["backends"]
    assert only["problem"] is None
    assert [f for f in only["findings"] if f["state"] == "broken"] == []
    assert (code == 0) == found["ok"] == only["ok"]
    assert {name: t["rounds"] for name, t in only["latencies"].items()} == {"boot": 2, "exec": 2, "close": 2}
    return only


def test_the_doctor_finds_that_docker_sandboxes_hold(daemon: docker_daemon.Daemon, capsys) -> None:
    assert diagnosis(DOCKER, capsys)["ok"]
    assert names(daemon) == []


def test_the_doctor_tries_what_speaks_e2bs_protocol(monkeypatch, capsys) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "vime_agents", "sandboxes", "serve-e2b", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        for part in server.stdout.readline().removeprefix("export ").split():
            monkeypatch.setenv(*part.split("=", 1))
        found = diagnosis("e2b", capsys)
        assert {f["name"] for f in found["findings"] if f["state"] == "holds"} >= {"network", "host files"}
        server.terminate()


def test_reap_ends_what_a_dead_owner_left_and_says_why(daemon: docker_daemon.Daemon, capsys) -> None:
    owner = start_owner(1)
    assert owner.stdout is not None
    left = owner.stdout.readline().decode().strip()
    daemon.docker("pause", left)  # frozen, it cannot see that its owner dies
    owner.kill()
    owner.wait()
    owner.stdout.close()
    why = f"{left} (docker): its owner, process {owner.pid}, is dead"
    assert main(["sandboxes", "reap", "--backend", "docker", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would end {why}\nwould end 1, failed 0, kept 0\n"
    assert names(daemon) == [left]
    assert main(["sandboxes", "reap", "--backend", "docker"]) == 0
    assert capsys.readouterr().out == f"ended {why}\nended 1, failed 0, kept 0\n"
    assert names(daemon) == []
