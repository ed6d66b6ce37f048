"""The image of Gaussians and the small GPT: what they compute, what they train on,
and runs that are resumed.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo.chargpt import CharGPT, decode, encode, write
from hookflow.zoo.gaussian2d import Gaussians, Painting, Picture, compute_positions, read_image
from hookflow.zoo.hooks import Render, Sample
from tests.conftest import Train, Trained, records
from tests.runner.same import assert_same_end, final_state, rest_of
from tests.support.image_data import picture, text

PIPELINE = Path(__file__).parents[2] / "pipelines" / "gaussian2d.toml"
SMALL = (
    "run.device=cpu",
    "run.max_iters=60",
    "run.val_every=20",
    "model.args.count=24",
    "data.train.args={side=24, batch_size=128, batches=7, path=''}",
    "hooks.DensifyHook.points=['before_train', {at='after_train_iter', every=10}]",
    "hooks.DensifyHook.args.count=8",
    "hooks.PruneHook.args.threshold=0.06",
    "hooks.CheckPointHook.points=[{at='after_train_iter', every=5}]",
    "hooks.CheckPointHook.args={keep=99}",
)


@pytest.fixture(scope="module")
def gaussians() -> Gaussians:
    torch.manual_seed(0)
    model = Gaussians(5)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def test_a_colour_is_the_sum_of_what_each_gaussian_has_there(gaussians: Gaussians) -> None:
    where = torch.tensor([[0.2, -0.7], [0.0, 0.5]])
    for place, drawn in zip(where, gaussians(where), strict=True):
        expected = torch.zeros(3)
        for k in range(5):
            angle = gaussians.rotation[k, 0]
            axes = torch.stack(
                (torch.stack((angle.cos(), angle.sin())), torch.stack((-angle.sin(), angle.cos())))
            )
            along = axes @ (place - gaussians.position[k]) / gaussians.scaling[k].exp()
            expected = expected + gaussians.colour[k] * (-0.5 * along.square().sum()).exp()
        torch.testing.assert_close(drawn, expected)


def test_appended_rows_begin_without_averages_and_dropped_ones_take_theirs_along() -> None:
    torch.manual_seed(0)
    model = Gaussians(4)
    optimizer = torch.optim.Adam(
        [{"params": [model.position]}, {"params": [*model.parameters()][1:], "lr": 0.1}]
    )
    model(compute_positions(3, 3)).sum().backward()
    optimizer.step()
    before = {
        name: (p.detach().clone(), optimizer.state[p]["exp_avg"].clone())
        for name, p in model.named_parameters()
    }
    fired: list[tuple[str, int]] = []
    run: Any = SimpleNamespace(
        model=model, optimizer=optimizer, fire=lambda *point: fired.append(point)
    )
    Painting().densify(
        run, {name: torch.ones(2, *p.shape[1:]) for name, p in model.named_parameters()}
    )
    assert fired == [("after_densify", 2)]
    assert len(model) == 6
    assert [p for group in optimizer.param_groups for p in group["params"]] == [*model.parameters()]
    assert len(optimizer.state) == 4
    for name, parameter in model.named_parameters():
        values, average = before[name]
        assert torch.equal(parameter[:4], values)
        assert parameter[4:].eq(1).all()
        assert torch.equal(optimizer.state[parameter]["exp_avg"][:4], average)
        assert optimizer.state[parameter]["exp_avg"][4:].eq(0).all()
        assert optimizer.state[parameter]["step"] == 1
    kept = torch.tensor([True, False, False, True, False, False])
    Painting().prune(run, kept)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][0][kept[:4]])
        assert torch.equal(optimizer.state[parameter]["exp_avg"], before[name][1][kept[:4]])
    model(compute_positions(3, 3)).sum().backward()
    optimizer.step()


def test_a_model_takes_the_weights_of_another_number(gaussians: Gaussians) -> None:
    other = Gaussians(2)
    known = [*other.parameters()]
    other.load_state_dict(gaussians.state_dict())
    assert torch.equal(other(compute_positions(4, 4)), gaussians(compute_positions(4, 4)))
    assert all(item is parameter for item, parameter in zip(known, other.parameters(), strict=True))


def test_a_run_resumed_across_changes_of_their_number_ends_like_the_one_left_alone(
    trained: Trained, tmp_path: Path, train_here: Train
) -> None:
    alone = trained(*SMALL, pipeline=PIPELINE)
    counts = [
        record["v"]["gaussians"]
        for record in records(alone, "scalars")
        if "gaussians" in record["v"]
    ]  # type: ignore[index, operator]
    assert len(counts) == 6
    assert any(count != 24 + 8 * k for k, count in enumerate(counts, 1)), "nothing was pruned"
    for saved in (10, 35):
        assert_same_end(alone, rest_of(alone, saved, tmp_path / f"{saved}", train_here))
    colour = final_state(alone)["model"]["colour"]  # type: ignore[index]
    assert len(colour) == counts[-1]
    images = records(alone, "image")
    assert [(image["name"], image["it"]) for image in images] == [
        ("target", 0),
        *(("render", it) for it in (20, 40, 60)),
    ]
    assert str(images[-1]["caption"]).startswith(f"{counts[-1]:.0f} Gaussians, PSNR ")
    assert all((alone.path / str(image["path"])).is_file() for image in images)
    (run,) = records(alone, "run")
    assert run["data"]["train"]["synthetic"]  # type: ignore[index]


@pytest.mark.long
def test_the_shipped_pipeline_reaches_what_it_says(trained: Trained) -> None:
    run_dir = trained("run.device=cpu", pipeline=PIPELINE)
    reached = {record["it"]: record["v"]["psnr"] for record in records(run_dir, "metrics")}  # type: ignore[index]
    assert reached[300] > 30
    assert reached[1500] > 41


def test_places_are_those_of_pixels_and_all_of_them_are_validated() -> None:
    train, val = picture(), picture("val")
    assert train.image.shape == (16, 24, 3)
    torch.testing.assert_close(
        train.places[[0, -1]], torch.tensor([[-23 / 24, -15 / 16], [23 / 24, 15 / 16]])
    )
    assert 0 <= train.image.min() < train.image.max() <= 1
    assert (len(train), len(val), val.info["examples"]) == (5, 4, 384)
    colours = torch.cat([colours for _, colours in val.epoch(0)])
    assert torch.equal(colours.reshape(train.image.shape), train.image)


def test_an_image_of_ones_own_is_scaled_down(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGBA", (60, 30), (255, 128, 0, 255)).save(tmp_path / "photo.png")
    pixels = read_image(tmp_path / "photo.png", 20)
    assert pixels.shape == (10, 20, 3)
    torch.testing.assert_close(pixels[5, 5], torch.tensor([1.0, 128 / 255, 0.0]))
    assert read_image(tmp_path / "photo.png", 900).shape == (30, 60, 3)
    data = Picture(path=str(tmp_path / "photo.png"), seed=0, device=torch.device("cpu"))
    assert (data.info["name"], data.info["synthetic"]) == ("photo.png", False)
    with pytest.raises(UserError, match=r"there is no image .*gone.png"):
        read_image(tmp_path / "gone.png", 20)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UserError, match="cannot be read as an image"):
        read_image(tmp_path / "text.png", 20)


def test_all_ranks_call_the_model_and_the_first_logs_what_it_makes() -> None:
    """Where the model is sharded, a call of it waits for all ranks."""
    logged, called = [], []
    picture = SimpleNamespace(places=compute_positions(4, 4), image=torch.zeros(4, 4, 3))
    for model, hook in (
        (Gaussians(3), Render()),
        (CharGPT(context=8, width=16, layers=1, heads=2), Sample(count=5)),
    ):
        model.register_forward_pre_hook(lambda *_: called.append(1))
        assert hook.ranks == "all"
        for rank in (0, 1):
            run: Any = SimpleNamespace(
                model=model, data={"train": picture}, iter=0, rank=rank, device="cpu"
            )
            run.metric = lambda name: 20.0
            run.log_image = run.log_text = lambda name, *_, rank=rank: logged.append((rank, name))
            if isinstance(hook, Render):
                hook.before_train(run)
            hook.after_val(run)
    assert (len(called), logged) == (2 + 2 * 5, [(0, "target"), (0, "render"), (0, "sample")])


GPT = Path(__file__).parents[2] / "pipelines" / "chargpt.toml"
SENTENCE = "the quick brown fox jumps over the lazy dog; "
SMALL_GPT = (
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
        assert torch.equal(
            written, write(model, encode("ab"), 20, temperature=1.0, context=8, seed=3)
        )
        assert not torch.equal(
            written, write(model, encode("ab"), 20, temperature=1.0, context=8, seed=4)
        )
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
    starts = sorted(
        whole.find(window) % 7 for window in windows if whole.find(window) == whole.rfind(window)
    )
    assert len(set(starts)) <= 1
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


def test_a_run_learns_counts_tokens_and_is_resumed(
    trained: Trained, tmp_path: Path, train_here: Train
) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE * 50)
    text = f"data.train.args.path={tmp_path / 'text.txt'}"
    alone = trained(*SMALL_GPT, text, "hooks.checkpoint.args.keep=9", pipeline=GPT)
    losses = [record["v"]["loss"] for record in records(alone, "metrics")]  # type: ignore[index]
    assert losses[-1] < losses[0] < 5.6  # from log 256 = 5.55
    samples = records(alone, "text")
    assert [record["it"] for record in samples] == [8, 16, 24]
    assert all(
        str(record["text"]).startswith("the ") and record["hook"] == "sample" for record in samples
    )
    assert any("tokens_per_s" in record["v"] for record in records(alone, "scalars"))  # type: ignore[operator]
    assert_same_end(alone, rest_of(alone, 8, tmp_path / "resumed", train_here))


@pytest.mark.long
def test_the_shipped_gpt_reaches_what_it_says(trained: Trained) -> None:
    run_dir = trained("run.device=cpu", pipeline=GPT)
    assert records(run_dir, "metrics")[-1]["v"]["loss"] < 1.7  # type: ignore[index]
