"""Every golden value, three ways: worked out beforehand, by numpy from the formula, by the library."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.vime_trainers.golden import Case, all_cases, main

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_the_formula_gives_the_golden_value_and_the_library_the_formula(case: Case) -> None:
    """Plan 1, 2, 4, 10, 11, 12, 13, 14, 18, 19, 20, 22, 23, 24, 26, 27, 28, 29, 30, 32, 34, 35, 40."""
    np.testing.assert_allclose(np.asarray(case.formula, float), case.golden, rtol=1e-6, atol=1e-6)
    # Aggregation weights are float32; everything else is float64.
    np.testing.assert_allclose(np.asarray(case.computed, float), case.formula, rtol=2e-7, atol=1e-8)


def test_the_report_has_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CASES) + 1
    assert lines[-1].startswith(f"{len(CASES)} cases")
