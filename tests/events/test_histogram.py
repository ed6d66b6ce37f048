from hypothesis import given
from hypothesis import strategies as st

from hookflow.events.histogram import BINS, bin_of, bounds, percentile


@given(st.integers(min_value=0, max_value=2**62))
def test_a_duration_lies_in_its_bin_which_is_at_most_a_quarter_wide_and_touches_the_next(ns: int) -> None:
    index = bin_of(ns)
    low, high = bounds(index)
    assert low <= ns < high == bounds(index + 1)[0]
    assert ns < 8 or high <= low * 1.25
    assert index < BINS


@given(st.lists(st.integers(min_value=8, max_value=10**10), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_percentile_is_right_to_a_bins_width(seen: list[int], share: float) -> None:
    counts: dict[int, int] = {}
    for ns in seen:
        counts[bin_of(ns)] = counts.get(bin_of(ns), 0) + 1
    rank = max(-(-share * len(seen) // 1), 1)
    exact = sorted(seen)[int(rank) - 1]
    assert exact / 1.26 <= percentile(counts, share) <= exact * 1.26
    assert percentile({}, share) == 0.0
