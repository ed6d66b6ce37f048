"""Conditions, such as loss > 10 and epoch >= 1.

They are parsed against an allowlist, and never evaluated as Python.

A condition is made of
    numbers               10, 0.5, 1e-3
    what the run knows    epoch and iter (those that are done), max_epochs, max_iters,
                          rank (of this process)
    scalars               loss, lr, grad.norm; value("train/loss") where a name is no identifier
    metrics               metrics.loss: what the latest validation found, where a scalar bears
                          the name too
    arithmetic            + - * / // % **, parentheses, abs(x), min(x, y), max(x, y)
    comparisons           < <= > >= == !=, in chains too: 0.1 < loss < 10
    and, or, not, isnan(x)

`when` takes these. A filter of runs also takes strings: status == "failed", "Adam" in
optimizer.use.

A comparison with an unknown name does not hold. "epoch == 0 or loss > 3" does not depend on the
loss in epoch 0. All numbers are floats: what has no value (1 / 0) is not a number, and what is too
large is infinite.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from hookflow.errors import nearest_or_all
from hookflow.metric_mode import is_formula

MAX_CONDITION_LENGTH = 300
"""Characters of a condition, at most; a deep one needs a frame of Python's stack for each."""

RUN_FACTS = ("epoch", "iter", "max_epochs", "max_iters", "rank")
"""Names that every run has a number for; every other name is that of a scalar."""

METRIC_PREFIX = "metrics."
"""The prefix of a metric, as opposed to a scalar of that name."""
SCALAR_PREFIX = "scalars."
"""The prefix of the slot that is a scalar."""

_SET_METRIC = re.compile(r"[A-Za-z_][\w.@]*(?:/[A-Za-z_][\w.@]*)*")
"""A name in a formula: cls/accuracy is the metric of a set, a / b with blanks a quotient."""

_AS_IDENTIFIER = str.maketrans("/@", "\N{MIDDLE DOT}\N{LATIN LETTER BILABIAL CLICK}")
"""Characters that stand for `/` and `@` in a name while Python parses it.

Python allows them in identifiers.
"""
_AS_NAME = str.maketrans("\N{MIDDLE DOT}\N{LATIN LETTER BILABIAL CLICK}", "/@")

Look = Callable[[str], Any]
"""Returns the number that a name has at this moment, or its string where strings are taken.

It returns None where the name has no value.
"""

Number = Callable[[Look], Any]
Truth = Callable[[Look], bool | None]
"""Returns whether something holds; None where that depends on a name without a value."""


class ConditionError(ValueError):
    """A condition that cannot be understood; `hint` says what was probably meant."""

    def __init__(self, message: str, column: int, hint: str = "") -> None:
        super().__init__(f"{message}, at column {column} of the condition" if column else message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class MetricFormula:
    """A number made of metrics, such as cls/accuracy - 0.1 * reg/mae; `names` are the metrics."""

    text: str
    names: tuple[str, ...]
    _number: Number

    def __call__(self, look: Look) -> float | None:
        """Return its value; None where a name has none, NaN where the number has none, as 1 / 0."""
        value = self._number(look)
        if value is None:
            return None
        return float(value)


def parse_formula(text: str) -> MetricFormula:
    """Read a formula of metrics, in the language of conditions.

    A name in it may have a `/` without blanks around it. Raises ConditionError, in words for the
    user and with the column, when it is none.
    """
    _check_length(text)

    def as_identifier(name: re.Match[str]) -> str:
        return name[0].translate(_AS_IDENTIFIER)

    tree = _parse_expression(text, _SET_METRIC.sub(as_identifier, text))
    reader = _ConditionParser(text, strings=False)
    number = reader.number(tree)
    names = sorted(name.translate(_AS_NAME) for name in reader.names)
    if not names:
        raise ConditionError("it is made of no metric", 0)

    def value(look: Look) -> Any:
        return number(lambda name: look(name.translate(_AS_NAME)))

    return MetricFormula(text, tuple(name.removeprefix(METRIC_PREFIX) for name in names), value)


def list_metrics(monitor: str) -> tuple[str, ...]:
    """Return the metrics that a hook watches by a text.

    The text is the name of a metric, or a formula of metrics.
    """
    if not is_formula(monitor):
        return (monitor,)
    return parse_formula(monitor).names


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that can be evaluated.

    `names` are its scalars and metrics. `doubt` says what is odd about it, with a hint.
    """

    text: str
    names: frozenset[str] = field(compare=False)
    facts: frozenset[str] = field(compare=False)
    """The facts of the run itself that it names, of `RUN_FACTS`."""
    doubt: tuple[str, str] | tuple[()] = field(compare=False)
    _truth: Truth = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made: the text is read anew, since functions cannot be pickled."""
        return parse_condition, (self.text,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return how a pipeline's TOML and a plan's JSON are read: a condition is a text there."""
        from pydantic_core import core_schema  # imported only for reading and checking

        return core_schema.no_info_after_validator_function(
            parse_condition,
            core_schema.str_schema(strict=True),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    def __call__(self, look: Look) -> bool:
        """Return whether it holds. It does not where it depends on a name without a value."""
        return self._truth(look) is True


def parse_condition(text: str, *, strings: bool = False) -> Condition:
    """Read a condition; with `strings`, values may be strings.

    Raises ConditionError, in words for the user and with the column, when it is none.
    """
    _check_length(text)
    tree = _parse_expression(text, text)
    reader = _ConditionParser(text, strings)
    truth = reader.truth(tree)
    doubt: tuple[str, str] | tuple[()] = ()
    if not reader.names | reader.bare:
        doubt = (
            f"{'always' if truth(lambda name: None) else 'never'} holds",
            "the condition is constant",
        )
    if not strings:
        for name in sorted(reader.bare):
            fact = name.lower().removeprefix("run.")
            if fact in RUN_FACTS and fact != name:
                doubt = f'names a scalar called "{name}"', f'did you mean "{fact}"?'
    facts = reader.bare.intersection(RUN_FACTS)
    return Condition(text, frozenset(reader.names), frozenset(facts), doubt, truth)


def _check_length(text: str) -> None:
    if len(text) > MAX_CONDITION_LENGTH:
        raise ConditionError(
            f"it has {len(text):,} characters, and a condition at most {MAX_CONDITION_LENGTH}", 0
        )


def _parse_expression(text: str, python: str) -> ast.expr:
    """Return the tree of a text that Python can read.

    `text` is what the user wrote, in as many characters.
    """
    spread = python.translate({ord(space): " " for space in "\n\r\t\f"})
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python, about Python
            return ast.parse(spread.strip(), mode="eval").body
    except SyntaxError as error:
        end = len(text.rstrip()) or 1
        if error.offset:
            column = min(error.offset + len(text) - len(text.lstrip()), end)
        else:
            column = end
        hint = next(hint for pattern, hint in _SYNTAX_HINTS.items() if re.search(pattern, text))
        raise ConditionError("this cannot be read", column, hint) from None
    # A null character is a ValueError, and too many brackets overflow Python's own parser.
    except (ValueError, MemoryError, RecursionError):
        raise ConditionError("this cannot be read", 1) from None


_SYNTAX_HINTS = {
    "&&": 'write "and" for "&&"',
    r"\|\|": 'write "or" for "||"',
    "!(?!=)": 'write "not" for "!"',
    "[^=!<>]=[^=]": 'to compare, write "=="',
    "": 'e.g. "loss > 10 and epoch >= 1"',
}
"""How to write what other languages write otherwise, by a pattern of that."""


def _total(operation: Callable[..., float]) -> Callable[..., float]:
    """Return the operation with an answer for every float.

    The answer is NaN where there is none, and infinity beyond the largest float.
    """

    def answer(*numbers: float) -> float:
        try:
            return float(operation(*numbers))
        except OverflowError:
            return math.inf
        except (ZeroDivisionError, ValueError):
            return math.nan

    return answer


_ARITHMETIC_OPERATORS: Mapping[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _total(operator.truediv),
    ast.FloorDiv: _total(operator.floordiv),
    ast.Mod: _total(operator.mod),
    ast.Pow: _total(math.pow),
}
_COMPARISON_OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OF_STRINGS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda part, whole: part in whole,
    ast.NotIn: lambda part, whole: part not in whole,
}
_SIGN_OPERATORS: Mapping[type[ast.unaryop], Callable[[float], float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, tuple[Callable[..., float], int, int]] = {
    "abs": (abs, 1, 1),
    "min": (min, 2, MAX_CONDITION_LENGTH),
    "max": (max, 2, MAX_CONDITION_LENGTH),
    "isnan": (math.isnan, 1, 1),
    "value": (float, 1, 1),
}
"""Each function with the fewest and the most arguments that it takes.

`value` and `isnan` are read on their own.
"""


class _ConditionParser:
    """Turns a tree into functions of `Look`, and refuses all that is not on the list."""

    def __init__(self, text: str, strings: bool) -> None:
        self._strings = strings
        self._comparisons = {**_COMPARISON_OPERATORS, **(_OF_STRINGS if strings else {})}
        self.names: set[str] = set()
        self.bare: set[str] = set()
        self._text = text.strip()
        self._blank = len(text) - len(text.lstrip())

    def truth(self, node: ast.expr) -> Truth:
        """Return what holds or does not."""
        match node:
            case ast.BoolOp(op=connective, values=values):
                return partial(
                    _decide, isinstance(connective, ast.Or), [self.truth(value) for value in values]
                )
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return partial(_apply_operation, operator.not_, [self.truth(operand)])
            case ast.Compare(left=left, ops=ops, comparators=others):
                for op, other in zip(ops, others, strict=True):
                    if type(op) not in self._comparisons:
                        raise self._make_error("numbers are compared with < <= > >= == !=", other)
                pairs = pairwise([self.number(other) for other in (left, *others)])
                links = zip(ops, pairs, strict=True)
                compare = self._comparisons
                return partial(
                    _decide,
                    False,
                    [partial(_apply_operation, compare[type(op)], pair) for op, pair in links],
                )
            case ast.Call(func=ast.Name(id="isnan")):
                return partial(_apply_operation, math.isnan, self._read_arguments(node, "isnan"))
        self.number(node)  # which refuses what is no number either
        raise self._make_error(
            "this is a number, and neither holds nor does not", node, "compare it, as in loss > 10"
        )

    def number(self, node: ast.expr) -> Number:
        """Return what has a value."""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                constant = _total(float)(value)
                return lambda look: constant
            case ast.Constant(value=str() as string) if self._strings:
                return lambda look: string
            case ast.Name() | ast.Attribute():
                name = self._read_dotted_name(node)
                self.bare.add(name)
                if self._strings or name not in RUN_FACTS:
                    return self._scalar(name)
                return lambda look: look(name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGN_OPERATORS:
                return partial(_apply_operation, _SIGN_OPERATORS[type(op)], [self.number(operand)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC_OPERATORS:
                return partial(
                    _apply_operation,
                    _ARITHMETIC_OPERATORS[type(op)],
                    [self.number(left), self.number(right)],
                )
            case ast.Call(
                func=ast.Name(id="value"), args=[ast.Constant(value=str() as name)], keywords=[]
            ):
                return self._scalar(name)
            case ast.Call(func=ast.Name(id=name)) if name not in ("isnan", "value"):
                numbers = self._read_arguments(node, name)
                return partial(_apply_operation, _FUNCTIONS[name][0], numbers)
        message = "this is no number, name or function that conditions know"
        raise self._make_error(message, node, _hint_for_number(node))

    def _scalar(self, name: str) -> Number:
        self.names.add(name)
        return lambda look: look(name)

    def _read_dotted_name(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=value, attr=name):
                return f"{self._read_dotted_name(value)}.{name}"
        raise self._make_error("only names may have dots", node)

    def _read_arguments(self, call: ast.Call, name: str) -> list[Number]:
        if name not in _FUNCTIONS:
            raise self._make_error(
                f'there is no function "{name}"', call, nearest_or_all(name, _FUNCTIONS)
            )
        _, fewest, most = _FUNCTIONS[name]
        if call.keywords or not fewest <= len(call.args) <= most:
            if most == 1:
                wanted = "one number"
            else:
                wanted = f"{fewest} numbers or more"
            raise self._make_error(f"{name} takes {wanted}", call)
        return [self.number(argument) for argument in call.args]

    def _make_error(self, message: str, node: ast.expr, hint: str = "") -> ConditionError:
        before = self._text.encode()[: node.col_offset].decode()  # Python counts bytes
        return ConditionError(message, self._blank + len(before) + 1, hint)


def _apply_operation(
    operation: Callable[..., Any], parts: Iterable[Callable[[Look], Any]], look: Look
) -> Any:
    """Return the result of an operation.

    It is None where one of the numbers has no value, or where the operation is not for such values.
    """
    values = [part(look) for part in parts]
    try:
        if None in values:
            return None
        return operation(*values)
    except TypeError:  # a string where a number is needed
        return None


def _decide(by: bool, truths: list[Truth], look: Look) -> bool | None:
    """Return `by` as soon as one value says so, by Kleene's logic.

    Otherwise the result is the opposite, unless a value is unknown.
    """
    unknown = False
    for truth in truths:
        result = truth(look)
        if result is by:
            return by
        unknown = unknown or result is None
    if unknown:
        return None
    return not by


def _hint_for_number(node: ast.expr) -> str:
    """Return what to write for an expression that stands where a number is wanted."""
    match node:
        case ast.Constant(value=str()) | ast.Call(func=ast.Name(id="value")):
            return 'for a scalar write value("train/loss")'
        case (
            ast.Compare()
            | ast.BoolOp()
            | ast.UnaryOp(op=ast.Not())
            | ast.Call(func=ast.Name(id="isnan"))
        ):
            return 'this holds or does not: combine such by "and", "or" and "not"'
    return ""
