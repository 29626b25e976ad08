"""The name of a built image says what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vime_agents.errors import ConfigError
from vime_sandboxes.docker_image import content_tag


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "My Env!"
    (made / "src").mkdir(parents=True)
    (made / "Dockerfile").write_text("FROM scratch\nCOPY src /src\n")
    (made / "src" / "a.py").write_text("1")
    (made / ".dockerignore").write_text("# nothing of these\n*.log\n")
    return made


def test_the_tag_is_of_the_folder_and_its_content(folder: Path) -> None:
    tag = content_tag(folder)
    name, _, digest = tag.partition(":")
    assert name == "vime/my-env"
    assert len(digest) == 64
    assert content_tag(folder) == tag


def test_content_names_and_modes_count_times_and_ignored_files_do_not(folder: Path) -> None:
    tags = [content_tag(folder)]
    file = folder / "src" / "a.py"
    file.write_text("2")
    tags.append(content_tag(folder))
    file.chmod(0o755)
    tags.append(content_tag(folder))
    file.rename(folder / "src" / "b.py")
    tags.append(content_tag(folder))
    (folder / "src" / "link").symlink_to("b.py")
    tags.append(content_tag(folder))
    assert len(set(tags)) == 5
    os.utime(folder / "src" / "b.py", (1, 1))
    (folder / "run.log").write_text("noise")
    assert content_tag(folder) == tags[-1]


def test_a_folder_without_a_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no Dockerfile in {tmp_path}"):
        content_tag(tmp_path)
