"""The built-in writers: what they have written is read back, by the tools that it is for."""

import csv
import json
import posixpath
import re
import signal
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.pipeline import registry
from hookflow.pipeline.load import missing_components, parse
from hookflow.service.runs import scalars
from hookflow.writers import _replace_disallowed
from tests.conftest import TOY, NewRun, Trained, strikes
from tests.support.overrides import EVERY_3
from tests.support.processes import Training
from tests.support.tensorboard_files import accumulated

LOGS = 'hooks.logs={use="./logging_hooks.py:Logs"}'
Row = tuple[int, str, float]


def rows_of_csv(run: RunDir) -> list[Row]:
    with (run.writers / "csv/scalars.csv").open(newline="") as file:
        return [
            (int(row["iteration"]), row["name"], float(row["value"]))
            for row in csv.DictReader(file)
        ]


def rows_of_tensorboard(run: RunDir) -> list[Row]:
    result = accumulated(run.writers / "tensorboard")
    tags = result.Tags()["scalars"]
    return [(event.step, tag, event.value) for tag in tags for event in result.Scalars(tag)]


def run_of_mlflow(run: RunDir) -> tuple[Any, Any]:
    """Return MLflow's client of the local folder, and its one run there."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = mlflow.MlflowClient(tracking_uri=(run.writers / "mlflow").as_uri())
        (result,) = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    return client, result


def rows_of_mlflow(run: RunDir) -> list[Row]:
    client, result = run_of_mlflow(run)
    histories = (
        client.get_metric_history(result.info.run_id, name) for name in result.data.metrics
    )
    return [(metric.step, metric.key, metric.value) for history in histories for metric in history]


def rows_of_wandb(run: RunDir) -> list[Row]:
    return [
        (int(row["iteration"]), name, row[name])
        for row in history_of_wandb(run)
        for name in row
        if isinstance(row[name], float | int) and not name.startswith(("_", "iteration"))
    ]


def history_of_wandb(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the rows that `wandb sync` would upload."""
    from wandb.proto import wandb_internal_pb2 as protocol

    for file in sorted((run.writers / "wandb").rglob("*.wandb")):
        for data in log_records(file.read_bytes()):
            record = protocol.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log as LevelDB writes it, after a header of seven bytes."""
    at, block, parts, last = 7, 1 << 15, b"", (1, 4)
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in last:
            yield parts
            parts = b""


READERS = {
    "csv": rows_of_csv,
    "tensorboard": rows_of_tensorboard,
    "mlflow": rows_of_mlflow,
    "wandb": rows_of_wandb,
}


def trained_with(name: str, new_run: NewRun) -> RunDir:
    """Train in a process of its own: W&B leaves something running in the one that has used it."""
    pytest.importorskip(name, reason=f"pip install 'hookflow[{name}]'")
    run = new_run(f'writers.{name}={{use="{name}"}}', LOGS, "run.max_epochs=1")
    assert Training(run).wait() == 0
    return run


def logged(run: RunDir, fp32: bool) -> list[Row]:
    return sorted(
        (row.iter, row.name, float(np.float32(row.value)) if fp32 else row.value)
        for row in scalars(run)
    )


@pytest.mark.parametrize("name", READERS)
def test_no_step_is_doubled_after_a_kill(name: str, new_run: NewRun, tmp_path: Path) -> None:
    if name != "csv":
        pytest.importorskip(name, reason=f"pip install 'hookflow[{name}]'")
    kills = strikes(tmp_path, signal.SIGKILL, ("after_val", 5), ("after_train_iter", 8))
    run = new_run(f'writers.{name}={{use="{name}"}}', EVERY_3, *kills, "run.max_epochs=2")
    assert [Training(run, resume=resume).wait() for resume in (False, True, True)] == [-9, -9, 0]
    written = [(iteration, name) for iteration, name, _ in READERS[name](run)]
    assert len(written) == len(set(written)), "no step is doubled"
    for series in {name for _, name in written}:
        its = [iteration for iteration, name in written if name == series]
        assert its == sorted(its), series
    last = {name: iteration for iteration, name in sorted(written)}
    assert (last["val/accuracy"], last["loss"]) == (10, 10)
    if name in ("csv", "tensorboard"):
        stable = [
            (it, name, value)
            for it, name, value in logged(run, name == "tensorboard")
            if name != "samples_per_s"
        ]
        result = {row for row in READERS[name](run) if row[1] != "samples_per_s"}
        assert result == set(stable), "what waited at a kill is made up for"


def test_tensorboard_has_images_texts_histograms_and_the_pipeline(new_run: NewRun) -> None:
    run = trained_with("tensorboard", new_run)
    result = accumulated(run.writers / "tensorboard")
    image = result.Images("val/sample")[2]
    assert (image.step, image.width, image.height) == (3, 5, 4)
    assert (
        image.encoded_image_string == (run.path / "images/val/sample/it00000003.png").read_bytes()
    )
    texts = {
        tag: [event.tensor_proto.string_val[0].decode() for event in result.Tensors(tag)]
        for tag in result.Tags()["tensors"]
    }
    assert texts["sample/text_summary"][0] == "iteration 1"
    assert 'use = "./toy.py:Net"' in texts["pipeline/text_summary"][0]
    histogram = result.Histograms("weights")[-1].histogram_value
    assert (histogram.min, histogram.max, histogram.num) == (0, 2, 4)
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([1, 2], [1, 3])


def test_a_scalar_and_a_histogram_of_one_name_are_both_shown(tmp_path: Path) -> None:
    """Whatever comes first, and in the second attempt the other way round; read as TensorBoard's
    own server reads it.
    """
    pytest.importorskip("tensorboard", reason="pip install 'hookflow[tensorboard]'")
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext

    from hookflow.writers import TensorBoardWriter

    told = []
    for iteration in (1, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            writer = TensorBoardWriter(tmp_path)
            calls = [
                lambda: writer.write_scalar("grad", 0.5, iteration, 0, 1.0),  # noqa: B023
                lambda: writer.write_histogram("grad", [0, 1], [4], iteration, 0, 1.0),  # noqa: B023
            ]
            if iteration == 2:
                calls.reverse()
            for call in calls:
                call()
            writer.close()
        told += [str(each.message) for each in caught if "TensorBoard" in str(each.message)]
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    board = MultiplexerDataProvider(multiplexer, str(tmp_path))
    asked: dict[str, Any] = {"experiment_id": "", "downsample": 9}
    scalars_shown = board.read_scalars(RequestContext(), plugin_name="scalars", **asked)["."]
    shown = board.read_tensors(RequestContext(), plugin_name="histograms", **asked)["."]
    assert {tag: [(each.step, each.value) for each in of] for tag, of in scalars_shown.items()} == {
        "grad": [(1, 0.5), (2, 0.5)]
    }
    assert {tag: [each.step for each in of] for tag, of in shown.items()} == {
        "grad/histogram": [1, 2]
    }
    assert len(told) == 1 and 'it is called "grad/histogram" there' in told[0]


def test_a_number_called_as_the_axis_of_wandb_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookflow.writers import WandbWriter

    rows: list[dict[str, Any]] = []
    run = SimpleNamespace(log=rows.append, define_metric=lambda *_, **__: None)
    stand_in = SimpleNamespace(init=lambda **_: run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    writer = WandbWriter(tmp_path, "toy", "one")
    with pytest.warns(UserWarning, match="x axis"):
        writer.write_scalar("iteration", 0.5, 7, 0, 1.0)
    assert rows == [{"iteration": 7, "iteration/value": 0.5}]


@pytest.mark.parametrize(
    "name", ["val/AR@100", "a//b", "loss/", "/y", "./x", "a/../b", "//", "lr/0"]
)
def test_a_name_is_one_that_mlflow_takes(name: str) -> None:
    """By the rules of MLflow: as open-mmlab/mmdetection#10258 and verl-project/verl#4446."""
    taken = _replace_disallowed(name)
    assert re.fullmatch(r"[/\w.\- :]+", taken)
    assert posixpath.normpath(taken) == taken
    assert taken[0] not in "/." and not taken.startswith("..")


def test_a_run_of_mlflow_has_the_status_of_the_run(trained: Trained, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    writer = 'writers.mlflow={use="mlflow"}'
    run = trained(writer, *strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 3)), code=143)
    _, result = run_of_mlflow(run)
    assert result.info.status == "KILLED"


def test_mlflow_has_scalars_parameters_and_artifacts(new_run: NewRun) -> None:
    run = trained_with("mlflow", new_run)
    assert sorted(rows_of_mlflow(run)) == logged(run, fp32=False)
    client, result = run_of_mlflow(run)
    assert result.info.status == "FINISHED"
    assert (result.info.run_name, result.data.params["optimizer.args.lr"]) == (run.id, "0.1")
    artifacts = {
        each.path for each in client.list_artifacts(result.info.run_id, "images/val/sample")
    }
    assert len(artifacts) == 5


def test_two_names_that_mlflow_cannot_tell_apart_are_two_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second attempt logs them the other way round, and beside the rule for
    folders, by which `lr/0` is called `lr.0`.
    """
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install 'hookflow[mlflow]'"
    )
    from hookflow.writers import MLflowWriter

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    value_of = {"AR@100": 1.0, "AR_100": 2.0, "AR#100": 3.0, "lr": 4.0, "lr/0": 5.0, "lr.0": 6.0}
    told: list[str] = []
    for iteration, names in ((1, [*value_of]), (2, [*reversed(value_of)])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            writer = MLflowWriter(tmp_path, "toy", "one")
            for name in names:
                writer.write_scalar(name, value_of[name], iteration, 0, 1.0)
                writer.write_text(name, f"{name} at {iteration}", iteration, 0, 1.0)
            if iteration == 1:
                writer.write_config({"data": {"a@b": 1, "a_b": 2}})
            writer.close()
        told += [str(each.message) for each in caught if "for one" in str(each.message)]
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    (result,) = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    run = result.info.run_id
    histories = [
        [(metric.step, metric.value) for metric in client.get_metric_history(run, name)]
        for name in result.data.metrics
    ]
    assert sorted(histories) == [[(1, value), (2, value)] for value in value_of.values()]
    texts = []
    for folder in client.list_artifacts(run, "texts"):
        for path in [folder.path, *(each.path for each in client.list_artifacts(run, folder.path))]:
            texts += [
                each.path for each in client.list_artifacts(run, path) if each.path.endswith(".txt")
            ]
    assert len(set(texts)) == 2 * len(value_of)
    assert sorted(result.data.params.values()) == ["1", "2"]
    assert 'the metric "AR_100" and "AR@100" for one: "AR_100" is called "AR_100.2"' in told[0]
    assert sum("the metric" in text for text in told) == 3, "once in all attempts"
    assert result.data.tags["hookflow.metric.AR_100"] == "AR@100"


def test_a_metric_may_be_called_as_the_prefix_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder each is a file: the second of the two has another name,
    in every attempt the same.
    """
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install 'hookflow[mlflow]'"
    )
    from hookflow.writers import MLflowWriter

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which the writer would set for good
    for iteration in (1, 2):
        writer = MLflowWriter(tmp_path, "toy", "one")
        for name in ("lr", "lr/0", "param/weight", "param"):
            writer.write_scalar(name, 0.5, iteration, 0, 1.0)
        writer.close()
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    (result,) = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    assert set(result.data.metrics) == {"lr", "lr.0", "param/weight", "param/value"}
    assert [metric.step for metric in client.get_metric_history(result.info.run_id, "lr.0")] == [
        1,
        2,
    ]


def test_wandb_has_scalars_images_and_texts(new_run: NewRun) -> None:
    run = trained_with("wandb", new_run)
    assert sorted(rows_of_wandb(run)) == logged(run, fp32=False)
    kinds = {
        value
        for row in history_of_wandb(run)
        for key, value in row.items()
        if key.endswith("_type")
    }
    assert {"image-file", "html-file", "histogram"} <= kinds


def test_a_torn_row_of_a_csv_file_is_cut_off(tmp_path: Path) -> None:
    from hookflow.writers import CSVWriter

    first = CSVWriter(tmp_path)
    for iteration in range(1, 4):
        first.write_scalar("a,b", 0.1, iteration, 0, 1.0)
    first.close()
    whole = (tmp_path / "scalars.csv").read_text()
    (tmp_path / "scalars.csv").write_text(whole.replace("0.1", "0.123", 3)[:-3])
    again = CSVWriter(tmp_path)
    assert again.resume_at(3)
    again.write_scalar("a,b", 0.5, 4, 0, 1.0)
    again.close()
    rows = list(csv.reader((tmp_path / "scalars.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == ["iteration", "1", "2", "4"]
    assert rows[1][3:] == ["a,b", "0.123"]


def test_a_missing_package_is_told_with_its_place_at_first(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    text = TOY.read_text() + '\n[writers.board]\nuse = "tensorboard"\n'
    (problem,) = missing_components(parse(text, TOY), TOY.parent)
    assert problem.message.startswith('the writer "tensorboard" needs the package tensorboard')
    assert problem.where is not None and problem.where.line == len(text.splitlines())
    assert problem.hint == "pip install 'hookflow[tensorboard]'"
    trained('writers.board={use="tensorboard"}', code=2)
    (problem,) = missing_components(
        parse(text.replace('"tensorboard"', '"tensorbord"'), TOY), TOY.parent
    )
    assert problem.hint == 'did you mean "tensorboard"?'


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_a_writers_name_is_a_folder(name: str) -> None:
    with pytest.raises(UserError, match="not a valid folder name"):
        parse(TOY.read_text() + f'\n[writers."{name}"]\nuse = "csv"\n', TOY)
