"""Tests of an agent's code that it never sees, and whose verdict it cannot write."""

from vime_agents.hidden_tests.grade import HiddenTestReport, HiddenTestResult, run_hidden_tests

__all__ = ["HiddenTestReport", "HiddenTestResult", "run_hidden_tests"]
