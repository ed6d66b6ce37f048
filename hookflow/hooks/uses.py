"""The contents of a hook's source, by its syntax tree: calls on the run, and the data flow that follows.

Only certain calls are found. The run is the parameter `run` of a method at a point. A method of the same object that is
given it in a call has it too. A function that binds the name to anything else is passed over, and so is a function
inside of one: the time of its call is unknown.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, takewhile
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hookflow.errors import Problem, Where, misspelt
from hookflow.graph.plan import Binding, Node, Nodes, Plan
from hookflow.graph.slots import root, wider
from hookflow.graph.why import Decided
from hookflow.hooks.run import CALLS, WITH_A_BATCH, how_to_declare
from hookflow.pipeline.condition import METRICS, SCALARS, parse_condition
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
"""The source of each hook's methods, by the names of both; None where it is not written in Python."""


@dataclass(frozen=True, slots=True)
class Use:
    """`run.name` in the source of a hook; `call` is the call of it, where it is called."""

    name: str
    where: Where
    call: ast.Call | None = None


def in_words(where: Where) -> str:
    """Return a place in a source: the file, relative to the current folder where it lies below it, and the line."""
    path = Path(where.source)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{where.line}"


def source_of(hook: Callable[..., Any] | None, method: str) -> Source | None:
    """Return the function that is called for a hook at a point; None for what is not written in Python."""
    if isinstance(hook, type):
        return _method_of(hook.__mro__, method or "__call__")
    while isinstance(hook, partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        return _method_of(type(hook.__self__).__mro__, hook.__name__)
    return _in_python(hook) if inspect.isroutine(hook) else _method_of(type(hook).__mro__, "__call__")


def _method_of(mro: tuple[type, ...], name: str) -> Source | None:
    for kind in mro:
        attributes = type.__getattribute__(kind, "__dict__")  # past a metaclass, which may raise
        if (result := attributes.get(name)) is not None:
            static = isinstance(result, staticmethod)
            return _in_python(result.__func__ if static else result, not static, mro)
    return None


def _in_python(result: Any, *more: Any) -> Source | None:
    """Return a function as it is written, below decorators that keep what they wrap (`torch.no_grad`)."""
    function = inspect.unwrap(result) if isinstance(result, FunctionType) else None
    return Source(function, *more) if isinstance(function, FunctionType) else None


def uses(source: Source | None, names: Collection[str]) -> Iterator[Use]:
    """Yield the uses of attributes of the run called `names` in a method that is given `run`."""
    if source and any(name in names or _method_of(source.mro, name) for name in _names(source.function.__code__)):
        yield from (use for use in _all_uses(source) if use.name in names)


def keys_read(source: Source | None, argument: str) -> Iterator[tuple[str, Where]]:
    """Yield the keys that a method looks up in an argument that it is given, as in `metrics["accuracy"]`."""
    tree = _tree(source.function) if source else None
    if source is None or tree is None or _binds(tree, argument):
        return
    for node in _own_nodes(tree):
        match node:
            case (
                ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key), ctx=ast.Load())
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value=str() as key), *_]
                )
            ) if name == argument:
                yield key, source.where(node)


def keys_set(source: Source | None, argument: str) -> Iterator[tuple[str, Where]]:
    """Yield the keys that a method sets in an argument, or in what the run has by its name: `run.metrics["x"] = 1`."""
    if source is None or argument not in (*(code := source.function.__code__).co_varnames, *_names(code)):
        return  # most sources stay unread
    tree, is_parameter = _tree(source.function), argument in inspect.getargs(code).args
    for node in _own_nodes(tree) if tree and not _binds(tree, argument) else ():
        match node:
            case ast.Subscript(
                value=(ast.Name(id=name) | ast.Attribute(value=ast.Name(id="run"), attr=name)) as owner,
                slice=ast.Constant(value=str() as key),
                ctx=ast.Store(),
            ) if name == argument and (is_parameter or isinstance(owner, ast.Attribute)):
                yield key, source.where(node)


def _returns(source: Source | None) -> Where | None:
    """Return where a method of the user's returns a value, other than what a call on the run gives."""
    if source is None or (source.function.__module__ or "").startswith("hookflow."):
        return None
    for node in _own_nodes(tree) if (tree := _tree(source.function)) else ():
        match node:
            case ast.Return(value=None | ast.Constant() | ast.Call(func=ast.Attribute(value=ast.Name(id="run")))):
                pass
            case ast.Return(value=ast.expr() as value) if not _gives_none(value, source):
                return source.where(value)
    return None


GIVES_NONE = ("append", "clear", "extend", "insert", "update", "debug", "info", "warning", "error", "exception")
"""Methods of Python's containers and loggers, which return None."""


def _gives_none(value: ast.expr, source: Source, depth: int = 0) -> bool:
    """Say whether an expression is None by its source: a call of a function that returns nothing, say."""
    match value:
        case ast.Constant(value=None):
            return True
        case ast.IfExp(body=first, orelse=other):
            return _gives_none(first, source, depth) and _gives_none(other, source, depth)
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
            called = _in_python(function) if isinstance(function, FunctionType) else None
        case _:
            return False
    return called is not None and depth < DEEPEST and _returns_none(called, depth + 1)


DEEPEST = 5
"""How many calls inside one another are followed."""


def _returns_none(called: Source, depth: int) -> bool:
    tree = _tree(called.function)
    if not isinstance(tree, ast.FunctionDef):
        return False
    for node in _own_nodes(tree):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Return) and node.value and not _gives_none(node.value, called, depth):
            return False
    return True


DISTRIBUTED = "torch.distributed"
ASKS = ("get_", "is_")
"""How the names of functions of torch.distributed begin that talk to no other rank."""

NEEDS_ALL_RANKS = frozenset({"sum", "mean", "loss"})
"""The calls on the run that all ranks must make. The gradients of `run.loss` are averaged over them."""


def collectives(source: Source | None) -> Iterator[tuple[str, Where]]:
    """Yield the calls of a method, and of its object's methods that it calls, by which ranks talk to one another."""
    seen, waiting = set[Source](), [source] if source else []
    while waiting:
        current = waiting.pop()
        tree = _tree(current.function)
        if tree is None or current in seen:
            continue
        seen.add(current)
        names = {**current.function.__globals__, **_imported(tree)}
        for call in (node for node in _own_nodes(tree) if isinstance(node, ast.Call)):
            called = _value(call.func, names)
            name = getattr(called, "__name__", "")
            if str(getattr(called, "__module__", "")).startswith(DISTRIBUTED) and not name.startswith(ASKS):
                yield f"torch.distributed.{name}", current.where(call)
            elif isinstance(call.func, ast.Attribute):
                if call.func.attr == "full_tensor":  # of a DTensor
                    yield "full_tensor", current.where(call)
                elif helper := _method_of(current.mro, call.func.attr):
                    waiting.append(helper)


def calls_for_all_ranks(sources: Mapping[str, Source | None], node: Node) -> Iterator[Problem]:
    """Yield a warning for each call in a hook of rank 0 alone that waits for the other ranks, which do not come."""
    if node.hook.ranks != "zero":
        return
    calls: dict[Where, str] = {}
    for bound in node.bound:
        source = sources[bound.method]
        calls.update((where, name) for name, where in collectives(source))
        if "run" in bound.takes:
            calls.update((use.where, f"run.{use.name}") for use in uses(source, NEEDS_ALL_RANKS) if use.call)
    for where, name in calls.items():
        message = f'hook "{node.hook.name}" fires on rank 0 alone and calls {name} ({in_words(where)})'
        hint = 'let it fire on all ranks: ranks = "all"'
        yield Problem(
            f"{message}, which needs all ranks: with several, it would wait for them in vain", node.where, hint
        )


def _imported(tree: FunctionTree) -> dict[str, Any]:
    """Return what a function imports, by name, out of the modules that are loaded already."""
    result: dict[str, Any] = {}
    for node in _own_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                result[alias.asname or alias.name.partition(".")[0]] = sys.modules.get(
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = sys.modules.get(node.module or "")
            result |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
    return result


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, or an attribute of a module, stands for."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute) and isinstance(owner := _value(expression.value, names), ModuleType):
        return getattr(owner, expression.attr, None)
    return None


@cache
def _all_uses(source: Source) -> tuple[Use, ...]:
    return tuple(_find(source, "run", set()))


def _find(source: Source, run: str, seen: set[tuple[Source, str]]) -> Iterator[Use]:
    tree = _tree(source.function)
    if tree is None or (source, run) in seen or _binds(tree, run):
        return
    seen.add((source, run))
    this = next(iter(inspect.getargs(source.function.__code__).args), "")
    is_method = source.takes_self and not _binds(tree, this)
    called: dict[ast.expr, ast.Call] = {}
    for node in _own_nodes(tree):
        if isinstance(node, ast.Call):
            called[node.func] = node
        elif isinstance(node, ast.Attribute):
            call = called.get(node)
            if _is(node.value, run):
                yield Use(node.attr, source.where(node), call)
            elif call and is_method and _is(node.value, this) and (helper := _method_of(source.mro, node.attr)):
                for parameter in _parameters_given(call, run, helper):
                    yield from _find(helper, parameter, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code, also inside of comprehensions: most sources stay unread."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _parameters_given(call: ast.Call, run: str, helper: Source) -> Iterator[str]:
    in_place = takewhile(lambda argument: not isinstance(argument, ast.Starred), call.args)
    parameters = inspect.getargs(helper.function.__code__).args  # keyword arguments follow the others
    names = parameters[helper.takes_self : helper.function.__code__.co_argcount]
    yield from (name for name, argument in zip(names, in_place, strict=False) if _is(argument, run))
    yield from (k.arg for k in call.keywords if k.arg in parameters and _is(k.value, run))


def _is(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id == name


def _body(tree: FunctionTree) -> list[ast.AST]:
    return [tree.body] if isinstance(tree, ast.Lambda) else [*tree.body]


def _own_nodes(tree: FunctionTree) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body in the order of its source, without functions and classes in it."""
    waiting = _body(tree)[::-1]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, FunctionTree | ast.ClassDef):
            yield node
            waiting += [*ast.iter_child_nodes(node)][::-1]


_ONLY_NAME = (ast.Attribute, ast.keyword, ast.arg, ast.Constant, ast.MatchClass)
"""Nodes that may hold a name without binding it in the function; every other node that holds it does."""


def _binds(tree: FunctionTree, name: str) -> bool:
    """Say whether a function gives another value to a name, be it by an import, a loop, or `nonlocal`."""
    for node in (inside for part in _body(tree) for inside in ast.walk(part)):
        if isinstance(node, ast.Name):
            if node.id == name and not isinstance(node.ctx, ast.Load):
                return True
        elif not isinstance(node, _ONLY_NAME) and any(
            value == name or (isinstance(value, list) and name in value) for _, value in ast.iter_fields(node)
        ):
            return True
    return False


def _tree(function: FunctionType) -> FunctionTree | None:
    """Return the source of a function; None where it cannot be read, or may be that of another one."""
    code = function.__code__
    result = _trees(code.co_filename).get((code.co_name, code.co_firstlineno), ())
    return result[0] if len(result) == 1 else None


@cache
def _trees(file: str) -> Mapping[tuple[str, int], list[FunctionTree]]:
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


REPLACED = {**dict.fromkeys(WITH_A_BATCH, "run.replace_batch(batch)"), "after_forward": 'outputs["loss"] = …'}
"""By the point at which a hook may replace what it is given: how."""

METRICS_MADE = ("after_val_epoch", "after_test_epoch")
"""The points at which hooks may add metrics; from then on these are complete."""


def refused_calls(sources: Mapping[str, Source | None], node: Node) -> Iterator[Problem]:
    """Yield a warning for each call on the run in a hook's source at a wrong point, or without its declared slot.

    It also warns of a metric set where metrics are complete, and of a batch or outputs that a method returns.
    """
    calls: dict[Use, Binding] = {}
    for bound in node.bound:
        for key, where in keys_set(sources[bound.method], "metrics") if bound.point not in METRICS_MADE else ():
            message = f'hook "{node.hook.name}" sets metrics["{key}"] at {bound.point} ({in_words(where)})'
            hint = f'a metric is set at {" and ".join(METRICS_MADE)}; run.log("{key}", …) logs a number at any point'
            yield Problem(f"{message}, where no hook may: that would end the run with an error", node.where, hint)
        if (instead := REPLACED.get(bound.point)) and (returned := _returns(sources[bound.method])):
            message = f'hook "{node.hook.name}" returns a value at {bound.point} ({in_words(returned)})'
            yield Problem(f"{message}, which nothing takes", node.where, f"to change it: {instead}")
        for use in uses(sources[bound.method], CALLS) if "run" in bound.takes else ():
            slot, points = CALLS[use.name]
            if use.call and (slot not in bound.writes or bound.point not in points):
                calls.setdefault(use, bound)
    for use, bound in calls.items():
        (slot, points), name = CALLS[use.name], node.hook.name
        message = f'hook "{name}" calls run.{use.name} at {bound.point} ({in_words(use.where)})'
        error = f'without declaring that it writes "{slot}"'
        hint = how_to_declare(slot, name, bound.writes)
        if bound.point not in points:
            error, hint = "where that is not allowed", f"it may be called at {', '.join(points)}"
        yield Problem(f"{message} {error}, which would end the run with an error", node.where, hint)


LOSS = "loss"
"""The number that every iteration gives, unless its task steps itself."""

UNKNOWN = "\0"
"""Replaces a value of an f-string in a name."""
Logged = Sequence[Sequence[str]]
"""The names that each call of `run.log` may give: several where an expression chooses."""


MEAN = 'mean = "epoch" in the args of a hook `log` logs it; another hook that does declares writes = ["scalars.%s"]'


def with_scalars(nodes: Mapping[str, Node], sources: Sources) -> tuple[dict[str, Node], list[Problem], list[Problem]]:
    """Return the nodes with the numbers that they read and write, what is wrong, and warnings of misspelt names."""
    every = [bound for node in nodes.values() for bound in node.bound]
    named = {when: parse_condition(when).names for bound in every if (when := bound.trigger.when)}
    logged = {name: {b.method: _logged(sources[name][b.method], b) for b in node.bound} for name, node in nodes.items()}
    numbers = {
        name: {slot.removeprefix(SCALARS) for b in node.bound for slot in b.reads if slot.startswith(SCALARS)}
        for name, node in nodes.items()
    }
    wanted = _logged_twice(nodes, logged).union(*named.values(), *numbers.values())
    if not wanted:
        return dict(nodes), [], []
    made = {slot for bound in every for slot in bound.writes}
    reads = {when: _read(names, made) for when, names in named.items()}

    def flowing(name: str, bound: Binding) -> Binding:
        logs = {*chain(*logged[name][bound.method])}
        writes = {f"{SCALARS}{number}" for number in wanted if any(_may_be(log, number) for log in logs)}
        requested = reads.get(bound.trigger.when or "", frozenset()) if bound.half != "exit" else frozenset()
        if not writes and not requested:
            return bound
        return replace(
            bound, reads=tuple(sorted({*bound.reads, *requested})), writes=tuple(sorted({*bound.writes, *writes}))
        )

    result = {name: replace(node, bound=tuple(flowing(name, b) for b in node.bound)) for name, node in nodes.items()}
    logs = {log for methods in logged.values() for several in methods.values() for log in chain(*several)}
    wrong = [
        Problem(f'hook "{name}" reads the number "{number}", which no hook logs', nodes[name].where, MEAN % number)
        for name, read in numbers.items()
        for number in sorted(read)
        if number.endswith("_epoch") and not {number, f"{SCALARS}{number}"} & {*made}
        if not any(_may_be(log, number) for log in logs)
    ]
    return result, wrong, list(_misspelt(nodes, named, logs, made))


def _logged_twice(nodes: Mapping[str, Node], logged: Mapping[str, Mapping[str, Logged]]) -> frozenset[str]:
    """Return the numbers that two hooks log at one point, each by a name that is a plain string."""
    first: dict[tuple[str, str], str] = {}
    return frozenset(
        log
        for name, node in nodes.items()
        for bound in node.bound
        for log, *others in logged[name][bound.method]
        if UNKNOWN not in log and not others and first.setdefault((bound.point, log), name) != name
    )


def _read(names: Collection[str], made: Collection[str]) -> frozenset[str]:
    bare = {name for name in names if not name.startswith(METRICS)}
    metrics = {f"{METRICS}{name}" for name in bare}
    return frozenset({*names} - bare | metrics & {*made} | {f"{SCALARS}{name}" for name in bare})


def _logged(source: Source | None, bound: Binding) -> Logged:
    calls = [use.call for use in uses(source, {"log"}) if use.call] if "run" in bound.takes else []
    arguments = [call.args[:1] or [k.value for k in call.keywords if k.arg == "name"] for call in calls]
    return [names for argument in chain(*arguments) if (names := _name(argument))]


def _name(argument: ast.expr) -> list[str]:
    match argument:
        case ast.Constant(value=str() as name):
            return [name]
        case ast.JoinedStr(values=parts):
            name = "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)
            return [name] if name.strip(UNKNOWN) else []
        case ast.IfExp(body=first, orelse=other):
            return [*_name(first), *_name(other)]
    return []


def _may_be(log: str, name: str) -> bool:
    return bool(re.fullmatch(".+".join(map(re.escape, log.split(UNKNOWN))), name))


def _misspelt(
    nodes: Mapping[str, Node], named: Mapping[str, Collection[str]], logs: Collection[str], made: Collection[str]
) -> Iterator[Problem]:
    """Yield a warning for each name of a condition that no hook gives, and nearly one that a hook gives, or `loss`."""
    metrics = {slot.removeprefix(METRICS) for slot in made if slot.startswith(METRICS)}
    known = metrics | {log for log in logs if UNKNOWN not in log}
    for name, node in nodes.items():
        for when in dict.fromkeys(bound.trigger.when for bound in node.bound if bound.trigger.when):
            for stated in sorted(named[when]):
                bare = stated.removeprefix(METRICS)
                if bare in known or any(_may_be(log, bare) for log in logs):
                    continue
                suggestion = next((item for item in sorted(known) if misspelt(bare, item)), "")
                # With another letter it may be a loss of the task's own: "dloss".
                if not suggestion and misspelt(bare.lower(), LOSS, shortest=3) and {*bare.lower()} <= {*LOSS}:
                    suggestion = LOSS
                if suggestion:
                    text = f'hook "{name}": the condition "{when}" names "{stated}", which no hook gives'
                    yield Problem(text, node.where, f'did you mean "{suggestion}"?')


ATTRIBUTES = {"model": ("model",), "optimizer": ("optimizer", "lr")}
"""The slots that an attribute of the run is, where there is one model and one optimizer."""

KEYED = ("metrics", "checkpoint", "outputs")
"""The arguments that hold something by name, each called as its slot."""

Read = tuple[str, str, Where | None]
"""A slot, how the source says that, and where."""


def undeclared_slots(plan: Plan, nodes: Nodes, sources: Sources) -> Iterator[Problem]:
    """Yield a warning for each hook without slots that reads what another one writes at the same point."""
    silent = {name for name, node in nodes.items() if not any(_declared(b.reads, b.writes) for b in node.bound)}
    for point in dict.fromkeys(binding.point for binding in plan.bindings):
        writers = [binding for binding in plan.at(point) if _declared(binding.writes)]
        readers = [binding for binding in plan.at(point) if binding.hook in silent] if writers else []
        result = [
            (reader, read, writer)
            for reader in readers
            for read in _slots_read(sources[reader.hook][reader.method], reader)
            for writer in writers
            if any(read[0] == slot or read[0] in wider(slot) or slot in wider(read[0]) for slot in writer.writes)
        ]
        decided = Decided(plan, point) if result else None
        for reader, read, writer in result:
            if decided and _is_open(decided, reader, writer):
                yield _described(plan, reader, read, writer, nodes[reader.hook].where)


def _declared(*slots: tuple[str, ...]) -> bool:
    """Say whether any slots are such as a hook declares; numbers are found in its source and its condition."""
    return any(root(slot) != "scalars" for some in slots for slot in some)


def _slots_read(source: Source | None, reader: Binding) -> Iterator[Read]:
    result: dict[str, Read] = {}
    for use in uses(source, ATTRIBUTES) if "run" in reader.takes else ():
        for slot in ATTRIBUTES[use.name]:
            result.setdefault(slot, (slot, f"run.{use.name}", use.where))
    for argument in KEYED:
        for key, where in keys_read(source, argument) if argument in reader.takes else ():
            result.setdefault(f"{argument}.{key}", (f"{argument}.{key}", f'{argument}["{key}"]', where))
    if "batch" in reader.takes:
        result["batch"] = ("batch", "batch", None)
    yield from result.values()


def _is_open(decided: Decided, item: Binding, other: Binding) -> bool:
    """Say whether nothing that the user stated orders two bindings: no edge, no phase, no `ambiguous_with`."""
    pair = frozenset((item.hook, other.hook))
    first, then = sorted((item, other), key=lambda binding: binding.id)
    stated = len(pair) == 1 or pair in decided.allowed or item.phase != other.phase
    return not stated and decided.reason(first, then) != "edge"


def _described(plan: Plan, reader: Binding, read: Read, writer: Binding, where: Where) -> Problem:
    slot, source, line = read
    message = f'hook "{reader.hook}" reads {source} at {reader.point}{f" ({in_words(line)})" if line else ""}'
    order = "before" if reader.id < writer.id else "after"
    hint = f'declare it, and it fires after "{writer.hook}": reads = ["{slot}"]'
    hint += f" in [hooks.{reader.hook}], or in its class"
    if writer.half == "exit":
        other = f'"{writer.hook}" leaves {writer.method}, which writes {root(slot)}'
    else:
        by = "the file" if plan.shuffle is None else f"the shuffle with seed {plan.shuffle}"
        other = f'"{writer.hook}", which writes {root(slot)}, and nothing but {by} says so'
        hint += f'; if it must fire before, state that: before = ["{writer.hook}"]'
    return Problem(f"{message} and declares no slots: it fires {order} {other}", where, hint)
