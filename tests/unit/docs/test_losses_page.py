"""docs/losses.md: its code prints what stands below it, and its tables name everything that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vime_agents.config import TrainConfig
from vime_agents.config.fields import options_of
from vime_agents.learning.advantages import NAMES
from vime_agents.learning.aggregation import AGGREGATIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")


def test_the_example_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (expected,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "losses.md", "exec"), {"__name__": "losses_page"})
    assert capsys.readouterr().out == expected


def test_every_estimator_aggregation_and_loss_has_a_row() -> None:
    options = options_of(TrainConfig)
    rows = set(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE))
    assert set(NAMES) | set(AGGREGATIONS) | set(options["pg_loss_type"].choices) <= rows
    for kind in options["kl_loss_type"].choices:
        assert f"--kl-loss-type {kind}" in PAGE


def test_every_flag_and_file_on_the_page_exists() -> None:
    options = options_of(TrainConfig)
    flags = {o.flag for o in options.values()}
    named = set(re.findall(r"--[a-z][a-z-]+[a-z]", PAGE))
    assert len(named) > 15
    assert named <= flags
    # And every flag of the section that chooses losses is on the page.
    section = {o.flag for o in options.values() if o.section == options["pg_loss_type"].section}
    elsewhere = {"--disable-grpo-std-normalization", "--eps-clip-high", "--tis-clip", "--tis-clip-low"}
    assert section - named <= elsewhere
    files = set(re.findall(r"`((?:vime_agents|trainers)/[a-z_/]+\.py)`", PAGE))
    assert len(files) > 5
    assert all((ROOT / file).is_file() for file in files)
