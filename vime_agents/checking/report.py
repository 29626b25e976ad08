"""Report -> text for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from vime_agents.checking.catalog import CHECKS, GAME_CHECKS
from vime_agents.checking.finding import CheckResult, Report
from vime_agents.checking.kit import FAMILIES
from vime_agents.checking.scale import differences
from vime_agents.checking.supervise import PROCESS_CHECKS

_WIDTH = 17


def format_report(report: Report) -> str:
    """The verdict, the scale where it is not the full one, then every check by family."""
    states = Counter(_word(result) for result in report.results)
    counts = ", ".join(
        f"{count} {word}" for word, count in sorted(states.items(), key=lambda p: p[0].lower())
    )
    seconds = sum(result.duration_s for result in report.results)
    verdict = (
        "keeps its promises" if report.ok else "has faults" if report.findings else "could not be checked"
    )
    lines = [f"{report.env_id} ({report.split}) {verdict}: {counts}  ({seconds:.1f} s)"]
    base, changed = differences(report.scale)
    if base != "full" or changed:
        fields = [f"{name} {value:g}" for name, value in changed.items()]
        lines.append(f"scale: {base}" + (f", but {', '.join(fields)}" if fields else ""))
    for family, heading in FAMILIES.items():
        results = [result for result in report.results if result.family == family]
        if results:
            lines += ["", heading]
            lines += [line for result in results for line in _lines(result)]
    return "\n".join(lines)


def _word(result: CheckResult) -> str:
    if result.state != "found":
        return {"passed": "ok"}.get(result.state, result.state)
    return "FAIL" if any(f.severity == "error" for f in result.findings) else "warning"


def _lines(result: CheckResult) -> Iterator[str]:
    numbers = ", ".join(
        f"{name} {value if isinstance(value, int) else format(value, '.3g')}"
        for name, value in result.measured.items()
    )
    text = result.promise + (f"  [{numbers}]" if numbers else "")
    yield f"  {_word(result):<8} {result.id:<{_WIDTH}} {text}"
    indent = " " * (12 + _WIDTH)
    if result.reason:
        yield f"{indent}{_one_line(result.reason)}"
    for finding in result.findings:
        yield f"{indent}{_one_line(finding.message)}"
        if finding.where:
            yield f"{indent}at   {finding.where}"
        yield f"{indent}fix  {finding.fix}"


def _one_line(text: str) -> str:
    """What an env says may hold anything; a terminal shows it as it is, on one line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def format_list() -> str:
    """Every check by family."""
    known: Mapping[str, tuple[str, str]] = {
        **{c.id: (c.family, c.promise) for c in {**GAME_CHECKS, **CHECKS}.values()},
        **{name: ("process", c.promise) for name, c in PROCESS_CHECKS.items()},
    }
    lines: list[str] = []
    for family, heading in FAMILIES.items():
        lines += ["", heading] if lines else [heading]
        lines += [
            f"  {name:<{_WIDTH}} {promise}"
            for name, (its_family, promise) in known.items()
            if its_family == family
        ]
    return "\n".join(lines)
