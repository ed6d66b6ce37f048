"""Conditions: what they mean, and that nothing but what is on the list is ever read,
let alone executed.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.pipeline.condition import MAX_CONDITION_LENGTH, ConditionError, parse_condition
from tests.support.golden_files import check_cases

VALUES = {
    "loss": 2.0,
    "lr": 0.5,
    "nan": math.nan,
    "epoch": 3.0,
    "iter": 7.0,
    "train/loss": 9.0,
    "metrics.loss": 4.0,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("1 < loss < 3 < epoch + 1", True),
        ("loss > 3 or iter % 7 == 0", True),
        ("not (loss > 1 and lr > 1)", True),
        ("isnan(nan) and not isnan(loss)", True),
        ("nan == nan or nan < 1", False),
        ("-loss ** 2 == -4", True),
        ("abs(-loss) + min(1, lr, 3) * max(2, 3) == 3.5", True),
        ("7 // 2 == 3 and 1e3 == 1_000 and +2 >= 2", True),
        ('value("train/loss") == 9 and metrics.loss == 4', True),
        ("unheard > 1", False),
        ("not unheard > 1", False),
        ("loss > 1 or unheard > 1", True),
        ("not (loss > 3 and unheard > 1)", True),
        ("not (unheard < 5 < loss)", True),
        ("isnan(1 / 0) and isnan(1 % 0) and isnan(1 // 0)", True),
        ("2 ** 1e9 > 1e300 and isnan((-8) ** 0.5)", True),
        ("0x" + "f" * 280 + " > 1e308", True),
        ("\n  loss\n  > 1\n", True),
        ("-" * (MAX_CONDITION_LENGTH - 9) + "loss > -2", False),
    ],
)
def test_what_it_means(text: str, holds: bool) -> None:
    assert parse_condition(text)(VALUES.get) is holds


def test_it_names_what_it_looks_at() -> None:
    condition = parse_condition(
        'loss > 1 and metrics.loss < 2 or value("a b") > epoch + iter + rank + max_iters'
    )
    assert condition.names == {"loss", "metrics.loss", "a b"}


REFUSED = (
    *(
        "",
        "loss > 3 && lr > 1",
        "!(loss > 3)",
        "(loss > 3) + 1 > 1",
        "é > 1 or isnam(loss)",
        "  eval(loss) > 1",
    ),
    *(
        "loss > 'high'",
        "value(loss) > 1",
        "loss in (1, 2)",
        "True",
        "().__class__.__bases__ > 1",
        "min(*loss, 2) > 1",
    ),
)


def test_what_is_refused_is_named_with_its_column() -> None:
    told = {}
    for text in REFUSED:
        with pytest.raises(ConditionError) as raised:
            parse_condition(text)
        told[f"when = {text!r}"] = [f"{raised.value}\n{raised.value.hint}"]
    check_cases("conditions.txt", told)


@pytest.mark.parametrize(
    "text",
    ["(" * 250 + "1" + ")" * 250, "1 > \0", "loss > 1 " + "and loss > 1 " * MAX_CONDITION_LENGTH],
)
def test_too_much_is_refused_too(text: str) -> None:
    with pytest.raises(ConditionError):
        parse_condition(text)


@given(st.text("loss lr><=!&|()+-*/%.,1e9'\"\\[]{}:@#~^\n\0é", max_size=40))
def test_whatever_is_written_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = parse_condition(text)
    except ConditionError:
        return
    assert condition(VALUES.get) in (True, False)
