"""The control flow of a training: where hooks change it, when it validates on which sets,
and the modes of modules.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any, ClassVar, Self

import pytest
import torch
from torch.nn.functional import cross_entropy

from hookflow.events.rundir import RunDir
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.runner.loop import evaluation
from tests.conftest import (
    TESTS,
    TRACER,
    NewRun,
    Train,
    Trained,
    hookflow_here,
    messages,
    reason,
    records,
    strikes,
)
from tests.support.golden_files import FOLDER, check_golden
from tests.support.toy import Net, Points

SHORT = ("data.train.args={examples=24}", "data.val.args={examples=16,split=1}")
OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}]'


class Replaces:
    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((0 * batch[0], batch[1]))

    before_val_iter = before_train_iter


class SeesBatch:
    reads = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.say(f"{run.iter} {run.batch_size} {float(batch[0].abs().sum()) > 0}")

    after_forward = before_train_iter
    after_train_iter = before_train_iter
    before_val_iter = before_train_iter


class ReplacesUndeclared:
    """Calls the run by a name that no check of the file sees,
    so that the run itself must refuse it.
    """

    call = "replace_batch"

    def before_train_iter(self, run: Any, batch: Any) -> None:
        getattr(run, self.call)((0 * batch[0], batch[1]))


class StopsUndeclared:
    def after_val_iter(self, run: Any) -> None:
        if run.iter > 5:
            run.stop("validated often enough")


class SkipsAll:
    writes = ("control",)

    def before_train_iter(self, run: Any) -> None:
        run.skip_batch()


def steers(call: str, point: str, at: int = 1, writes: str = '["control"]') -> str:
    args = f'{{call="{call}", point="{point}", at={at}}}'
    return (
        f'hooks.steers={{use="./common_hooks.py:Steers", args={args}, writes={writes},'
        ' phase="early"}'
    )


def watcher(name: str, more: str = "") -> str:
    return f'hooks.{name.lower()}={{use="tests.runner.test_loops_steered:{name}"{more}}}'


@pytest.mark.parametrize(
    ("name", "call", "point"),
    [
        ("skip_batch", "skip_batch", "before_train_iter"),
        ("skip_step_early", "skip_step", "after_forward"),
        ("skip_step_late", "skip_step", "before_optimizer_step"),
        ("stop_epoch", "stop_epoch", "after_backward"),
        ("stop", "stop", "after_backward"),
        ("skip_val_batch", "skip_batch", "before_val_iter"),
    ],
)
def test_what_follows_is_golden(
    trained: Trained, tmp_path: Path, name: str, call: str, point: str
) -> None:
    at = 3 if "val" in name else 1
    off = [f"hooks.{hook}.enabled=false" for hook in ("checkpoint", "throughput", "log")]
    trained(
        *SHORT, *off, steers(call, point, at), TRACER % (tmp_path / "trace"), "run.max_epochs=2"
    )
    lines = (tmp_path / "trace").read_text().splitlines(keepends=True)
    check_golden(f"trace_{name}.txt", "".join(line for line in lines if " iter=0" not in line))


@pytest.mark.parametrize(("stage", "code"), [("train", 0), ("val", 2)])
def test_inside_the_network_an_epoch_is_ended_in_training_alone(
    trained: Trained, stage: str, code: int
) -> None:
    ends = steers("stop_epoch", "forward").replace(
        "writes", f'points=["forward"], modules=["head"], stages=["{stage}"], writes'
    )
    run_dir = trained(
        *SHORT, ends.replace("at=1", "at=1" if stage == "train" else "at=3"), code=code
    )
    assert ("run.stop_epoch is not allowed at forward" in reason(run_dir)) == (stage == "val")


def test_a_replaced_batch_is_what_later_hooks_and_the_task_see(trained: Trained) -> None:
    run_dir = trained(watcher("SeesBatch"), watcher("Replaces"), "run.max_epochs=1")
    assert messages(run_dir)[:3] == ["0 8 False", "0 8 False", "1 8 False"]
    assert {line.split()[-1] for line in messages(run_dir)} == {"False"}, "in validation too"


def test_each_batch_of_an_accumulated_iteration_may_be_replaced(trained: Trained) -> None:
    run_dir = trained(
        watcher("SeesBatch"),
        'hooks.trims={use="./detection.py:Trims"}',
        "run.max_epochs=1",
        "run.accumulate=2",
    )
    sizes = [line.split()[1] for line in messages(run_dir) if line.startswith("0 ")]
    assert sizes == ["7", "7", "7"]
    assert next(line for line in messages(run_dir) if line.startswith("1 ")) == "1 14 True", (
        "after_train_iter: of both"
    )


@pytest.mark.parametrize(("point", "it"), [("before_run", 0), ("after_val_iter", 5)])
def test_a_stop_is_granted_wherever_it_is_requested(trained: Trained, point: str, it: int) -> None:
    (end,) = records(trained(steers("stop", point, it)), "end")
    assert end["it"] == it


@pytest.mark.parametrize(
    ("call", "point", "writes", "message"),
    [
        (
            "skip_step",
            "after_backward",
            '["grads"]',
            'writes "control"; declare it: writes = ["control", "grads"] in',
        ),
        (
            "skip_step",
            "after_optimizer_step",
            '["control"]',
            "after_optimizer_step; it may be called at after_forward",
        ),
        (
            "skip_batch",
            "after_forward",
            '["control"]',
            "after_forward; it may be called at before_train_iter,",
        ),
        (
            "stop_epoch",
            "before_train_epoch",
            '["control"]',
            "run.stop_epoch is not allowed at before_train_epoch",
        ),
        ("stop_epoch", "after_val", '["control"]', "run.stop_epoch is not allowed at after_val"),
        ("stop", "after_run", '["control"]', "run.stop is not allowed at after_run"),
        ("stop", "after_run", "[]", "run.stop is not allowed at after_run"),
        ("validate", "after_val", "[]", "run.validate is not allowed at after_val"),
    ],
)
def test_who_may_not(trained: Trained, call: str, point: str, writes: str, message: str) -> None:
    at = {"before_train_epoch": 0, "after_val": 5, "after_run": 15}.get(point, 1)
    printed = reason(trained(steers(call, point, at, writes), code=2)).replace("\n    ", "; ")
    assert message in printed
    assert f'raised by the hook "steers" at {point}' in printed


def test_a_validation_that_the_run_goes_without_is_refused_by_its_key(trained: Trained) -> None:
    asks = steers("validate", "after_backward", 1, "[]")
    run_dir = trained(asks, "run.val_every=0", "hooks.early_stop.enabled=false", code=2)
    assert "run.val_every" in reason(run_dir)


def test_a_replacement_that_is_not_declared(trained: Trained) -> None:
    assert 'without declaring that it writes "batch"' in reason(
        trained(watcher("ReplacesUndeclared"), code=2)
    )


def test_a_stop_needs_no_declaration_and_a_run_that_skips_every_batch_ends(
    trained: Trained,
) -> None:
    run_dir = trained('hooks.stops={use="tests.runner.test_loops_steered:StopsUndeclared"}')
    (end,) = records(run_dir, "end")
    assert (end["status"], end["it"], end["reason"]) == ("finished", 10, "validated often enough")
    assert not [
        record["text"] for record in records(run_dir, "message") if record["level"] == "warn"
    ]
    (end,) = records(trained('hooks.skips={use="tests.runner.test_loops_steered:SkipsAll"}'), "end")
    assert (end["it"], end["ep"]) == (15, 3)


@pytest.mark.parametrize("call", ["stop_epoch", "validate"])
def test_what_a_hook_asked_for_outlives_a_kill(resumes_alike: NewRun, call: str) -> None:
    resumes_alike(OFTEN, steers(call, "after_backward", 6), point="after_val_iter", at=7)


@pytest.mark.parametrize(
    ("length", "val_every", "validated"),
    [
        ("max_epochs = 2", "4it", [4, 8, 10]),
        ("max_epochs = 2", "5it", [5, 10]),
        ("max_epochs = 2", "100it", [10]),
        ("max_epochs = 3", "2ep", [10, 15]),
        ("max_iters = 12", "1ep", [5, 10, 12]),
        ("max_iters = 10", None, [5, 10]),
        ("max_iters = 7", "3it", [3, 6, 7]),
        ("max_epochs = 2", "0.5ep", [3, 5, 8, 10]),
        ("max_epochs = 3", "1.5ep", [8, 15]),
        ("max_epochs = 2", "1.5ep", [8, 10]),
        ("max_epochs = 1", "0.4ep", [2, 4, 5]),
        ("max_iters = 5", "0.4ep", [2, 4, 5]),
        ("max_iters = 7", "0.4ep", [2, 4, 6, 7]),
        ("max_epochs = 3\nmax_iters = 7", "1ep", [5, 7]),
        ("max_epochs = 2\nmax_iters = 70", "1ep", [5, 10]),
        ("max_epochs = 2\nval_at_start = true", "1ep", [0, 5, 10]),
        ("max_epochs = 1", "10h", [5]),
    ],
)
def test_when_it_validates(
    trained: Trained, length: str, val_every: str | None, validated: list[int]
) -> None:
    run_dir = trained(
        *[f"run.val_every='{val_every}'"] * bool(val_every), swap=("max_epochs = 3", length)
    )
    (end,) = records(run_dir, "end")
    assert (end["it"], end["ep"]) == (validated[-1], validated[-1] // 5)
    assert [record["it"] for record in records(run_dir, "metrics")] == validated


def test_a_part_of_an_epoch_that_ends_with_it_is_validated_after_it(
    trained: Trained, tmp_path: Path
) -> None:
    trained("run.val_every='0.5ep'", TRACER % (tmp_path / "trace"), "run.max_epochs=1")
    points = [line.split()[0] for line in (tmp_path / "trace").read_text().splitlines()]
    assert points.count("before_val") == 2
    assert points.index("after_train_epoch") < len(points) - points[::-1].index("before_val")


def test_time_counts_from_the_latest_validation(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookflow.runner.loop.evaluation.Timer", Clock)
    run_dir = trained(
        "run.val_every='10m'", f'hooks.hours={{use="{__file__}:Hours"}}', "run.max_epochs=2"
    )
    assert [record["it"] for record in records(run_dir, "metrics")] == [2, 4, 6, 8, 10]
    assert {clock.seconds for clock in Clock.started} == {600.0}
    assert all(clock.cancelled for clock in Clock.started), "the last one, too"


class Clock:
    """A timer that is over when `Hours` says so."""

    started: ClassVar["list[Clock]"] = []

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call = seconds, call
        self.daemon = self.cancelled = False

    def start(self) -> None:
        self.started.append(self)

    def cancel(self) -> None:
        self.cancelled = True


class Hours:
    def after_backward(self, run: Any) -> None:
        if run.iter % 2:
            evaluation.Timer.started[-1].call()  # type: ignore[attr-defined]  # this file is loaded twice


@pytest.mark.parametrize(
    ("point", "at", "validated"),
    [("after_backward", 2, [3, 5, 10]), ("after_train_epoch", 5, [5, 10]),
     ("after_backward", 4, [5, 10]), ("before_train_epoch", 5, [5, 6, 10])],
)  # fmt: skip
def test_a_hook_may_ask_for_a_validation(
    trained: Trained, point: str, at: int, validated: list[int]
) -> None:
    run_dir = trained(steers("validate", point, at, "[]"), "run.max_epochs=2")
    assert [record["it"] for record in records(run_dir, "metrics")] == validated


@pytest.mark.parametrize(
    ("least", "until", "at", "it"),
    [("min_epochs=2", "epoch 2", 7, 10), ("min_iters=8", "iteration 8", 5, 8)],
)
def test_a_stop_waits_even_through_a_kill(
    resumes_alike: NewRun, least: str, until: str, at: int, it: int
) -> None:
    stops = steers("stop", "after_backward", 2, "[]")
    run_dir = resumes_alike(OFTEN, stops, f"run.{least}", point="after_train_iter", at=at)
    (end,) = [record for record in records(run_dir, "end") if record["status"] == "finished"]
    assert (end["it"], end["reason"]) == (it, "as told")
    assert f"the stop waits for {until}, as run.{least[:-2]} says: as told" in messages(run_dir)


def modes(run_dir: RunDir) -> list[str]:
    return [text for text in messages(run_dir) if "in evaluation" in text]


@pytest.mark.parametrize("at", [-1, 2], ids=["before the training", "in it"])
def test_a_module_that_a_hook_has_frozen_stays_frozen(trained: Trained, at: int) -> None:
    run_dir = trained(f'hooks.freezes={{use="./runner_snapshots.py:Freezes", args={{at={at}}}}}')
    frozen = [line.endswith("['body.1']") for line in modes(run_dir)]
    assert frozen == [it >= at for it in range(15)], (
        "validations and new epochs in between change nothing"
    )


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[1].eval()


class Evaluating(Net):
    def __init__(self) -> None:
        super().__init__()
        self.eval()


class Teacher(Evaluating):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


def distilled(run: Any, batch: Any) -> dict[str, Any]:
    inputs, target = batch
    logits = run.models["student"](inputs)
    loss = cross_entropy(logits, target) + (logits - run.models["teacher"](inputs)).square().mean()
    return {"loss": loss, "logits": logits, "target": target}


def test_a_teacher_in_evaluation_stays_so(trained: Trained) -> None:
    teacher = f'model={{student={{use="./toy.py:Net"}}, teacher={{use="{__file__}:Teacher"}}}}'
    freezes = 'hooks.freezes={use="./runner_snapshots.py:Freezes", args={at=99}}'
    run_dir = trained(teacher, f'task.use="{__file__}:distilled"', freezes)
    frozen = [f"teacher.{name}".rstrip(".") for name, _ in Net().named_modules()]
    assert {line.split(": ")[1] for line in modes(run_dir)} == {str(frozen)}


class KeepsNorms(Net):
    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.body[1].eval()
        return self


@pytest.mark.parametrize(
    ("net", "frozen"),
    [("Frozen", "['body.1']"), ("KeepsNorms", "['body.1']"), ("Evaluating", "[]")],
)
def test_what_comes_frozen_stays_so_and_a_net_in_evaluation_is_trained(
    trained: Trained, net: str, frozen: str
) -> None:
    freezes = 'hooks.freezes={use="./runner_snapshots.py:Freezes", args={at=99}}'
    run_dir = trained(f'model.use="{__file__}:{net}"', freezes)
    assert {line.split(": ")[1] for line in modes(run_dir)} == {frozen}


class Fetching:
    """Notes when each batch is fetched, as its source and the point say it."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def note(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)

    def before_run(self, run: Any) -> None:
        source = run.data["train"]
        inner, note = source.epoch, self.note

        def epoch(epoch: int, start: int = 0) -> Iterator[Any]:
            for index, batch in enumerate(inner(epoch, start), start):
                note(f"{index} ")
                yield batch

        source.epoch = epoch

    def before_fetch(self, run: Any, batch_idx: int) -> None:
        assert run.batch_idx == batch_idx
        self.note(f"{batch_idx}>")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_point_comes_before_each_batch_is_fetched(
    trained: Trained, tmp_path: Path, accumulate: int
) -> None:
    files = [tmp_path / "each", tmp_path / "some"]
    tables = [
        f'hooks.{name}={{use="{__file__}:Fetching", args={{file="{file}"}}'
        for name, file in zip("ab", files, strict=True)
    ]
    some = 'points=["before_run", {at="before_fetch", every=2}]'
    trained(
        f"{tables[0]}}}",
        f"{tables[1]}, {some}}}",
        f"run.accumulate={accumulate}",
        "run.max_epochs=2",
    )
    assert files[0].read_text() == "0>0 1>1 2>2 3>3 4>4 " * 2
    expected = {1: "0>0 1 2>2 3 4>4 0 1>1 2 3>3 4 ", 2: "0>0 1 2 3 4>4 0 1 2>2 3 4 "}
    assert files[1].read_text() == expected[accumulate]


class Judging:
    def tell(self, run: Any) -> None:
        run.say(f"{run.stage}: gradients {torch.is_grad_enabled()}, training {run.model.training}")

    before_val_epoch = before_val_iter = after_val_iter = after_val_epoch = tell
    before_test_epoch = before_test_iter = after_test_iter = after_test_epoch = tell
    after_train_iter = after_train_epoch = tell


class Inferred:
    def after_val_iter(self, run: Any, outputs: Any) -> None:
        inferred, weights = (
            outputs["loss"].is_inference(),
            next(run.model.parameters()).is_inference(),
        )
        run.say(
            f"inferred {inferred}, weights {weights}, within {torch.is_inference_mode_enabled()}"
        )


def test_wherever_it_is_judged_gradients_are_off_and_inference_mode_measures_the_same(
    trained: Trained,
) -> None:
    judged = [f'hooks.{name}={{use="{__file__}:{name}"}}' for name in ("Judging", "Inferred")]
    usual, inferred = (
        trained(*judged, "run.test=true"),
        trained(*judged, "run.test=true", "run.inference_mode=true"),
    )
    for run_dir in (usual, inferred):
        assert {text for text in messages(run_dir) if "gradients" in text} == {
            "train: gradients True, training True",
            "val: gradients False, training False",
            "test: gradients False, training False",
        }
        told = {text for text in messages(run_dir) if "inferred" in text}
        assert told == {f"inferred {run_dir is inferred}, weights False, within False"}
    assert [each["v"] for each in records(usual, "metrics")] == [
        each["v"] for each in records(inferred, "metrics")
    ]


def test_an_epoch_cut_by_the_end_is_entered_by_a_resume(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    trace, marks = tmp_path / "trace", tmp_path / "marks"
    around = f'hooks.around={{use="./common_hooks.py:Around", args={{file="{marks}"}}}}'
    each = 'hooks.checkpoint.points=["after_train_iter"]'
    run_dir = trained(TRACER % trace, around, each, swap=("max_epochs = 3", "max_iters = 7"))
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (points.count("before_train_epoch"), points.count("after_train_epoch")) == (2, 1)
    assert marks.read_text().split() == ["entered", "left", "entered", "left"]
    assert points.index("after_train") > points.index("after_train_epoch")
    run_dir.pipeline.write_text(
        run_dir.pipeline.read_text().replace("max_iters = 7", "max_iters = 10")
    )
    marks.unlink()
    trace.unlink()
    assert train_here(run_dir, resume=True) == 0
    assert marks.read_text().split() == ["entered", "left"]
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (points.count("before_train_epoch"), points.count("after_train_epoch")) == (0, 1)


def test_there_need_be_no_validation(trained: Trained) -> None:
    run_dir = trained(swap=(ONE, ""))
    assert records(run_dir, "metrics") == []
    assert records(run_dir, "checkpoint")[-1]["it"] == 15


ONE = '[data.val]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n'
ONE_TEST = ONE.replace("data.val", "data.test").replace("split = 1", "split = 2")
SETS = (
    '[data.val.near]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16'
    ' }\n[data.val.far]\nuse = "./toy.py:Points"\nargs = { split = 2, examples = 24 }\nval_every ='
    ' "2ep"\n'
)
MONITORS = (
    "hooks.early_stop.args.monitor='near/accuracy'",
    "hooks.checkpoint.args.monitor='far/accuracy'",
)


def test_each_set_has_its_interval_and_metrics_as_pytorch_measures_them(
    left_alone: RunDir, trained: Trained, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    run_dir = trained(*MONITORS, TRACER % trace, swap=(ONE, SETS))
    net = Net()
    net.load_state_dict(
        torch.load(run_dir.checkpoints / "last" / "model_ema.pt", weights_only=True)
    )  # which is what is judged
    inputs, targets = (
        torch.cat(part)
        for part in zip(*Points(0, torch.device("cpu"), split=2, examples=24).epoch(0), strict=True)
    )
    right = (net.eval()(inputs).argmax(dim=1) == targets).double().mean()
    last: Any = records(run_dir, "metrics")[-1]["v"]
    alone = records(left_alone, "metrics")[-1]["v"]
    assert {f"near/{name}": value for name, value in alone.items()}.items() <= last.items(), (
        "as if it were alone"
    )  # type: ignore[attr-defined]
    assert last["far/accuracy"] == float(right)
    metrics = [(record["it"], set(record["v"])) for record in records(run_dir, "metrics")]  # type: ignore[call-overload]
    near, far = {"near/loss", "near/accuracy"}, {"far/loss", "far/accuracy"}
    assert metrics == [(5, near), (10, near | far), (15, near | far)], "each at the end, too"
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (
        points.count("before_val"),
        points.count("before_val_epoch"),
        points.count("after_val"),
    ) == (3, 5, 3)


def test_time_is_up_for_a_set_alone(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock rings in the second and in the fourth iteration."""
    monkeypatch.setattr("hookflow.runner.loop.evaluation.Timer", Clock)
    hours = 'hooks.hours={use="tests.runner.test_loops_steered:Hours"}'
    by_time = SETS.replace('val_every = "2ep"', 'val_every = "10m"')
    run_dir = trained(*MONITORS, hours, "run.max_epochs=1", swap=(ONE, by_time))
    sets = [(r["it"], {name.split("/")[0] for name in r["v"]}) for r in records(run_dir, "metrics")]  # type: ignore[attr-defined]
    assert sets == [(2, {"far"}), (4, {"far"}), (5, {"near", "far"})]


@pytest.mark.parametrize("at", [5, 10])
def test_a_validation_that_a_signal_has_cut_is_of_the_same_sets(
    resumes_alike: NewRun, at: int
) -> None:
    resumes_alike(*MONITORS, point="after_val_iter", at=at, swap=(ONE, SETS))


def test_a_metric_is_that_of_a_set_and_a_single_one_has_the_interval_of_the_run(
    trained: Trained,
) -> None:
    printed = reason(trained(swap=(ONE, SETS), code=2))
    assert '"checkpoint" reads the metric "accuracy"' in printed
    assert "far/accuracy" in printed
    with pytest.raises(Exception, match="val_every is for one of several sets"):
        trained(swap=(ONE, ONE + 'val_every = "2ep"\n'))


def test_a_training_that_a_hook_has_ended_is_tested_and_one_that_is_stopped_is_tested_once_resumed(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    def tested(run_dir: RunDir) -> list[int]:
        return [record["it"] for record in records(run_dir, "metrics") if record["split"] == "test"]

    assert tested(trained("run.test=true", steers("stop", "after_train_iter", 7))) == [7]
    stopped = trained(
        "run.test=true", *strikes(tmp_path, SIGTERM, ("after_train_iter", 7)), code=143
    )
    assert tested(stopped) == []
    assert any(line.startswith("run.test: the test follows") for line in messages(stopped))
    assert train_here(stopped, resume=True) == 0
    assert tested(stopped) == [15]


def test_sets_are_tested_and_evaluated_by_name(trained: Trained, tmp_path: Path) -> None:
    sets = ONE_TEST.replace("data.test", "data.test.a") + ONE.replace("data.val", "data.test.b")
    run_dir = trained("run.test=true", swap=(ONE_TEST, sets))
    tested: Any = [
        record["v"] for record in records(run_dir, "metrics") if record["split"] == "test"
    ]
    assert [*tested[0]] == ["a/loss", "a/accuracy", "b/loss", "b/accuracy"]
    found = hookflow_here("test", str(run_dir.path), "--format", "json", cwd=tmp_path, code=0)
    assert '"a/accuracy"' in found.stdout
    assert '"test.b"' in found.stdout
    assert not messages(run_dir, "error")
    refused = hookflow_here("predict", str(run_dir.path), "--split", "test", cwd=tmp_path, code=2)
    assert "[data.test] has several sets" in refused.stderr
    assert "choose by --split: test.a, test.b" in refused.stderr


PAGE = (TESTS.parent / "docs" / "reference" / "loops.md").read_text("utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n##")[0]
    result = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    return {point: cells.split(" | ") for point, cells in result}


def trace(name: str) -> list[tuple[str, str, str]]:
    lines = (FOLDER / f"trace_{name}.txt").read_text("utf-8")
    return re.findall(r"^(\w+) iter=(\d+) epoch=(\d+)", lines, re.MULTILINE)


def test_the_counters() -> None:
    told = rows("The counters")
    seen: dict[str, list[str]] = {point: [] for point in told}
    for name, it, epoch in trace("epochs"):
        if name in seen:
            seen[name].append(f"{it}, {epoch}")
    assert told == {point: [values[0], values[-1]] for point, values in seen.items()}


def test_no_point_of_the_training_is_left_out() -> None:
    assert {
        point.name for point in DEFAULT_POINTS if point.kind == "step" or "train" in point.name
    } <= rows("The counters").keys()


@pytest.mark.parametrize(("name", "column"), [("epochs", 0), ("accumulate", 1)])
def test_how_often_they_fire(name: str, column: int) -> None:
    seen = Counter(
        point for point, it, _ in trace(name) if it == str(int(point == "after_train_iter"))
    )
    told = {
        point: int(cells[column])
        for point, cells in rows("Which points fire how often in an iteration").items()
    }
    assert told == {point: seen[point] for point in told}
