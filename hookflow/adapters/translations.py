"""Adapters of frameworks whose hooks do not run here: what their names are called, for hints."""

from typing import ClassVar

from hookflow.hooks.adapter import FrameworkNames, HookAdapter

KERAS_METHODS = {
    "on_train_begin": "before_train",
    "on_train_end": "after_train",
    "on_epoch_begin": "before_train_epoch",
    "on_epoch_end": "after_val, after_train_epoch",
    "on_train_batch_begin": "before_train_iter",
    "on_batch_begin": "before_train_iter",
    "on_train_batch_end": "after_train_iter",
    "on_batch_end": "after_train_iter",
    "on_test_begin": "before_val, before_test",
    "on_test_end": "after_val, after_test",
    "on_test_batch_begin": "before_val_iter, before_test_iter",
    "on_test_batch_end": "after_val_iter, after_test_iter",
    "on_predict_begin": "before_predict",
    "on_predict_end": "after_predict",
    "on_predict_batch_begin": "before_predict_iter",
    "on_predict_batch_end": "after_predict_iter",
}

FASTAI_METHODS = {
    "before_fit": "before_train",
    "after_fit": "after_train",
    "before_epoch": "before_train_epoch",
    "after_epoch": "after_val",
    "before_validate": "before_val",
    "after_validate": "after_val",
    "before_batch": "before_train_iter, before_val_iter",
    "after_batch": "after_train_iter, after_val_iter",
    "after_pred": "after_forward",
    "after_loss": "after_forward",
    "before_step": "before_optimizer_step",
    "after_step": "after_optimizer_step",
    "after_cancel_fit": "after_train",
}

COMPOSER_METHODS = {
    "init": "before_run",
    "before_load": "after_load_checkpoint",
    "after_load": "before_train",
    "fit_start": "before_train",
    "epoch_start": "before_train_epoch",
    "before_dataloader": "before_fetch",
    "after_dataloader": "before_train_iter",
    "batch_start": "before_train_iter",
    "before_train_batch": "before_train_iter",
    "before_forward": "before_train_iter",
    "before_loss": "after_forward",
    "after_loss": "after_forward",
    "after_train_batch": "before_optimizer_step",
    "batch_end": "after_train_iter",
    "batch_checkpoint": "after_train_iter",
    "epoch_end": "after_train_epoch",
    "epoch_checkpoint": "after_train_epoch",
    "eval_start": "before_val",
    "eval_before_all": "before_val",
    "eval_batch_start": "before_val_iter",
    "eval_before_forward": "before_val_iter",
    "eval_after_forward": "after_val_iter",
    "eval_batch_end": "after_val_iter",
    "eval_end": "after_val",
    "eval_after_all": "after_val",
    "predict_start": "before_predict",
    "predict_batch_start": "before_predict_iter",
    "predict_before_forward": "before_predict_iter",
    "predict_after_forward": "after_predict_iter",
    "predict_batch_end": "after_predict_iter",
    "predict_end": "after_predict",
    "fit_end": "after_train",
    "close": "after_run",
    "post_close": "after_run",
    "run_event": "",
    "match": "",
    "apply": "",
}

IGNITE_METHODS = {
    "epoch_started": "before_train_epoch",
    "epoch_completed": "after_train_epoch",
    "iteration_started": "before_train_iter",
    "iteration_completed": "after_train_iter",
    "get_batch_started": "before_fetch",
    "get_batch_completed": "before_train_iter",
}

IGNITE_EVENTS = {
    "started": "before_train",
    "completed": "after_train",
    "dataloader_stop_iteration": "after_train_epoch",
    "exception_raised": "on_exception",
    "terminate": "after_train",
    "terminate_single_epoch": "after_train_epoch",
}


class KerasAdapter(HookAdapter):
    """Translates the names of Keras' callbacks."""

    names: ClassVar = FrameworkNames(
        framework="Keras",
        packages=("keras", "tf_keras", "tensorflow"),
        base="Callback",
        members=KERAS_METHODS,
    )


class IgniteAdapter(HookAdapter):
    """Translates the events of Ignite and the argument of its handlers.

    These have no base class.
    """

    names: ClassVar = FrameworkNames(
        framework="Ignite",
        packages=("ignite",),
        arguments={"engine": "run"},
        unmistakable=("engine",),
        members=IGNITE_METHODS,
        events=IGNITE_EVENTS,
    )


class FastaiAdapter(HookAdapter):
    """Translates the names of fastai's callbacks."""

    names: ClassVar = FrameworkNames(
        framework="fastai",
        packages=("fastai",),
        base="Callback",
        arguments={"learn": "run"},
        unmistakable=("learn",),
        members=FASTAI_METHODS,
    )


class ComposerAdapter(HookAdapter):
    """Translates the names of Composer's callbacks."""

    names: ClassVar = FrameworkNames(
        framework="Composer",
        packages=("composer",),
        base="Callback",
        arguments={"state": "run", "logger": "run.log"},
        members=COMPOSER_METHODS,
    )


class ComposerAlgorithmAdapter(HookAdapter):
    """Translates the names of Composer's algorithms, which match events and are applied at them."""

    names: ClassVar = FrameworkNames(
        framework="Composer (an algorithm)",
        packages=("composer",),
        base="Algorithm",
        members=COMPOSER_METHODS,
    )
