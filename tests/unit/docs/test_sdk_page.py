"""docs/sdk.md: its blocks are one script, which prints what stands at the end of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")


@pytest.mark.integration
def test_the_page_is_a_script_that_prints_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "sdk.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), encoding="utf-8")
    (expected,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    # A process of its own: a trainer keeps a process group and megatron's parallel state.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == expected
