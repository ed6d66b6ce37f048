"""The state that a fork takes over from the checkpoint that it begins with, and its own settings.

A resume takes everything, to the bit. A fork may have other settings of the optimizer, batches,
hooks, or task: here the saved state becomes one that `Snapshot.restore` takes. State that is left
out is named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any

from torch.optim import Optimizer

from hookflow.errors import Problem, UserError, first_few
from hookflow.events.rundir import Parent
from hookflow.graph.plan import Plan, difference
from hookflow.graph.slots import root
from hookflow.hooks.checkpoint_files import is_without_optimizers, state_key
from hookflow.hooks.optimizer_state import list_group_entries
from hookflow.hooks.rate_schedule import RateScheduleHook
from hookflow.pipeline.by_epoch import recorded_lengths
from hookflow.pipeline.components import OptimizerSection
from hookflow.pipeline.load import find_trained_model, key_of
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.builder.initial_weights import compare_weights, find_misfits
from hookflow.runner.builder.rate_scaling import SCALE
from hookflow.runner.data.batches import batch_size_in
from hookflow.runner.data.lengths import is_mixed, iter_sources
from hookflow.runner.model.selectors import param_groups

State = dict[str, Any]

IN_ANOTHER_MIX = ("data.", "run.limit_train", "run.overfit", "run.seed")
"""How the keys begin by which the batches of several training sets come in another order."""

SCALES_RATES = ("run.scale_lr", "run.accumulate", "data.train")
"""How the keys begin by which `run.scale_lr` scales learning rates by other factors."""


@dataclass
class ForkAdapter:
    """The change from the pipeline and plan of a checkpoint (`then`) to those of the fork (`now`).

    Call it with the saved state of a rank. `say` takes lines for people.
    """

    parent: Parent
    then: tuple[Pipeline, Plan]
    now: tuple[Pipeline, Plan]
    parts: RunComponents
    say: Callable[..., None]

    def __post_init__(self) -> None:
        changes = difference(self.then, self.now)
        self._keys = {change.key for change in changes.keys}
        self._settings_changed: dict[str, set[str] | None] = {}
        """By optimizer: the settings that have other values; None where all may have."""
        then = self.then[0].optimizers
        now = self.now[0].optimizers
        for name in now:
            if name in then:
                self._settings_changed[name] = _changed_settings(then[name], now[name])
        changed_hooks = {*changes.hooks_added, *changes.hooks_removed}
        changed_hooks |= {key.split(".")[1] for key in self._keys if key.startswith("hooks.")}
        self._schedules_changed = self._sets_rates(changed_hooks)
        self._rates_changed = self._schedules_changed
        for settings in self._settings_changed.values():
            if settings is None or "lr" in settings:
                self._rates_changed = True
        self._rescales = any(key.startswith(SCALES_RATES) for key in self._keys)
        """Whether `run.scale_lr` may scale the learning rates by other factors."""
        self._renumbered = False
        """Whether an epoch has another number of iterations.

        They are counted then as if it always had.
        """
        self._replayed: set[str] = set()

    def __call__(self, state: State) -> State:
        """Return what the fork takes over.

        Raises UserError where the parameters are others than the parent's.
        """
        self._check_models(state)
        state = self._at_its_place(dict(state))
        self._rates_changed |= is_without_optimizers(state)
        self._replayed = self._schedules_to_replay(state["position"]["iter"])
        state["hooks"] = dict(self._hook_states(state["hooks"], state["position"]))
        for name, optimizer in self.parts.optimizers.items():
            state |= self._optimizer_state(name, optimizer, state)
        for name in self.then[0].optimizers.keys() - self.parts.optimizers.keys():
            self.say(f'the optimizer "{name}" is gone: its state is dropped', "warn")
        if "task.use" in self._keys and state.get("task"):
            self.say(
                "the task is another: the state of the parent's is dropped"
                f" ({_names(state['task'])})",
                "warn",
            )
            state["task"] = {}
        if "run.seed" in self._keys:
            self.say(
                "run.seed is another: the generators begin with it, and what is left of the epoch"
                " is in its order"
            )
            state["random"] = None
        reason = state["requests"]["stop"]
        if reason:
            self.say(f"the parent was to stop ({reason}): the fork trains on", "warn")
            state["requests"] = {**state["requests"], "stop": None}
        return state

    def _check_models(self, state: State) -> None:
        """Raise UserError where the parent has other models, or other weights in them."""
        before = self.then[0].models
        problems = []
        for name, model in self.parts.models.items():
            where = self.parts.place(key_of("model", name))
            saved = state.get(state_key("model", name))
            if saved is None:
                problems.append(Problem(f'{self.parent} has no model "{name}"', where))
                continue
            wanted = model.state_dict()
            problems += find_misfits(compare_weights(wanted, saved), wanted, saved, where)
        for name in before.keys() - self.parts.models.keys():
            problems.append(
                Problem(f'{self.parent} has a model "{name}", which this pipeline has not')
            )
        if problems:
            raise UserError(
                [
                    Problem(f"{self.parent} does not fit this pipeline", hint=WEIGHTS_ALONE),
                    *problems,
                ]
            )

    def _at_its_place(self, state: State) -> State:
        """Return the state with the place in the data carried over by examples.

        The iterations are counted anew.
        """
        position = state["position"]
        train = self.parts.data["train"]
        epoch = position["epoch"]
        accumulate_then = self.then[0].run.accumulate.at(epoch)
        accumulate_now = self.parts.section.accumulate.at(epoch)
        lengths_then = recorded_lengths(position)
        lengths_now = self.parts.epoch_lengths
        sizes = []
        if hasattr(train, "global_batch_sizes"):
            sizes = train.global_batch_sizes(epoch)[: len(train)]
        of_then = (position["batch_size"], lengths_then, accumulate_then)
        of_now = (batch_size_in(train, epoch), lengths_now, accumulate_now)
        if of_then == of_now and not sizes and "examples" not in position:
            return self._own_data(state, position["batch_idx"])

        done = self._batches_done(state, sizes)
        result = {**position, "batch_idx": done}
        if lengths_then != lengths_now and self.parts.section.max_iters is None:
            self._renumber(result, int(lengths_now.iterations(epoch)) + ceil(done / accumulate_now))
            triggers = state["triggers"]
            state["triggers"] = {
                key: each for key, each in triggers.items() if "it" not in (each["every"] or ())
            }
        state["position"] = result
        return self._own_data(state, done)

    def _batches_done(self, state: State, sizes: Sequence[int]) -> int:
        """Return how many batches of the epoch are done, by the examples of the parent's.

        `sizes` are the examples of each batch of the epoch, empty where all have as many. They are
        done in whole groups of `accumulate`.
        """
        position = state["position"]
        train = self.parts.data["train"]
        epoch = position["epoch"]
        batches: int = self.parts.batches_by_epoch.at(epoch)
        batches_then: int = position["batch_idx"]
        batch_size = batch_size_in(train, epoch)  # 0 where it is not known, or varies in an epoch
        examples = position.get("examples", batches_then * position["batch_size"])
        is_known_then = examples > 0 or batches_then == 0
        is_known_now = len(sizes) > 0 or batch_size > 0
        if not is_known_then or not is_known_now:
            self.say(
                "the examples of a batch are not known: the place in the epoch is counted in"
                " batches",
                "warn",
            )
            return min(batches_then, batches)

        if sizes:
            totals = list(accumulate(sizes))
            whole = totals[-1]
        else:
            totals = [batch_size * k for k in range(1, batches + 1)]
            whole = train.info["examples"]
        if whole and examples >= whole:
            return batches
        done = bisect_right(totals, examples)
        if done < batches:
            done -= done % self.parts.section.accumulate.at(epoch)
        place = 0
        if done:
            place = totals[done - 1]
        again = examples - place
        is_stream = "next" in state["data"].get("train", {})
        if done < batches and again and not is_stream:
            self.say(
                f"the place in the epoch is example {place:,}: {again:,} examples are trained again"
            )
        return done

    def _renumber(self, position: State, it: int) -> None:
        """Count the iterations as if every epoch had been as long as it is from here on.

        Schedules need that.
        """
        before: int = position["iter"]
        self._renumbered = True

        def moved(at: int) -> int:
            if at == before:
                return it
            return at * it // max(before, 1)

        validated = {name: moved(at) for name, at in position["validated"].items()}
        position |= {
            "iter": it,
            "metrics_at": moved(position["metrics_at"]),
            "validated": validated,
        }
        lengths = self.parts.epoch_lengths
        epochs_of_parent = recorded_lengths(position).epochs(position["max_iters"])
        position["max_iters"] = ceil(lengths.iterations(epochs_of_parent))
        if it == before:
            return
        length = lengths.at(position["epoch"])
        text = (
            f"an epoch has {length:,} iterations: iteration {before:,} of the parent is {it:,} here"
        )
        self.say(f"{text}, and schedules go on at the same share of the run", "warn")

    def _own_data(self, state: State, done: int) -> State:
        """Return the state with that of the training data at batch `done`.

        The state of data that are others is left out.
        """
        kept: State = {}
        for split, saved in state["data"].items():
            if split == "train" and ("sets" in saved or self._mixes_now):
                kept |= self._mixed_data(saved, state["position"]["epoch"], done)
                continue
            another = self._is_another(f"data.{split}")
            if another:
                self.say(
                    f"data.{split} is another: the state of the parent's is dropped"
                    f" ({_names(saved)})",
                    "warn",
                )
            # A stream goes on with its next example, whatever the batches are in the fork.
            if "next" in saved and split == "train":
                epoch = state["position"]["epoch"]
                place = [epoch, done]
                if done >= len(self.parts.data["train"]):
                    place = [epoch + 1, 0]
                kept[split] = {**saved, "next": place}
                if another:
                    kept[split]["stream"] = None
            elif not another:
                kept[split] = saved
        return {**state, "data": kept}

    @property
    def _mixes_now(self) -> bool:
        return is_mixed(self.parts.data["train"])

    def _mixed_data(self, saved: State, epoch: int, done: int) -> State:
        """Return the state of several training sets at a place.

        Each goes on with its next batch, unless it is another set. Sets that have become one, or
        one that has become several, begin anew.
        """
        if not self._mixes_now or "sets" not in saved:
            self.say(
                "the training sets are others: the place in each of the parent's is dropped", "warn"
            )
            return {}
        if not any(key.startswith(IN_ANOTHER_MIX) for key in self._keys):
            return {"train": saved}
        sources = dict(iter_sources(self.parts.data))
        taken = {}
        states = {}
        for name, batches in saved["taken"].items():
            source = sources.get(f"train.{name}")
            if source is None:
                continue
            if self._is_another(f"data.train.{name}"):
                self.say(f"data.train.{name} is another: it begins with its first batch", "warn")
                continue
            taken[name] = batches
            if name in saved["sets"]:
                states[name] = saved["sets"][name]
                # A stream goes on with its next example, whatever the batches are in the fork.
                if "next" in states[name]:
                    states[name] = {**states[name], "next": [*divmod(batches, len(source))]}
        return {"train": {"epoch": epoch, "steps": done, "taken": taken, "sets": states}}

    def _is_another(self, key: str) -> bool:
        return any(changed.startswith((f"{key}.use", f"{key}.args")) for changed in self._keys)

    def _hook_states(
        self, saved: Mapping[str, State], position: State
    ) -> Iterator[tuple[str, State]]:
        """Yield the states of hooks.

        States of other hooks, and states that follow from the place in the run, are left out.
        """
        for name, state in saved.items():
            hook = self.parts.hooks.get(name)
            if f"hooks.{name}.use" in self._keys:
                lost = f"the state of the parent's is dropped ({_names(state)})"
                self.say(f'the hook "{name}" is another: {lost}', "warn")
            elif name in self._replayed:
                text = (
                    "sets the rates that its schedule has at this place of the run, whatever they"
                    " were"
                )
                self.say(
                    f'the hook "{name}" {text}',
                    "warn" if self.parts.hooks[name].has_plateau else "info",
                )
                counted = "epoch"
                if self.parts.hooks[name].per == "iter":
                    counted = "iter"
                yield name, {"done": position[counted], "curve": None}
            elif isinstance(hook, RateScheduleHook) and self._renumbered and hook.per == "iter":
                yield name, {**state, "steps": hook.end, "end": hook.end}
            else:
                yield name, self._forked_state(name, hook, state)

    def _forked_state(self, name: str, hook: Any, state: State) -> State:
        """Return the state of a hook in the fork, and say which entries it begins anew."""
        if not hasattr(hook, "forked_state"):
            return state
        forked: State = hook.forked_state(state)
        anew = [key for key in state if forked.get(key) is not state[key]]
        if anew:
            self.say(
                f'the hook "{name}" begins anew with {_names(anew)}: what it has had so far is the'
                " parent's"
            )
        return forked

    def _schedules_to_replay(self, it: int) -> set[str]:
        """Return the hooks whose schedules are replayed up to iteration `it`.

        They set other rates by now. One that waits for a metric on a plateau goes on instead,
        unless its own arguments have changed.
        """
        result = set()
        for name, hook in self.parts.hooks.items():
            if isinstance(hook, RateScheduleHook) and f"hooks.{name}.use" not in self._keys:
                waits = hook.has_plateau and (
                    it >= hook.end or hook.per == "epoch" or not self._renumbered
                )
                counts_anew = self._renumbered and hook.per == "iter"
                if self._is_another(f"hooks.{name}") or (
                    not waits and (counts_anew or self._rates_changed)
                ):
                    result.add(name)
        return result

    def _sets_rates(self, hooks: Iterable[str]) -> bool:
        """Say whether one of these hooks writes learning rates,
        by the plan of the parent or of the fork.
        """
        return any(
            binding.hook in hooks and any(root(slot) == "lr" for slot in binding.writes)
            for _, plan in (self.then, self.now)
            for binding in plan.bindings
        )

    def _optimizer_state(self, name: str, optimizer: Optimizer, state: State) -> State:
        """Return the state of an optimizer, and the gradients that it has not used.

        Its settings are as they are now. Raises UserError where it is not known which parameter a
        saved state belongs to.
        """
        entry = state_key("optimizer", name)
        then = self.then[0].optimizers.get(name)
        if then is None:
            self.say(f'the optimizer "{name}" is new: it starts without a state', "warn")
            return {entry: optimizer.state_dict()}
        if entry not in state:
            self.say(
                f'{self.parent} has no state of the optimizer "{name}": it starts without one',
                "warn",
            )
            return {entry: optimizer.state_dict()}
        saved = state[entry]
        saved_groups = saved["param_groups"]
        groups = self._groups_as_saved(name, optimizer, saved_groups)
        is_same_kind = then.use == self.now[0].optimizers[name].use
        kept = saved["state"]
        if not is_same_kind:
            kept = {}
            if saved["state"]:
                lost = _names(
                    dict.fromkeys(key for each in saved["state"].values() for key in each)
                )
                self.say(
                    f"the optimizer is another: the state of {then.use} is dropped ({lost})", "warn"
                )

        # These are the parameters as the checkpoint numbers them, and as they are numbered now.
        flat_then = [parameter for group in groups for parameter in group]
        flat_now = list_group_entries(optimizer.param_groups)
        numbers_then = list_group_entries(saved_groups)
        number_of = dict(zip(flat_then, numbers_then, strict=True))
        moved = {k: kept[number_of[p]] for k, p in enumerate(flat_now) if number_of[p] in kept}
        settings = self._group_settings(
            name, optimizer, groups, saved_groups, has_state=bool(moved)
        )
        result: State = {entry: {**saved, "state": moved, "param_groups": settings}}

        gradients = dict(state["gradients"])
        if name in gradients:
            by_parameter = dict(zip(flat_then, gradients[name], strict=True))
            gradients[name] = [by_parameter[parameter] for parameter in flat_now]
        result["gradients"] = gradients
        host_tensors = dict(state.get("host_tensors", {}))
        places_now = {parameter: k for k, parameter in enumerate(flat_now)}
        host_tensors[name] = [
            (places_now[flat_then[k]], *keys) for k, *keys in host_tensors.get(name, ())
        ]
        result["host_tensors"] = host_tensors
        if not is_same_kind:  # another optimizer begins with the weights for use
            training_weights = dict(state.get("training_weights", {}))
            training_weights.pop(name, None)
            result["training_weights"] = training_weights
        return result

    def _groups_as_saved(
        self, name: str, optimizer: Optimizer, saved_groups: Sequence[State]
    ) -> list[list[Any]]:
        """Return the parameters of an optimizer in the groups of the checkpoint.

        Raises UserError where these are unknown.
        """
        then = self.then[0].optimizers[name]
        now = self.now[0].optimizers[name]
        place = self.parts.place(key_of("optimizer", name))
        if _division(self.then[0]) != _division(self.now[0]):
            message = (
                f"the optimizers divide the parameters in another way than those of {self.parent}"
            )
            raise UserError(
                Problem(message, place, "keep `parameters` and `model` of each as they are there")
            )
        groups = [group["params"] for group in optimizer.param_groups]
        if _patterns(then) != _patterns(now):
            held = {parameter for group in groups for parameter in group}
            divided, _ = param_groups(then.groups, self.parts.trains[name], self.parts.place, held)
            groups = [group["params"] for group in divided]
        if [len(group) for group in groups] != [len(group["params"]) for group in saved_groups]:
            message = (
                f"the parameter groups of {self.parent} cannot be told apart: hooks have changed"
                " them"
            )
            raise UserError(Problem(message, place, "leave the groups as they are there"))
        return groups

    def _group_settings(
        self,
        name: str,
        optimizer: Optimizer,
        groups: Sequence[Sequence[Any]],
        saved_groups: Sequence[State],
        *,
        has_state: bool,
    ) -> list[State]:
        """Return the settings of each group as it is built, with the numbers of its parameters.

        Raises UserError where a setting is on that needs a state which the parent's optimizer did
        not have.
        """
        saved_of: dict[Any, State] = {}
        for group, saved in zip(groups, saved_groups, strict=True):
            saved_of |= dict.fromkeys(group, saved)
        result = []
        lacking = dict[str, None]()
        first = 0
        for built in optimizer.param_groups:
            saved = saved_of[built["params"][0]]
            setting = self._settings(saved, built, optimizer, name)
            lacking |= dict.fromkeys(
                key for key in NEED_STATE if setting.get(key) and not saved.get(key)
            )
            count = len(built["params"])
            setting["params"] = list(range(first, first + count))
            first += count
            result.append(setting)
        if has_state and lacking:
            message = (
                f"the optimizer's state in {self.parent} lacks what {', '.join(lacking)} needs"
            )
            place = self.parts.place(key_of("optimizer", name))
            raise UserError(Problem(message, place, "keep the setting as it is there"))
        return result

    def _settings(self, saved: State, built: State, optimizer: Optimizer, name: str) -> State:
        """Return the settings of a group: as saved, but what the file has changed as it is `built`.

        A learning rate keeps its ratio to the rate that it began with, unless its schedule is
        another.
        """
        if self._rescales:
            saved = self._with_unscaled_rate(saved)
        changed = self._settings_changed[name]
        own = {key: value for key, value in built.items() if key != "params"}
        if changed is None:
            result = dict(own)
        else:
            result = dict(saved)
            result |= {key: own[key] for key in changed & own.keys()}
        if SCALE in saved:
            result[SCALE] = saved[SCALE]
        if self._schedules_changed or self._replayed:
            of_schedules = {
                key: value for key, value in own.items() if key not in optimizer.defaults
            }
            return {**result, **of_schedules, "lr": own["lr"]}
        if changed is None or "lr" in changed:
            ratio = 1.0
            if saved["initial_lr"]:
                ratio = saved["lr"] / saved["initial_lr"]
            result["initial_lr"] = own["initial_lr"]
            result["lr"] = own["initial_lr"] * ratio
        return result

    def _with_unscaled_rate(self, saved: State) -> State:
        """Return the settings of a group with the learning rate as it is before `run.scale_lr`
        scales it.
        """
        result = dict(saved)
        result["lr"] = saved["lr"] / result.pop(SCALE, 1.0)
        if self.parts.section.scale_lr is not None:
            result[SCALE] = 1.0
        return result


NEED_STATE = ("amsgrad", "centered", "momentum")
"""Settings of PyTorch's optimizers that need state once they are on.

The optimizer does not have that state before.
"""

WEIGHTS_ALONE = (
    "to begin with some of its weights: hookflow run, with model.weights = { file ="
    ' "…/checkpoints/last" }'
)


def _changed_settings(then: OptimizerSection, now: OptimizerSection) -> set[str] | None:
    """Return the settings that an optimizer has other values of, for all parameters or some.

    It is None for all of them.
    """
    if then.use != now.use or _patterns(then) != _patterns(now):
        return None
    pairs = [(then.args, now.args)]
    for before, after in zip(then.groups, now.groups, strict=True):
        pairs += [(before.args, after.args), (before.scale, after.scale)]
    return {
        key for old, new in pairs for key in old.keys() | new.keys() if old.get(key) != new.get(key)
    }


def _patterns(section: OptimizerSection) -> list[list[str]]:
    return [group.patterns for group in section.groups]


def _division(pipeline: Pipeline) -> dict[str, tuple[str | None, list[str] | None]]:
    """Return the model of each optimizer and the globs over its parameters."""
    return {
        name: (find_trained_model(pipeline, name), each.parameters)
        for name, each in pipeline.optimizers.items()
    }


def _names(state: Iterable[Any]) -> str:
    return first_few(map(str, state))
