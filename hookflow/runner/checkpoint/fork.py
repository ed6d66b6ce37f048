"""The state that a fork takes over from the checkpoint that it begins with, and its own settings.

A resume takes everything, to the bit. A fork may have other settings of the optimizer, batches, hooks, or task: here
the saved state becomes one that `Snapshot.restore` takes. State that is left out is named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from math import ceil
from typing import Any

from torch.optim import Optimizer

from hookflow.errors import Problem, UserError, first_few
from hookflow.events.rundir import Parent
from hookflow.graph.plan import Plan, difference
from hookflow.graph.slots import root
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.scheduler import Scheduler
from hookflow.hooks.checkpoint_files import lacks_optimizers, state_key
from hookflow.pipeline.components import OptimizerSection
from hookflow.pipeline.load import key_of, trained_by
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.builder.components import Parts
from hookflow.runner.builder.selectors import param_groups
from hookflow.runner.checkpoint.initial_weights import compare_weights, misfits_of

State = dict[str, Any]


@dataclass
class Fork:
    """The change from the pipeline and plan of a checkpoint (`then`) to those of the fork (`now`).

    Call it with the saved state of a rank. `say` takes lines for people.
    """

    parent: Parent
    then: tuple[Pipeline, Plan]
    now: tuple[Pipeline, Plan]
    parts: Parts
    say: Callable[..., None]

    def __post_init__(self) -> None:
        changes = difference(self.then, self.now)
        self._keys = {change.key for change in changes.keys}
        then, now = self.then[0].optimizers, self.now[0].optimizers
        self._settings_changed = {name: _changed_settings(then[name], now[name]) for name in now if name in then}
        self._rates_changed = any(keys is None or "lr" in keys for keys in self._settings_changed.values())
        hooks = {*changes.hooks_added, *changes.hooks_removed}
        hooks |= {key.split(".")[1] for key in self._keys if key.startswith("hooks.")}
        self._schedules_changed = self._sets_rates(hooks)
        self._rates_changed |= self._schedules_changed
        self._renumbered = False
        """Whether an epoch has another number of iterations: then they are counted as if it always had."""
        self._replayed: set[str] = set()

    def __call__(self, state: State) -> State:
        """Return what the fork takes over. Raises UserError where the parameters are others than the parent's."""
        self._check_models(state)
        state = self._at_its_place(dict(state))
        self._rates_changed |= lacks_optimizers(state)
        self._replayed = self._schedules_to_replay(state["position"]["iter"])
        state["hooks"] = dict(self._hook_states(state["hooks"], state["position"]))
        for name, optimizer in self.parts.optimizers.items():
            state |= self._optimizer_state(name, optimizer, state)
        for name in self.then[0].optimizers.keys() - self.parts.optimizers.keys():
            self.say(f'the optimizer "{name}" is gone: its state is dropped', "warn")
        if "task.use" in self._keys and state.get("task"):
            self.say(f"the task is another: the state of the parent's is dropped ({_names(state['task'])})", "warn")
            state["task"] = {}
        if "run.seed" in self._keys:
            self.say("run.seed is another: the generators begin with it, and what is left of the epoch is in its order")
            state["random"] = None
        if reason := state["requests"]["stop"]:
            self.say(f"the parent was to stop ({reason}): the fork trains on", "warn")
            state["requests"] = {**state["requests"], "stop": None}
        return state

    def _check_models(self, state: State) -> None:
        before, problems = self.then[0].models, []
        for name, model in self.parts.models.items():
            where = self.parts.place(key_of("model", name))
            if (saved := state.get(state_key("model", name))) is None:
                problems.append(Problem(f'{self.parent} has no model "{name}"', where))
                continue
            wanted = model.state_dict()
            problems += misfits_of(compare_weights(wanted, saved), wanted, saved, where)
        for name in before.keys() - self.parts.models.keys():
            problems.append(Problem(f'{self.parent} has a model "{name}", which this pipeline has not'))
        if problems:
            raise UserError([Problem(f"{self.parent} does not fit this pipeline", hint=WEIGHTS_ALONE), *problems])

    def _at_its_place(self, state: State) -> State:
        """Return the state with the place in the data carried over by examples, and the iterations counted anew."""
        position, train, group = state["position"], self.parts.data["train"], self.parts.section.accumulate
        then, now = position["batch_size"], train.info["batch_size"]  # 0 where it is not known, or varies
        sizes = (
            train.global_batch_sizes(position["epoch"])[: len(train)] if hasattr(train, "global_batch_sizes") else []
        )
        epochs = position["iters_per_epoch"], self.parts.iters_per_epoch
        same = (then, epochs[0], self.then[0].run.accumulate) == (now, epochs[1], group)
        if same and not sizes and "examples" not in position:
            return self._own_data(state, position["batch_idx"])
        done, batches = position["batch_idx"], len(train)
        examples = position.get("examples", done * then)
        if (examples or not done) and (sizes or now):
            totals = [*accumulate(sizes)] or [now * k for k in range(1, batches + 1)]
            whole = totals[-1] if sizes else train.info["examples"]
            done = batches if whole and examples >= whole else bisect_right(totals, examples)
            done -= done % group if done < batches else 0
            place = totals[done - 1] if done else 0
            if done < batches and (again := examples - place) and "next" not in state["data"].get("train", {}):
                self.say(f"the place in the epoch is example {place:,}: {again:,} examples are trained again")
        else:
            done = min(done, batches)
            self.say("the examples of a batch are not known: the place in the epoch is counted in batches", "warn")
        result = {**position, "batch_idx": done}
        if epochs[0] != epochs[1] and self.parts.section.max_iters is None:
            self._renumber(result, position["epoch"] * epochs[1] + ceil(done / group))
            triggers = state["triggers"]
            state["triggers"] = {key: each for key, each in triggers.items() if "it" not in (each["every"] or ())}
        state["position"] = result
        return self._own_data(state, done)

    def _renumber(self, position: State, it: int) -> None:
        """Count the iterations as if every epoch had been as long as it is from here on, as schedules need it."""
        before, self._renumbered = position["iter"], True

        def moved(at: int) -> int:
            return it if at == before else at * it // max(before, 1)

        validated = {name: moved(at) for name, at in position["validated"].items()}
        position |= {"iter": it, "metrics_at": moved(position["metrics_at"]), "validated": validated}
        position["max_iters"] = ceil(position["max_iters"] * self.parts.iters_per_epoch / position["iters_per_epoch"])
        length = self.parts.iters_per_epoch
        text = f"an epoch has {length:,} iterations: iteration {before:,} of the parent is {it:,} here"
        self.say(f"{text}, and schedules go on at the same share of the run", "warn")

    def _own_data(self, state: State, done: int) -> State:
        """Return the state with that of the training data at batch `done`, and without that of data that are others."""
        kept: State = {}
        for split, saved in state["data"].items():
            if another := self._is_another(f"data.{split}"):
                self.say(f"data.{split} is another: the state of the parent's is dropped ({_names(saved)})", "warn")
            if "next" in saved and split == "train":  # a stream goes on with its next example, whatever the batches
                epoch, whole = state["position"]["epoch"], len(self.parts.data["train"])
                place = [epoch, done] if done < whole else [epoch + 1, 0]
                kept[split] = {**saved, "next": place} | ({"stream": None} if another else {})
            elif not another:
                kept[split] = saved
        return {**state, "data": kept}

    def _is_another(self, key: str) -> bool:
        return any(changed.startswith((f"{key}.use", f"{key}.args")) for changed in self._keys)

    def _hook_states(self, saved: Mapping[str, State], position: State) -> Iterator[tuple[str, State]]:
        """Yield the states of hooks, but those of hooks that are others, or that follow from the place in the run."""
        for name, state in saved.items():
            hook = self.parts.hooks.get(name)
            if f"hooks.{name}.use" in self._keys:
                lost = f"the state of the parent's is dropped ({_names(state)})"
                self.say(f'the hook "{name}" is another: {lost}', "warn")
            elif isinstance(hook, Checkpoint):
                if any(state["best"].values()):
                    self.say(f'the hook "{name}" looks for the best checkpoint anew: those so far are the parent\'s')
                yield name, {**state, "best": {}}
            elif name in self._replayed:
                text = "sets the rates that its schedule has at this place of the run, whatever they were"
                self.say(f'the hook "{name}" {text}', "warn" if self.parts.hooks[name].has_plateau else "info")
                counted = "iter" if self.parts.hooks[name].per == "iter" else "epoch"
                yield name, {"done": position[counted], "curve": None}
            elif isinstance(hook, Scheduler) and self._renumbered and hook.per == "iter":
                yield name, {**state, "steps": hook.end, "end": hook.end}
            else:
                yield name, state

    def _schedules_to_replay(self, it: int) -> set[str]:
        """Return the hooks whose schedules are gone through again, up to iteration `it`: they set other rates by now.

        One that waits for a metric on a plateau goes on instead, unless its own arguments have changed.
        """
        result = set()
        for name, hook in self.parts.hooks.items():
            if isinstance(hook, Scheduler) and f"hooks.{name}.use" not in self._keys:
                waits = hook.has_plateau and (it >= hook.end or hook.per == "epoch" or not self._renumbered)
                counts_anew = self._renumbered and hook.per == "iter"
                if self._is_another(f"hooks.{name}") or (not waits and (counts_anew or self._rates_changed)):
                    result.add(name)
        return result

    def _sets_rates(self, hooks: Iterable[str]) -> bool:
        """Say whether one of these hooks writes learning rates, by the plan of the parent or of the fork."""
        return any(
            binding.hook in hooks and any(root(slot) == "lr" for slot in binding.writes)
            for _, plan in (self.then, self.now)
            for binding in plan.bindings
        )

    def _optimizer_state(self, name: str, optimizer: Optimizer, state: State) -> State:
        """Return the state of an optimizer, and the gradients that it has not used, with its settings as they are now.

        Raises UserError where it is not known which parameter a saved state belongs to.
        """
        entry, then = state_key("optimizer", name), self.then[0].optimizers.get(name)
        if then is None:
            self.say(f'the optimizer "{name}" is new: it starts without a state', "warn")
            return {entry: optimizer.state_dict()}
        if entry not in state:
            self.say(f'{self.parent} has no state of the optimizer "{name}": it starts without one', "warn")
            return {entry: optimizer.state_dict()}
        saved, now, place = state[entry], self.now[0].optimizers[name], self.parts.place(key_of("optimizer", name))
        if _division(self.then[0]) != _division(self.now[0]):
            message = f"the optimizers divide the parameters in another way than those of {self.parent}"
            raise UserError(Problem(message, place, "keep `parameters` and `model` of each as they are there"))
        groups = [group["params"] for group in optimizer.param_groups]
        if _patterns(then) != _patterns(now):
            held = {parameter for group in groups for parameter in group}
            divided, _ = param_groups(then.groups, self.parts.trains[name], self.parts.place, held)
            groups = [group["params"] for group in divided]
        if [len(group) for group in groups] != [len(group["params"]) for group in saved["param_groups"]]:
            message = f"the parameter groups of {self.parent} cannot be told apart: hooks have changed them"
            raise UserError(Problem(message, place, "leave the groups as they are there"))
        if then.use != now.use and saved["state"]:
            lost = _names(dict.fromkeys(key for each in saved["state"].values() for key in each))
            self.say(f"the optimizer is another: the state of {then.use} is dropped ({lost})", "warn")
        flat = [parameter for group in groups for parameter in group]
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = dict(zip(flat, (n for group in saved["param_groups"] for n in group["params"]), strict=True))
        origin = {p: each for group, each in zip(groups, saved["param_groups"], strict=True) for p in group}
        built = optimizer.param_groups
        settings = [self._settings(origin[group["params"][0]], group, optimizer, name) for group in built]
        kept = saved["state"] if then.use == now.use else {}
        moved = {k: kept[numbers[p]] for k, p in enumerate(order) if numbers[p] in kept}
        pairs = [(setting, origin[group["params"][0]]) for setting, group in zip(settings, built, strict=True)]
        on = [key for key in NEED_STATE if any(setting.get(key) and not was.get(key) for setting, was in pairs)]
        if moved and on:
            message = f"the optimizer's state in {self.parent} lacks what {', '.join(on)} needs"
            raise UserError(Problem(message, place, "keep the setting as it is there"))
        places = iter(range(len(order)))
        for setting, group in zip(settings, built, strict=True):
            setting["params"] = [*islice(places, len(group["params"]))]
        gradients = state["gradients"]
        if name in gradients:
            by_parameter = dict(zip(flat, gradients[name], strict=True))
            gradients = {**gradients, name: [by_parameter[parameter] for parameter in order]}
        host_tensors = dict(state.get("host_tensors", {}))
        places_now = {parameter: k for k, parameter in enumerate(order)}
        host_tensors[name] = [(places_now[flat[k]], *keys) for k, *keys in host_tensors.get(name, ())]
        result = {entry: {**saved, "state": moved, "param_groups": settings}}
        result |= {"gradients": gradients, "host_tensors": host_tensors}
        if then.use != now.use:  # another optimizer begins with the weights for use
            of_others = dict(state.get("training_weights", {}))
            of_others.pop(name, None)
            result["training_weights"] = of_others
        return result

    def _settings(self, saved: State, built: State, optimizer: Optimizer, name: str) -> State:
        """Return the settings of a group: as saved, but what the file has changed as it is `built`.

        A learning rate keeps its ratio to the rate that it began with, unless its schedule is another.
        """
        changed = self._settings_changed[name]
        own = {key: value for key, value in built.items() if key != "params"}
        result = dict(own) if changed is None else {**saved, **{key: own[key] for key in changed & own.keys()}}
        if self._schedules_changed or self._replayed:
            beside = {key: value for key, value in own.items() if key not in optimizer.defaults}
            return {**result, **beside, "lr": own["lr"]}
        if changed is None or "lr" in changed:
            ratio = saved["lr"] / saved["initial_lr"] if saved["initial_lr"] else 1.0
            result |= {"initial_lr": own["initial_lr"], "lr": own["initial_lr"] * ratio}
        return result


NEED_STATE = ("amsgrad", "centered", "momentum")
"""Settings of PyTorch's optimizers that, once they are on, need state which the optimizer does not have before."""

WEIGHTS_ALONE = 'to begin with some of its weights: hookflow run, with model.weights = { file = "…/checkpoints/last" }'


def _changed_settings(then: OptimizerSection, now: OptimizerSection) -> set[str] | None:
    """Return the settings that an optimizer has other values of, for all parameters or some; None for all of them."""
    if then.use != now.use or _patterns(then) != _patterns(now):
        return None
    pairs = [(then.args, now.args)]
    for before, after in zip(then.groups, now.groups, strict=True):
        pairs += [(before.args, after.args), (before.scale, after.scale)]
    return {key for old, new in pairs for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def _patterns(section: OptimizerSection) -> list[list[str]]:
    return [group.patterns for group in section.groups]


def _division(pipeline: Pipeline) -> dict[str, tuple[str | None, list[str] | None]]:
    """Return the model of each optimizer and the globs over its parameters."""
    return {name: (trained_by(pipeline, name), each.parameters) for name, each in pipeline.optimizers.items()}


def _names(state: Iterable[Any]) -> str:
    return first_few(map(str, state))
