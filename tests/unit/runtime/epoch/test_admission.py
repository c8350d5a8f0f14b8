from __future__ import annotations

import pytest

from holdfast.runtime.epoch.admission import ROWS_FIRST, Admission


def settled(fixed: float, per_row: float, admission: Admission, epochs: int = 60) -> Admission:
    """Run epochs that cost a fixed time and a time per row, all full."""
    for _ in range(epochs):
        admission = admission.after(admission.limit, fixed + per_row * admission.limit)
    return admission


@pytest.mark.parametrize(("fixed", "per_row"), [(0.1, 2e-6), (0.3, 1e-5), (0.05, 1e-4)])
def test_the_epoch_size_settles_near_the_target(fixed: float, per_row: float) -> None:
    rows = settled(fixed, per_row, Admission(target_seconds=1.0)).limit
    assert fixed + per_row * rows == pytest.approx(1.0, rel=0.15)


def test_a_fixed_cost_above_the_target_does_not_starve_the_job() -> None:
    rows = settled(2.0, 1e-6, Admission(target_seconds=1.0)).limit
    assert rows > ROWS_FIRST


def test_a_ceiling_is_kept_exactly() -> None:
    admission = Admission(target_seconds=1.0, ceiling=123)
    assert settled(0.001, 1e-9, admission).limit == 123


def test_an_epoch_far_from_full_changes_nothing() -> None:
    admission = Admission(target_seconds=1.0)
    assert admission.after(10, 0.1).limit == admission.limit


def test_growth_is_bounded_per_epoch() -> None:
    admission = Admission(target_seconds=1.0)
    assert admission.after(admission.limit, 1e-6).limit <= 2 * admission.limit
