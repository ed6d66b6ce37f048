"""The critical chain of an iteration, against chains by hand."""

from hookflow.monitor.background_lanes import LaneFiring
from hookflow.monitor.critical_chain import TRAINING, ChainLink, TrainingWait, find_critical_chain


def firing(queued: float, began: float, ended: float) -> LaneFiring:
    return LaneFiring(queued, began, ended, it=1)


def test_the_training_thread_is_the_chain_where_nothing_is_waited_for() -> None:
    beside = {"slow": [firing(10, 20, 90)]}
    assert find_critical_chain(100, [], beside) == [ChainLink(TRAINING, 0, 100)]


def test_the_chain_goes_through_the_firing_that_a_wait_is_for() -> None:
    firings = {"slow": [firing(10, 12, 90)], "other": [firing(15, 15, 99)]}
    chain = find_critical_chain(120, [TrainingWait("slow", 30, 91)], firings)
    assert chain == [
        ChainLink(TRAINING, 0, 10),
        ChainLink("slow", 10, 91),
        ChainLink(TRAINING, 91, 120),
    ]


def test_it_goes_through_what_was_ahead_in_the_queue_back_to_an_idle_thread() -> None:
    firings = {
        "slow": [firing(5, 6, 20), firing(30, 31, 60), firing(40, 60, 90), firing(95, 95, 200)]
    }
    chain = find_critical_chain(120, [TrainingWait("slow", 50, 90)], firings)
    assert chain == [
        ChainLink(TRAINING, 0, 30),
        ChainLink("slow", 30, 90),
        ChainLink(TRAINING, 90, 120),
    ]


def test_several_waits_follow_one_another() -> None:
    firings = {"first": [firing(5, 5, 20)], "second": [firing(25, 25, 60)]}
    waits = [TrainingWait("second", 30, 60), TrainingWait("first", 10, 20)]
    assert find_critical_chain(70, waits, firings) == [
        ChainLink(TRAINING, 0, 5),
        ChainLink("first", 5, 20),
        ChainLink(TRAINING, 20, 25),
        ChainLink("second", 25, 60),
        ChainLink(TRAINING, 60, 70),
    ]


def test_a_wait_before_the_chain_was_in_the_training_thread_is_not_on_it() -> None:
    firings = {"first": [firing(5, 5, 20)], "second": [firing(2, 2, 60)]}
    waits = [TrainingWait("first", 10, 20), TrainingWait("second", 30, 60)]
    chain = find_critical_chain(70, waits, firings)
    assert chain == [
        ChainLink(TRAINING, 0, 2),
        ChainLink("second", 2, 60),
        ChainLink(TRAINING, 60, 70),
    ]


def test_a_firing_of_an_earlier_iteration_is_on_it_from_the_begin_on() -> None:
    chain = find_critical_chain(
        70, [TrainingWait("slow", 10, 40)], {"slow": [firing(-30, -20, 40)]}
    )
    assert chain == [ChainLink("slow", 0, 40), ChainLink(TRAINING, 40, 70)]


def test_a_wait_that_no_firing_has_ended_stays_with_the_training() -> None:
    given_up = find_critical_chain(
        9_000, [TrainingWait("slow", 30, 8_000)], {"slow": [firing(10, 12, 99_999)]}
    )
    assert given_up == [ChainLink(TRAINING, 0, 9_000)]
