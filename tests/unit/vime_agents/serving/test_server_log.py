"""The line of a server's log that says why."""

from __future__ import annotations

from pathlib import Path

from vime_agents.serving.server_log import explain


def test_the_childs_exception_comes_before_what_its_parents_say(tmp_path: Path):
    log = tmp_path / "server.log"
    log.write_text(
        "(EngineCore pid=7) INFO 12-02 01:18:47 [core.py:1] starting\n"
        "(EngineCore pid=7) ERROR 12-02 01:18:47 [core.py:2] Traceback (most recent call last):\n"
        '(EngineCore pid=7) ERROR 12-02 01:18:47 [core.py:2]   File "x.py", line 1\n'
        "(EngineCore pid=7) ERROR 12-02 01:18:47 [core.py:2] ValueError: not enough memory for the KV cache\n"
        "(EngineCore pid=7) Traceback (most recent call last):\n"
        "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert explain(log) == f"ValueError: not enough memory for the KV cache (log: {log})"


def test_the_lines_below_a_validation_error_say_the_cause(tmp_path: Path):
    log = tmp_path / "server.log"
    log.write_text(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, max_model_len is too large\n"
        "    For further information visit ...\n"
    )
    assert "ModelConfig Value error, max_model_len is too large (log:" in explain(log)


def test_without_an_exception_the_last_lines_are_shown(tmp_path: Path):
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {i}\n" for i in range(100)))
    assert "line 99" in explain(log)
    assert "line 80" not in explain(log)
    assert str(log) in explain(log)


def test_a_missing_log_is_said(tmp_path: Path):
    assert "no log at" in explain(tmp_path / "none.log")
