"""Conditions: what they mean, and that nothing but what is on the list is ever read, let alone executed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.pipeline.condition import LONGEST, ConditionError, parse_condition

VALUES = {"loss": 2.0, "lr": 0.5, "nan": math.nan, "epoch": 3.0, "iter": 7.0, "train/loss": 9.0, "metrics.loss": 4.0}


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
        ("-" * (LONGEST - 9) + "loss > -2", False),
    ],
)
def test_what_it_means(text: str, holds: bool) -> None:
    assert parse_condition(text)(VALUES.get) is holds


def test_it_names_what_it_looks_at() -> None:
    condition = parse_condition('loss > 1 and metrics.loss < 2 or value("a b") > epoch + iter + rank + max_iters')
    assert condition.names == {"loss", "metrics.loss", "a b"}


@pytest.mark.parametrize(
    ("text", "message", "column", "hint"),
    [
        ("", "cannot be read", 1, "e.g."),
        ("loss > 3 && lr > 1", "cannot be read", 11, 'write "and" for "&&"'),
        ("!(loss > 3)", "cannot be read", 1, 'write "not" for "!"'),
        ("(loss > 3) + 1 > 1", "is no number", 2, "combine"),
        ("é > 1 or isnam(loss)", 'no function "isnam"', 10, 'did you mean "isnan"?'),
        ("  eval(loss) > 1", 'no function "eval"', 3, ""),
        ("loss > 'high'", "this is no number", 8, "value("),
        ("value(loss) > 1", "this is no number", 1, "value("),
        ("loss in (1, 2)", "numbers are compared with", 9, ""),
        ("True", "conditions know", 1, ""),
        ("().__class__.__bases__ > 1", "only names may have dots", 1, ""),
        ("min(*loss, 2) > 1", "conditions know", 5, ""),
    ],
)
def test_what_is_refused(text: str, message: str, column: int, hint: str) -> None:
    with pytest.raises(ConditionError, match=f"at column {column} ") as raised:
        parse_condition(text)
    assert message in str(raised.value)
    assert hint in raised.value.hint


@pytest.mark.parametrize("text", ["(" * 250 + "1" + ")" * 250, "1 > \0", "loss > 1 " + "and loss > 1 " * LONGEST])
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
