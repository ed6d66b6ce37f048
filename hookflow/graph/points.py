"""The named points of a training run where hooks fire.

This is the loop that the runner walks; a test holds the two together:

    before_run
        after_load_checkpoint                     # read, not yet copied in
        before_train
            for epoch:
                before_train_epoch
                for batch:
                    before_fetch                  # of each batch, also of one that is accumulated
                    before_train_iter
                        outputs = task.step(batch)
                    after_forward
                    before_backward
                        loss.backward()
                    after_backward
                    before_optimizer_step
                        optimizer.step()
                    after_optimizer_step
                    after_train_iter
                after_train_epoch
                every `val_every`:
                    before_val
                        before_val_epoch
                        for batch:
                            before_val_iter
                            after_val_iter
                        after_val_epoch
                    after_val
                when asked for:
                    before_save_checkpoint        # complete, not yet written
                    after_copy_checkpoint         # copied: the weights may change again
                    after_save_checkpoint         # safe on disk: at a later safe point
        after_train
        before_test
            before_test_epoch
            for batch:
                before_test_iter
                after_test_iter
            after_test_epoch
        after_test
        before_predict                            # `hookflow predict`, within those of its split
            for batch:
                before_predict_iter
                after_predict_iter
        after_predict
        on_exception                              # whatever went wrong
        on_log                                    # in each call of `run.log`, wherever that is
    after_run                                     # always, after an error too

Gradients are off from `before_val` to `after_val` and from `before_test` to `after_test`.
`docs/reference/loops.md` has the counters at each point, `docs/how-to/checkpoints.md` the points of
a checkpoint, `docs/how-to/module-hooks.md` and `docs/reference/pytorch_hooks.md` those inside the
network.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal[
    "standard", "step", "module", "global", "parameter", "optimizer", "comm", "state", "log", "own"
]
"""Points of the loop ("standard"), inside an iteration ("step"), of a logged number, and own ones.

The others are PyTorch's: modules of the network, every module, parameters, optimizer steps, DDP,
saving and loading.
"""

POINT_LIKE = ("before_", "after_", "on_", "around_")
"""The beginnings of a method that is meant for a point.

A misspelt name is a mistake, and never ignored.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A place where hooks fire.

    `offers` names the arguments that a hook method may take there; `unit` is what a bare number in
    `every` counts: training iterations, epochs, or firings of the point itself. `depth` is the
    nesting in the loop. A point of the pipeline's own `follows` another one: there it is listed,
    drawn and ordered.
    """

    name: str
    depth: int
    offers: tuple[str, ...]
    unit: str
    about: str
    kind: Kind = "standard"
    follows: str = ""

    @property
    def ahead(self) -> bool:
        """Whether what a bare number counts is still to be done there.

        It is at a `before_X`, and inside an iteration.
        """
        if self.name.startswith("before_"):
            return True
        return self.unit == "it" and self.kind != "standard"

    @property
    def nested(self) -> bool:
        """Whether it fires within something else.

        PyTorch comes there, or a hook or task that fires it.
        """
        return self.kind not in ("standard", "step")

    @property
    def picks(self) -> Literal["modules", "parameters", ""]:
        """The key of a binding that says, by globs, what it is registered on.

        It is empty where there is nothing to pick.
        """
        if self.kind in ("module", "state"):
            return "modules"
        if self.kind == "parameter":
            return "parameters"
        return ""

    @property
    def of_batches(self) -> bool:
        """Whether the run comes there for each iteration or batch.

        The batches are of training, validation or test.
        """
        if self.unit == "it":
            return True
        return self.kind == "standard" and self.name.endswith("_iter")


_standard: list[Point] = []


def _add_point(
    name: str, depth: int, offers: str, unit: str, about: str, kind: Kind = "standard"
) -> None:
    _standard.append(Point(name, depth, ("run", *offers.split()), unit, about, kind))


_add_point(
    "before_run", 0, "", "firing", "the model, the data and the optimizer stand; nothing has run"
)
_add_point(
    "after_load_checkpoint", 1, "checkpoint", "firing", "a checkpoint is read, not yet copied in"
)
_add_point(
    "load_state_dict_pre",
    2,
    "name module state_dict prefix local_metadata strict missing_keys unexpected_keys error_msgs",
    "firing",
    "a module is about to load its state",
    "state",
)
_add_point(
    "load_state_dict_post",
    2,
    "name module incompatible_keys",
    "firing",
    "a module has loaded",
    "state",
)
_add_point("before_train", 1, "", "firing", "the training loop is about to start")
_add_point("before_train_epoch", 2, "", "ep", "an epoch is about to start")
_add_point("before_fetch", 3, "batch_idx", "it", "a training batch is about to be fetched")
_add_point(
    "before_train_iter", 3, "batch batch_idx", "it", "a batch has been fetched, nothing computed"
)
_add_point(
    "global_forward_pre",
    4,
    "name module args input",
    "it",
    "any module is about to compute",
    "global",
)
_add_point(
    "forward_pre",
    4,
    "module name args input kwargs",
    "it",
    "a module is about to compute",
    "module",
)
_add_point(
    "global_forward",
    4,
    "name module args input kwargs output",
    "it",
    "any module has computed",
    "global",
)
_add_point(
    "forward", 4, "module name args input kwargs output", "it", "a module has computed", "module"
)
_add_point(
    "after_forward",
    4,
    "batch batch_idx outputs",
    "it",
    "the outputs and the loss are there",
    "step",
)
_add_point(
    "before_backward",
    4,
    "batch batch_idx outputs",
    "it",
    "the loss is about to be differentiated",
    "step",
)
_add_point(
    "global_full_backward_pre",
    4,
    "name module grad_output",
    "it",
    "gradients reach any module",
    "global",
)
_add_point(
    "full_backward_pre", 4, "module name grad_output", "it", "gradients reach a module", "module"
)
_add_point(
    "parameter_grad", 4, "name param grad", "it", "a gradient reaches a parameter", "parameter"
)
_add_point(
    "post_accumulate_grad",
    4,
    "name param",
    "it",
    "a gradient is added to a parameter's",
    "parameter",
)
_add_point(
    "global_full_backward",
    4,
    "name module grad_input grad_output",
    "it",
    "gradients leave any module",
    "global",
)
_add_point(
    "full_backward",
    4,
    "module name grad_input grad_output",
    "it",
    "gradients leave a module",
    "module",
)
_add_point(
    "ddp_comm",
    4,
    "name state process_group bucket",
    "it",
    "DDP is about to average a bucket of gradients",
    "comm",
)
_add_point("after_backward", 4, "batch batch_idx outputs", "it", "the gradients are there", "step")
_add_point(
    "before_optimizer_step", 4, "batch batch_idx outputs", "it", "the gradients are final", "step"
)
_add_point(
    "optimizer_step_pre",
    4,
    "name optimizer args kwargs",
    "it",
    "an optimizer's step begins",
    "optimizer",
)
_add_point(
    "optimizer_step_post",
    4,
    "name optimizer args kwargs",
    "it",
    "an optimizer's step is done",
    "optimizer",
)
_add_point(
    "after_optimizer_step", 4, "batch batch_idx outputs", "it", "the weights are new", "step"
)
_add_point(
    "after_train_iter", 3, "batch batch_idx outputs", "it", "an iteration is done and counted"
)
_add_point("after_train_epoch", 2, "", "ep", "an epoch is done and counted")
_add_point(
    "state_dict_pre",
    2,
    "name module prefix keep_vars",
    "firing",
    "`state_dict` of a module is called",
    "state",
)
_add_point(
    "state_dict_post",
    2,
    "name module state_dict prefix local_metadata",
    "firing",
    "the state is complete",
    "state",
)
_add_point("before_val", 2, "", "firing", "validation is about to start")
_add_point(
    "before_val_epoch", 3, "", "firing", "the pass over the validation data is about to start"
)
_add_point("before_val_iter", 4, "batch batch_idx", "firing", "a validation batch has been fetched")
_add_point(
    "after_val_iter",
    4,
    "batch batch_idx outputs",
    "firing",
    "the outputs of a validation batch are there",
)
_add_point(
    "after_val_epoch", 3, "metrics", "firing", "the pass is done: hooks put their metrics in"
)
_add_point("after_val", 2, "metrics", "firing", "validation is done: metrics over all its sets")
_add_point(
    "before_save_checkpoint", 2, "checkpoint", "firing", "a checkpoint is complete, not yet written"
)
_add_point(
    "after_copy_checkpoint",
    2,
    "",
    "firing",
    "the state has been copied; the weights may change again",
)
_add_point("after_save_checkpoint", 2, "checkpoint path", "firing", "a checkpoint is safe on disk")
_add_point("after_train", 1, "", "firing", "the training loop has ended")
_add_point("before_test", 1, "", "firing", "the test is about to start")
_add_point("before_test_epoch", 2, "", "firing", "the pass over the test data is about to start")
_add_point("before_test_iter", 3, "batch batch_idx", "firing", "a test batch has been fetched")
_add_point(
    "after_test_iter",
    3,
    "batch batch_idx outputs",
    "firing",
    "the outputs of a test batch are there",
)
_add_point(
    "after_test_epoch", 2, "metrics", "firing", "the pass is done: hooks put their metrics in"
)
_add_point("after_test", 1, "metrics", "firing", "the test is done: metrics over all its sets")
_add_point(
    "before_predict", 1, "", "firing", "`hookflow predict` is about to predict a set of data"
)
_add_point(
    "before_predict_iter", 2, "batch batch_idx", "firing", "a batch to predict has been fetched"
)
_add_point(
    "after_predict_iter",
    2,
    "batch batch_idx outputs",
    "firing",
    "the predictions for a batch are there",
)
_add_point("after_predict", 1, "", "firing", "every batch is predicted, nothing written yet")
_add_point("on_exception", 1, "exception", "firing", "something raised; the run is about to end")
_add_point("on_log", 1, "name value", "firing", "a number is logged", "log")
_add_point("after_run", 0, "", "firing", "the last point of every run, after an error too")

STANDARD_POINTS: tuple[Point, ...] = tuple(_standard)
"""Every point that each run has, in the order of a full one."""


class Points:
    """The points of a pipeline by name, in the order of a full run.

    An `own` point is behind the one that it follows.
    """

    def __init__(self, own: Iterable[Point] = ()) -> None:
        ordered = list(STANDARD_POINTS)
        for point in own:
            behind = []
            for k, other in enumerate(ordered):
                if point.follows in (other.name, other.follows):
                    behind.append(k)
            ordered.insert(max(behind) + 1, point)
        self._by_name = {point.name: point for point in ordered}

    def __iter__(self) -> Iterator[Point]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Point:
        return self._by_name[name]

    def in_iteration(self, name: str) -> bool:
        """Say whether a point is inside a training iteration, so that firings take its time."""
        point = self[name]
        if point.kind == "own":
            return self.in_iteration(point.follows)
        return point.unit == "it"

    def is_recurring(self, name: str) -> bool:
        """Return whether a point is in the training loop, so that its cost grows with the training.

        Points before the training and after it fire once: the begin and the end of the run, a test,
        a prediction.
        """
        point = self[name]
        if point.kind == "own":
            return self.is_recurring(point.follows)
        if point.kind == "log":
            return True
        ordered = list(self._by_name)
        begin = ordered.index("before_train")
        end = ordered.index("after_train")
        return begin < ordered.index(name) < end

    def find_points_of_around(self, name: str) -> tuple[str, str] | None:
        """Return the two points at which an `around_X` is called; None for any other name."""
        operation = name.removeprefix("around_")
        if name.startswith("around_") and operation in self.pairs:
            return f"before_{operation}", self.pairs[operation]
        return None

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The values of `around_X`.

        That is every X with a `before_X`, with the `after_X` that closes it. Only a save is closed
        elsewhere: at `after_save_checkpoint` the training has long gone on. A pipeline's own
        `before_copy_checkpoint` opens nothing, since `after_copy_checkpoint` closes the save.
        """
        closings = {}
        for name in self._by_name:
            pair = name.removeprefix("before_")
            if pair == "save_checkpoint":
                closing = "after_copy_checkpoint"
            else:
                closing = f"after_{pair}"
            if (
                name.startswith("before_")
                and pair != "copy_checkpoint"
                and closing in self._by_name
            ):
                closings[pair] = closing
        return closings

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Everything that a hook's method, or an entry of `points`, may be named."""
        return (*self._by_name, *(f"around_{pair}" for pair in self.pairs))


DEFAULT_POINTS = Points()
"""The points of a pipeline that declares none of its own."""

UNPLACED_POINTS = (
    "on_exception",
    "after_load_checkpoint",
    "before_save_checkpoint",
    "after_copy_checkpoint",
    "after_save_checkpoint",
)
"""Points that fire at no one place of the loop.

The points of `Points` that something else comes to are such, too.
"""

LOOP_BOUNDS = {
    "epoch": ("before_train_epoch", "after_val"),
    "iteration": ("before_fetch", "after_train_iter"),
    "validation batch": ("before_val_iter", "after_val_iter"),
    "test batch": ("before_test_iter", "after_test_iter"),
    "predicted batch": ("before_predict_iter", "after_predict_iter"),
}
"""The loops of the run, from outside in: the first point and the last one of each."""


class Loop:
    """Where in a round of the loop each point fires.

    A validation that is due after iterations has no one place.
    """

    def __init__(self, points: Points, validates_in_epoch: bool) -> None:
        self._rows = {point.name: row for row, point in enumerate(points)}
        self._validates_in_epoch = validates_in_epoch
        self.place: dict[str, int] = {}
        """The place of each point in one round; a negative number if it may fire anywhere."""
        self.within: dict[str, tuple[str, ...]] = {}
        """The loops that repeat each point, from outside in."""
        for point in points:
            name = point.name
            if point.kind == "own":
                if self.place[point.follows] >= 0:
                    self.place[name] = self._rows[name]
                else:
                    self.place[name] = -1
                self.within[name] = self.within[point.follows]
            elif self._is_fired_anywhere(point):
                self.place[name] = -1
                self.within[name] = ()
            else:
                self.place[name] = self._rows[name]
                self.within[name] = self._find_rounds_around(name)

    def _is_fired_anywhere(self, point: Point) -> bool:
        if point.name in UNPLACED_POINTS or point.kind in ("state", "log"):
            return True
        return self._validates_in_epoch and self._is_between(point.name, "before_val", "after_val")

    def _find_rounds_around(self, name: str) -> tuple[str, ...]:
        return tuple(
            round_
            for round_, (first, last) in LOOP_BOUNDS.items()
            if self._is_between(name, first, last)
        )

    def _is_between(self, name: str, first: str, last: str) -> bool:
        return self._rows[first] <= self._rows[name] <= self._rows[last]

    def common(self, *points: str) -> str:
        """Return the innermost round that all points are in.

        It is empty where the run passes them once.
        """
        shared = ""
        for name in LOOP_BOUNDS:
            if all(name in self.within[point] for point in points):
                shared = name
        return shared
