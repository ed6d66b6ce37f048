"""Writers send the results of a run elsewhere: the base class, and `csv`, `tensorboard`, `mlflow` and `wandb`."""

import csv
import os
import re
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from hookflow.errors import nearest_or_all
from hookflow.pipeline.source_map import flat


class Writer:
    """Carries what a run logs to somewhere else: a file, a service. `[writers.NAME]` names one by `use`.

    A class with one of the methods `write_…` is a writer, derived from this one or not (`as_writer`). A verb that
    it lacks does nothing.

    It is made before the training. Its constructor is given `dir` (a folder of its own in the run directory),
    `run_name` and `run_id` where it takes them and the pipeline does not give them. All other calls come from one
    thread of its own, one at a time, in the order in which things were logged; so a slow writer delays no training and
    no other writer. With several ranks, rank 0 alone has writers. An exception that a call raises
    loses that call; `docs/writers.md` says what follows.

    `iteration` and `epoch` are how many were done, `time` is in seconds since 1970.
    """

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        """Take a number of `run.log`, or a metric of a validation or test by its split: "val/accuracy"."""

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        """Take an image of `run.log_image`: a PNG file in the run directory, which stays there."""

    def write_figure(self, name: str, file: Path, iteration: int, epoch: int, time: float) -> None:
        """Take a figure of `run.log_figure` as it was drawn, a PNG file; left out, it is an image without a caption."""
        self.write_image(name, file, "", iteration, epoch, time)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        """Take a text of `run.log_text`."""

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        """Take a histogram of `run.log_histogram`: the edges of its bins, and the counts, one fewer."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Take the resolved pipeline, as the tables of its TOML. Called once in the whole run, before all else."""

    def close(self) -> None:
        """Finish. Called once at the end of each attempt, however it ends, unless the process is killed."""

    def flush(self) -> None:
        """Bring to its place what is kept back. Called whenever nothing more is waiting to be written."""

    def resume_at(self, iteration: int) -> bool:
        """Forget what earlier attempts have written after `iteration`, and return whether it does.

        Called first in every attempt but the first that has the writer. The run resumes at that iteration or later:
        what the writer may lack up to there, as the process was killed, is written again then. A writer that cannot
        forget returns False, and is not asked again: what it was given before is passed over when the resumed run logs
        it again.
        """
        return False


WHEN = ("iteration", "epoch", "time")
VALUES: dict[str, tuple[str, ...]] = {
    "write_scalar": ("name", "value"),
    "write_image": ("name", "file", "caption"),
    "write_figure": ("name", "file"),
    "write_text": ("name", "text"),
    "write_histogram": ("name", "edges", "counts"),
}
"""The arguments of each verb, to which `WHEN` is added."""
VERBS = (*VALUES, "write_config")
"""The methods of which a writer has at least one."""
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
OTHERS = ("close", "flush", "resume_at")


def as_writer(made: Any) -> Writer:
    """Return an object as a writer: each of its methods is given the arguments that it names, the others do nothing.

    `step` is another name of `iteration`. Raises TypeError for an object without any of `VERBS`, and for a method that
    needs an argument which is not offered.
    """
    own = {
        method: getattr(made, method)
        for method in (*VERBS, *OTHERS)
        if callable(getattr(made, method, None)) and getattr(type(made), method, None) is not getattr(Writer, method)
    }
    if not own.keys() & set(VERBS):
        raise TypeError(f"a writer has one of the methods {', '.join(VERBS)}, and {type(made).__name__} has none")
    writer = Writer()
    for method, call in own.items():
        setattr(writer, method, _fitted(call, VALUES[method]) if method in VALUES else call)
    return writer


def _fitted(call: Callable[..., None], values: tuple[str, ...]) -> Callable[..., None]:
    """Return a function of `values` and `WHEN` that gives `call` what it names; `call` itself where it takes all."""
    offered = (*values, *WHEN)
    parameters = signature(call).parameters
    with suppress(TypeError):
        signature(call).bind(*offered)
        return call
    places = {name: offered.index(name) for name in offered} | {"step": offered.index("iteration")}
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and parameter.kind in BY_NAME and name not in places:
            hint = nearest_or_all(name, places, lead="offered are")
            raise TypeError(f'{call.__qualname__} asks for "{name}", which is not offered ({hint})')
    taken = [(name, places[name]) for name, parameter in parameters.items() if name in places]
    return lambda *provided: call(**{name: provided[place] for name, place in taken})


COLUMNS = ("iteration", "epoch", "time", "name", "value")


class CSVWriter(Writer):
    """A CSV file with a row for each scalar: iteration, epoch, time, name, value.

    Images, figures, texts and histograms have no place in it; they are in the run directory. A resumed run cuts the
    file off at the iteration it resumes from.
    """

    def __init__(self, dir: Path, file: str = "scalars.csv") -> None:  # noqa: A002 (what a pipeline file writes)
        self._path = dir / file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)
            self._file.flush()

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._rows.writerow((iteration, epoch, f"{time:.3f}", name, value))

    def resume_at(self, iteration: int) -> bool:
        """Write the file anew with what stands up to the iteration; a row that a kill has torn is left out."""
        self._file.close()
        aside = self._path.with_name(f"{self._path.name}.tmp")
        with self._path.open(encoding="utf-8", newline="") as old, aside.open("w", encoding="utf-8", newline="") as new:
            rows = csv.writer(new, lineterminator="\n")
            rows.writerow(COLUMNS)
            whole = (line for line in old if line.endswith("\n"))
            rows.writerows(row for row in islice(csv.reader(whole), 1, None) if int(row[0]) <= iteration)
        aside.replace(self._path)
        self._open()
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


CONFIG = "pipeline"
"""The tag of the resolved pipeline, a text."""


class TensorBoardWriter(Writer):
    """TensorBoard's event files: scalars (in fp32, as TensorBoard has them), images, texts, histograms, the pipeline.

    A resumed run writes a file of its own, which begins by having TensorBoard purge the steps that are trained again.
    """

    def __init__(self, dir: Path) -> None:  # noqa: A002 (what a pipeline file writes)
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._summary: Any = summary
        self._events, self._protos = event_pb2, summary_pb2
        dir.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files in the order of their names, and knows one by "tfevents" in it.
        self._file = (dir / f"events.out.tfevents.{clock.time_ns():020}.hookflow").open("wb")
        self._records = RecordWriter(self._file)
        self._write(event_pb2.Event(wall_time=clock.time(), file_version="brain.Event:2"))

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._add(iteration, time, tag=name, simple_value=value)

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        png = file.read_bytes()
        width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
        image = self._protos.Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)
        self._add(iteration, time, tag=name, image=image)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self._add_summary(self._summary.text(name, text), iteration, time)

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        middles = [(left + right) / 2 for left, right in pairwise(edges)]
        histogram = self._protos.HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(middle * count for middle, count in zip(middles, counts, strict=True)),
            sum_squares=sum(middle**2 * count for middle, count in zip(middles, counts, strict=True)),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        self._add(iteration, time, tag=name, histo=histogram)

    def write_config(self, config: Mapping[str, Any]) -> None:
        import tomli_w

        self._add_summary(self._summary.text(CONFIG, f"```toml\n{tomli_w.dumps(config)}\n```"), 0, clock.time())

    def resume_at(self, iteration: int) -> bool:
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(self._events.Event(wall_time=clock.time(), step=iteration + 1, session_log=log))
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._records.close()

    def _add(self, iteration: int, time: float, **fields: Any) -> None:
        self._add_summary(self._protos.Summary(value=[self._protos.Summary.Value(**fields)]), iteration, time)

    def _add_summary(self, summary: Any, iteration: int, time: float) -> None:
        self._write(self._events.Event(wall_time=time, step=iteration, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


PARAMETERS_AT_ONCE, PARAMETER_LENGTH = 100, 500
"""The limits of one call of MLflow, and of one value."""


class MLflowWriter(Writer):
    """A run of MLflow: scalars as metrics, the pipeline as parameters, all else as artifacts.

    `uri` is a folder or a tracking URI ("sqlite:///mlflow.db", "https://…"); left out, a folder in the run directory.
    `experiment` is the pipeline's name if left out. A resumed run goes on in the same run of MLflow, and what that has
    already is not written again.
    """

    def __init__(self, dir: Path, run_name: str, run_id: str, uri: str = "", experiment: str = "") -> None:  # noqa: A002 (what a pipeline file writes)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._in_files = "://" not in uri
        if self._in_files:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 wants to be asked for its file format
            uri = (Path(uri) if uri else dir).absolute().as_uri()
        self._client, self._param = MlflowClient(tracking_uri=uri), Param
        name = experiment or run_name
        result = self._client.get_experiment_by_name(name)
        place = result.experiment_id if result else self._client.create_experiment(name)
        runs = self._client.search_runs([place], f"tags.`hookflow.run` = '{run_id}'")
        run = runs[0] if runs else self._client.create_run(place, run_name=run_id, tags={"hookflow.run": run_id})
        self._run = run.info.run_id
        self._metrics = set(run.data.metrics)
        """The metrics that MLflow has, by its names."""
        if runs:
            self._client.update_run(self._run, status="RUNNING")

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        metric = self._metric(_allowed(name))
        self._client.log_metric(self._run, metric, value, timestamp=round(time * 1000), step=iteration)
        self._metrics.add(metric)

    def _metric(self, name: str) -> str:
        """Return what a metric is called: in a folder it is a file, and `lr` cannot be beside `lr/0`."""
        if not self._in_files or name in self._metrics:
            return name
        if any(other.startswith(f"{name}/") for other in self._metrics):
            return f"{name}/value"
        used = next((other for other in self._metrics if name.startswith(f"{other}/")), None)
        return name if used is None else f"{used}.{name[len(used) + 1 :]}"

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        self._client.log_artifact(self._run, str(file), f"images/{_allowed(name)}")

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self._client.log_text(self._run, text, f"texts/{_allowed(name)}/it{iteration:08}.txt")

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        histogram = {"edges": list(edges), "counts": list(counts)}
        self._client.log_dict(self._run, histogram, f"histograms/{_allowed(name)}/it{iteration:08}.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        parameters = [self._param(_allowed(key), str(value)[:PARAMETER_LENGTH]) for key, value in flat(config)]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


AXIS = "iteration"
"""The metric that charts have as their x axis: W&B's own step counts calls, and takes none that comes late."""


class WandbWriter(Writer):
    """A run of Weights & Biases, in files that `wandb sync` uploads, or with `mode = "online"` at once.

    `project` is the pipeline's name if left out. A resumed run goes on under the same id, and what was written before
    is not written again.
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
        self._run.define_metric("*", step_metric=AXIS)

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._run.log({AXIS: iteration, name: value})

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        self._run.log({AXIS: iteration, name: self._wandb.Image(str(file), caption=caption or None)})

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        from html import escape  # takes 0.3 MB, which few trainings need

        self._run.log({AXIS: iteration, name: self._wandb.Html(f"<pre>{escape(text)}</pre>")})

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        histogram = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
        self._run.log({AXIS: iteration, name: histogram})

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config))

    def close(self) -> None:
        self._run.finish()
