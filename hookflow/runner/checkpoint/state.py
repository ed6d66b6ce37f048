"""All that a run must not forget, taken out of it and put back: to the bit."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hookflow.errors import Problem, UserError
from hookflow.runner.distributed.gather import local_state
from hookflow.runner.distributed.sharded import load_model, load_optimizer

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


OTHER = "a run goes on with the model and the optimizer that it began with; start a new one for others"

PLAIN = (type(None), bool, int, float, str, bytes)


def capture(run: Runner, *, validation_due: bool = False) -> dict[str, Any]:
    """Return the state of the run between two iterations; its tensors are the run's own, not copies.

    `validation_due` says that a run which goes on from here begins with a validation.
    """
    return {
        **{_key_of("model", name): model.state_dict() for name, model in run.models.items()},
        **{_key_of("optimizer", name): optimizer.state_dict() for name, optimizer in run.optimizers.items()},
        "gradients": run.update.state_dict(),
        "finite": run.update.finite.state_dict() if run.update.finite else {},
        "position": {
            "iter": run.iter,
            "epoch": run.epoch,
            "batch_idx": run.batch_idx,
            "epoch_ends": run.course.epoch_ends,
            "iters_per_epoch": run.iters_per_epoch,
            "validated_at": run.validated_at,
            "validation_due": validation_due,
            "asked": list(run.saver.asked),
            "entered": run.dispatcher.open_at("before_train_epoch"),
        },
        "metrics": dict(run.metrics),
        "scalars": run.scalars.state_dict(),
        "hooks": {name: hook.state_dict() for name, hook in run.hooks.items() if hasattr(hook, "state_dict")},
        "triggers": {_key(run, id_): trigger.state_dict() for id_, trigger in run.triggers.items()},
        "data": {split: data.state_dict() for split, data in run.data.items() if hasattr(data, "state_dict")},
        "random": random_state(run.device),
    }


def restore(run: Runner, state: dict[str, Any]) -> None:
    """Put the state back, as it was on this rank. What the checkpoint does not know starts anew, and the run says so.

    Raises UserError when the checkpoint is that of another model or optimizer.
    """
    if (before := 1 + len(state.get("ranks", []))) != run.ranks.world:
        ranks = "rank" if before == 1 else "ranks"
        run.say(f"saved by {before} {ranks}, resumed on {run.ranks.world}: not bit-identical", "warn")
    state = local_state(state, run.ranks)
    try:
        for name, model in run.models.items():
            load_model(model, state[_key_of("model", name)])
        for name, optimizer in run.optimizers.items():
            load_optimizer(optimizer, state[_key_of("optimizer", name)])
    except KeyError as error:
        said = f"the checkpoint does not fit this pipeline: it has no {error.args[0]}"
        raise UserError(Problem(said, hint=OTHER)) from None
    except (RuntimeError, ValueError) as error:
        raise UserError(Problem(f"the checkpoint does not fit this pipeline: {error}", hint=OTHER)) from error
    run.update.load_state_dict(state["gradients"])
    if run.update.finite and state["finite"]:
        run.update.finite.load_state_dict(state["finite"])
    position = state["position"]
    run.iter, run.epoch, run.batch_idx = position["iter"], position["epoch"], position["batch_idx"]
    if "train" not in run.data:
        run.iters_per_epoch = position["iters_per_epoch"]
        run.max_iters = run.max_iters or (run.max_epochs or 0) * run.iters_per_epoch
    run.validation_due, run.validated_at = position["validation_due"], position["validated_at"]
    run.course.epoch_ends = position["epoch_ends"]
    run.saver.asked = dict.fromkeys(position["asked"])
    run.dispatcher.was_open = frozenset(position["entered"])
    run.metrics = dict(state["metrics"])
    run.scalars.load_state_dict(state["scalars"])
    _restore_hooks(run, state["hooks"])
    for id_, trigger in run.triggers.items():
        if _key(run, id_) in state["triggers"]:
            trigger.load_state_dict(state["triggers"][_key(run, id_)])
    for split, data in run.data.items():
        if split in state["data"] and hasattr(data, "load_state_dict"):
            data.load_state_dict(state["data"][split])
    if state["random"] is not None:
        set_random_state(state["random"], run.device)


def _restore_hooks(run: Runner, saved: dict[str, Any]) -> None:
    for name, hook in run.hooks.items():
        if name in saved:
            try:
                hook.load_state_dict(saved[name])
            except Exception as error:
                error.add_note(f'raised while the hook "{name}" was given back its state')
                raise
        elif hasattr(hook, "state_dict") and hook.state_dict():
            run.say(f'the checkpoint does not know the hook "{name}": it starts anew', "warn")
    for name in saved.keys() - run.hooks.keys():
        if saved[name]:
            run.say(f'the checkpoint knows a hook "{name}" that this pipeline does not have', "warn")


def check_storable(state: dict[str, Any]) -> None:
    """Refuse what a checkpoint could hold, but could not be read back from without running code.

    Raises TypeError with the place of it. The state of the model and of the optimizer is torch's own affair.
    """
    for key, value in state.items():
        if not key.startswith(("model", "optimizer")) and (found := _foreign(value, f'["{key}"]')):
            raise TypeError(f"checkpoint{found}; a checkpoint holds numbers, strings, tensors, lists and dicts only")


def _foreign(value: Any, place: str) -> str:
    """Return the place and the type of the first thing that is not plain; an empty string when there is none."""
    if type(value) in PLAIN or isinstance(value, torch.Tensor):
        return ""
    inner: Iterable[tuple[Any, Any]]
    if type(value) in (dict, OrderedDict):
        inner = value.items()
    elif type(value) in (list, tuple):
        inner = enumerate(value)
    else:
        return f"{place} is a {type(value).__module__}.{type(value).__qualname__}"
    wrong = (_foreign(key, f"{place} (a key)") or _foreign(item, f"{place}[{key!r}]") for key, item in inner)
    return next(filter(None, wrong), "")


def _key_of(section: str, name: str) -> str:
    """Return what a model's or an optimizer's state goes by; that without a name by what it is."""
    return section if name == section else f"{section}_{name}"


def _key(run: Runner, binding_id: int) -> str:
    """Return what a trigger goes by: a method at a point, and an `around_X` there, have one each."""
    binding = run.plan.bindings[binding_id]
    return f"{binding.hook}@{binding.method if binding.half == 'enter' else binding.point}"


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every global random generator: Python's, NumPy's, torch's and the device's own."""
    kind, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` returned, maybe of a run on another kind of device."""
    random.setstate(state["python"])
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
