"""Which tasks no training sees, by their content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vime_agents.task import content_id

_EVERY = 5


def in_test_split(content: Mapping[str, Any]) -> bool:
    """Whether what makes a task is one of the fifth, by a hash, that belongs to the test split."""
    return int(content_id(content), 16) % _EVERY == 0
