"""hookflow's graph of hooks as one callback in another trainer.

The trainer is Lightning's, Hugging Face's or Keras'. Each function returns a callback of that
trainer. It makes a run as `hookflow.attach` does, with a run directory, a log and the screens; the
loop, the data and the checkpoints stay the trainer's.
"""

from collections.abc import Collection, Mapping
from typing import Any

from hookflow.callbacks.driver import Hooks

__all__ = ["huggingface", "keras", "lightning"]


def lightning(
    hooks: Hooks, *, overrides: Mapping[str, Any] | None = None, runs: str | None = None
) -> Any:
    """Return a callback for Lightning's Trainer, which takes it among its `callbacks`.

    `hooks` is a pipeline of hooks alone, as for `hookflow.attach`; `overrides` go over it. `runs`
    is the folder of runs. Raises UserError for hooks at points that the trainer does not offer.
    """
    from hookflow.callbacks.lightning_callback import make_callback

    return make_callback(hooks, overrides, runs)


def huggingface(
    hooks: Hooks,
    *,
    overrides: Mapping[str, Any] | None = None,
    runs: str | None = None,
    eval_sets: Collection[str] = (),
) -> Any:
    """Return a callback for Hugging Face's Trainer, which takes it among its `callbacks`.

    `eval_sets` are the names of a dict of `eval_dataset`: a validation then ends with the last of
    them, and has the metrics of all. The other arguments are those of `lightning`.
    """
    from hookflow.callbacks.huggingface_callback import make_callback

    return make_callback(hooks, overrides, runs, eval_sets)


def keras(
    hooks: Hooks, *, overrides: Mapping[str, Any] | None = None, runs: str | None = None
) -> Any:
    """Return a callback for Keras where PyTorch computes: `fit` takes it among its `callbacks`.

    The arguments are those of `lightning`.
    """
    from hookflow.callbacks.keras_callback import make_callback

    return make_callback(hooks, overrides, runs)
