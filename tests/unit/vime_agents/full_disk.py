"""A disk that has no room for more of a SQLite file."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from vime_agents.policies import response_cache


def full_disk(monkeypatch: pytest.MonkeyPatch, *, pages: int) -> None:
    """Caches of answers that are opened from now on have room for so many pages."""
    connect = sqlite3.connect

    def bounded(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(response_cache.sqlite3, "connect", bounded)
