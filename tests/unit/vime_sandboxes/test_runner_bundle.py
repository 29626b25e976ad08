from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from vime_sandboxes import runner_bundle


@pytest.mark.parametrize("name", runner_bundle._MODULES)
def test_the_runner_is_written_for_old_pythons(name: str) -> None:
    text = runner_bundle._path(name).read_text()
    ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text


def test_it_loads_little(tmp_path: Path) -> None:
    program = tmp_path / "runner.pyc"
    program.write_bytes(runner_bundle.compiled())
    # It reads end-of-file at once, and ends.
    done = subprocess.run(
        [sys.executable, "-ISX", "importtime", str(program), "60", "1000000000", "100000", "1000000000"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    loaded = {line.split("|")[-1].strip() for line in done.stderr.decode().splitlines()}
    assert "_ctypes" in loaded
    assert not loaded & {
        "os",
        "ctypes",
        "struct",
        "__future__",
        "signal",
        "json",
        "collections",
        "subprocess",
        "warnings",
        "re",
        "enum",
        "shutil",
    }
