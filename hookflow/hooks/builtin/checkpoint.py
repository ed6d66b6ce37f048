"""Files of a run.

`checkpoint` requests that its state is saved, and `export` writes weights as files for others.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from hookflow.errors import Problem, UserError
from hookflow.events.rundir import make_out_dir
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import ExportedWeights, HookCapabilities, SavedCheckpoints
from hookflow.hooks.checkpoint_files import frozen_in, not_averages, read_weights, with_frozen
from hookflow.hooks.copy_place import PLACE_NAMES, format_place
from hookflow.hooks.monitored import monitored_mode, read_latest_metric, read_new_value
from hookflow.hooks.tensors import enter_evaluation, first_tensor, is_sharded
from hookflow.metric_mode import MODE_MEANING, Mode, compute_gain, is_formula
from hookflow.numbers import parse_size
from hookflow.pipeline.registry import missing_package

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run

KEEP_DESCRIPTION = 'how many of the newest stay, beside the best; or "all"'


def _check_keep(written: object) -> object:
    if written == "all" or (
        isinstance(written, int) and not isinstance(written, bool) and written > 0
    ):
        return written
    raise ValueError('must be a number of checkpoints above zero, or "all"')


TRAIL_DESCRIPTION = (
    'bytes that older checkpoints may take beside those that stay anyway, such as "2 GB"'
)


def _check_trail(written: str | None) -> str | None:
    if written is None or parse_size(written):
        return written
    raise ValueError('must be a size such as "500 MB" or "2 GB"')


@dataclass(eq=False)
class Checkpoint(Hook):
    """Saves `last` after each epoch, and the best by validation metrics.

    Bound to `after_train_iter`, it saves `last` after each iteration, and bound to `after_val`
    alone, after each validation. The best go by `best`, `best-2`, …; where several metrics are
    watched, by `best-accuracy`, `best-accuracy-2`, … Bound to `on_exception`, it saves what stands
    when something raises, apart from what a run resumes from.

    With `stage = "train"` the best go by numbers that the training has logged by the end of an
    epoch, such as `loss_epoch` of `log` with `mean = "epoch"`: for a run without validation data.
    An epoch that has logged none anew is not among them.

    With `from`, as `from = "3ep"`, it begins then: what comes earlier is not saved, and is no best.
    With `out_dir` the checkpoints are in `<out_dir>/<run.name>/<id>/`, and `checkpoints` in the run
    directory is a link to that: what looks for them there finds them.

    With `trail`, as `trail = "2 GB"`, older checkpoints stay beside the newest, in so many bytes,
    thinned out: their distances grow in powers of two. `hookflow rerun` goes to any iteration from
    the one before it.

    With `restore_best` the models, and averages such as `ema`, have the weights of the best
    checkpoint by the first metric once the training has ended. The checkpoint `last` is saved
    before, and nothing is saved after that.

    With `weights_only` the best hold the weights alone, as `weights-it…`: they take less of the
    disk, can be evaluated, loaded and forked, and no run resumes from them. `last` and the newest
    stay whole.

    With `frozen = false` no checkpoint holds parameters that a model was built with frozen, as
    those below adapters (LoRA). Where it is left out, they lack those of models with `frozen =
    true` in `[model.NAME]`; with `frozen = true` they hold all. A run that is resumed, and
    `load_into`, take what is left out from the model as its component builds it; other ones than
    those of the training are refused. A parameter that is changed or trained later is saved.

    With `copy_to` a thread copies each checkpoint by its names, to another folder or to a URL that
    fsspec knows, as `copy_to = "s3://models/{run}/{name}-ep{ep}-{accuracy:.3f}"`. Braces hold
    `run`, `id`, `name`, `it`, `ep` or a metric of `monitor`. A copy that fails is tried again, with
    a warning; no older copy is removed.

    The hook requests a save, and the runner makes it at the next safe point, after all hooks: so no
    hook's state is saved half a step late, and no average is ever caught swapped in.
    """

    settable = ("keep",)
    capabilities = HookCapabilities(
        writes_outside=("out_dir", "copy_to"), saved_checkpoints=SavedCheckpoints()
    )
    points = ("after_train_epoch", "after_val")
    phase = "last"
    reads: ClassVar[Slots] = {
        "after_val": ("metrics.{monitor?}",),
        **dict.fromkeys(("after_train_iter", "after_train_epoch"), ("scalars.{logged?}",)),
    }
    writes: ClassVar[Slots] = {"after_train_iter": ("checkpoint",)}

    monitor: Annotated[
        str | dict[str, Mode] | None,
        Field(
            description=(
                'the metric that says which are best, or several: { accuracy = "max", loss ='
                ' "min" }'
            )
        ),
    ] = None
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None
    top: Annotated[int, Field(ge=1, description="how many of the best by each metric stay")] = 1
    keep: Annotated[
        int | str,
        PlainValidator(_check_keep),
        WithJsonSchema(
            {
                "type": ["integer", "string"],
                "minimum": 1,
                "pattern": "^all$",
                "description": KEEP_DESCRIPTION,
            }
        ),
        Field(description=KEEP_DESCRIPTION),
    ] = 1
    out_dir: Annotated[
        str | None, Field(description="the folder; checkpoints/ in the run directory if left out")
    ] = None
    stage: Annotated[
        Literal["val", "train"], Field(description="where the numbers of monitor come from")
    ] = "val"
    restore_best: Annotated[
        bool,
        Field(
            description=(
                "whether the models get the best weights at the end of the training, before a test"
            )
        ),
    ] = False

    weights_only: Annotated[
        bool, Field(description="whether the best are saved without the state of the optimizers")
    ] = False

    frozen: Annotated[
        bool | None,
        Field(
            description=(
                "whether parameters that a model is built with frozen are saved, too; left out: all"
                " but those of models with `frozen = true`"
            )
        ),
    ] = None

    copy_to: Annotated[
        str | None, Field(description="a folder or a URL to copy to, with {run}, {name}, {it}, …")
    ] = None

    trail: Annotated[
        str | None, AfterValidator(_check_trail), Field(description=TRAIL_DESCRIPTION)
    ] = None

    def __post_init__(self) -> None:
        self.modes = _read_modes(self.monitor, self.mode)
        self.best: dict[str, list[tuple[float, int]]] = {metric: [] for metric in self.modes}
        """For each metric the best values with the iterations that had them, the best first."""
        self.counts: dict[str, int] = {}
        """For each number of the training how often it was logged when it was last ranked."""
        self.former_names: dict[str, int] | None = None
        """The names that the best had before a resume, where they must be given anew."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        if args.get("stage") == "train":
            return cls.points[:1]
        return cls.points

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        modes = _read_modes(args.get("monitor"), args.get("mode"))
        best = list_best_names(modes, args.get("top", 1))
        saved = SavedCheckpoints(
            names=("last", *best),
            names_of_weights=best if args.get("weights_only") else (),
            keep=_number_kept(args.get("keep", 1)),
            folder=args.get("out_dir"),
            copy_to=args.get("copy_to"),
            trail_bytes=parse_size(args.get("trail") or ""),
            with_frozen=args.get("frozen"),
            restored_at_end=best[0] if args.get("restore_best") else None,
        )
        return replace(cls.capabilities, saved_checkpoints=saved, monitors=modes)

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**args, "logged": args.get("monitor") if args.get("stage") == "train" else None}

    @property
    def newest(self) -> int:
        """How many of the newest stay, as a number."""
        return _number_kept(self.keep)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        modes = _read_modes(args.get("monitor"), args.get("mode"))
        if not modes and args.get("restore_best"):
            raise ValueError("restore_best needs monitor, the metric that says which are best")
        if not modes and args.get("weights_only"):
            raise ValueError(
                "weights_only is for the best: it needs monitor, the metric that says which are"
                " best"
            )
        _check_best_names(modes, args.get("top", 1))
        if args.get("copy_to") is not None:
            _check_place(args["copy_to"], modes)
        if args.get("trail") and args.get("keep") == "all":
            raise ValueError('keep = "all" leaves nothing for a trail: leave one of the two out')

    def after_train_epoch(self, run: Run) -> None:
        run.save_checkpoint("last", keep=self.newest)
        self._rename_best(run)
        if self.stage == "train":
            self._rank(run, self._read_new_values(run))

    after_train_iter = after_train_epoch

    def _read_new_values(self, run: Run) -> dict[str, float]:
        """Return the monitored numbers that were logged since they were ranked.

        An older one is not of the weights that stand now.
        """
        values = {}
        for metric in self.modes:
            value, count = read_new_value(run, metric, self.counts.get(metric, 0))
            self.counts[metric] = count
            if value is not None:
                values[metric] = value
        return values

    def after_val(self, run: Run) -> None:
        if self.bound_points and POINTS_OF_LAST.isdisjoint(self.bound_points):
            run.save_checkpoint("last", keep=self.newest)
        self._rename_best(run)
        values = {metric: read_latest_metric(run, metric) for metric in self.modes}
        self._rank(run, {metric: value for metric, value in values.items() if value is not None})

    def _rank(self, run: Run, values: Mapping[str, float]) -> None:
        """Ask for a save by the name of each metric whose value is among the best."""
        for metric, value in values.items():
            if not math.isfinite(value):
                continue
            best = self.best[metric]
            mode = self.modes[metric]
            rank = 0
            while rank < len(best) and compute_gain(value, best[rank][0], mode) <= 0:
                rank += 1
            if rank == self.top or any(it == run.iter for _, it in best[:rank]):
                continue  # an iteration that is validated twice has one place: its better one
            best[rank:] = [each for each in best[rank:] if each[1] != run.iter]
            best.insert(rank, (value, run.iter))
            del best[self.top :]
            names = list_ranks(self.best_by(metric), self.top)
            down = {names[k]: best[k][1] for k in range(rank + 1, len(best))}
            run.save_checkpoint(names[rank], moved=down, keep=self.newest)

    def _rename_best(self, run: Run) -> None:
        """Ask for the names of the best where a resumed run ranks or calls them in another way."""
        if self.former_names is None:
            return
        self.former_names = None
        names = self._list_names()
        run.save_checkpoint(moved=names, keep=self.newest)
        run.say(
            "monitor, mode or top is another than before: the best so far are named anew"
            f" ({', '.join(names)})"
        )

    def _list_names(self) -> dict[str, int]:
        """Return the names of the best checkpoints, with their iterations."""
        names: dict[str, int] = {}
        for metric, best in self.best.items():
            ranks = list_ranks(self.best_by(metric), self.top)
            names |= {name: it for name, (_, it) in zip(ranks, best, strict=False)}
        return names

    def best_by(self, metric: str) -> str:
        """Return the name of the best checkpoint by a metric."""
        return name_best(metric, self.modes)

    def on_exception(self, run: Run) -> None:
        run.save_checkpoint("exception")

    def state_dict(self) -> dict[str, Any]:
        names = self.former_names
        if names is None:
            names = self._list_names()
        return {
            "best": {metric: list(best) for metric, best in self.best.items()},
            "names": names,
            "stage": self.stage,
            "counts": dict(self.counts),
        }

    def forked_state(self, state: dict[str, Any]) -> dict[str, Any]:
        has_best = any(state["best"].values())
        if has_best:  # those so far are the parent's
            return {**state, "best": {}}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("stage", self.stage) != self.stage:  # those so far are of other numbers
            return
        self.counts = dict(state.get("counts", {}))
        for metric, mode in self.modes.items():
            known = [(value, it) for value, it in state["best"].get(metric, ())]
            known.sort(key=itemgetter(0), reverse=mode == "max")
            self.best[metric] = known[: self.top]
        names = self._list_names()
        former = state.get("names", names)
        if any(former.get(name) != it for name, it in names.items()):
            self.former_names = former


POINTS_OF_LAST = frozenset(("after_train_iter", "after_train_epoch"))
"""The points at which the hook saves `last`, whatever a validation gives."""


def name_best(metric: str, modes: Mapping[str, Mode]) -> str:
    """Return the name of the best checkpoint by one of the metrics that are watched."""
    if len(modes) == 1:
        return "best"
    plain = metric.replace("/", "_")
    if is_formula(metric):  # the name is that of a file
        plain = re.sub(r"[^\w.@]+", "_", metric).strip("_")
    return f"best-{plain}"


def list_best_names(modes: Mapping[str, Mode], top: int) -> tuple[str, ...]:
    """Return every name that the best checkpoints get: `top` by each of the metrics."""
    names: list[str] = []
    for metric in modes:
        names += list_ranks(name_best(metric, modes), top)
    return tuple(names)


def list_ranks(best: str, top: int) -> list[str]:
    """Return the names of the best checkpoints by one metric: `best`, `best-2` and so on."""
    return [best, *(f"{best}-{k}" for k in range(2, top + 1))]


def _check_best_names(modes: Mapping[str, Mode], top: int) -> None:
    """Raise ValueError for two metrics whose best checkpoints would go by the same name."""
    metric_by_name: dict[str, str] = {}
    for metric in modes:
        for name in list_ranks(name_best(metric, modes), top):
            other = metric_by_name.setdefault(name, metric)
            if other != metric:
                raise ValueError(
                    f'the best by "{other}" and by "{metric}" both go by {name}: monitor one of'
                    " them by a hook of its own"
                )


def _number_kept(keep: int | str) -> int:
    """Return how many of the newest checkpoints stay, as a number; "all" is the largest."""
    if isinstance(keep, int):
        return keep
    return sys.maxsize


def _check_place(template: str, metrics: Iterable[str]) -> None:
    """Raise ValueError for what no checkpoint can be copied to.

    Raises UserError where a package is missing.
    """
    known = dict.fromkeys((*PLACE_NAMES, *metrics))
    for _, name, _, _ in Formatter().parse(template):
        if name is not None and name not in known:
            raise ValueError(
                f'copy_to has "{{{name}}}": it takes {", ".join(known)}, and the metrics of monitor'
            )
    format_place(template, {**dict.fromkeys(PLACE_NAMES[:3], ""), "it": 0, "ep": 0})
    protocol, url, _ = template.partition("://")
    if url:
        missing = missing_package("a URL in copy_to", "fsspec", "fsspec")
        if missing:
            raise UserError(missing)
        from fsspec import get_filesystem_class

        try:
            get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            raise ValueError(f"copy_to cannot use {protocol}://: {error}") from None


def _read_modes(monitor: str | dict[str, Mode] | None, mode: Mode | None) -> dict[str, Mode]:
    if isinstance(monitor, str):
        return {monitor: monitored_mode(monitor, mode)}
    return {metric: monitored_mode(metric, stated) for metric, stated in (monitor or {}).items()}


Format = Literal["state_dict", "safetensors", "torch_export"]
SUFFIX_BY_FORMAT: dict[Format, str] = {
    "state_dict": ".pt",
    "safetensors": ".safetensors",
    "torch_export": ".pt2",
}

DIGITS = 8
"""Digits of the SHA-256 in a file's name.

`torch.hub.load_state_dict_from_url(…, check_hash=True)` reads so many.
"""


@dataclass(eq=False)
class Export(Hook):
    """Writes weights of a checkpoint as files for others at the end of the run.

    Each name has the first digits of the file's SHA-256. `checkpoint` is the name of the
    checkpoint, such as `best`; `weights` which of its weights, such as `model_ema` for the average
    of a hook called ema. The file is `<checkpoint>-<weights>-1a2b3c4d.pt`; one of that name that is
    there holds the same, and those of other runs stay. The formats:

    - `state_dict`: what `torch.save` writes of a state_dict, for `torch.load(…,
      weights_only=True)`;
    - `safetensors`: the same tensors for the package of that name (`pip install
      'hookflow[safetensors]'`);
    - `torch_export`: the network in evaluation with the weights, by `torch.export`, for batches of
      any size. It is called with the first tensor of a training batch to see what it does. `run
      --dry-run` tries it.

    Written after the last checkpoint is on the disk; a run that ends without that checkpoint
    exports nothing. A name that no hook saves is refused before the training, unless a hook of your
    own might.
    """

    phase = "last"
    ranks = "zero"
    reads = ("model", "checkpoint")
    capabilities = HookCapabilities(writes_outside=("out_dir",), exported_weights=ExportedWeights())

    formats: Annotated[
        tuple[Format, ...], Field(min_length=1, description="the formats to write")
    ] = ("state_dict",)
    checkpoint: Annotated[str, Field(description="the checkpoint by its name: last, best, …")] = (
        "last"
    )
    weights: Annotated[
        str, Field(description="which weights of the checkpoint: model, model_ema, …")
    ] = "model"
    out_dir: Annotated[
        str | None, Field(description="the folder; export/ in the run directory if left out")
    ] = None

    def __post_init__(self) -> None:
        self.trains = False

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        exported = ExportedWeights(
            checkpoint=args.get("checkpoint", "last"), weights=args.get("weights", "model")
        )
        return replace(cls.capabilities, exported_weights=exported)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        missing = missing_package("the format safetensors", "safetensors", "safetensors")
        if missing and "safetensors" in args.get("formats", ()):
            raise UserError(missing)

    def before_train(self, run: Run) -> None:
        self.trains = True
        if "torch_export" in self.formats and any(map(is_sharded, run.model.parameters())):
            message = "torch_export cannot export a model that is sharded across the ranks"
            raise UserError(
                Problem(message, hint='export a state_dict, or use distributed.strategy = "ddp"')
            )
        if "safetensors" in self.formats:
            only_tensors(run.model.state_dict())
        make_out_dir(self._find_folder(run))

    def after_run(self, run: Run) -> None:
        import torch

        source = run.dir / "checkpoints" / self.checkpoint
        if not self.trains:
            return
        if not source.exists():
            run.say(f'there is no checkpoint "{self.checkpoint}" to export', "warn")
            return
        weights = read_weights(source, self.weights)
        folder = self._find_folder(run)
        name = f"{self.checkpoint}-{self.weights}"
        for format_ in self.formats:
            suffix = SUFFIX_BY_FORMAT[format_]
            unnamed = folder / f".{name}{suffix}"
            if format_ == "torch_export":
                self._write_network(run, source, weights, unnamed)
            elif format_ == "safetensors":
                write_safetensors(weights, unnamed)
            else:
                # `torch.save` to a path would write its name into the file. To an open file, the
                # same weights give the same bytes.
                with unnamed.open("wb") as file:
                    torch.save(weights, file)
            with unnamed.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
            path = unnamed.replace(folder / f"{name}-{digest}{suffix}")
            message = f"exported {path}"
            note = not_averages(source, self.weights)
            if note:
                message += f"; {note}"
            run.say(message)

    def _write_network(
        self, run: Run, source: Path, weights: Mapping[str, Tensor], path: Path
    ) -> None:
        """Write the network with weights of a checkpoint, as `torch_export` has it."""
        model = run.models.get(self.weights.removeprefix("model_"), run.model)
        inputs = first_tensor(next(iter(run.data["train"].epoch(0))))
        if inputs is None:
            message = (
                "torch_export needs a tensor in the batch, to see what the network does with it"
            )
            raise UserError(Problem(message))
        whole = with_frozen(weights, frozen_in(source, self.weights), model)
        write_exported(model, inputs, whole, path)

    def _find_folder(self, run: Run) -> Path:
        if self.out_dir is None or run.is_temporary:
            return run.dir / "export"
        return Path(self.out_dir)


def only_tensors(weights: Mapping[str, Any]) -> None:
    """Raise UserError for weights that safetensors cannot hold."""
    import torch

    other = next((name for name, value in weights.items() if not torch.is_tensor(value)), "")
    if other:
        message = (
            f'safetensors cannot hold "{other}", a module\'s extra state of type'
            f" {type(weights[other]).__name__}"
        )
        raise UserError(Problem(message, hint='use formats = ["state_dict"]'))


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights as safetensors; those that are tied are written once for each name."""
    from safetensors.torch import save_file

    save_file(_untie_weights(weights), path)


def make_safetensors_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """Return what `write_safetensors` writes."""
    from safetensors.torch import save

    return save(_untie_weights(weights))


def _untie_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of which no two share memory, as safetensors wants it."""
    only_tensors(weights)
    return {name: tensor.contiguous().clone() for name, tensor in weights.items()}


def write_exported(
    model: nn.Module, inputs: Tensor, weights: Mapping[str, Tensor], path: Path
) -> None:
    """Write a network with other weights, in evaluation, by `torch.export`.

    Afterwards it is as it was.
    """
    import torch

    before = deepcopy(model.state_dict())
    try:
        model.load_state_dict(weights)
        with enter_evaluation(model), torch.no_grad():
            shapes = ({0: torch.export.Dim.AUTO},)
            torch.export.save(
                torch.export.export(model, (inputs,), dynamic_shapes=shapes, strict=False), path
            )
    finally:
        model.load_state_dict(before)
