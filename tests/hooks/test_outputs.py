"""Hooks on batches, on what a task returns and on what a run leaves: `mixup`, `metrics`,
`predict`, `tta`, `export`.
"""

import hashlib
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookflow
from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.hooks.arguments import find_argument_problems
from hookflow.hooks.builtin.metrics import Accuracy, Metrics
from hookflow.hooks.builtin.mixing import CutMix, Mixup, Resize
from hookflow.hooks.builtin.predict import TTA, Predict, list_views, turn_images
from hookflow.hooks.builtin.schedules import LRSchedule, ParamSchedule
from hookflow.hooks.builtin.stops import TimeLimit
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import TOY, Trained, messages, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, curve, final_state
from tests.support.precomputed_outputs import Returns, Scale, given
from tests.support.toy import Net, Points

F1 = '{use="torchmetrics.classification:MulticlassF1Score", args={num_classes=3}}'
MICRO = '{use="MulticlassAccuracy", args={num_classes=3, average="micro"}}'


def reads_accuracy(run: Any) -> float:
    return run.metrics["acuracy"]  # type: ignore[no-any-return]


def exported(run_dir: RunDir, pattern: str) -> Path:
    (path,) = (run_dir.path / "export").glob(pattern)
    return path


def test_a_run_has_metrics_of_torchmetrics_predictions_and_exports(trained: Trained) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    run_dir = trained(
        f'hooks.metrics={{use="metrics", args={{metrics={{right={MICRO}, f1={F1}}}}}}}',
        'hooks.checkpoint.args={monitor="f1", mode="max"}',
        'hooks.predict={use="predict", args={outputs=["logits", "target"]}}',
        'hooks.looks={use="activation_stats"}',  # bound inside the network that is exported
        'hooks.export={use="export", args={formats=["state_dict", "safetensors", "torch_export"]}}',
        "run.test=true",
    )
    found = records(run_dir, "metrics")
    assert [record["split"] for record in found] == ["val"] * 3 + ["test"]
    for record in found:
        values: Any = record["v"]
        assert values["right"] == pytest.approx(values["accuracy"])
        assert 0 < values["f1"] <= 1
    with np.load(run_dir.path / "predictions.npz") as file:
        logits, target = file["logits"], file["target"]
    expected = [
        target for _, target in Points(0, torch.device("cpu"), examples=16, split=2).epoch(0)
    ]
    assert target.tolist() == torch.cat(expected).tolist()
    assert (logits.argmax(1) == target).mean() == pytest.approx(values["accuracy"])
    weights: Any = final_state(run_dir)["model"]
    path = exported(run_dir, "*.pt")
    assert path.name == f"last-model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pt"
    assert_same(torch.load(path, weights_only=True), dict(weights))
    beside = "the weights that a hook validates are in model_ema.pt"
    assert {"predictions are in predictions.npz", f"exported {path}; {beside}"} <= {
        *messages(run_dir)
    }
    assert_same(safetensors.load_file(exported(run_dir, "last-model-*.safetensors")), dict(weights))
    program = torch.export.load(exported(run_dir, "last-model-*.pt2")).module()
    net = Net().eval()
    net.load_state_dict(weights)
    for size in (1, 3, 100):
        inputs = torch.randn(size, 4)
        assert torch.allclose(program(inputs), net(inputs), atol=1e-6)


def test_the_average_of_the_best_is_exported_to_a_folder_of_ones_own(
    trained: Trained, tmp_path: Path
) -> None:
    args = f'{{checkpoint="best", weights="model_ema", out_dir="{tmp_path / "mine"}"}}'
    for _ in range(2):
        run_dir = trained(
            f'hooks.export={{use="export", args={args}}}',
            'hooks.second={use="export", args={checkpoint="best-2"}}',
            'hooks.own={use="./common_hooks.py:Nothing"}',  # it might save one
        )
        assert any('no checkpoint "best-2"' in text for text in messages(run_dir)), (
            "without it nothing is exported"
        )
    (path,) = (tmp_path / "mine").iterdir()  # the same weights twice
    assert path.name.startswith("best-model_ema-")
    best = torch.load(run_dir.checkpoints / "best" / "model_ema.pt", weights_only=True)
    assert_same(torch.load(path, weights_only=True), dict(best))


def test_checkpoints_begin_with_their_trigger_and_what_was_better_before_is_no_best(
    trained: Trained,
) -> None:
    run_dir = trained(
        'hooks.checkpoint.args={monitor="loss", mode="max", keep=9}', 'hooks.checkpoint.from="2ep"'
    )
    assert sorted(path.name for path in run_dir.checkpoints.glob("it*")) == [
        "it00000010",
        "it00000015",
    ]
    losses = [record["v"]["loss"] for record in records(run_dir, "metrics")]  # type: ignore[index]
    assert losses[0] > max(losses[1:]), "the first would be the best"
    assert (run_dir.checkpoints / "best").resolve().name in ("it00000010", "it00000015")


def test_rows_of_shuffled_sets_come_with_their_indices_each_set_in_its_file(tmp_path: Path) -> None:
    sets = {name: {"use": given, "args": {"kind": name}} for name in ("hard", "maps")}
    train = {"use": given, "args": {"kind": "hard"}, "loader": {"batch_size": 4}}
    shuffled = {"batch_size": 4, "shuffle": True}
    run = hookflow.train(
        {
            "run": {"name": "given", "max_epochs": 1, "threads": 1, "device": "cpu", "test": True},
            "model": {"use": Scale},
            "optimizer": {"use": "torch.optim:SGD", "args": {"lr": 0.0}},
            "task": {"use": Returns},
            "data": {
                "train": train,
                "test": {name: {**each, "loader": shuffled} for name, each in sets.items()},
            },
            "hooks": {"predict": {"use": "predict", "args": {"outputs": ["logits", "target"]}}},
        },
        "none",
        runs=tmp_path,
    )
    for name in sets:
        logits, target = given(name).tensors
        with np.load(run.dir / f"predictions.{name}.npz") as file:
            index = torch.from_numpy(file["index"])
            assert sorted(index.tolist()) == [*range(len(target))]
            assert index.tolist() != [*range(len(target))]
            assert np.array_equal(file["logits"], logits[index])
            assert np.array_equal(file["target"], target[index])


@pytest.mark.parametrize(
    ("hook", "message", "iteration"),
    [
        (
            'use="predict", args={outputs=["logit"]}',
            'needs the output "logit" of the task, which gives l',
            5,
        ),
        (
            'use="export", args={weights="model_ena"}',
            'no weights "model_ena"\n    did you mean "model_ema"?',
            0,
        ),
        (
            'use="export", args={checkpoint="bst"}',
            '"bst", which no hook saves\n    did you mean "best"?',
            0,
        ),
        ('use="export", args={out_dir="FILE/mine"}', "cannot be made: Not a directory", 0),
        (
            'use="lr_finder", args={iters=40}',
            "sweeps over 40 iterations, and the run has only 5",
            0,
        ),
        (
            'use="tests.hooks.test_outputs:reads_accuracy", points=["after_val"]',
            'acuracy"\n    did you mean "accuracy"?',
            5,
        ),
        ('use="images"', "the batch has no tensor of images", 5),
        (
            'use="param_stats", args={match=["heat.weight"]}',
            'matches "heat.weight"\n    did you mean "head.weight"',
            0,
        ),
        (
            'use="confusion_matrix", args={classes=["a", "b"]}',
            "names of 2 classes, and the task's logits have 3",
            5,
        ),
        ('use="scheduler", args={chain=[{use="LinerLR"}]}', 'did you mean "LinearLR"?', 0),
    ],
)
def test_a_mistake_that_only_the_run_shows_is_the_users(
    trained: Trained, hook: str, message: str, iteration: int, tmp_path: Path
) -> None:
    (tmp_path / "FILE").touch()
    hook = hook.replace("FILE", str(tmp_path / "FILE"))
    (end,) = records(
        trained(f"hooks.mine={{{hook}}}", "run.test=true", "run.max_epochs=1", code=2), "end"
    )
    assert (end["it"], message in str(end["reason"])) == (iteration, True), end


class TestMetrics:
    @pytest.mark.parametrize(
        ("metric", "message"),
        [
            ({"use": "MulticlasF1Score"}, 'did you mean "MulticlassF1Score"?'),
            (
                {"use": "MulticlassF1Score", "args": {"classes": 3}},
                'the metric "f1" needs the argument "num_classes"',
            ),
            (
                {"use": "MulticlassF1Score", "args": {"num_classes": 3, "average": "all"}},
                'the metric "f1": ',
            ),
        ],
    )
    def test_an_invalid_metric_is_reported_before_the_run(self, metric: Any, message: str) -> None:
        with pytest.raises(UserError) as raised:
            Metrics({"f1": metric})
        assert message in str(raised.value)

    def test_outputs_that_are_missing_and_results_that_are_no_number_are_reported(self) -> None:
        each: Any = {
            "each": {"use": "MulticlassAccuracy", "args": {"num_classes": 3, "average": None}}
        }
        hook = Metrics(each)
        hook.before_val_epoch(StandIn(Net()))  # type: ignore[arg-type]
        with pytest.raises(
            UserError, match='metrics needs the output "target" of the task, which gives logits'
        ):
            hook.after_val_iter({"logits": torch.zeros(2, 3)})
        hook.after_val_iter({"logits": torch.zeros(2, 3), "target": torch.tensor([0, 1])})
        with pytest.raises(
            UserError, match=r'the metric "each" gives a tensor of shape \(3,\), and not one number'
        ):
            hook.after_val_epoch(StandIn(), {})  # type: ignore[arg-type]
        with pytest.raises(
            UserError, match='accuracy needs the output "logits" of the task, which gives loss'
        ):
            Accuracy().after_val_iter({"loss": 1.0})

    @pytest.mark.parametrize(
        ("hook", "package", "extra"),
        [
            (
                'use = "metrics"\nargs = { metrics = { f1 = { use = "F1Score" } } }',
                "torchmetrics",
                "metrics",
            ),
            (
                'use = "export"\nargs = { formats = ["state_dict", "safetensors"] }',
                "safetensors",
                "safetensors",
            ),
        ],
    )
    def test_check_reports_a_missing_package_with_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, hook: str, package: str, extra: str
    ) -> None:
        loaded = parse(TOY.read_text() + f"\n[hooks.mine]\n{hook}\n", TOY)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            UserError, match=f"the package {package}, which is not installed"
        ) as raised:
            compile_pipeline(loaded, TOY.parent)
        (problem,) = raised.value.problems
        assert (
            problem.where is not None
            and problem.where.line == len(TOY.read_text().splitlines()) + 4
        )
        assert problem.hint == f"pip install 'hookflow[{extra}]'"


@pytest.mark.parametrize(
    ("make", "others", "name", "values"),
    [
        (Predict, {"outputs": ["logits"]}, "file", ["rows.txt", "../rows.npz", "rows"]),
        (TTA, {}, "transforms", [["flip"], [], [3]]),
        (TimeLimit, {}, "limit", ["soon", "3h50m", "2ep", "0s", 10]),
        (LRSchedule, {}, "warmup", [1.5, -1, "30s", "soon", True]),
        (
            ParamSchedule,
            {},
            "momentum",
            [[], [["30s", 0.9]], [[0, -0.1]], [["soon", 1.0]], [[0]], 0.9],
        ),
    ],
)
def test_an_invalid_argument_is_refused_before(
    make: Any, others: dict[str, Any], name: str, values: list[Any]
) -> None:
    for value in values:
        (problem,) = find_argument_problems(
            make, {**others, name: value}, "hook", lambda _: Where("")
        )
        assert f'"{name}"' in problem.message, value


class TestTTA:
    def test_views_are_those_by_hand(self) -> None:
        image = torch.arange(9.0).reshape(1, 1, 3, 3)
        expected: dict[str, list[Any]] = {
            "hflip": [[[2, 1, 0], [5, 4, 3], [8, 7, 6]]],
            "vflip": [[[6, 7, 8], [3, 4, 5], [0, 1, 2]]],
        }
        for transform, others in expected.items():
            shown = [turn_images(image, view)[0, 0].tolist() for view in list_views([transform])]  # type: ignore[list-item]
            assert shown == [image[0, 0].tolist(), *others]
        assert turn_images(image, list_views(["rot90"])[1])[0, 0].tolist() == [
            [2, 5, 8],
            [1, 4, 7],
            [0, 3, 6],
        ]

    @pytest.mark.parametrize(
        "transforms", [["hflip"], ["vflip"], ["rot90"], ["hflip", "rot90"], ["rot90", "vflip"]]
    )
    def test_maps_are_turned_back_before_they_are_averaged(self, transforms: Any) -> None:
        """A network whose map is its image is not changed by views of it, whatever the sides."""
        images = torch.arange(30.0).reshape(1, 2, 3, 5)
        around = TTA(transforms, output="map").around_val(StandIn(net := nn.Identity()))  # type: ignore[arg-type]
        next(around)
        torch.testing.assert_close(net(images), images)
        list(around)

    def test_what_may_have_a_place_in_the_image_is_refused_until_it_is_said(self) -> None:
        for output, wrong in (
            (None, torch.zeros(1, 2, 3, 5)),
            ("scores", torch.zeros(1, 12)),
            ("map", None),
        ):
            net = nn.Flatten() if output == "map" else nn.Identity()
            around = TTA(["hflip"], output=output).around_val(StandIn(net))  # type: ignore[arg-type]
            next(around)
            with pytest.raises(UserError):
                net(torch.zeros(1, 2, 3, 5) if wrong is None else wrong)
        scores = TTA(["hflip"], output="scores").around_val(StandIn(net := nn.Identity()))  # type: ignore[arg-type]
        next(scores)
        assert net(torch.tensor([[[[1.0, 3.0]]]])).tolist() == [[[[2.0, 2.0]]]]

    def test_outputs_are_the_mean_over_all_views_and_the_network_is_restored(self) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        images = torch.randn(5, 3, 2, 2)
        alone = net(images)
        inside = TTA(["hflip", "vflip"]).around_val(StandIn(net))  # type: ignore[arg-type]
        next(inside)
        both = net(images)
        list(inside)
        expected = (
            alone + net(images.flip(3)) + net(images.flip(2)) + net(images.flip(3).flip(2))
        ) / 4
        torch.testing.assert_close(both, expected)
        assert "forward" not in vars(net)
        assert torch.equal(net(images), alone)

    def test_a_run_is_validated_by_the_views_and_trained_without(self, trained: Trained) -> None:
        splits = [
            f'data.{split}={{use="./data_loaders.py:images"}}' for split in ("train", "val", "test")
        ]
        images = 'model.use="./data_loaders.py:ConvNet"', *splits, "run.max_epochs=2"
        # Which does that alone.
        flips = 'task={use="hookflow.zoo.tasks:Classification", args={flip_at_test=true}}'
        one, other = (
            trained('hooks.tta={use="tta", args={transforms=["hflip"]}}', *images),
            trained(flips, *images),
        )
        assert curve(one) == curve(other)
        assert_same(final_state(one)["model"], final_state(other)["model"])

    def test_an_output_without_a_mean_is_reported(self) -> None:
        class Two(nn.Module):
            def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
                return images, images

        net = Two()
        around = TTA(["hflip"]).around_test(StandIn(net))  # type: ignore[arg-type]
        next(around)
        with pytest.raises(UserError, match="the network must return one tensor, not a tuple"):
            net(torch.zeros(1, 1, 2, 2))


class Replaced:
    """What a hook has put in the place of a batch."""

    def __init__(self) -> None:
        self.batch: Any = None

    def replace_batch(self, batch: Any) -> None:
        self.batch = batch


def mixed(
    hook: Mixup, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[Any, float, torch.Tensor]:
    """Return the new batch, and the weight and the order that the same generator gives."""
    torch.manual_seed(3)
    random.seed(3)
    run: Any = Replaced()
    hook.before_train_iter(run, (inputs, targets))
    torch.manual_seed(3)
    random.seed(3)
    share = random.betavariate(hook.alpha, hook.alpha)
    return run.batch, share, torch.randperm(len(inputs))


def test_mixup_is_the_mean_of_pairs() -> None:
    inputs, targets = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    (new, soft), share, order = mixed(Mixup(classes=3, alpha=0.4), inputs, targets)
    assert torch.equal(new, share * inputs + (1 - share) * inputs[order])
    hard = torch.eye(3)[targets]
    assert torch.equal(soft, share * hard + (1 - share) * hard[order])
    logits = torch.randn(6, 3)
    loss = torch.nn.functional.cross_entropy(logits, soft)
    both = [torch.nn.functional.cross_entropy(logits, each) for each in (targets, targets[order])]
    assert torch.allclose(loss, share * both[0] + (1 - share) * both[1])


def test_cutmix_takes_a_box_and_counts_its_pixels() -> None:
    inputs, targets = (
        torch.arange(6.0)[:, None, None, None].expand(6, 3, 8, 8),
        torch.tensor([0, 1, 2, 0, 1, 2]),
    )
    (new, soft), share, order = mixed(CutMix(classes=3), inputs, targets)
    foreign = new != inputs
    moved = order != torch.arange(6)
    assert torch.equal(new[foreign], inputs[order][foreign])
    boxes = {tuple(map(tuple, each.nonzero()[:, 1:].tolist())) for each in foreign[moved]}
    assert len(boxes) == 1, "the same in all channels and examples"
    area = foreign[moved][0, 0].float().mean()
    assert 0 < area <= 1 - share + 0.01
    hard = torch.eye(3)[targets]
    assert torch.allclose(soft, (1 - area) * hard + area * hard[order])


def test_both_may_follow_one_another_a_share_stays_and_another_form_is_refused(
    trained: Trained,
) -> None:
    inputs, soft = torch.randn(4, 5), torch.full((4, 3), 1 / 3)
    (_, again), *_ = mixed(CutMix(classes=3), inputs, soft)
    assert torch.allclose(again, soft)
    run: Any = Replaced()
    Mixup(classes=3, probability=0.0).before_train_iter(run, (inputs, soft))
    assert run.batch is None
    hook = Mixup(classes=3)
    hook.name = "mix"
    with pytest.raises(
        UserError, match='hook "mix" mixes batches of inputs and classes, and this is a dict'
    ):
        hook.before_train_iter(Replaced(), {"image": torch.zeros(2), "label": torch.zeros(2)})  # type: ignore[arg-type]


def test_a_resumed_run_mixes_the_same_examples_of_accumulated_batches(resumes_alike: Any) -> None:
    mixes = (
        'hooks.mix={use="mixup", args={classes=3}}',
        'hooks.cut={use="cutmix", args={classes=3}, after=["mix"]}',
    )
    resumes_alike(*mixes, "run.accumulate=2", point="after_train_iter", at=4)


@pytest.mark.parametrize(
    ("done", "sides"), [(0, (4, 6)), (8, (6, 8)), (16, (8, 12)), (19, (8, 12))]
)
def test_images_grow_with_the_run_and_are_interpolated_as_pytorch_does(
    done: int, sides: tuple[int, int]
) -> None:
    hook, images, targets = Resize(multiple=2), torch.randn(3, 2, 8, 12), torch.arange(3)
    run: Any = StandIn(iter=done, replaced=None)
    run.replace_batch = lambda batch: setattr(run, "replaced", batch)
    hook.before_train(run)
    hook.before_train_iter(run, (images, targets))
    if sides == (8, 12):
        assert run.replaced is None
        return
    new, same = run.replaced
    expected = torch.nn.functional.interpolate(images, sides, mode="bilinear", antialias=True)
    assert torch.equal(new, expected)
    assert same is targets
    hook.name = "grow"
    with pytest.raises(
        UserError, match=r'hook "grow" resizes .* begins with a Tensor of shape \(3,\)'
    ):
        hook.before_train_iter(run, (targets, targets))


class Detection(NamedTuple):
    images: Tensor
    boxes: Tensor
    masks: Tensor
    heat: Tensor
    classes: Tensor


def resized(hook: Resize, batch: Any) -> Any:
    """Return a batch of the first iteration, of half the size."""
    run: Any = StandIn(iter=0, replaced=None)
    run.replace_batch = lambda new: setattr(run, "replaced", new)
    hook.name = "grow"
    hook.before_train(run)
    hook.before_train_iter(run, batch)
    return run.replaced


def test_what_lies_in_an_image_is_resized_with_it() -> None:
    """A bright box, the same box in a mask and in a heat map, and its corners."""
    images, boxes = (
        torch.zeros(2, 1, 16, 24),
        torch.tensor([[[4.0, 2.0, 12.0, 10.0]], [[0.0, 6.0, 24.0, 16.0]]]),
    )
    for image, ((left, top, right, bottom),) in zip(images, boxes.int().tolist(), strict=True):
        image[0, top:bottom, left:right] = 1
    masks = images[:, 0].long() * 7
    hook = Resize(targets=("pixels", "map", "map", "keep"))
    new = resized(hook, Detection(images, boxes, masks, images, torch.tensor([1, 2])))
    assert isinstance(new, Detection)
    assert new.images.shape == (2, 1, 8, 12)
    assert torch.equal(new.boxes, boxes / 2)
    for mask, ((left, top, right, bottom),) in zip(
        new.masks, new.boxes.int().tolist(), strict=True
    ):
        expected = torch.zeros(8, 12, dtype=torch.int64)
        expected[top:bottom, left:right] = 7
        assert torch.equal(mask, expected), "classes are not mixed with one another"
    assert torch.equal(new.heat, new.images)
    assert new.classes.tolist() == [1, 2]


IMAGES = torch.zeros(2, 1, 16, 24)


@pytest.mark.parametrize(
    ("targets", "rest"),
    [
        pytest.param(None, [torch.zeros(2, 4)], id="boxes, or shares of classes"),
        pytest.param(None, [torch.zeros(2)], id="numbers"),
        pytest.param(None, [torch.zeros(2, 16, 24).long()], id="masks"),
        pytest.param(None, [[{"boxes": torch.zeros(1, 4)}] * 2], id="boxes in dicts"),
        pytest.param(["keep"], [torch.zeros(2), torch.zeros(2)], id="one part more than is stated"),
        pytest.param(["map"], [torch.zeros(2, 8, 12)], id="maps of another size"),
        pytest.param(["pixels"], [torch.zeros(2, 3)], id="no pairs"),
        pytest.param(["pixels"], [torch.zeros(2, 4).long()], id="whole pixels"),
        pytest.param(["pixels"], [[torch.zeros(1, 4)] * 2], id="a list"),
    ],
)
def test_targets_of_which_nothing_says_where_they_lie_are_not_left_behind(
    targets: Any, rest: list[Any]
) -> None:
    with pytest.raises(UserError):
        resized(Resize(targets=targets), (IMAGES, *rest))


def test_classes_texts_and_what_is_said_to_have_no_place_stay() -> None:
    classes, names, shares = torch.tensor([0, 2]), ["a.png", "b.png"], torch.ones(2, 4) / 4
    new = resized(Resize(), [IMAGES, classes, names])
    assert (type(new), new[1] is classes, new[2] is names) == (list, True, True)
    assert resized(Resize(targets=("keep",)), (IMAGES, shares))[1] is shares


@pytest.mark.parametrize("hook", [Mixup(classes=4), CutMix(classes=4)])
@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(torch.tensor([0, -100]), id="an ignored class"),
        pytest.param(torch.tensor([0, 4]), id="a class beyond"),
        pytest.param(torch.zeros(2, 16, 24).long(), id="masks"),
        pytest.param(torch.zeros(2, 1, 4), id="boxes"),
        pytest.param(torch.zeros(2, 3), id="shares of other classes"),
        pytest.param(torch.zeros(2), id="numbers"),
    ],
)
def test_targets_that_are_no_classes_are_not_mixed(hook: Mixup, targets: Tensor) -> None:
    hook.name = "mix"
    with pytest.raises(UserError, match='hook "mix" mixes classes'):
        hook.before_train_iter(Replaced(), (IMAGES, targets))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [object(), 3, {"images": IMAGES, "classes": None}, (IMAGES,)])
def test_a_batch_that_is_no_pair_of_tensors_is_not_mixed(batch: Any) -> None:
    hook = Mixup(classes=4)
    hook.name = "mix"
    with pytest.raises(UserError, match='hook "mix" mixes batches of inputs and classes'):
        hook.before_train_iter(Replaced(), batch)  # type: ignore[arg-type]


def test_a_mixed_batch_is_of_the_type_of_the_batch() -> None:
    class Pair(NamedTuple):
        images: Tensor
        classes: Tensor

    for batch in (
        Pair(IMAGES, torch.tensor([0, 1])),
        [IMAGES, torch.tensor([0, 1], dtype=torch.int32)],
    ):
        run: Any = Replaced()
        Mixup(classes=2).before_train_iter(run, batch)
        assert type(run.batch) is type(batch)
        assert run.batch[1].sum(1).tolist() == [1, 1]
