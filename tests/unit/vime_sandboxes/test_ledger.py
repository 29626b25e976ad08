from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vime_sandboxes.ledger import OPEN, Ledger, state_folder
from vime_sandboxes.ownership import owner


def test_an_entry_is_there_until_it_is_removed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    entry = ledger.open("docker", ttl_s=60, run="r1")
    assert ledger.read() == ([entry], {})
    assert (entry.backend, entry.run, entry.owner, entry.stage) == ("docker", "r1", owner(), "creating")
    assert entry.expires_at - entry.created_at == pytest.approx(60)
    assert abs(entry.created_at - time.time()) < 60
    opened = ledger.update(entry, stage=OPEN, sandbox_id="vime-1")
    assert Ledger(tmp_path).read() == ([opened], {})  # another process reads the same
    assert (opened.stage, opened.sandbox_id, opened.key) == ("open", "vime-1", entry.key)
    ledger.remove(opened)
    ledger.remove(opened)
    assert ledger.read() == ([], {})
    assert list(tmp_path.iterdir()) == []


def test_a_removed_entry_does_not_come_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    entry = ledger.open("docker", ttl_s=60)
    ledger.remove(entry)
    ledger.update(entry, stage=OPEN)
    assert ledger.read() == ([], {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "JSONDecodeError"),
        ("[]", "not an object but list"),
        ('{"key": "x"}', "missing"),
        ("\xff", "Error"),
        (
            '{"key": "x", "backend": 3, "owner": "", "run": "", "created_at": 0, "expires_at": "z"}',
            "wrong backend, expires_at",
        ),
        (
            '{"key": "y", "backend": "", "owner": "", "run": "", "created_at": 0, "expires_at": 1}',
            "wrong key",
        ),
    ],
)
def test_a_damaged_file_is_reported_and_hides_nothing(tmp_path: Path, text: str, problem: str) -> None:
    ledger = Ledger(tmp_path)
    entry = ledger.open("local", ttl_s=1)
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    entries, damaged = ledger.read()
    assert entries == [entry]
    assert list(damaged) == [tmp_path / "x.json"]
    assert problem in damaged[tmp_path / "x.json"]


def test_many_writers_at_once(tmp_path: Path) -> None:
    def work(_: int) -> None:
        ledger = Ledger(tmp_path)
        for _ in range(20):
            entry = ledger.update(ledger.open("local", ttl_s=1), stage=OPEN)
            assert entry in ledger.read()[0]
            ledger.remove(entry)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert list(tmp_path.iterdir()) == []


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VIME_AGENTS_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "vime-agents"
    monkeypatch.setenv("VIME_AGENTS_STATE", "/elsewhere")
    assert state_folder() == Path("/elsewhere")
