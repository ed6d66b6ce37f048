"""Callbacks of Lightning, unmodified.

Each is called as Lightning's Trainer does it, with a trainer that views the run.

`use = "lightning:EarlyStopping"` names a callback of Lightning's own; any other class with
Lightning's `Callback` among its bases is adapted likewise. Source: `lightning.pytorch.callbacks`,
version 2.6.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from hookflow.adapters.lightning_hooks import AccumulationHook, LightningHook, WeightAveragingHook
from hookflow.adapters.lightning_tables import (
    ADAPTER_READS,
    ALWAYS_BOUND,
    CALLBACK_POINTS,
    CALLBACK_SLOTS,
    CALLBACK_WRITES_OUTSIDE,
    EPOCH_END,
    EPOCH_END_POINTS,
    REPLACEMENT_HINTS,
    translate_methods,
)
from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import Node, Nodes
from hookflow.graph.slots import root
from hookflow.hooks.adapter import (
    AdaptedClasses,
    AdaptedClassSpec,
    FrameworkNames,
    HookAdapter,
    SlotNames,
    get_bases,
    get_module_name,
    list_own_names,
    read_adapted_capabilities,
    read_slots,
)
from hookflow.pipeline.registry import missing_package

LIGHTNING_PACKAGES = ("pytorch_lightning", "lightning.pytorch")

STEERING_HOOKS: Mapping[str, type[LightningHook]] = {
    "GradientAccumulationScheduler": AccumulationHook,
    "StochasticWeightAveraging": WeightAveragingHook,
}
"""Callbacks of Lightning that steer its loops, with the hooks that do so here."""


class LightningAdapter(HookAdapter):
    """Runs callbacks of Lightning, of the package `lightning` or `pytorch_lightning`."""

    prefix = "lightning"
    names: ClassVar = FrameworkNames(
        framework="Lightning",
        packages=("lightning", "pytorch_lightning"),
        base="Callback",
        arguments={
            "trainer": "run",
            "pl_module": "run.model",
            "loss": 'outputs["loss"]',
            "optimizer": "run.optimizer",
            "dataloader_idx": "",
        },
        unmistakable=("trainer", "pl_module"),
        members=translate_methods(),
    )

    def find(self, name: str, where: Where | None) -> type:
        """Return the callback of Lightning that has this name.

        Raises UserError where there is none.
        """
        package = _find_installed_package(name, where)
        callbacks = import_module(f"{package}.callbacks")
        result: Any = getattr(callbacks, name, None)
        if name == "SpikeDetection":  # the one callback that Lightning does not list
            result = import_module(f"{package}.callbacks.spike").SpikeDetection
        if not isinstance(result, type) or not self.claims(result):
            raise UserError(
                Problem(
                    f'Lightning has no callback "{name}"', where, nearest(name, callbacks.__all__)
                )
            )
        return result

    def claims(self, kind: type) -> bool:
        """Say whether a class is derived from Lightning's `Callback`."""
        return any(is_callback_base(base) for base in get_bases(kind)[1:])

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        """Read a callback class. Raises UserError for some of Lightning's own."""
        _check_supported(kind, where)
        hook = _choose_hook(kind)
        points = [*find_points(kind), *hook.needs]
        reads: SlotNames | None = None
        writes: SlotNames | None = None
        if hook is LightningHook:  # the others declare their own
            slots = read_slots(kind, LIGHTNING_PACKAGES, CALLBACK_SLOTS)
            reads = {
                point: slots.reads.get(point, ()) + ADAPTER_READS.get(point, ()) for point in points
            }
            writes = slots.writes
        return AdaptedClassSpec(
            base=hook,
            arguments={point: CALLBACK_POINTS[point].arguments for point in points},
            reads=reads,
            writes=writes,
            capabilities=read_adapted_capabilities(
                kind, hook, LIGHTNING_PACKAGES, CALLBACK_WRITES_OUTSIDE
            ),
            attributes={"package": _package_of(kind)},
        )

    def problems(self, nodes: Nodes, hooks: AdaptedClasses) -> Iterator[Problem]:
        """Yield each StochasticWeightAveraging besides which another hook sets learning rates."""
        setting = [name for name, node in nodes.items() if _sets_rates(node)]
        for name in setting:
            others = [other for other in setting if other != name]
            if not others or name not in hooks or not issubclass(hooks[name], WeightAveragingHook):
                continue
            called = hooks[name].__name__
            message = (
                f'{called} sets the learning rates from one epoch on, and so does "{others[0]}"'
            )
            hint = (
                'use = "swa", and torch.optim.swa_utils:SWALR at the end of the chain of'
                " `scheduler`"
            )
            yield Problem(message, nodes[name].where, hint)


def is_callback_base(kind: type) -> bool:
    """Say whether a class is Lightning's `Callback`, without importing Lightning."""
    if type.__getattribute__(kind, "__name__") != "Callback":
        return False
    packages = tuple(f"{package}." for package in LIGHTNING_PACKAGES)
    return get_module_name(kind).startswith(packages)


def find_points(kind: type) -> Iterator[str]:
    """Yield the points at which a callback has something to do.

    Points that the trainer counts by are yielded, too.
    """
    own_names = list_own_names(kind, is_callback_base)
    if kind.__name__ == "LambdaCallback":  # its methods are arguments
        own_names.add(EPOCH_END)
        for called in CALLBACK_POINTS.values():
            own_names.update(called.methods)
    for point, called in CALLBACK_POINTS.items():
        ends_epoch = EPOCH_END in own_names and point in EPOCH_END_POINTS
        if point in ALWAYS_BOUND or ends_epoch or not own_names.isdisjoint(called.methods):
            yield point


def _find_installed_package(name: str, where: Where | None) -> str:
    for package in LIGHTNING_PACKAGES:
        if find_spec(package.partition(".")[0]):
            return package
    problem = missing_package(
        f'use = "lightning:{name}"', LIGHTNING_PACKAGES[0], "lightning", where
    )
    assert problem is not None
    raise UserError(problem)


def _check_supported(kind: type, where: Where | None) -> None:
    """Raise UserError for a callback that needs what hookflow has not."""
    name = kind.__name__
    if name in REPLACEMENT_HINTS and get_module_name(kind).startswith(LIGHTNING_PACKAGES):
        raise UserError(
            Problem(f"{name} needs Lightning's Trainer", where, REPLACEMENT_HINTS[name])
        )
    if "on_before_zero_grad" in list_own_names(kind, is_callback_base):
        hint = (
            "gradients are cleared before the forward pass: on_train_batch_end is the last method"
            " before that"
        )
        raise UserError(Problem(f"{name}.on_before_zero_grad has no point here", where, hint))


def _choose_hook(kind: type) -> type[LightningHook]:
    own_bases = {
        base.__name__
        for base in get_bases(kind)
        if get_module_name(base).startswith(LIGHTNING_PACKAGES)
    }
    for name, hook in STEERING_HOOKS.items():
        if name in own_bases:
            return hook
    return LightningHook


def _package_of(kind: type) -> str:
    """Return the package whose `Callback` a class is derived from: both may be installed."""
    for base in get_bases(kind):
        if is_callback_base(base):
            for package in LIGHTNING_PACKAGES:
                if base.__module__.startswith(package):
                    return package
    raise TypeError(f"{kind.__name__} is no callback of Lightning")


def _sets_rates(node: Node) -> bool:
    slots: set[str] = set()
    for bound in node.bound:
        slots.update(bound.writes)
    return any(root(slot) == "lr" for slot in slots)
