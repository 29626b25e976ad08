"""What a check found, and what became of each check: plain data that crosses processes as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vime_agents.checking.scale import Scale

Severity = Literal["error", "warning"]
State = Literal["passed", "found", "skipped", "not run"]
"""skipped: does not apply to this env. not run: could not be tried, or what it saw has another cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of an environment."""

    id: str
    """Of the check that found it."""
    severity: Severity
    message: str
    """What was seen, with the seed, task or reply that shows it."""
    where: str | None = None
    """`file:line in function` of the author's code; None where no line can be blamed."""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of one check."""

    id: str
    family: str
    promise: str
    """What a good environment does, in one sentence."""
    state: State
    findings: Sequence[Finding] = ()
    reason: str = ""
    """Why it was skipped or not run."""
    duration_s: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the check took, by name with unit."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CheckResult:
        """The inverse of `to_dict`."""
        return CheckResult(**{**data, "findings": tuple(Finding(**f) for f in data["findings"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every check of one environment."""

    env_id: str
    split: str
    scale: Scale
    """How much was tried."""
    results: Sequence[CheckResult]

    @property
    def findings(self) -> list[Finding]:
        """All of them, in the order of the checks."""
        return [finding for result in self.results for finding in result.findings]

    @property
    def not_run(self) -> list[CheckResult]:
        """Checks that said nothing about the env."""
        return [result for result in self.results if result.state == "not run"]

    @property
    def ok(self) -> bool:
        """No error, and nothing left untried. Warnings and what does not apply are no obstacle."""
        return not self.not_run and all(f.severity != "error" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "env": self.env_id,
            "split": self.split,
            "scale": asdict(self.scale),
            "ok": self.ok,
            "results": [result.to_dict() for result in self.results],
        }
