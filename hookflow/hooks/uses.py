"""The contents of a hook's source, by its syntax tree.

These are calls on the run, and the data flow that follows.

Only certain calls are found. The run is the parameter `run` of a method at a point. A method of the
same object that is given it in a call has it too. A function that binds the name to anything else
is passed over, and so is a function inside of one: the time of its call is unknown.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hookflow.errors import Problem, Where, is_misspelt
from hookflow.graph.completion import SlotsByBinding
from hookflow.graph.decisions import PointDecisions
from hookflow.graph.plan import Binding, BindingKey, DeclaredBinding, Half, Node, Nodes, Plan
from hookflow.graph.slots import iter_wider_slots, root
from hookflow.hooks.run import WITH_A_BATCH, WRITE_CALLS, describe_declaration
from hookflow.pipeline.condition import METRIC_PREFIX, SCALAR_PREFIX, Condition
from hookflow.pipeline.use import parse_file

FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Source:
    """A function that is called for a hook; of a method, `mro` are the classes of its object."""

    function: FunctionType
    takes_self: bool = False
    mro: tuple[type, ...] = ()

    def where(self, node: ast.expr) -> Where:
        return Where(self.function.__code__.co_filename, node.lineno)


Sources = Mapping[str, Mapping[str, Source | None]]
"""The source of each hook's methods, by the names of both.

It is None for a method that is not written in Python.
"""


@dataclass(frozen=True, slots=True)
class AttributeUse:
    """`run.name` in the source of a hook; `call` is the call of it, where it is called.

    `half` is the half of an `around_X` that it stands in, "whole" in a plain method, and None where
    that is not known. `is_certain` says that each call of the method comes to it.
    """

    name: str
    where: Where
    call: ast.Call | None = None
    half: Half | None = "whole"
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class KeyAssignment:
    """`argument["key"] = …` in the source of a hook.

    `half` and `is_certain` are as in `AttributeUse`.
    """

    key: str
    where: Where
    half: Half | None
    is_certain: bool


def in_words(where: Where) -> str:
    """Return a place in a source: the file and the line.

    The file is relative to the current folder where it is below it.
    """
    path = Path(where.source)
    return (
        f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{where.line}"
    )


def source_of(hook: Callable[..., Any] | None, method: str) -> Source | None:
    """Return the function that is called for a hook at a point.

    It is None for what is not written in Python.
    """
    if isinstance(hook, type):
        return _method_of(hook.__mro__, method or "__call__")
    while isinstance(hook, partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        return _method_of(type(hook.__self__).__mro__, hook.__name__)
    if inspect.isroutine(hook):
        return _in_python(hook)
    return _method_of(type(hook).__mro__, "__call__")


def _method_of(mro: tuple[type, ...], name: str) -> Source | None:
    for kind in mro:
        attributes = type.__getattribute__(kind, "__dict__")  # past a metaclass, which may raise
        result = attributes.get(name)
        if result is not None:
            static = isinstance(result, staticmethod)
            return _in_python(result.__func__ if static else result, not static, mro)
    return None


def _in_python(result: Any, *more: Any) -> Source | None:
    """Return a function as it is written.

    Decorators that keep what they wrap, as `torch.no_grad`, are taken off.
    """
    function = None
    if isinstance(result, FunctionType):
        function = inspect.unwrap(result)
    if isinstance(function, FunctionType):
        return Source(function, *more)
    return None


def find_uses(source: Source | None, names: Collection[str]) -> Iterator[AttributeUse]:
    """Yield the uses of attributes of the run called `names` in a method that is given `run`."""
    if source and any(
        name in names or _method_of(source.mro, name) for name in _names(source.function.__code__)
    ):
        for use in _all_uses(source):
            if use.name in names:
                yield use


def keys_read(source: Source | None, argument: str) -> Iterator[tuple[str, Where]]:
    """Yield the keys that a method looks up in an argument, as in `metrics["accuracy"]`."""
    tree = None
    if source:
        tree = _tree(source.function)
    if source is None or tree is None or _is_binding(tree, argument):
        return
    for node in _iter_own_nodes(tree):
        match node:
            case (
                ast.Subscript(
                    value=ast.Name(id=name), slice=ast.Constant(value=str() as key), ctx=ast.Load()
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="get"),
                    args=[ast.Constant(value=str() as key), *_],
                )
            ) if name == argument:
                yield key, source.where(node)


def keys_set(source: Source | None, argument: str) -> Iterator[KeyAssignment]:
    """Yield the keys that a method sets in an argument.

    The argument may be an attribute of the run by that name: `run.metrics["x"] = 1`.
    """
    if source is None or argument not in (
        *(code := source.function.__code__).co_varnames,
        *_names(code),
    ):
        return  # most sources stay unread
    tree = _tree(source.function)
    is_parameter = argument in inspect.getargs(code).args
    if tree is None or _is_binding(tree, argument):
        return
    certain = _always_evaluated(tree)
    halves = _MethodHalves(tree)
    for node in _iter_own_nodes(tree):
        match node:
            case ast.Subscript(
                value=(
                    ast.Name(id=name) | ast.Attribute(value=ast.Name(id="run"), attr=name)
                ) as owner,
                slice=ast.Constant(value=str() as key),
                ctx=ast.Store(),
            ) if name == argument and (is_parameter or isinstance(owner, ast.Attribute)):
                yield KeyAssignment(key, source.where(node), halves.of(node), node in certain)


def _find_returned_value(source: Source | None) -> Where | None:
    """Return where a method of the user's returns a value.

    The results of calls on the run do not count.
    """
    if source is None or (source.function.__module__ or "").startswith("hookflow."):
        return None
    if tree := _tree(source.function):
        for node in _iter_own_nodes(tree):
            match node:
                case ast.Return(
                    value=None
                    | ast.Constant()
                    | ast.Call(func=ast.Attribute(value=ast.Name(id="run")))
                ):
                    pass
                case ast.Return(value=ast.expr() as value) if not _is_none(value, source):
                    return source.where(value)
    return None


GIVES_NONE = (
    "append",
    "clear",
    "extend",
    "insert",
    "update",
    "debug",
    "info",
    "warning",
    "error",
    "exception",
)
"""Methods of Python's containers and loggers, which return None."""


def _is_none(value: ast.expr, source: Source, depth: int = 0) -> bool:
    """Say whether an expression is None by its source.

    It may be a call of a function that returns nothing.
    """
    match value:
        case ast.Constant(value=None):
            return True
        case ast.IfExp(body=first, orelse=other):
            return _is_none(first, source, depth) and _is_none(other, source, depth)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="run"))):
            return True  # what the run itself gives
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if source.mro:
            called = _method_of(source.mro, name)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in GIVES_NONE
        case ast.Call(func=ast.Name(id="print" | "setattr" | "delattr")):
            return True
        case ast.Call(func=ast.Name(id=name)):
            function = source.function.__globals__.get(name)
            called = None
            if isinstance(function, FunctionType):
                called = _in_python(function)
        case _:
            return False
    return called is not None and depth < MAX_CALL_DEPTH and _is_returning_none(called, depth + 1)


MAX_CALL_DEPTH = 5
"""How many calls inside one another are followed."""


def _is_returning_none(called: Source, depth: int) -> bool:
    tree = _tree(called.function)
    if not isinstance(tree, ast.FunctionDef):
        return False
    for node in _iter_own_nodes(tree):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Return) and node.value and not _is_none(node.value, called, depth):
            return False
    return True


DISTRIBUTED_MODULE = "torch.distributed"
LOCAL_CALL_PREFIXES = ("get_", "is_")
"""How the names of functions of torch.distributed begin that talk to no other rank."""

NEEDS_ALL_RANKS = frozenset({"sum", "mean", "loss"})
"""The calls on the run that all ranks must make.

The gradients of `run.loss` are averaged over them.
"""


def find_collectives(source: Source | None) -> Iterator[tuple[str, Where]]:
    """Yield the calls of a method by which ranks talk to one another.

    Methods of its object that it calls are searched, too.
    """
    seen = set[Source]()
    if source:
        waiting = [source]
    else:
        waiting = []
    while waiting:
        current = waiting.pop()
        tree = _tree(current.function)
        if tree is None or current in seen:
            continue
        seen.add(current)
        names = {**current.function.__globals__, **_find_imported(tree)}
        for call in (node for node in _iter_own_nodes(tree) if isinstance(node, ast.Call)):
            called = _value(call.func, names)
            name = getattr(called, "__name__", "")
            if str(getattr(called, "__module__", "")).startswith(
                DISTRIBUTED_MODULE
            ) and not name.startswith(LOCAL_CALL_PREFIXES):
                yield f"torch.distributed.{name}", current.where(call)
            elif isinstance(call.func, ast.Attribute):
                if call.func.attr == "full_tensor":  # of a DTensor
                    yield "full_tensor", current.where(call)
                elif helper := _method_of(current.mro, call.func.attr):
                    waiting.append(helper)


def find_collective_problems(sources: Mapping[str, Source | None], node: Node) -> Iterator[Problem]:
    """Yield a warning for each call in a hook of rank 0 alone that waits for the other ranks.

    These do not come.
    """
    if node.hook.ranks != "zero":
        return
    calls: dict[Where, str] = {}
    for bound in node.bound:
        source = sources[bound.method]
        calls.update((where, name) for name, where in find_collectives(source))
        if "run" in bound.takes:
            calls.update(
                (use.where, f"run.{use.name}")
                for use in find_uses(source, NEEDS_ALL_RANKS)
                if use.call
            )
    for where, name in calls.items():
        message = (
            f'hook "{node.hook.name}" fires on rank 0 alone and calls {name} ({in_words(where)})'
        )
        hint = 'let it fire on all ranks: ranks = "all"'
        yield Problem(
            f"{message}, which needs all ranks: with several, it would wait for them in vain",
            node.where,
            hint,
        )


def _find_imported(tree: FunctionTree) -> dict[str, Any]:
    """Return what a function imports, by name, out of the modules that are loaded already."""
    result: dict[str, Any] = {}
    for node in _iter_own_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                result[alias.asname or alias.name.partition(".")[0]] = sys.modules.get(
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = sys.modules.get(node.module or "")
            result |= {
                alias.asname or alias.name: getattr(module, alias.name, None)
                for alias in node.names
            }
    return result


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, or an attribute of a module, stands for."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute) and isinstance(
        owner := _value(expression.value, names), ModuleType
    ):
        return getattr(owner, expression.attr, None)
    return None


@cache
def _all_uses(source: Source) -> tuple[AttributeUse, ...]:
    return tuple(_find(source, "run", set()))


def _find(source: Source, run: str, seen: set[tuple[Source, str]]) -> Iterator[AttributeUse]:
    tree = _tree(source.function)
    if tree is None or (source, run) in seen or _is_binding(tree, run):
        return
    seen.add((source, run))
    this = next(iter(inspect.getargs(source.function.__code__).args), "")
    is_method = source.takes_self and not _is_binding(tree, this)
    called: dict[ast.expr, ast.Call] = {}
    certain = _always_evaluated(tree)
    halves = _MethodHalves(tree)
    for node in _iter_own_nodes(tree):
        if isinstance(node, ast.Call):
            called[node.func] = node
        elif isinstance(node, ast.Attribute):
            call = called.get(node)
            half = halves.of(node)
            is_certain = node in certain
            if _is(node.value, run):
                yield AttributeUse(node.attr, source.where(node), call, half, is_certain)
            elif (
                call
                and is_method
                and _is(node.value, this)
                and (helper := _method_of(source.mro, node.attr))
            ):
                for parameter in _parameters_given(call, run, helper):
                    for use in _find(helper, parameter, seen):
                        yield replace(use, half=half, is_certain=is_certain and use.is_certain)


class _MethodHalves:
    """The halves of a method by its `yield`.

    One is before the first `yield`, and the other after the last one.
    """

    def __init__(self, tree: FunctionTree) -> None:
        yields = [
            node for node in _iter_own_nodes(tree) if isinstance(node, ast.Yield | ast.YieldFrom)
        ]
        self._places = sorted((node.lineno, node.col_offset) for node in yields)

    def of(self, node: ast.expr) -> Half | None:
        if not self._places:
            return "whole"
        place = node.lineno, node.col_offset
        if place < self._places[0]:
            return "enter"
        if place > self._places[-1]:
            return "exit"
        return None


def _always_evaluated(tree: FunctionTree) -> set[ast.AST]:
    """Return the expressions that each call of a function evaluates, if none raises.

    They stand in plain statements of its body, ahead of the first statement that may leave it.
    """
    result: set[ast.AST] = set()
    for part in _body(tree):
        match part:
            case ast.If(test=condition) | ast.While(test=condition) | ast.For(iter=condition):
                result.update(_always_within(condition))
            case (
                ast.Expr()
                | ast.Assign()
                | ast.AnnAssign()
                | ast.AugAssign()
                | ast.Return()
                | ast.expr()
            ):
                result.update(_always_within(part))
        if any(isinstance(node, LEAVING_STATEMENTS) for node in ast.walk(part)):
            break
    return result


LEAVING_STATEMENTS = (ast.Return, ast.Raise, ast.Assert, ast.While)
"""Statements from which a function may not go on to the next one."""


def _always_within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it that are evaluated with it, whatever the values are."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += _always_parts(current)


def _always_parts(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that are evaluated with it."""
    match node:
        case ast.Lambda():
            return []
        case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]):
            return [first]
        case ast.Compare(left=left, comparators=[right, *_]):
            return [left, right]
        case (
            ast.ListComp(generators=[first, *_])
            | ast.SetComp(generators=[first, *_])
            | ast.DictComp(generators=[first, *_])
            | ast.GeneratorExp(generators=[first, *_])
        ):
            return [first.iter]
    return [*ast.iter_child_nodes(node)]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code, also inside of comprehensions.

    Most sources stay unread, since these are enough.
    """
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _parameters_given(call: ast.Call, run: str, helper: Source) -> Iterator[str]:
    in_place = takewhile(lambda argument: not isinstance(argument, ast.Starred), call.args)
    # `args` ends with the keyword-only arguments, which no position fills.
    parameters = inspect.getargs(helper.function.__code__).args
    names = parameters[helper.takes_self : helper.function.__code__.co_argcount]
    yield from (name for name, argument in zip(names, in_place, strict=False) if _is(argument, run))
    for k in call.keywords:
        if k.arg in parameters and _is(k.value, run):
            yield k.arg


def _is(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id == name


def _body(tree: FunctionTree) -> list[ast.AST]:
    if isinstance(tree, ast.Lambda):
        return [tree.body]
    return [*tree.body]


def _iter_own_nodes(tree: FunctionTree) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body in the order of its source.

    Functions and classes in it are left out.
    """
    waiting = _body(tree)[::-1]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, FunctionTree | ast.ClassDef):
            yield node
            waiting += [*ast.iter_child_nodes(node)][::-1]


_ONLY_NAME = (ast.Attribute, ast.keyword, ast.arg, ast.Constant, ast.MatchClass)
"""Nodes that may hold a name without binding it in the function.

Every other node that holds it does bind it.
"""


def _is_binding(tree: FunctionTree, name: str) -> bool:
    """Say whether a function gives another value to a name.

    It may do so by an import, a loop, or `nonlocal`.
    """
    for node in (inside for part in _body(tree) for inside in ast.walk(part)):
        if isinstance(node, ast.Name):
            if node.id == name and not isinstance(node.ctx, ast.Load):
                return True
        elif not isinstance(node, _ONLY_NAME) and any(
            value == name or (isinstance(value, list) and name in value)
            for _, value in ast.iter_fields(node)
        ):
            return True
    return False


def _tree(function: FunctionType) -> FunctionTree | None:
    """Return the source of a function.

    It is None where it cannot be read, or may be that of another one.
    """
    code = function.__code__
    result = _parse_functions(code.co_filename).get((code.co_name, code.co_firstlineno), ())
    if len(result) == 1:
        return result[0]
    return None


@cache
def _parse_functions(file: str) -> Mapping[tuple[str, int], list[FunctionTree]]:
    try:
        tree = parse_file(Path(file))
    except (OSError, SyntaxError):
        return {}
    result: dict[tuple[str, int], list[FunctionTree]] = {}
    for node in ast.walk(tree):
        if isinstance(node, FunctionTree):
            name = getattr(node, "name", "<lambda>")
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            result.setdefault((name, first), []).append(node)
    return result


REPLACEMENT_HINTS = {
    **dict.fromkeys(WITH_A_BATCH, "run.replace_batch(batch)"),
    "after_forward": 'outputs["loss"] = …',
}
"""By the point at which a hook may replace what it is given: how."""

METRICS_MADE = ("after_val_epoch", "after_test_epoch", "after_val", "after_test")
"""The points at which hooks may add metrics.

At the first they are those of a set, and at the last two those of all sets together.
"""


AFTER_ERROR = {
    "raise": "which would end the run with an error",
    "disable": "which would switch the hook off",
    "ignore": "which would fail each time",
}
"""The consequence of an error within a hook, by its `on_error`."""


@dataclass
class RefusedCalls:
    """Mistakes in the calls of a hook's source: `errors` end each run, `warnings` may not."""

    errors: list[Problem]
    warnings: list[Problem]

    def add(self, problem: Problem, ends_each_run: bool) -> None:
        (self.errors if ends_each_run else self.warnings).append(problem)


def find_refused_calls(
    sources: Mapping[str, Source | None],
    node: Node,
    surely_fires: Callable[[DeclaredBinding], bool],
) -> RefusedCalls:
    """Return the calls on the run in a hook's source at a wrong point or without their slots.

    Also metrics that are set where they are complete, and a batch or outputs that a method returns.
    A call ends each run where each firing comes to it, the hook `surely_fires`, and its `on_error`
    is "raise".
    """
    result = RefusedCalls([], [])
    wrong: dict[tuple[str, Where], WrongCall] = {}  # by the call and its place in the source

    def is_fatal_each_run(found: AttributeUse | KeyAssignment, bound: DeclaredBinding) -> bool:
        return found.is_certain and node.hook.on_error == "raise" and surely_fires(bound)

    for bound in node.bound:
        source = sources[bound.method]
        for assigned in _find_refused_metrics(source, bound):
            result.add(
                _make_metrics_problem(assigned, node, bound), is_fatal_each_run(assigned, bound)
            )
        if bound.point in REPLACEMENT_HINTS:
            returned = _find_returned_value(source)
            if returned is not None:
                result.add(_return_problem(returned, node, bound), False)
        for use in _find_refused_uses(source, bound):
            call = WrongCall(use, bound, is_fatal_each_run(use, bound))
            known = wrong.setdefault((use.name, use.where), call)
            if call.ends_each_run and not known.ends_each_run:
                wrong[use.name, use.where] = call
    for call in wrong.values():
        result.add(_call_problem(call, node), call.ends_each_run)
    return result


@dataclass(frozen=True, slots=True)
class WrongCall:
    """A call on the run that is refused at a point where the hook fires."""

    use: AttributeUse
    bound: DeclaredBinding
    ends_each_run: bool


def _find_refused_metrics(source: Source | None, bound: DeclaredBinding) -> Iterator[KeyAssignment]:
    """Yield where metrics are set though they are complete at the point."""
    if bound.point in METRICS_MADE:
        return
    for assigned in keys_set(source, "metrics"):
        if _is_executed_at(assigned, bound):
            yield assigned


def _find_refused_uses(source: Source | None, bound: DeclaredBinding) -> Iterator[AttributeUse]:
    """Yield the calls on the run that the point refuses, or whose slot is not declared."""
    if "run" not in bound.takes:
        return
    for use in find_uses(source, WRITE_CALLS):
        if not use.call or not _is_executed_at(use, bound):
            continue
        slot, points = WRITE_CALLS[use.name]
        if slot not in bound.writes or bound.point not in points:
            yield use


def _make_metrics_problem(assigned: KeyAssignment, node: Node, bound: DeclaredBinding) -> Problem:
    place = in_words(assigned.where)
    message = f'hook "{node.hook.name}" sets metrics["{assigned.key}"] at {bound.point} ({place})'
    outcome = AFTER_ERROR[node.hook.on_error]
    hint = (
        f'a metric is set at {" and ".join(METRICS_MADE)}; run.log("{assigned.key}", …) logs a'
        " number at any point"
    )
    return Problem(f"{message}, where no hook may, {outcome}", node.where, hint)


def _return_problem(returned: Where, node: Node, bound: DeclaredBinding) -> Problem:
    message = (
        f'hook "{node.hook.name}" returns a value at {bound.point} ({in_words(returned)}), which'
        " nothing takes"
    )
    return Problem(message, node.where, f"to change it: {REPLACEMENT_HINTS[bound.point]}")


def _call_problem(call: WrongCall, node: Node) -> Problem:
    use = call.use
    bound = call.bound
    name = node.hook.name
    slot, points = WRITE_CALLS[use.name]
    message = f'hook "{name}" calls run.{use.name} at {bound.point} ({in_words(use.where)})'
    if bound.point not in points:
        error = "where that is not allowed"
        hint = f"it may be called at {', '.join(points)}"
    else:
        error = f'without declaring that it writes "{slot}"'
        hint = describe_declaration(slot, name, bound.writes)
    return Problem(f"{message} {error}, {AFTER_ERROR[node.hook.on_error]}", node.where, hint)


def _is_executed_at(found: AttributeUse | KeyAssignment, bound: DeclaredBinding) -> bool:
    """Return whether a statement of a method is executed at a binding's point.

    One half of an `around_X` is.
    """
    return found.half == "whole" or bound.half == "whole" or found.half == bound.half


LOSS_NAME = "loss"
"""The number that every iteration gives, unless its task steps itself."""

UNKNOWN_PART = "\0"
"""Replaces a value of an f-string in a name."""
Logged = Sequence[Sequence[str]]
"""The names that each call of `run.log` may give: several where an expression chooses."""


MEAN_HINT = (
    'mean = "epoch" in the args of a hook `log` logs it; another hook that does declares writes ='
    ' ["scalars.%s"]'
)


@dataclass(frozen=True, slots=True)
class ScalarFindings:
    """The numbers that hooks read in conditions and log, by hook and binding, with problems."""

    reads: Mapping[str, SlotsByBinding]
    writes: Mapping[str, SlotsByBinding]
    problems: list[Problem]
    warnings: list[Problem]


def find_scalars(nodes: Nodes, sources: Sources) -> ScalarFindings:
    """Return the numbers that hooks read and write, with problems.

    Problems are numbers that are never logged, and warnings of misspelt names.
    """
    return _ScalarFinder(nodes, sources).find()


class _ScalarFinder:
    """Finds the numbers of a pipeline.

    They are `named` in conditions, `declared` as reads of hooks, and `logged` by methods.
    """

    def __init__(self, nodes: Nodes, sources: Sources) -> None:
        self._nodes = nodes
        self._named: dict[Condition, Collection[str]] = {}  # by condition
        self._declared: dict[str, set[str]] = {}  # by hook
        self._logged: dict[tuple[str, str], Logged] = {}  # by hook and method
        self._written: set[str] = set()  # slots
        for name, node in nodes.items():
            self._declared[name] = set()
            for binding in node.bound:
                when = binding.trigger.when
                if when:
                    self._named[when] = when.names
                self._logged[name, binding.method] = _find_logged_names(
                    sources[name][binding.method], binding
                )
                self._written.update(binding.writes)
                numbers = []
                for slot in binding.reads:
                    if slot.startswith(SCALAR_PREFIX):
                        numbers.append(slot.removeprefix(SCALAR_PREFIX))
                self._declared[name].update(numbers)
        self._all_logs: set[str] = set()
        for calls in self._logged.values():
            for names in calls:
                self._all_logs.update(names)

    def find(self) -> ScalarFindings:
        """Return all that there is to say of numbers."""
        wanted = self._find_logged_twice().union(*self._named.values(), *self._declared.values())
        reads: dict[str, dict[BindingKey, Collection[str]]] = {}
        writes: dict[str, dict[BindingKey, Collection[str]]] = {}
        if not wanted:
            return ScalarFindings(reads, writes, [], [])
        slots_of_condition = {
            when: self._find_read_slots(names) for when, names in self._named.items()
        }
        for name, node in self._nodes.items():
            reads[name] = {}
            writes[name] = {}
            for binding in node.bound:
                # A condition is evaluated where the first half of an around fires, and not again.
                if binding.trigger.when and binding.half != "exit":
                    reads[name][binding.key] = slots_of_condition[binding.trigger.when]
                writes[name][binding.key] = self._find_written_slots(binding, wanted)
        return ScalarFindings(
            reads, writes, list(self._find_never_logged()), list(self._find_misspelt())
        )

    def _find_logged_twice(self) -> set[str]:
        """Return the numbers that two hooks log at one point.

        Each log names its number by a plain string.
        """
        first_logger: dict[tuple[str, str], str] = {}
        twice = set()
        for name, node in self._nodes.items():
            for binding in node.bound:
                for number, *others in self._logged[name, binding.method]:
                    if UNKNOWN_PART in number or others:
                        continue
                    logger = first_logger.setdefault((binding.point, number), name)
                    if logger != name:
                        twice.add(number)
        return twice

    def _find_read_slots(self, names: Collection[str]) -> set[str]:
        """Return the slots of the names in a condition.

        A bare name is a number, and a metric if a hook makes one.
        """
        slots = set()
        for name in names:
            if name.startswith(METRIC_PREFIX):
                slots.add(name)
                continue
            slots.add(f"{SCALAR_PREFIX}{name}")
            if f"{METRIC_PREFIX}{name}" in self._written:
                slots.add(f"{METRIC_PREFIX}{name}")
        return slots

    def _find_written_slots(self, binding: DeclaredBinding, wanted: Collection[str]) -> set[str]:
        """Return the slots of the wanted numbers that a binding may log."""
        logs: set[str] = set()
        for names in self._logged[binding.hook, binding.method]:
            logs.update(names)
        return {f"{SCALAR_PREFIX}{number}" for number in wanted if _is_logged(number, logs)}

    def _find_never_logged(self) -> Iterator[Problem]:
        """Yield each mean over an epoch that a hook reads and no hook logs."""
        for name, numbers in self._declared.items():
            for number in sorted(numbers):
                if not number.endswith("_epoch") or _is_logged(number, self._all_logs):
                    continue
                if number not in self._written and f"{SCALAR_PREFIX}{number}" not in self._written:
                    message = f'hook "{name}" reads the number "{number}", which no hook logs'
                    yield Problem(message, self._nodes[name].where, MEAN_HINT % number)

    def _find_misspelt(self) -> Iterator[Problem]:
        """Yield a warning for each unknown name of a condition that is nearly one of a hook's."""
        metrics = set()
        for slot in self._written:
            if slot.startswith(METRIC_PREFIX):
                metrics.add(slot.removeprefix(METRIC_PREFIX))
        known = metrics | {log for log in self._all_logs if UNKNOWN_PART not in log}
        for name, node in self._nodes.items():
            conditions = dict.fromkeys(
                binding.trigger.when for binding in node.bound if binding.trigger.when
            )
            for when in conditions:
                for stated in sorted(self._named[when]):
                    bare = stated.removeprefix(METRIC_PREFIX)
                    if bare in known or _is_logged(bare, self._all_logs):
                        continue
                    suggestion = _nearest_number(bare, known)
                    if suggestion:
                        text = (
                            f'hook "{name}": the condition "{when}" names "{stated}", which no hook'
                            " gives"
                        )
                        yield Problem(text, node.where, f'did you mean "{suggestion}"?')


def _nearest_number(name: str, known: Collection[str]) -> str:
    """Return the number, or `loss`, that a name is nearly; "" if none."""
    for item in sorted(known):
        if is_misspelt(name, item):
            return item
    # With another letter it may be a loss of the task's own: "dloss".
    has_letters_of_loss = {*name.lower()} <= {*LOSS_NAME}
    if has_letters_of_loss and is_misspelt(name.lower(), LOSS_NAME, shortest=3):
        return LOSS_NAME
    return ""


def _find_logged_names(source: Source | None, bound: DeclaredBinding) -> Logged:
    """Return the names that each call of `run.log` in a method may give."""
    if "run" not in bound.takes:
        return []
    logged = []
    for use in find_uses(source, {"log"}):
        if use.call is None:
            continue
        arguments = use.call.args[:1] or [
            each.value for each in use.call.keywords if each.arg == "name"
        ]
        for argument in arguments:
            names = _name(argument)
            if names:
                logged.append(names)
    return logged


def _name(argument: ast.expr) -> list[str]:
    """Return the names that an expression may be.

    UNKNOWN_PART replaces the values of an f-string.
    """
    match argument:
        case ast.Constant(value=str() as name):
            return [name]
        case ast.JoinedStr(values=parts):
            name = "".join(
                str(part.value) if isinstance(part, ast.Constant) else UNKNOWN_PART
                for part in parts
            )
            if name.strip(UNKNOWN_PART):
                return [name]
            return []
        case ast.IfExp(body=first, orelse=other):
            return [*_name(first), *_name(other)]
    return []


def _is_logged(number: str, logs: Iterable[str]) -> bool:
    """Say whether one of these names may be that of a number."""
    return any(_may_be(log, number) for log in logs)


def _may_be(log: str, name: str) -> bool:
    pattern = ".+".join(map(re.escape, log.split(UNKNOWN_PART)))
    return re.fullmatch(pattern, name) is not None


ATTRIBUTE_SLOTS = {"model": ("model",), "optimizer": ("optimizer", "lr")}
"""The slots that an attribute of the run is, where there is one model and one optimizer."""

KEYED_ARGUMENTS = ("metrics", "checkpoint", "outputs")
"""The arguments that hold something by name, each called as its slot."""

Read = tuple[str, str, Where | None]
"""A slot, how the source says that, and where."""


def find_undeclared_slots(plan: Plan, nodes: Nodes, sources: Sources) -> Iterator[Problem]:
    """Yield a warning for each hook without slots that reads what another one writes.

    The other hook writes it at the same point.
    """
    silent = {
        name
        for name, node in nodes.items()
        if not any(_is_declared(b.reads, b.writes) for b in node.bound)
    }
    for point in dict.fromkeys(binding.point for binding in plan.bindings):
        writers = [binding for binding in plan.at(point) if _is_declared(binding.writes)]
        if writers:
            readers = [binding for binding in plan.at(point) if binding.hook in silent]
        else:
            readers = []
        result = [
            (reader, read, writer)
            for reader in readers
            for read in _iter_slots_read(sources[reader.hook][reader.method], reader)
            for writer in writers
            if any(
                read[0] == slot
                or read[0] in iter_wider_slots(slot)
                or slot in iter_wider_slots(read[0])
                for slot in writer.writes
            )
        ]
        if not result:
            continue
        decisions = PointDecisions(plan.at(point), plan.edges_at(point), plan.hooks_by_name)
        for reader, read, writer in result:
            if _is_open(decisions, reader, writer):
                yield _describe_read(plan, reader, read, writer, nodes[reader.hook].where)


def _is_declared(*slots: tuple[str, ...]) -> bool:
    """Say whether any slots are such as a hook declares.

    Numbers are not declared: its source and its condition show them.
    """
    return any(root(slot) != "scalars" for some in slots for slot in some)


def _iter_slots_read(source: Source | None, reader: Binding) -> Iterator[Read]:
    result: dict[str, Read] = {}
    if "run" in reader.takes:
        for use in find_uses(source, ATTRIBUTE_SLOTS):
            for slot in ATTRIBUTE_SLOTS[use.name]:
                result.setdefault(slot, (slot, f"run.{use.name}", use.where))
    for argument in KEYED_ARGUMENTS:
        if argument in reader.takes:
            for key, where in keys_read(source, argument):
                result.setdefault(
                    f"{argument}.{key}", (f"{argument}.{key}", f'{argument}["{key}"]', where)
                )
    if "batch" in reader.takes:
        result["batch"] = ("batch", "batch", None)
    yield from result.values()


def _is_open(decisions: PointDecisions, item: Binding, other: Binding) -> bool:
    """Say whether nothing that the user stated orders two bindings.

    Edges, phases and `ambiguous_with` are looked at.
    """
    if (
        item.hook == other.hook
        or item.phase != other.phase
        or decisions.may_be_turned(item.hook, other.hook)
    ):
        return False
    first, then = sorted((item, other), key=lambda binding: binding.id)
    return not decisions.is_ordered(first, then)


def _describe_read(
    plan: Plan, reader: Binding, read: Read, writer: Binding, where: Where
) -> Problem:
    slot, source, line = read
    message = (
        f'hook "{reader.hook}" reads {source} at'
        f" {reader.point}{f' ({in_words(line)})' if line else ''}"
    )
    order = "after"
    if reader.id < writer.id:
        order = "before"
    hint = f'declare it, and it fires after "{writer.hook}": reads = ["{slot}"]'
    hint += f" in [hooks.{reader.hook}], or in its class"
    if writer.half == "exit":
        other = f'"{writer.hook}" leaves {writer.method}, which writes {root(slot)}'
    else:
        if plan.shuffle is None:
            by = "the file"
        else:
            by = f"the shuffle with seed {plan.shuffle}"
        other = f'"{writer.hook}", which writes {root(slot)}, and nothing but {by} says so'
        hint += f'; if it must fire before, state that: before = ["{writer.hook}"]'
    return Problem(f"{message} and declares no slots: it fires {order} {other}", where, hint)
