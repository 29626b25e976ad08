"""What a person and a program read."""

import json
from dataclasses import replace

from vime_agents.checking.finding import CheckResult, Finding, Report
from vime_agents.checking.report import format_list, format_report
from vime_agents.checking.scale import FULL, QUICK
from vime_agents.checking.supervise import all_ids

FAULT = Finding(
    id="same-seed", severity="error", message="a\nb\x1b[2J", where="env.py:3 in score", fix="mend it"
)
WARNING = Finding(id="gold", severity="warning", message="no gold", fix="write one")


def result(name, family, state, findings=(), reason=""):
    return CheckResult(
        id=name, family=family, promise=f"{name} holds.", state=state, findings=findings, reason=reason
    )


def report(*results, scale=FULL):
    return Report(env_id="Sum-v0", split="train", scale=scale, results=results)


def test_results_survive_json():
    before = result("same-seed", "determinism", "found", (FAULT,))
    assert CheckResult.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_errors_and_what_was_not_run_are_faults_but_warnings_and_skips_are_not():
    passed = result("plays", "interface", "passed")
    assert report(
        passed, result("gold", "tasks", "found", (WARNING,)), result("tools", "tools", "skipped")
    ).ok
    assert not report(passed, result("same-seed", "determinism", "found", (FAULT,))).ok
    assert not report(passed, result("leak-files", "leaks", "not run", reason="no /proc")).ok


def test_the_text_has_headings_places_and_fixes_and_no_control_characters():
    text = format_report(
        report(
            result("plays", "interface", "passed"),
            result("same-seed", "determinism", "found", (FAULT,)),
            result("leak-files", "leaks", "not run", reason="it reads /proc, which only Linux has"),
        )
    )
    lines = [line.strip() for line in text.splitlines()]
    assert "Determinism" in lines
    assert r"a\nb\x1b[2J" in lines
    assert "at   env.py:3 in score" in lines
    assert "fix  mend it" in lines
    assert "it reads /proc, which only Linux has" in lines
    assert "\x1b" not in text


def test_a_scale_that_is_not_the_usual_one_is_told_and_the_usual_one_is_not():
    passed = result("plays", "interface", "passed")
    second_line = {
        scale: format_report(report(passed, scale=scale)).splitlines()[1]
        for scale in (FULL, QUICK, replace(FULL, num_tasks=9), replace(QUICK, num_seeds=7, lag_s=0.2))
    }
    assert list(second_line.values()) == [
        "",
        "scale: quick",
        "scale: full, but num_tasks 9",
        "scale: quick, but num_seeds 7, lag_s 0.2",
    ]


def test_the_json_has_every_number_of_the_scale():
    told = json.loads(json.dumps(report(scale=replace(QUICK, num_leak_episodes=40)).to_dict()))["scale"]
    assert told == {
        "num_tasks": 3,
        "num_listed_tasks": 500,
        "num_seeds": 4,
        "num_random_episodes": 20,
        "num_leak_episodes": 40,
        "huge_characters": 1_000_000,
        "lag_s": 0.05,
        "call_s": 10.0,
        "settle_s": 1.0,
        "tool_s": 1.0,
    }


def test_the_list_has_every_check_once():
    names = [line.split()[0] for line in format_list().splitlines() if line.startswith("  ")]
    assert sorted(names) == sorted(all_ids())


def test_whole_numbers_are_told_whole():
    passed = replace(
        result("task-ids", "tasks", "passed"), measured={"tasks_in_split": 1319, "reset_ms": 1.23456}
    )
    assert "[tasks_in_split 1319, reset_ms 1.23]" in format_report(report(passed))
