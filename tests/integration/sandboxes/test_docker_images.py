"""Images of the Docker backend: by name, built from a folder, without Python."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.sandboxes import docker_daemon
from vime_agents.errors import ConfigError, SandboxNotReady, SandboxUnavailable
from vime_agents.sandbox import SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS
from vime_sandboxes.docker import DockerSandboxProvider
from vime_sandboxes.docker_image import content_tag
from vime_sandboxes.docker_runner import NO_PYTHON

pytestmark = pytest.mark.integration

# The checks that need no Python inside. `ended_programs_take_nothing` is not among them: of an exec the
# daemon does not say that the program has closed its input.
WITHOUT_PYTHON = [
    "a_full_sandbox_says_so",
    "a_gone_sandbox_is_not_the_end_of_a_program",
    "anybody_can_list_and_remove",
    "any_event_loop_will_do",
    "bytes_survive",
    "closing_ends_it",
    "commands_do_not_disturb_each_other",
    "downloads_are_bounded_and_stay_inside",
    "ends_are_seen_though_children_hold_the_output",
    "files_are_bounded",
    "files_round_trip",
    "many_commands_at_once_keep_their_output",
    "missing_programs_are_not_spawned",
    "missing_things_have_their_errors",
    "preflight_passes_where_sandboxes_work",
    "results_are_exact",
    "sandboxes_share_nothing",
    "setup_commands_come_first",
    "snapshots_make_new_sandboxes",
    "spawned_programs_can_be_talked_to",
    "streams_carry_every_byte",
    "the_end_can_be_moved",
    "time_to_live_holds",
    "trees_round_trip",
    "users_are_as_asked_or_refused",
    "waiting_drops_what_nobody_reads",
    "writing_waits_for_the_program",
]


@pytest.fixture
def busybox_spec(daemon: docker_daemon.Daemon, tmp_path: Path) -> SandboxSpec:
    """In an image that has a shell and no Python."""
    return SandboxSpec(backend="docker", build=str(docker_daemon.busybox_context(tmp_path / "busybox")))


@pytest.mark.parametrize("check", WITHOUT_PYTHON)
async def test_an_image_without_python_keeps_the_promises_too(
    docker_provider: DockerSandboxProvider, busybox_spec: SandboxSpec, check: str
) -> None:
    await CHECKS[check](docker_provider, busybox_spec)


async def test_the_time_limit_kills_a_tree_also_without_python(
    docker_provider: DockerSandboxProvider, busybox_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(busybox_spec)
    script = "setsid sleep 601 & (env -i /bin/sleep 602 &) & sleep 603"
    result = await sandbox.exec(["sh", "-c", script], timeout_s=1.0)
    assert result.timed_out
    assert result.exit_code is None
    left = await sandbox.exec(["sh", "-c", "ps | grep '[s]leep 60'"])
    # What clears its environment and loses its parent cannot be found without a runner.
    assert [line for line in left.text.splitlines() if "602" not in line] == []


async def test_a_fork_bomb_without_python_is_ended_at_its_time_limit(
    docker_provider: DockerSandboxProvider, busybox_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(replace(busybox_spec, max_processes=20))
    bomb = await sandbox.exec(["sh", "-c", "b() { b | b & }; b; sleep 600"], timeout_s=1.0)
    assert not bomb.ok
    after = await sandbox.exec(["sh", "-c", "echo $(echo alive)"])
    assert after.text == "alive\n"


async def test_a_python_that_is_too_old_counts_as_none(
    docker_provider: DockerSandboxProvider, tmp_path: Path
) -> None:
    folder = docker_daemon.busybox_context(tmp_path / "old")
    (folder / "python3").write_text(f"#!/bin/sh\nexit {NO_PYTHON}\n")
    (folder / "python3").chmod(0o755)
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + "COPY python3 /bin/python3\n")
    sandbox = await docker_provider.create(SandboxSpec(backend="docker", build=str(folder)))
    assert (await sandbox.exec(["echo", "works"])).text == "works\n"


async def test_a_folder_is_built_once_however_many_ask(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, busybox_spec: SandboxSpec
) -> None:
    folder = Path(busybox_spec.build or "")
    (folder / "marker").write_text(folder.name * 3)
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + "COPY marker /marker\n")
    other = DockerSandboxProvider()
    made = await asyncio.gather(*(p.create(busybox_spec) for p in (docker_provider, other, docker_provider)))
    assert [await s.read("/marker") for s in made] == [folder.name.encode() * 3] * 3
    await other.aclose()
    tag = content_tag(folder)
    assert tag.startswith("vime/busybox:")
    images = daemon.docker(
        "images", "-q", "--filter", "label=vime.build=busybox", "--filter", "dangling=true"
    )
    assert images == ""
    assert daemon.docker("images", "-q", tag).strip() != ""


async def test_a_broken_build_shows_its_log(docker_provider: DockerSandboxProvider, tmp_path: Path) -> None:
    folder = docker_daemon.busybox_context(tmp_path / "broken")
    (folder / "Dockerfile").write_text(
        (folder / "Dockerfile").read_text() + "RUN echo something is wrong; exit 7\n"
    )
    with pytest.raises(SandboxUnavailable, match=r"returned a non-zero code: 7[\s\S]*something is wrong"):
        await docker_provider.create(SandboxSpec(backend="docker", build=str(folder)))


async def test_a_missing_image_is_named_with_the_way_to_get_it(
    docker_provider: DockerSandboxProvider,
) -> None:
    spec = SandboxSpec(backend="docker", image="no-such/image:1")
    with pytest.raises(SandboxUnavailable, match=r"no image 'no-such/image:1'.*docker pull no-such/image:1"):
        await docker_provider.create(spec)


async def test_an_image_with_neither_python_nor_a_shell_is_refused(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, tmp_path: Path
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    with pytest.raises(SandboxNotReady, match="neither python3 nor sh"):
        await docker_provider.create(SandboxSpec(backend="docker", build=str(folder)))


async def test_a_misspelt_option_has_a_suggestion(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    with pytest.raises(ConfigError, match=r"no 'runtme'; did you mean 'runtime'\?"):
        await docker_provider.create(replace(python_spec, options={"runtme": "runsc"}))


async def test_setup_runs_before_the_sandbox_is_handed_out(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    spec = replace(python_spec, files={"in.txt": "5"}, setup=(("sh", "-c", "cp in.txt out.txt"),))
    sandbox = await docker_provider.create(spec)
    assert await sandbox.read("out.txt") == b"5"
    failing = replace(python_spec, setup=(("sh", "-c", "echo because >&2; exit 9"),))
    with pytest.raises(SandboxNotReady, match=r"exit 9: because"):
        await docker_provider.create(failing)
