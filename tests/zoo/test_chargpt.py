"""The small GPT: what it sees, how it writes, the windows of its text, and a run that is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo.chargpt import CharGPT, Text, decode, encode, write
from tests.conftest import Train, Trained, records
from tests.zoo.conftest import assert_resumed_like

PIPELINE = Path(__file__).parents[2] / "pipelines" / "chargpt.toml"
SENTENCE = "the quick brown fox jumps over the lazy dog; "
SMALL = (
    "run.device=cpu",
    "run.max_iters=24",
    "run.val_every=8",
    "model.args={context=16, width=16, layers=1, heads=2}",
    "data.train.args.batch_size=8",
    "data.val.args.batch_size=8",
    "hooks.sample.args={prompt='the ', count=12}",
    "hooks.throughput.args.window=2",
)


@pytest.fixture
def model() -> CharGPT:
    torch.manual_seed(0)
    return CharGPT(context=8, width=16, layers=2, heads=2)


def text(tmp_path: Path, **args: Any) -> Text:
    (tmp_path / "text.txt").write_text("".join(map(chr, range(32, 127))) * 4)
    return Text(**{"path": "text.txt", "length": 7, "batch_size": 4, "seed": 0, "pipeline_dir": tmp_path, **args})


def test_no_token_sees_those_after_it(model: CharGPT) -> None:
    tokens = torch.arange(8)[None]
    other = tokens.clone()
    other[0, 5:] = 200
    one, two = model(tokens), model(other)
    assert one.shape == (1, 8, 256)
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert not torch.allclose(one[:, 5:], two[:, 5:])
    with pytest.raises(ValueError, match="the width, 10, is no multiple of the 4 heads"):
        CharGPT(width=10, heads=4)


def test_it_writes_beyond_its_context_and_disturbs_no_other_random_number(model: CharGPT) -> None:
    with torch.no_grad():
        before = torch.get_rng_state()
        written = write(model, encode("ab"), 20, temperature=1.0, context=8, seed=3)
        assert torch.equal(torch.get_rng_state(), before)
        assert len(written) == 22
        assert decode(written).startswith("ab")
        assert torch.equal(written, write(model, encode("ab"), 20, temperature=1.0, context=8, seed=3))
        assert not torch.equal(written, write(model, encode("ab"), 20, temperature=1.0, context=8, seed=4))
    assert decode(encode("naïve → ✓")) == "naïve → ✓"
    assert decode(torch.tensor([72, 105, 255])) == "Hi�"


def test_each_epoch_cuts_the_text_anew_and_takes_each_window_once(tmp_path: Path) -> None:
    train, val = text(tmp_path), text(tmp_path, split="val")
    whole = "".join(map(chr, range(32, 127))) * 4
    assert (len(whole), train.info["examples"], val.info["examples"]) == (380, 47, 5)
    assert not train.info["synthetic"]
    windows = [decode(row) for batch in train.epoch(3) for row in batch]
    assert len(windows) == 44  # what does not fill a batch of four is left out
    assert all(len(window) == 8 and window in whole for window in windows)
    starts = sorted(whole.find(window) % 7 for window in windows if whole.find(window) == whole.rfind(window))
    assert len(set(starts)) <= 1
    assert torch.equal(next(train.epoch(3, 5)), [*text(tmp_path).epoch(3)][5])
    assert not torch.equal(next(train.epoch(3)), next(train.epoch(4)))
    assert "".join(decode(row[:7]) for batch in val.epoch(0) for row in batch) == whole[342:377]


def test_several_files_are_one_text_and_what_is_missing_is_told(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("b" * 400)
    (tmp_path / "a.md").write_text("a" * 400)
    both = text(tmp_path, path="*.md")
    assert both.info["note"] == "720 bytes of 2 files"
    with pytest.raises(UserError, match=r"there is no text .*gone.txt"):
        text(tmp_path, path="gone.txt")
    with pytest.raises(UserError, match="has 5 windows of 7 bytes for val, and a batch needs 64"):
        text(tmp_path, split="val", batch_size=64)


def test_a_run_learns_writes_counts_tokens_and_is_resumed_to_the_bit(
    trained: Trained, tmp_path: Path, train_here: Train
) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE * 50)
    text = f"data.train.args.path={tmp_path / 'text.txt'}"
    alone = trained(*SMALL, text, "hooks.checkpoint.args.keep=9", pipeline=PIPELINE)
    losses = [record["v"]["loss"] for record in records(alone, "metrics")]  # type: ignore[index]
    assert losses[-1] < losses[0] < 5.6  # from log 256 = 5.55
    samples = records(alone, "text")
    assert [record["it"] for record in samples] == [8, 16, 24]
    assert all(str(record["text"]).startswith("the ") and record["hook"] == "sample" for record in samples)
    assert any("tokens_per_s" in record["v"] for record in records(alone, "scalars"))  # type: ignore[operator]
    assert_resumed_like(alone, 8, tmp_path, train_here)


@pytest.mark.long
def test_the_shipped_pipeline_reaches_what_it_says(trained: Trained) -> None:
    run_dir = trained("run.device=cpu", pipeline=PIPELINE)
    assert records(run_dir, "metrics")[-1]["v"]["loss"] < 1.7  # type: ignore[index]
