"""Writers send the results of a run elsewhere: the base class,
and those that are named by a short name.
"""

import csv
import json
import os
import re
import time as clock
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from hookflow.errors import nearest_or_all
from hookflow.pipeline.source_map import flat


class Writer:
    """Carries what a run logs to somewhere else: a file, a service. `[writers.NAME]` names one by
    `use`.

    A class with one of the methods `write_…` is a writer, derived from this one or not
    (`as_writer`). A verb that it lacks does nothing.

    It is made before the training. Its constructor is given `dir` (a folder of its own in the run
    directory), `run_name` and `run_id` where it takes them and the pipeline does not give them. All
    other calls come from one thread of its own, one at a time, in the order in which things were
    logged; so a slow writer delays no training and no other writer. With several ranks, rank 0
    alone has writers. An exception that a call raises loses that call; `docs/how-to/writers.md`
    says what follows.

    `iteration` and `epoch` are how many were done, `time` is in seconds since 1970.
    """

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        """Take a number of `run.log`, or a metric of a validation or
        test by its split: "val/accuracy".
        """

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        """Take an image of `run.log_image`: a PNG file in the run directory, which stays there."""

    def write_figure(self, name: str, file: Path, iteration: int, epoch: int, time: float) -> None:
        """Take a figure of `run.log_figure` as it was drawn, a PNG file; left out,
        it is an image without a caption.
        """
        self.write_image(name, file, "", iteration, epoch, time)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        """Take a text of `run.log_text`."""

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        """Take a histogram of `run.log_histogram`: the edges of its bins,
        and the counts, one fewer.
        """

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Take the resolved pipeline, as the tables of its TOML. Called once in the whole run,
        before all else.
        """

    def end(self, status: str) -> None:
        """Take how the attempt has ended: "finished", "stopped", "interrupted" or "failed".
        Called right before `close`.
        """

    def close(self) -> None:
        """Finish. Called once at the end of each attempt, however it ends, unless the process is
        killed.
        """

    def flush(self) -> None:
        """Bring to its place what is kept back. Called whenever nothing more is waiting to be
        written.
        """

    def resume_at(self, iteration: int) -> bool:
        """Forget what earlier attempts have written after `iteration`, and return whether it does.

        Called first in every attempt but the first that has the writer. The run resumes at that
        iteration or later: what the writer may lack up to there, as the process was killed, is
        written again then. A writer that cannot forget returns False, and is not asked again: what
        it was given before is passed over when the resumed run logs it again.
        """
        return False


TIME_ARGUMENTS = ("iteration", "epoch", "time")
"""The arguments that every verb but `write_config` is given after its own."""

VERB_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "write_scalar": ("name", "value"),
    "write_image": ("name", "file", "caption"),
    "write_figure": ("name", "file"),
    "write_text": ("name", "text"),
    "write_histogram": ("name", "edges", "counts"),
}
"""The own arguments of each verb."""

WRITER_METHODS = (*VERB_ARGUMENTS, "write_config")
"""The methods of which a writer has at least one."""

LIFECYCLE_METHODS = ("end", "close", "flush", "resume_at")
"""The other methods that a writer may have."""

NAMED_KINDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
"""The kinds of parameters that can be given by name."""


def as_writer(made: Any) -> Writer:
    """Return an object as a writer: each of its methods is given the arguments that it names, the
    others do nothing.

    `step` is another name of `iteration`. Raises TypeError for an object without any of
    `WRITER_METHODS`, and for a method that needs an argument which is not offered.
    """
    own = _find_own_methods(made)
    if not own.keys() & set(WRITER_METHODS):
        raise TypeError(
            f"a writer has one of the methods {', '.join(WRITER_METHODS)}, and"
            f" {type(made).__name__} has none"
        )
    writer = Writer()
    for method, call in own.items():
        if method in VERB_ARGUMENTS:
            call = _with_named_arguments(call, VERB_ARGUMENTS[method])
        setattr(writer, method, call)
    return writer


def _find_own_methods(made: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods of a writer that an object has,
    but for those that it has from `Writer`.
    """
    methods = {}
    for name in (*WRITER_METHODS, *LIFECYCLE_METHODS):
        method = getattr(made, name, None)
        is_inherited = getattr(type(made), name, None) is getattr(Writer, name)
        if callable(method) and not is_inherited:
            methods[name] = method
    return methods


def _with_named_arguments(
    call: Callable[..., None], arguments: tuple[str, ...]
) -> Callable[..., None]:
    """Return a function of `arguments` and `TIME_ARGUMENTS` that gives `call` those that it names.

    It is `call` itself where that takes all of them.
    """
    offered = (*arguments, *TIME_ARGUMENTS)
    parameters = signature(call).parameters
    with suppress(TypeError):
        signature(call).bind(*offered)
        return call
    places = {name: place for place, name in enumerate(offered)}
    places["step"] = places["iteration"]
    places_taken = {}
    for name, parameter in parameters.items():
        if name in places:
            places_taken[name] = places[name]
        elif parameter.default is Parameter.empty and parameter.kind in NAMED_KINDS:
            hint = nearest_or_all(name, places, lead="offered are")
            raise TypeError(f'{call.__qualname__} asks for "{name}", which is not offered ({hint})')

    def call_by_name(*provided: Any) -> None:
        call(**{name: provided[place] for name, place in places_taken.items()})

    return call_by_name


CSV_COLUMNS = ("iteration", "epoch", "time", "name", "value")


class CSVWriter(Writer):
    """A CSV file with a row for each scalar: iteration, epoch, time, name, value.

    Images, figures, texts and histograms have no place in it; they are in the run directory. A
    resumed run cuts the file off at the iteration it resumes from.
    """

    def __init__(self, dir: Path, file: str = "scalars.csv") -> None:  # noqa: A002 (what a pipeline file writes)
        self._path = dir / file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._rows.writerow(CSV_COLUMNS)
            self._file.flush()

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        self._rows.writerow((iteration, epoch, f"{time:.3f}", name, value))

    def resume_at(self, iteration: int) -> bool:
        """Write the file anew with what stands up to the iteration;
        a row that a kill has torn is left out.
        """
        self._file.close()
        shortened = self._path.with_name(f"{self._path.name}.tmp")
        with (
            self._path.open(encoding="utf-8", newline="") as old_file,
            shortened.open("w", encoding="utf-8", newline="") as new_file,
        ):
            whole_lines = (line for line in old_file if line.endswith("\n"))
            reader = csv.reader(whole_lines)
            next(reader, None)  # the heading
            writer = csv.writer(new_file, lineterminator="\n")
            writer.writerow(CSV_COLUMNS)
            for row in reader:
                if int(row[0]) <= iteration:
                    writer.writerow(row)
        shortened.replace(self._path)
        self._open()
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


CONFIG_TAG = "pipeline"
"""The tag of the resolved pipeline, a text."""

TAGS_FILE = "tags.jsonl"
"""The file beside those of TensorBoard with the tags so far: a line for each, kind and name."""


class TensorBoardTags:
    """The tags of things by kind: TensorBoard shows nothing of a tag that a scalar and a histogram
    have. The second of the two is called by its kind, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tags: dict[tuple[str, str], str] = {}
        self._kinds: dict[str, str] = {}
        """The kind of thing by tag."""
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a kill has torn the last line
                    kind, name = json.loads(line)
                    self._take(kind, name)

    def find(self, kind: str, name: str) -> str:
        """Return the tag of a thing, in every attempt the same."""
        known = self._tags.get((kind, name))
        if known is not None:
            return known
        tag = self._take(kind, name)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, name]) + "\n")
        if tag != name:
            warnings.warn(
                f'TensorBoard cannot show the {kind} "{name}" beside the {self._kinds[name]} of'
                f' that name: it is called "{tag}" there',
                stacklevel=2,
            )
        return tag

    def _take(self, kind: str, name: str) -> str:
        tag = name
        while self._kinds.setdefault(tag, kind) != kind or tag in self._tags.values():
            tag = f"{tag}/{kind}"
        self._tags[kind, name] = tag
        return tag


class TensorBoardWriter(Writer):
    """TensorBoard's event files: scalars (in fp32, as TensorBoard has them), images, texts,
    histograms, the pipeline.

    A resumed run writes a file of its own, which begins by having TensorBoard purge the steps that
    are trained again.
    """

    def __init__(self, dir: Path) -> None:  # noqa: A002 (what a pipeline file writes)
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._summary: Any = summary
        self._events = event_pb2
        self._protos = summary_pb2
        dir.mkdir(parents=True, exist_ok=True)
        self._tags = TensorBoardTags(dir / TAGS_FILE)
        # TensorBoard reads the files in the order of their names, and knows them by "tfevents".
        file_name = f"events.out.tfevents.{clock.time_ns():020}.hookflow"
        self._file = (dir / file_name).open("wb")
        self._records = RecordWriter(self._file)
        try:
            self._write(event_pb2.Event(wall_time=clock.time(), file_version="brain.Event:2"))
        except OSError:
            self._file.close()
            raise

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        self._add(iteration, time, tag=self._tags.find("scalar", name), simple_value=value)

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        png = file.read_bytes()
        width = int.from_bytes(png[16:20], "big")
        height = int.from_bytes(png[20:24], "big")
        image = self._protos.Summary.Image(
            width=width, height=height, colorspace=4, encoded_image_string=png
        )
        self._add(iteration, time, tag=self._tags.find("image", name), image=image)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self._add_summary(self._summary.text(name, text), iteration, time)

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        sums = []
        square_sums = []
        for (left, right), count in zip(pairwise(edges), counts, strict=True):
            middle = (left + right) / 2
            sums.append(middle * count)
            square_sums.append(middle**2 * count)
        histogram = self._protos.HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(sums),
            sum_squares=sum(square_sums),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        self._add(iteration, time, tag=self._tags.find("histogram", name), histo=histogram)

    def write_config(self, config: Mapping[str, Any]) -> None:
        import tomli_w

        text = f"```toml\n{tomli_w.dumps(config)}\n```"
        self._add_summary(self._summary.text(CONFIG_TAG, text), 0, clock.time())

    def resume_at(self, iteration: int) -> bool:
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(self._events.Event(wall_time=clock.time(), step=iteration + 1, session_log=log))
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._records.close()

    def _add(self, iteration: int, time: float, **fields: Any) -> None:
        value = self._protos.Summary.Value(**fields)
        self._add_summary(self._protos.Summary(value=[value]), iteration, time)

    def _add_summary(self, summary: Any, iteration: int, time: float) -> None:
        self._write(self._events.Event(wall_time=time, step=iteration, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


PARAMETERS_PER_CALL = 100
"""How many parameters MLflow takes in one call."""

MAX_PARAMETER_LENGTH = 500
"""How long a value may be for MLflow."""


NAMED_IN_MLFLOW = ("metric", "image", "text", "histogram")
"""The kinds of things that a run names."""

NAME_TAG = "hookflow.{kind}."
"""The beginning of a tag of MLflow that holds hookflow's name for something."""


class MLflowNames:
    """The names that MLflow has for things of one kind: it takes few characters, and so two names
    may become one. The second of the two has a number behind it.

    `by_name` are those that it has already, by hookflow's names.
    """

    def __init__(self, kind: str, by_name: Mapping[str, str]) -> None:
        self._kind = kind
        self._by_name = dict(by_name)

    def get(self, name: str) -> str | None:
        """Return what MLflow calls a name; None where it is not known yet."""
        return self._by_name.get(name)

    def add(self, name: str, wanted: str) -> str:
        """Return what MLflow calls a new name: what is wanted, unless another one has that."""
        names_in_use = {called: other for other, called in self._by_name.items()}
        called = wanted
        number = 2
        while called in names_in_use:
            called = f"{wanted}.{number}"
            number += 1
        self._by_name[name] = called
        if called != wanted:
            warnings.warn(
                f'MLflow would take the {self._kind} "{name}" and "{names_in_use[wanted]}" for one:'
                f' "{name}" is called "{called}" there',
                stacklevel=2,
            )
        return called


MLFLOW_STATES = {
    "finished": "FINISHED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
"""MLflow's status of a run, by that of its last attempt."""


class MLflowWriter(Writer):
    """A run of MLflow: scalars as metrics, the pipeline as parameters, all else as artifacts.

    `uri` is a folder or a tracking URI ("sqlite:///mlflow.db", "https://…"); left out, a folder in
    the run directory. `experiment` is the pipeline's name if left out. A resumed run goes on in the
    same run of MLflow, and what that has already is not written again.
    """

    def __init__(
        self,
        dir: Path,  # noqa: A002 (what a pipeline file writes)
        run_name: str,
        run_id: str,
        uri: str = "",
        experiment: str = "",
    ) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._in_files = "://" not in uri
        if self._in_files:
            # MLflow 3 writes files only where this variable allows it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            if uri:
                folder = Path(uri)
            else:
                folder = dir
            uri = folder.absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        self._param = Param
        name = experiment or run_name
        known_experiment = self._client.get_experiment_by_name(name)
        if known_experiment:
            experiment_id = known_experiment.experiment_id
        else:
            experiment_id = self._client.create_experiment(name)
        runs = self._client.search_runs([experiment_id], f"tags.`hookflow.run` = '{run_id}'")
        if runs:
            run = runs[0]
        else:
            run = self._client.create_run(
                experiment_id, run_name=run_id, tags={"hookflow.run": run_id}
            )
        self._run = run.info.run_id
        self._metrics = set(run.data.metrics)
        """The metrics that MLflow has, by its names."""
        self._names = {kind: _read_names(kind, run.data) for kind in NAMED_IN_MLFLOW}
        self._status = MLFLOW_STATES["finished"]
        if runs:
            self._client.update_run(self._run, status="RUNNING")

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        metric = self._name("metric", name)
        self._client.log_metric(
            self._run, metric, value, timestamp=round(time * 1000), step=iteration
        )
        self._metrics.add(metric)

    def _name(self, kind: str, name: str) -> str:
        """Return what something is called, in every attempt the same: where that is not its own
        name, a tag says whose it is.
        """
        names = self._names[kind]
        known = names.get(name)
        if known is not None:
            return known
        wanted = _replace_disallowed(name)
        if kind == "metric":
            wanted = self._metric(wanted)
        called = names.add(name, wanted)
        if called != name:
            self._client.set_tag(self._run, NAME_TAG.format(kind=kind) + called, name)
        return called

    def _metric(self, name: str) -> str:
        """Return what a metric is called: in a folder it is a file,
        and `lr` cannot be beside `lr/0`.
        """
        if not self._in_files or name in self._metrics:
            return name
        if any(other.startswith(f"{name}/") for other in self._metrics):
            return f"{name}/value"
        for other in self._metrics:
            if name.startswith(f"{other}/"):
                rest = name.removeprefix(f"{other}/")
                return f"{other}.{rest}"
        return name

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        self._client.log_artifact(self._run, str(file), f"images/{self._name('image', name)}")

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        path = f"texts/{self._name('text', name)}/it{iteration:08}.txt"
        self._client.log_text(self._run, text, path)

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        histogram = {"edges": list(edges), "counts": list(counts)}
        path = f"histograms/{self._name('histogram', name)}/it{iteration:08}.json"
        self._client.log_dict(self._run, histogram, path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        parameters = []
        names = MLflowNames("parameter", {})
        for key, value in flat(config):
            text = str(value)[:MAX_PARAMETER_LENGTH]
            called = names.add(key, _replace_disallowed(key))
            parameters.append(self._param(called, text))
        for start in range(0, len(parameters), PARAMETERS_PER_CALL):
            batch = parameters[start : start + PARAMETERS_PER_CALL]
            self._client.log_batch(self._run, params=batch)

    def end(self, status: str) -> None:
        self._status = MLFLOW_STATES[status]

    def close(self) -> None:
        self._client.set_terminated(self._run, self._status)


def _replace_disallowed(name: str) -> str:
    """Return a name as MLflow takes it: with allowed characters alone,
    and as a path that names each of its parts.
    """
    allowed = re.sub(r"[^\w\-. :/]", "_", name)
    parts = [part for part in allowed.split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "_"


def _read_names(kind: str, data: Any) -> MLflowNames:
    """Return the names of one kind that a run of MLflow has, by its tags and its metrics."""
    begin = NAME_TAG.format(kind=kind)
    tags = {key: name for key, name in data.tags.items() if key.startswith(begin)}
    names = {name: key.removeprefix(begin) for key, name in tags.items()}
    if kind == "metric":
        own = set(data.metrics) - set(names.values())
        names |= {name: name for name in own}
    return MLflowNames(kind, names)


STEP_METRIC = "iteration"
"""The metric that charts have as their x axis: W&B's own step counts calls,
and takes none that comes late.
"""

NAMED_AS_STEP = f"{STEP_METRIC}/value"
"""The name for W&B of a number that is logged by the name of the x axis."""


class WandbWriter(Writer):
    """A run of Weights & Biases, in files that `wandb sync` uploads, or with `mode = "online"` at
    once.

    `project` is the pipeline's name if left out. A resumed run goes on under the same id, and what
    was written before is not written again.
    """

    def __init__(
        self,
        dir: Path,  # noqa: A002 (what a pipeline file writes)
        run_name: str,
        run_id: str,
        project: str = "",
        entity: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        import wandb

        self._wandb = wandb
        dir.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project or run_name,
            entity=entity,
            id=run_id,
            name=run_id,
            dir=str(dir),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric=STEP_METRIC)
        self._exit_code = 0

    def _log(self, name: str, value: Any, iteration: int) -> None:
        if name == STEP_METRIC:
            warnings.warn(
                f'W&B has the x axis of all charts as "{name}": what is logged as "{name}" is'
                f' called "{NAMED_AS_STEP}" there',
                stacklevel=2,
            )
            name = NAMED_AS_STEP
        self._run.log({STEP_METRIC: iteration, name: value})

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        self._log(name, value, iteration)

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        image = self._wandb.Image(str(file), caption=caption or None)
        self._log(name, image, iteration)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        from html import escape  # takes 0.3 MB, which few trainings need

        html = self._wandb.Html(f"<pre>{escape(text)}</pre>")
        self._log(name, html, iteration)

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        histogram = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
        self._log(name, histogram, iteration)

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config))

    def end(self, status: str) -> None:
        if status == "failed":
            self._exit_code = 1

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)


class TrackioWriter(Writer):
    """A run of trackio: in its folder of this machine, or in a Space of Hugging Face's hub.

    `project` is the pipeline's name if left out. A resumed run goes on in the same run of trackio,
    and what that has already is not written again.
    """

    def __init__(
        self, run_name: str, run_id: str, project: str = "", space: str | None = None
    ) -> None:
        import trackio

        self._trackio = trackio
        name = project or run_name
        self._run = trackio.init(
            project=name,
            name=run_id,
            space_id=space,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
        )

    def _log(self, name: str, value: Any, iteration: int) -> None:
        metrics = {name: value}
        self._run.log(metrics, step=iteration)

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        self._log(name, value, iteration)

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        image = self._trackio.Image(str(file), caption=caption or None)
        self._log(name, image, iteration)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        markdown = self._trackio.Markdown(text)
        self._log(name, markdown, iteration)

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        pair = (list(counts), list(edges))
        histogram = self._trackio.Histogram(np_histogram=pair)
        self._log(name, histogram, iteration)

    def write_config(self, config: Mapping[str, Any]) -> None:
        values = {key: str(value) for key, value in flat(config)}
        self._run.config.update(values)

    def close(self) -> None:
        self._run.finish()
