"""A hook of MMEngine, called as MMEngine's Runner calls it.

Source: `mmengine.runner.loops`, version 0.10.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar

from hookflow.adapters.mmengine_runner import MMEngineCheckpoint, RunnerView
from hookflow.adapters.mmengine_tables import EPOCH_OF_LOOP
from hookflow.adapters.values import select_changed, select_samples, select_scalars, select_state
from hookflow.adapters.views import name_metrics_of_set, name_set
from hookflow.hooks.adapter import AdaptedHook
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run

OUR_ARGUMENTS: Mapping[str, str] = {"data_batch": "batch"}
"""Arguments of MMEngine's methods that hookflow's points call otherwise."""


class MMEngineHook(AdaptedHook):
    """A hook of MMEngine.

    A checkpoint has its numbers and tensors, and the scalars of the message hub.
    """

    capabilities = HookCapabilities(
        offload_blocker="it is a hook of MMEngine, whose runner shows all of the run"
    )
    priority_level: ClassVar[int]
    """MMEngine's priority: hooks of a lower one fire earlier."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own_args = [to_config(value) for value in args]
        own_kwargs = {name: to_config(value) for name, value in kwargs.items()}
        self.hook = self.kind(*own_args, **own_kwargs)
        self._initial = deepcopy(select_state(vars(self.hook)))
        self._runner: Callable[[], RunnerView] | None = None
        """Returns the runner, which all hooks share.

        Changes in it are no changes of this hook.
        """
        self._loaded: Mapping[str, Any] | None = None
        """The state that has been loaded, until the runner of this run is known."""

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        """Call the hook's method, in the modes and with the counters of MMEngine's Runner."""
        import torch

        runner = RunnerView.shared(run)
        if self._runner is None:
            self._take_runner(runner)
        if point in EPOCH_OF_LOOP and runner.by_iterations:
            return
        if point == "after_train" and runner.by_iterations:
            self._call("after_train_epoch", runner, {})
        has_gradients = torch.is_grad_enabled() or not point.endswith("_iter")
        with torch.set_grad_enabled(has_gradients):
            arguments = self._arguments(point, runner, offered)
            self._call(point, runner, arguments)
        if "metrics" in offered and name_set(run.split):
            _take_metrics(arguments["metrics"], offered["metrics"], run.split)
        if point == "before_train" and runner.by_iterations:
            self._call("before_train_epoch", runner, {})

    def _take_runner(self, runner: RunnerView) -> None:
        self._runner = runner.itself
        if runner.hub_owner is None:
            runner.hub_owner = id(self)
        if self._loaded is not None:
            runner.resume(self._loaded["hub"])
            self._loaded = None

    def _arguments(
        self, point: str, runner: RunnerView, offered: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of MMEngine's method for those that hookflow's point offers."""
        arguments = dict(offered)
        for theirs, ours in OUR_ARGUMENTS.items():
            if ours in arguments:
                arguments[theirs] = arguments.pop(ours)
        is_train = "train" in point
        if "outputs" in arguments:
            select = select_scalars if is_train else select_samples
            arguments["outputs"] = select(arguments["outputs"])
        if "batch_idx" in arguments and is_train and runner.by_iterations:
            arguments["batch_idx"] = runner.run.iter
            if point == "after_train_iter":
                arguments["batch_idx"] -= 1
        if "metrics" in arguments and name_set(runner.run.split):
            arguments["metrics"] = name_metrics_of_set(arguments["metrics"], runner.run.split)
        if "checkpoint" in arguments:
            arguments["checkpoint"] = MMEngineCheckpoint(arguments["checkpoint"])
            runner.resumes = "position" in arguments["checkpoint"].state
        return arguments

    def _call(self, point: str, runner: RunnerView, arguments: dict[str, Any]) -> None:
        method = getattr(self.hook, point)
        with runner.at(point):
            method(runner, **arguments)
        if point == "after_load_checkpoint" and runner.resumes and not runner.by_iterations:
            self._begin_epochs(runner, arguments["checkpoint"].state["position"])

    def _begin_epochs(self, runner: RunnerView, position: Mapping[str, Any]) -> None:
        """Show the hook the beginning of each epoch that has begun.

        This comes before the state of the checkpoint is loaded.

        No checkpoint has what hooks set there: a pipeline of the dataset, attributes of modules
        that are no tensors.
        """
        num_begun = position["epoch"]
        if position["batch_idx"] > 0:
            num_begun += 1
        for epoch in range(num_begun):
            with runner.at("before_train_epoch", epoch):
                self.hook.before_train_epoch(runner)

    def state_dict(self) -> dict[str, Any]:
        numbers = select_changed(select_state(vars(self.hook)), self._initial)
        return {"numbers": numbers, "hub": self._read_hub_state()}

    def _read_hub_state(self) -> Any:
        if self._runner is not None:
            runner = self._runner()
            if runner.hub_owner == id(self):
                return runner.make_hub_state()
        elif self._loaded is not None:
            return self._loaded["hub"]
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.hook).update(state["numbers"])
        if self._runner is None:
            self._loaded = state
        else:
            self._runner().resume(state["hub"])


def _take_metrics(given: Mapping[str, Any], metrics: dict[str, Any], source: str) -> None:
    """Set the metrics of a set to what a hook has made of those that it was given."""
    prefix = f"{name_set(source)}/"
    named = {name.removeprefix(prefix): value for name, value in given.items()}
    for name in [*metrics]:
        if name not in named:
            del metrics[name]
    for name, value in named.items():
        if metrics.get(name) is not value:
            metrics[name] = value


def to_config(value: Any) -> Any:
    """Return an argument as MMEngine's Config has it.

    Tables have attributes, and numbers as keys if all look so.
    """
    from mmengine.config import ConfigDict

    if isinstance(value, list):
        return [to_config(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    has_number_keys = all(str(key).isdigit() for key in value)
    table = {}
    for key, item in value.items():
        table[int(key) if has_number_keys else key] = to_config(item)
    return ConfigDict(table)
