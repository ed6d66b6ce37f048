from hypothesis import given
from hypothesis import strategies as st

from hookflow.events.histogram import BINS, bin_of, bounds, percentile

durations = st.integers(min_value=0, max_value=2**62)


@given(durations)
def test_a_duration_lies_within_the_bounds_of_its_bin(ns: int) -> None:
    low, high = bounds(bin_of(ns))
    assert low <= ns < high
    assert bin_of(ns) < BINS


@given(durations.filter(lambda ns: ns > 7))
def test_a_bin_is_at_most_a_quarter_wide(ns: int) -> None:
    low, high = bounds(bin_of(ns))
    assert high <= low * 1.25


@given(st.integers(min_value=0, max_value=2**40))
def test_neighbouring_bins_touch(ns: int) -> None:
    index = bin_of(ns)
    assert bounds(index)[1] == bounds(index + 1)[0]


@given(st.lists(st.integers(min_value=8, max_value=10**10), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_percentile_is_right_to_a_bins_width(seen: list[int], share: float) -> None:
    counts: dict[int, int] = {}
    for ns in seen:
        counts[bin_of(ns)] = counts.get(bin_of(ns), 0) + 1
    rank = max(-(-share * len(seen) // 1), 1)
    exact = sorted(seen)[int(rank) - 1]
    assert exact / 1.26 <= percentile(counts, share) <= exact * 1.26


def test_nothing_counted_is_zero() -> None:
    assert percentile({}, 0.5) == 0.0
