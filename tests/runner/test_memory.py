"""A memory that is full: what is said, with the pipeline's own numbers, and what is let go of first."""

from __future__ import annotations

import pytest
import torch

from hookflow.pipeline.load import parse
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.numerics import precision
from tests.conftest import TESTS, TOY, Train, Trained, reason, records


def full(kind: str) -> str:
    return f'hooks.full={{use="./upsets.py:Full", args={{kind="{kind}"}}}}'


def advice(pipeline: Pipeline, error: BaseException) -> str:
    return precision.advice(pipeline, error, saved=False)


@pytest.mark.parametrize(
    ("kind", "type_"), [("device", "OutOfMemoryError"), ("process", "MemoryError"), ("cpu", "RuntimeError")]
)
def test_the_last_words_say_what_to_change(trained: Trained, kind: str, type_: str) -> None:
    run_dir = trained(full(kind), "data.train.args.batch_size=8", "run.accumulate=2", code=1)
    text = reason(run_dir)
    assert text.startswith("OutOfMemoryError: out of memory")
    assert "batch_size = 4 (now 8) with run.accumulate = 4 (now 2), which computes the same" in text
    assert text.endswith("Existing checkpoints are not affected; --resume continues from the newest.")
    (error,) = records(run_dir, "error")
    assert "upsets.py" in str(error["traceback"]) and error["hook"] == "full"
    assert f"{type_} with 0 gradients" in [record["text"] for record in records(run_dir, "message")]


def test_a_run_that_found_no_memory_goes_on_from_its_checkpoint(trained: Trained, train_here: Train) -> None:
    run_dir = trained(full("device"), 'hooks.asks={use="./watchers.py:Asks", args={point="after_train_iter"}}', code=1)
    assert train_here(run_dir, resume=True) == 1, "it is as full as before"
    assert "Existing checkpoints are not affected; --resume" in reason(run_dir)
    assert "resumed from it" in str([record["text"] for record in records(run_dir, "message")])


def test_a_data_set_on_the_device_and_float32_are_spoken_of() -> None:
    source = 'data.train={use="./loaders.py:Cloud", loader={batch_size=512, on_device=true}}'
    text = advice(parse(TOY.read_text(), TOY, (source, 'run.precision="fp32"')).pipeline, torch.OutOfMemoryError())
    assert "batch_size = 256 (now 512) with run.accumulate = 2 (now 1)" in text
    assert "on_device = false" in text


def test_where_there_is_no_checkpoint_and_no_batch_size_nothing_is_said_of_them() -> None:
    text = advice(parse(TOY.read_text(), TOY).pipeline, MemoryError())
    assert "affected" not in text and "batch_size" not in text and "torch.utils.checkpoint" in text


def test_where_the_task_may_step_itself_nothing_is_said_of_accumulation() -> None:
    gan = TESTS / "gan.toml"
    text = advice(parse(gan.read_text(), gan, ("data.train.args.batch_size=8",)).pipeline, MemoryError())
    assert "batch_size = 4 (now 8); " in text and "accumulate" not in text
