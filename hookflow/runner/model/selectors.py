"""Modules and parameters picked by name or type, for hooks and for the groups of an optimizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hookflow.errors import Locate, Problem, UserError, Where, first_few, nearest, nearest_or_all
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import root
from hookflow.hooks.tensors import class_names, is_sharded, matching, named_parameters, no_match
from hookflow.pipeline.components import OptimizerSection, ParamGroup
from hookflow.pipeline.schema import TYPE_PREFIX, DistributedSection

Picked = Mapping[int, Mapping[str, nn.Module]]
"""The modules that each binding inside the network fires at.

They are by their names, by the binding's id.
"""


def pick(
    plan: Plan, model: nn.Module, place: Callable[[Binding, str], Where]
) -> tuple[Picked, list[Problem]]:
    """Return what each binding picks, and all entries that pick nothing.

    `place` tells where an entry is.
    """
    result: dict[int, dict[str, nn.Module]] = {}
    problems: list[Problem] = []
    there = dict(model.named_modules())
    for binding in plan.bindings:
        if not binding.modules:
            continue
        names: set[str] = set()
        for entry in binding.modules:
            chosen = modules_matching(entry, there)
            issue = no_module(entry, there)
            if issue:
                message = f'hook "{binding.hook}" at {binding.point}: {issue[0]}'
                problems.append(Problem(message, place(binding, entry), issue[1]))
            names.update(chosen)
        result[binding.id] = {name: module for name, module in there.items() if name in names}
    return result, problems


def modules_matching(entry: str, there: Mapping[str, nn.Module]) -> list[str]:
    """Return the modules that an entry picks.

    It is a glob over their names, or over their classes and base classes.
    """
    if not entry.startswith(TYPE_PREFIX):
        return [name for name in there if fnmatchcase(name, entry)]
    kind = entry.removeprefix(TYPE_PREFIX).strip()
    names = []
    for name, module in there.items():
        if any(fnmatchcase(own, kind) for own in class_names([module])):
            names.append(name)
    return names


def no_module(entry: str, there: Mapping[str, nn.Module]) -> tuple[str, str] | None:
    """Return that an entry picks none of these modules, with a hint.

    It is None if it picks one.
    """
    if modules_matching(entry, there):
        return None
    if not entry.startswith(TYPE_PREFIX):
        return no_match(entry, there, "module of the network")
    kind = entry.removeprefix(TYPE_PREFIX)
    hint = nearest(kind.rpartition(":")[2], class_names(there.values()))
    if not hint:
        own = dict.fromkeys(type(module).__name__ for module in there.values())
        hint = f"there are {first_few(own)}"
    return f'no module of the network is a "{kind}"', hint


def find_differentiable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that can have a gradient, by every name that they have."""
    return {
        name: p
        for name, p in named_parameters(model).items()
        if p.is_floating_point() or p.is_complex()
    }


def find_parameter_problems(
    plan: Plan, model: nn.Module, place: Callable[[Binding, str], Where]
) -> Iterator[Problem]:
    """Yield a problem for each glob that picks no parameter, and each hook without use in FSDP.

    FSDP never calls a tensor hook. Changes of a hook to gathered weights are lost. `place` tells
    where the glob of a binding stands.
    """
    names = find_differentiable(model)
    sharded = any(map(is_sharded, names.values()))
    for binding in plan.bindings:
        for glob in binding.parameters:
            wrong = no_match(glob, names, "parameter of the network")
            if wrong:
                message, hint = wrong
                yield Problem(
                    f'hook "{binding.hook}" at {binding.point}: {message}',
                    place(binding, glob),
                    hint,
                )
        hooked = matching(names, binding.parameters)
        if binding.point == "parameter_grad" and any(map(is_sharded, hooked.values())):
            message = (
                f'hook "{binding.hook}": parameter_grad never fires with FSDP, whose gradients are'
                " sharded"
            )
            hint = 'use post_accumulate_grad, or strategy = "ddp"'
            yield Problem(message, place(binding, binding.parameters[0]), hint)
        is_in_network = plan.points[binding.point].kind in ("module", "global")
        if sharded and is_in_network and "model" in map(root, binding.writes):
            message = (
                f'hook "{binding.hook}" writes model at {binding.point}: FSDP has gathered the'
                " weights there, and what is changed in them is lost"
            )
            hint = 'change them at before_train_iter or after_train_iter, or use strategy = "ddp"'
            yield Problem(message, place(binding, ""), hint)


def find_unmatched_units(
    section: DistributedSection, network: nn.Module, place: Locate
) -> Iterator[Problem]:
    """Yield a problem for each entry of `distributed.units` that picks no module of the network."""
    there = {name: module for name, module in network.named_modules() if name}
    for k, entry in enumerate(section.units or ()):
        wrong = no_module(entry, there)
        if wrong:
            yield Problem(wrong[0], place(f"distributed.units.{k}"), wrong[1])


def assign_parameters(
    optimizers: Mapping[str, OptimizerSection],
    trains: Mapping[str, nn.Module],
    network: nn.Module,
    place: Locate,
) -> tuple[dict[str, set[nn.Parameter]], list[Problem]]:
    """Return the parameters that each of several optimizers trains; and globs that match none.

    Each trainable parameter of their models must have exactly one optimizer: the others are
    problems, too.
    """
    result: dict[str, set[nn.Parameter]] = {}
    problems: list[Problem] = []
    for name, section in optimizers.items():
        there = find_trainable(trains[name])
        for k, pattern in enumerate(section.parameters or ()):
            matched = {there[key] for key in select_names(pattern, trains[name], there)}
            if not matched:
                message = f'"{pattern}" matches no parameter that trains'
                hint = f"there are {first_few(there)}"
                problems.append(Problem(message, place(f"optimizer.{name}.parameters.{k}"), hint))
            result[name] = result.get(name, set()) | matched
    chosen = set().union(*result.values())
    for name, section in optimizers.items():
        if section.parameters is None:
            result[name] = {*find_trainable(trains[name]).values()} - chosen
    takers: dict[tuple[str, ...], list[str]] = {}
    of_models = set().union(*({*find_trainable(model).values()} for model in trains.values()))
    for parameter_name, parameter in network.named_parameters():
        by = tuple(name for name in optimizers if parameter in result[name])
        if parameter in of_models and len(by) != 1:
            takers.setdefault(by, []).append(parameter_name)
    for by, names in takers.items():
        who = " and ".join(f"[optimizer.{name}]" for name in by)
        if by:
            message = f"{who} both train {first_few(names)}"
        else:
            message = f"no optimizer trains {first_few(names)}"
        hint = "each parameter needs one optimizer; one without `parameters` trains the rest"
        problems.append(
            Problem(message, place(f"optimizer.{by[-1]}.parameters" if by else "optimizer"), hint)
        )
    return result, problems


def find_trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that train, by name; a shared one has several names."""
    return {name: p for name, p in named_parameters(model).items() if p.requires_grad}


def param_groups(
    groups: list[ParamGroup],
    model: nn.Module,
    place: Locate,
    share: set[nn.Parameter] | None = None,
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return an optimizer's groups, and empty patterns.

    Each group has what no earlier one took, and one has the rest.

    They are of the parameters that train, or of a `share` of them: a hook may have frozen some of
    these meanwhile.
    """
    if share is None:
        there = find_trainable(model)
    else:
        there = named_parameters(model)
    left = {name: p for name, p in there.items() if share is None or p in share}
    result: list[dict[str, Any]] = []
    problems = []
    for k, group in enumerate(groups):
        # Parameters are compared, and not their names: tied weights have several names.
        used: dict[nn.Parameter, None] = {}
        for pattern in group.patterns:
            chosen = [left[name] for name in select_names(pattern, model, left)]
            if used.keys() >= set(chosen):
                message = (
                    f'"{pattern}" matches no parameter that trains and that no earlier group has'
                    " taken"
                )
                hint = f"there are {first_few(left)}"
                if pattern.startswith(TYPE_PREFIX):
                    kinds = sorted({type(module).__name__ for module in model.modules()})
                    hint = nearest_or_all(
                        pattern.removeprefix(TYPE_PREFIX).strip(), kinds, "there are modules of"
                    )
                problems.append(Problem(message, place(f"{k}.match"), hint))
            used |= dict.fromkeys(chosen)
        left = {name: p for name, p in left.items() if p not in used}
        result.append({"params": [*used], **group.args})
    return [*result, {"params": [*dict.fromkeys(left.values())]}] if left else result, problems


def select_names(
    pattern: str, model: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> Iterator[str]:
    """Yield the names of the parameters that a pattern picks.

    It is a glob over names, or over classes of modules.
    """
    if not pattern.startswith(TYPE_PREFIX):
        yield from (name for name in parameters if fnmatchcase(name, pattern))
        return
    modules = dict(model.named_modules())
    inside: set[int] = set()
    for module_name in modules_matching(pattern, modules):
        inside.update(map(id, modules[module_name].parameters()))
    for name, parameter in parameters.items():
        if id(parameter) in inside:
            yield name


def scale_groups(optimizer: Optimizer, groups: list[ParamGroup], place: Locate) -> None:
    """Multiply the settings of each group by its factors.

    Raises UserError where there is no such number.
    """
    for k, declared in enumerate(groups):
        group = optimizer.param_groups[k]
        for name, factor in declared.scale.items():
            value: Any = group.get(name)
            if not _is_number(value):
                numbers = [key for key, setting in group.items() if _is_number(setting)]
                message = f'{type(optimizer).__name__} has no number "{name}" to scale'
                hint = nearest_or_all(name, numbers)
                raise UserError(Problem(message, place(f"{k}.scale.{name}"), hint))
            group[name] = value * factor


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TrainedParameters:
    """The parameters that the optimizers of a run train.

    Parameters that no optimizer was given when it was built, such as those of a teacher, are left
    out on purpose.
    """

    def __init__(self, network: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
        self._network = network
        self._optimizers = optimizers
        built = named_parameters(network)
        held = self._collect_held()
        self._built = {name: parameter for name, parameter in built.items() if parameter in held}
        self._left_out = {p for p in built.values() if p.requires_grad and p not in held}
        self._extended: set[str] = set()

    def missing(self) -> list[str]:
        """Return the names of trainable parameters that no optimizer has.

        A hook has added or unfrozen them.
        """
        apart = self._collect_held() | self._left_out
        names = []
        for name, parameter in named_parameters(self._network).items():
            if parameter.requires_grad and parameter not in apart:
                names.append(name)
        return names

    def find_orphaned(self) -> list[str]:
        """Return the names of parameters that an optimizer has and the network no longer has."""
        gone = self._collect_held() - {*named_parameters(self._network).values()}
        return [name for name, parameter in self._built.items() if parameter in gone]

    def add(
        self, parameters: Iterable[nn.Parameter], optimizer: str, settings: Mapping[str, Any]
    ) -> None:
        """Add a group to an optimizer.

        Parameters that the network no longer has leave the optimizer, with their state. Raises
        UserError for a setting that the optimizer does not know, and when it refuses the group.
        """
        to = self._optimizers[optimizer]
        inside = {*named_parameters(self._network).values()}
        for name in settings:
            if name not in to.defaults and name != "name":
                hint = nearest_or_all(name, to.defaults)
                raise UserError(
                    Problem(
                        f'run.add_param_group: {type(to).__name__} has no setting "{name}"',
                        hint=hint,
                    )
                )
        try:
            to.add_param_group({"params": [*parameters], **settings})
        except (TypeError, ValueError) as error:
            raise UserError(Problem(f"run.add_param_group: {error}")) from error
        self._extended.add(optimizer)
        # Groups without "initial_lr" get it from the run once `before_run` has fired.
        if "initial_lr" in to.param_groups[0]:
            rate = to.param_groups[-1]["lr"]
            to.param_groups[-1].setdefault(
                "initial_lr", float(rate) if isinstance(rate, Tensor) else rate
            )
        gone = {parameter for parameter in self._built.values() if parameter not in inside}
        for group in to.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter not in gone]
        for parameter in gone:
            to.state.pop(parameter, None)

    def state_dict(self) -> dict[str, list[list[str]]]:
        """Return the names of the parameters in each group of extended optimizers.

        Hooks have added groups to these.
        """
        names = {parameter: name for name, parameter in named_parameters(self._network).items()}
        groups: dict[str, list[list[str]]] = {}
        for key in self._extended:
            groups[key] = []
            for group in self._optimizers[key].param_groups:
                groups[key].append([names.get(parameter, "") for parameter in group["params"]])
        return groups

    def load_state_dict(self, state: Mapping[str, list[list[str]]]) -> None:
        """Add the groups that hooks have added after `before_run`.

        The network must have their parameters.
        """
        there = named_parameters(self._network)
        for key, groups in state.items():
            for names in groups[len(self._optimizers[key].param_groups) :]:
                if there.keys() >= {*names}:
                    self.add([there[name] for name in names], key, {})

    def _collect_held(self) -> set[nn.Parameter]:
        held = set()
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                held.update(group["params"])
        return held
