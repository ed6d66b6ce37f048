"""`tensorboard`: event files, which `tensorboard --logdir runs` shows."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from hookflow.writers.base import Writer

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
