"""The tasks: from a batch to a loss. Each task trains `run.model`."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import Run
from hookflow.runner.data.batches import size_of


def _inputs_and_target(run: Run, batch: Any) -> tuple[Any, Tensor]:
    """Return the inputs and the target of a batch. Raises UserError for another batch."""
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    message = (
        f"a batch of data.{run.split} is {_describe(batch)}, and this task needs inputs and a"
        " tensor of targets"
    )
    raise UserError(Problem(message, hint=OWN_TASK))


def _describe(value: Any) -> str:
    """Return in words what a batch is, or a part of it."""
    match value:
        case Tensor():
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{dtype} {tuple(value.shape)}"
        case Mapping():
            keys = ", ".join(str(key) for key in value)
            return f"a dict of {keys}"
        case list() | tuple():
            items = [_describe(item) for item in value[:2]]
            if len(value) > 2:
                items.append("…")
            return f"[{', '.join(items)}]"
    return type(value).__name__


OWN_TASK = 'write a task for it: [task] use = "./task.py:step"; see docs/how-to/tasks.md'


def _output(model: Callable[..., Any], inputs: Tensor) -> Tensor:
    """Return the output of a model. Raises UserError where it is no tensor."""
    output = model(inputs)
    if not isinstance(output, Tensor):
        message = (
            f"the model {type(model).__name__} returns a {type(output).__name__}, and this task"
            " needs a tensor"
        )
        raise UserError(Problem(message, hint=OWN_TASK))
    return output


def _inputs(batch: Tensor | Sequence[Tensor]) -> Tensor:
    """Return a batch of inputs, or those of a batch that has more."""
    if isinstance(batch, Tensor):
        return batch
    return batch[0]


def _convert_precise(logits: Tensor) -> Tensor:
    """Return logits in float32, or in float64 where they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


IGNORED_TARGET = -100
"""The target that PyTorch's losses leave out of their mean."""


def _count(target: Tensor) -> int | Tensor:
    """Return how many targets a loss is a mean over: those not ignored;
    of shares of classes one an example.
    """
    if not target.is_floating_point():
        return target.ne(IGNORED_TARGET).sum()
    if target.ndim < 2:
        return target.numel()
    classes = target.size(1)
    return target.numel() // max(classes, 1)


class Classification:
    """Cross-entropy between a model's logits and one class an example, averaged over the batch.

    A target of -100 counts for nothing: a batch weighs as much as it has others.

    `label_smoothing` is the share of the target spread over all classes, in training and in
    evaluation alike, so that their losses compare. `flip_at_test` evaluates an image by the mean of
    its logits and its mirror's.
    """

    def __init__(
        self, label_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0, flip_at_test: bool = False
    ) -> None:
        self.label_smoothing = label_smoothing
        self.flip_at_test = flip_at_test

    def step(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` (a scalar, float32), the `logits` (batch,
        classes) and the `target` (batch,).
        """
        images, target = _inputs_and_target(run, batch)
        return self._make_outputs(run, _output(run.model, images), target)

    def evaluate(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the same as `step`; the caller has switched the model
        to evaluation and gradients off.
        """
        images, target = _inputs_and_target(run, batch)
        return self._make_outputs(run, self._compute_logits(run, images), target)

    def batch_weight(self, batch: Any) -> int | Tensor:
        """Return how many targets of a batch count;
        of one without targets in second place, its examples.
        """
        if isinstance(batch, list | tuple) and len(batch) > 1 and isinstance(batch[1], Tensor):
            return _count(batch[1])
        return size_of(batch) or 1

    def predict(self, run: Run, batch: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the `logits` (batch, classes) and the class `predicted` (batch,) of images,
        or of those of a batch.
        """
        logits = self._compute_logits(run, _inputs(batch))
        return {"logits": logits, "predicted": logits.argmax(1)}

    def _compute_logits(self, run: Run, images: Tensor) -> Tensor:
        logits = _output(run.model, images)
        if not self.flip_at_test:
            return logits
        if logits.ndim > 2:
            message = (
                "flip_at_test averages logits (batch, classes), and the model returns"
                f" {_describe(logits)}"
            )
            hint = 'of a map, the hook tta with output = "map" turns the mirrored one back'
            raise UserError(Problem(message, hint=hint))
        # A network compiled to CUDA graphs writes its next output over this one.
        kept = logits.clone()
        mirrored: Tensor = run.model(images.flip(3))
        return (kept + mirrored) / 2

    def _make_outputs(self, run: Run, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        try:
            loss = functional.cross_entropy(
                _convert_precise(logits), target, label_smoothing=self.label_smoothing
            )
        except (ValueError, IndexError, RuntimeError) as error:
            # A subclass of these is a failure of the memory or of the device.
            if type(error) not in (ValueError, IndexError, RuntimeError):
                raise
            shapes = (
                f"the target of data.{run.split} is {_describe(target)}, the logits are"
                f" {_describe(logits)}"
            )
            hint = (
                "as classes, a target is int64 (batch,), each from 0 to one less than the logits of"
                " an example"
            )
            raise UserError(Problem(f"{shapes}: {error}", hint=hint)) from error
        return {"loss": loss, "logits": logits, "target": target}


class Regression:
    """The distance between a model's outputs and a target of their shape, averaged over the batch.

    The loss is the mean squared error (`mse`), the mean absolute error (`mae`) or Huber's loss
    (`huber`). Evaluation also gives `mae` and, over the whole pass, `rmse`.
    """

    def __init__(self, loss: Literal["mse", "mae", "huber"] = "mse") -> None:
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "mse": functional.mse_loss,
            "mae": functional.l1_loss,
            "huber": functional.huber_loss,
        }
        self.distance = losses[loss]

    def step(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` (a scalar, float32), the `predicted` and the `target`, both (batch, …).

        Raises UserError when their shapes differ: broadcast against each other they would be a loss
        of something.
        """
        inputs, target = _inputs_and_target(run, batch)
        predicted = _output(run.model, inputs).float()
        if predicted.shape == (*target.shape, 1):
            predicted = predicted.squeeze(-1)
        if predicted.shape != target.shape:
            wanted = f"the target of data.{run.split} is {_describe(target)}"
            returned = f"the model returns {_describe(predicted)}"
            raise UserError(Problem(f"{wanted}, and {returned}: regression needs the same shape"))
        return {
            "loss": self.distance(predicted, target.float()),
            "predicted": predicted,
            "target": target,
        }

    def evaluate(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the same as `step`, with `mse` and `mae`."""
        outputs = self.step(run, batch)
        predicted = outputs["predicted"]
        target = outputs["target"].float()
        mse = functional.mse_loss(predicted, target)
        mae = functional.l1_loss(predicted, target)
        return {**outputs, "mse": mse, "mae": mae}

    def predict(self, run: Run, batch: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
        """Return what is `predicted` (batch, …) of inputs, or of those of a batch."""
        return {"predicted": run.model(_inputs(batch)).float()}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return `rmse`, the root of the mean over all examples,
        not the mean of each batch's root.
        """
        return {"rmse": math.sqrt(means["mse"])}


class LanguageModelling:
    """Cross-entropy between a model's logits at each token and the token that comes next.

    A batch is tokens, int64 (batch, length), of which the first `length - 1` are what the model is
    given; or a pair of tokens and targets, both (batch, length), where a target of -100 counts for
    nothing. The model returns logits (batch, length, vocabulary). A batch weighs as much as it has
    targets that count.
    """

    def step(self, run: Run, batch: Tensor | tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` (a scalar, float32: nats a token),
        the `logits` and the `target` (batch, length).
        """
        if isinstance(batch, Tensor):
            tokens = batch[:, :-1]
            target = batch[:, 1:]
        else:
            tokens, target = batch
        logits = _output(run.model, tokens)
        loss = functional.cross_entropy(_convert_precise(logits).flatten(0, 1), target.flatten())
        return {"loss": loss, "logits": logits, "target": target}

    def batch_weight(self, batch: Tensor | tuple[Tensor, Tensor]) -> int | Tensor:
        """Return how many targets of a batch count."""
        if isinstance(batch, Tensor):
            return batch[:, 1:].numel()
        return _count(batch[1])

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the `perplexity`, e to the mean loss over all targets that count."""
        loss = means["loss"]
        if loss >= 700:  # its exponential is beyond the largest float
            return {"perplexity": math.inf}
        return {"perplexity": math.exp(loss)}


class OwnLoss:
    """A model that computes its loss itself, as those of transformers do: `run.model(**batch)`
    returns a `loss`.

    A batch is a dict of the model's arguments, tensors (batch, …), with the targets under `labels`.
    The output is a dict, or an object with attributes: `loss`, a scalar, where there are targets;
    and `logits`, if it has them. Keys in `extra`, such as the ids of the examples, are not for the
    model: they are among the outputs, and `predict` returns them.

    With `generate`, the arguments of the model's method of that name, an evaluation also gives
    `generated`, and `predict` returns it: token ids (batch, length), padded to `max_length` with
    `pad`.

    `weigh_by` says what the loss is a mean over: the examples, the `labels` that are not -100, or
    those of them that come after the first of each example (`next_labels`), as in models that
    predict the next token.
    """

    def __init__(
        self,
        labels: str = "labels",
        extra: Sequence[str] = (),
        generate: Mapping[str, Any] | None = None,
        max_length: Annotated[int, Field(ge=1)] = 128,
        pad: int = 0,
        weigh_by: Literal["examples", "labels", "next_labels"] = "examples",
    ) -> None:
        self.labels = labels
        self.extra = (*extra,)
        self.generate = generate
        self.max_length = max_length
        self.pad = pad
        self.batch_weight: Callable[[Mapping[str, Any]], int | Tensor] | None = None
        if weigh_by == "labels":
            self.batch_weight = partial(self._count_labels, first=0)
        elif weigh_by == "next_labels":
            self.batch_weight = partial(self._count_labels, first=1)

    def step(self, run: Run, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `loss` (a scalar, float32), the `logits`, the `target` (the labels) and the
        keys in `extra`.

        Raises UserError when the model has returned no loss.
        """
        output = run.model(**self._inputs(batch))
        loss = _read_part(output, "loss")
        if loss is None:
            message = (
                f"the model has returned no loss ({type(output).__name__}) for {', '.join(batch)}"
            )
            raise UserError(
                Problem(message, hint=f'a batch needs targets: the key "{self.labels}"')
            )
        outputs = {"loss": loss.float(), "target": batch.get(self.labels)}
        return outputs | self._extra(batch) | self._compute_logits(output)

    def evaluate(self, run: Run, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same as `step`, and what the model has `generated`."""
        return self.step(run, batch) | self._generate_outputs(run, batch)

    def predict(self, run: Run, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the model has `generated`, else the `logits`; with the keys in `extra`.

        Labels are ignored.
        """
        extra = self._extra(batch)
        if self.generate is not None:
            return extra | self._generate_outputs(run, batch)
        output = run.model(**self._inputs(batch, self.labels))
        return extra | self._compute_logits(output)

    def _extra(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {key: batch[key] for key in self.extra}

    def _inputs(self, batch: Mapping[str, Any], *others: str) -> dict[str, Any]:
        """Return the arguments of the model: the batch without the keys in `extra` and `others`."""
        left_out = (*self.extra, *others)
        return {key: value for key, value in batch.items() if key not in left_out}

    def _count_labels(self, batch: Mapping[str, Any], *, first: int) -> int | Tensor:
        """Return how many labels count, of each example those from `first` on;
        1 where there are none to count.
        """
        labels = batch.get(self.labels)
        if labels is None:
            return 1
        if first:
            labels = labels[:, first:]
        return _count(labels)

    def _compute_logits(self, output: Any) -> dict[str, Tensor]:
        logits = _read_part(output, "logits")
        if logits is None:
            return {}
        return {"logits": logits}

    def _generate_outputs(self, run: Run, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        if self.generate is None:
            return {}
        model: Any = run.model
        ids: Tensor = model.generate(**self._inputs(batch, self.labels), **self.generate)
        if ids.shape[1] > self.max_length:
            message = (
                f"the model has generated {ids.shape[1]} tokens, and max_length is"
                f" {self.max_length}"
            )
            raise UserError(
                Problem(message, hint="raise max_length, or set generate.max_new_tokens")
            )
        padding = self.max_length - ids.shape[1]
        return {"generated": functional.pad(ids, (0, padding), value=self.pad)}


def _read_part(output: Any, name: str) -> Any:
    """Return a key of a dict, or an attribute; None where there is none."""
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)
