"""`hookflow val`, `test`, `predict` and `run --dry-run`: what exists is evaluated or tried,
and nothing changes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.predict import WRITER_BY_SUFFIX, Predictions
from tests.cli.conftest import invoke, refused
from tests.conftest import TOY, NewRun, Train, hookflow, hookflow_here, records, wait_for
from tests.faults.disk import Disk
from tests.runner.same import final_state
from tests.support.golden_files import check_golden
from tests.support.toy import Net, Points


class Unlabelled(Points):
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        for inputs, _ in super().epoch(epoch, start):
            yield (inputs,)


class Doubles:
    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((2 * batch[0], *batch[1:]))

    before_val_iter = before_train_iter
    before_test_iter = before_train_iter


def puts(metrics: dict[str, float], value: float) -> None:
    metrics["put"] = value


def as_json(*arguments: str) -> dict[str, Any]:
    text = invoke(*arguments, "--format", "json")
    return json.loads(text, parse_constant=lambda constant: 1 / 0)  # type: ignore[no-any-return]


def everything(run: RunDir) -> dict[Path, bytes]:
    """Return the files of a run but for now.bin, which the end of its process removes."""
    return {
        path: path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path != run.now
    }


def test_the_metrics_are_those_of_the_run_itself(run: RunDir) -> None:
    before = everything(run)
    recorded = {record["split"]: record["v"] for record in records(run, "metrics")}
    by_run = as_json("val", run.id)
    assert by_run["metrics"] == recorded["val"], "of the average, which the hook swaps in by itself"
    assert (by_run["split"], by_run["it"], by_run["ep"]) == ("val", 10, 2)
    assert as_json("test", f"{run.id}:last")["metrics"] == recorded["test"]
    assert as_json("test", str(run.checkpoints / "it00000010"))["metrics"] == recorded["test"]
    assert (
        as_json("val", str(run.path), "--set", "data.val.args.examples=8")["data"]["examples"] == 8
    )
    assert everything(run) == before


def test_in_words(run: RunDir) -> None:
    head, on, *metrics = invoke("val", run.path).splitlines()
    assert head == f"val of toy {run.id}, it00000010 (iteration 10, epoch 2)"
    assert on == "on 16 examples of SYNTHETIC points"
    assert [line.split()[0] for line in metrics] == ["loss", "accuracy"]
    one = f'{{use="{TOY.parent}/toy.py:Points", args={{split=1, examples=8}}}}'
    sets = (
        f"data.val={{a={one}, b={one}}}",
        "hooks.early_stop.enabled=false",
        "hooks.checkpoint.enabled=false",
    )
    lines = invoke(
        "val", run.path, *(part for text in sets for part in ("--set", text))
    ).splitlines()
    assert lines[1:3] == [
        "a: on 8 examples of SYNTHETIC points",
        "b: on 8 examples of SYNTHETIC points",
    ]
    stream = (
        f'data.val={{use="{TOY.parent}/data_loaders.py:Endless", loader={{batch_size=8,'
        " batches=2}}"
    )
    assert invoke("val", run.path, "--set", stream).splitlines()[1] == "on 2 batches of Endless"
    assert (
        invoke("val", run.checkpoints / "it00000005")
        .splitlines()[0]
        .endswith("(iteration 5, epoch 1)")
    )
    head, on, file = invoke("predict", run.path, "--out", "rows.npz", "--split", "val").splitlines()
    assert head == f"val of toy {run.id}, it00000010 (iteration 10, epoch 2)"
    assert file == "  rows.npz: logits 16 × 3, predicted 16"


def test_what_is_not_there_is_named_and_a_hook_that_raises_ends_it(
    run: RunDir, tmp_path: Path
) -> None:
    assert '"lst"\n    did you mean "last"?' in refused("val", f"{run.id}:lst")
    gone = (run.checkpoints / "it00000010").rename(tmp_path / "gone")
    assert f"it00000010 of {run.id} cannot be used: manifest.json" in refused(
        "val", f"{run.id}:last"
    )
    gone.rename(run.checkpoints / "it00000010")
    assert "it is a file" in refused("val", TOY)
    out = tmp_path / "a.npz"
    out.mkdir()
    assert refused("predict", run.path, "--out", out) == f"{out}: cannot be written: Is a directory"
    assert '\n    --split: did you mean "test"?' in refused("predict", run.path, "--split", "tset")
    other = refused("val", run.path, "--set", "model.args.width=3")
    assert "model and optimizer must be those" in other and "a run continues" not in other
    bad = 'hooks.bad={use="./common_hooks.py:Fails", args={place="after_test_iter"}}'
    invoke("test", run.path, "--set", bad, code=1)


def test_what_is_not_finite_is_null_and_data_that_are_missing_are_told(
    new_run: NewRun, train_here: Train
) -> None:
    hook = '{use="tests.cli.test_evaluate:puts", args={value=nan}, points=["after_val_epoch"]}'
    test = '[data.test]\nuse = "./toy.py:Points"\nargs = { split = 2, examples = 16 }\n'
    run_dir = new_run("run.max_epochs=1", f"hooks.puts={hook}", swap=(test, ""))
    assert train_here(run_dir) == 0
    assert as_json("val", str(run_dir.path))["metrics"]["put"] is None
    assert as_json("checkpoints", str(run_dir.path))
    hooks = {hook["name"]: hook for hook in as_json("graph", str(run_dir.path))["hooks"]}
    assert hooks["puts"]["args"] == {"value": None}, "the plan is read back"
    assert "the pipeline has no [data.test]" in refused("test", run_dir.path)


def test_the_trace(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    tracer = (
        f'hooks.tracer={{use="./common_hooks.py:Tracer", phase="last", args={{file="{trace}"}}}}'
    )
    run_dir = new_run(tracer, "run.max_epochs=1", "data.test.args={examples=8, split=2}")
    assert train_here(run_dir) == 0
    for command in ("val", "test", "predict"):
        trace.unlink()
        as_json(
            command,
            str(run_dir.path),
            *["--out", str(tmp_path / "rows.npz")] * (command == "predict"),
        )
        check_golden(f"trace_{command}_only.txt", trace.read_text())


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose hooks look at outputs, and one of which doubles every batch;
    another is inside the network.
    """
    from tests.conftest import train_toy

    keys = 'points=["forward"], modules=["head"], stages=["train", "val", "test"], enabled=false'
    halves = f'hooks.halves={{use="./common_hooks.py:halves", {keys}}}'
    doubles = 'hooks.doubles={use="tests.cli.test_evaluate:Doubles"}'
    return train_toy(tmp_path_factory.mktemp("doubled"), "run.max_epochs=1", doubles, halves)


def predicted(run: RunDir, out: Path, *options: str) -> dict[str, Any]:
    return as_json("predict", str(run.path), "--out", str(out), *options)


def expected(run: RunDir, factor: float) -> torch.Tensor:
    """Return the logits of the averaged weights for the test's inputs times a factor."""
    net = Net()
    net.load_state_dict(final_state(run)["model_ema"])  # type: ignore[arg-type]
    points = Points(0, torch.device("cpu"), examples=16, split=2)
    with torch.no_grad():
        return net.eval()(factor * torch.cat([batch for batch, _ in points.epoch(0)]))  # type: ignore[no-any-return]


def test_the_averaged_weights_predict_every_example_in_order(
    doubled: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = expected(doubled, 2)
    for ending in WRITER_BY_SUFFIX:
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match="cannot be written: No space left"),
        ):
            Disk(tmp_path / "made", patch, "^write")
            predicted(doubled, tmp_path / "made" / f"rows{ending}")
    assert not any((tmp_path / "made").iterdir())
    for ending in WRITER_BY_SUFFIX:
        shown = predicted(doubled, tmp_path / "made" / f"rows{ending}")
        assert shown["shapes"] == {"logits": [16, 3], "predicted": [16]}
        assert (shown["split"], shown["it"], shown["data"]["examples"]) == ("test", 5, 16)
    with np.load(tmp_path / "made" / "rows.npz") as file:
        arrays = dict(file)
    torch.testing.assert_close(torch.from_numpy(arrays["logits"]), logits)
    assert arrays["predicted"].tolist() == logits.argmax(1).tolist()
    lines = [
        json.loads(line) for line in (tmp_path / "made" / "rows.jsonl").read_text().splitlines()
    ]
    assert [line["predicted"] for line in lines] == logits.argmax(1).tolist()
    tensors = torch.load(tmp_path / "made" / "rows.pt", weights_only=True)
    assert torch.equal(tensors["logits"], torch.from_numpy(arrays["logits"]))


class Numbers:
    """Adds a column to the predictions, and writes down what it is called for."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def before_predict(self, run: Any) -> None:
        self.given = [
            f"{run.split}, predicting {run.is_predicting}, training {run.model.training}: "
        ]

    def around_predict_iter(self, run: Any, batch: Any, batch_idx: int) -> Iterator[None]:
        self.given.append(f"{batch_idx}<")
        yield
        self.given.append(">")

    def after_predict_iter(self, outputs: Any, batch_idx: int) -> None:
        outputs["batch"] = torch.full((len(outputs["logits"]),), batch_idx)

    def after_predict(self) -> None:
        self.file.write_text("".join(self.given))

    def after_test_iter(self, outputs: Any) -> None:
        raise AssertionError


def test_hooks_see_what_is_predicted_may_add_to_it_and_fire_in_their_stages(
    doubled: RunDir, tmp_path: Path
) -> None:
    hook = f'hooks.numbers={{use="{__file__}:Numbers", args={{file="{tmp_path / "file"}"}}}}'
    invoke("predict", doubled.path, "--out", tmp_path / "rows.pt", "--set", hook)
    assert (tmp_path / "file").read_text() == "test, predicting True, training False: 0<>1<>"
    rows = torch.load(tmp_path / "rows.pt", weights_only=True)
    assert rows["batch"].tolist() == [0] * 8 + [1] * 8
    torch.testing.assert_close(rows["logits"], expected(doubled, 2))
    predicted(doubled, tmp_path / "rows.pt", "--set", "hooks.halves.enabled=true")
    logits = torch.load(tmp_path / "rows.pt", weights_only=True)["logits"]
    torch.testing.assert_close(logits, expected(doubled, 2) / 2)


def test_the_data_need_no_targets_and_examples_of_a_loader_have_their_index(
    doubled: RunDir, tmp_path: Path
) -> None:
    shown = predicted(
        doubled,
        tmp_path / "rows.npz",
        "--split",
        "val",
        "--set",
        'data.val.use="tests.cli.test_evaluate:Unlabelled"',
    )
    assert shown["shapes"]["predicted"] == [16]
    reversed_ = (
        'data.val={use="./data_loaders.py:dataset", loader={batch_size=5,'
        ' sampler="./data_loaders.py:backwards"}}'
    )
    predicted(doubled, tmp_path / "rows.pt", "--split", "val", "--set", reversed_)
    assert torch.load(tmp_path / "rows.pt", weights_only=True)["index"].tolist() == list(
        range(23, -1, -1)
    )


def test_what_cannot_be_predicted(doubled: RunDir) -> None:
    assert 'unknown format ".txt"' in refused("predict", doubled.path, "--out", "rows.txt")
    step = 'task.use="./own_tasks.py:step"'
    wrong = refused("predict", doubled.path, "--set", step)
    assert "defines no predict()" in wrong


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([torch.zeros(3)], "has returned a Tensor"),
        ([{}], "has returned nothing"),
        ([{"a": torch.zeros(())}], '"a", a Tensor without rows'),
        ([{"a": torch.zeros(3), "b": torch.zeros(2)}], '"a" of 3 rows and "b" of 2 rows'),
        (
            [{"a": torch.zeros(3)}, {"b": torch.zeros(3)}],
            "has returned b, and for a batch before a",
        ),
    ],
)
def test_what_is_no_rows_is_told(batches: list[Any], wrong: str) -> None:
    rows = Predictions("the task's predict has returned")
    with pytest.raises(UserError) as raised:
        for batch in batches:
            rows.add(batch)
    assert wrong in str(raised.value)


ONE = "--set=run.threads=1"
NEVER = '--set=hooks.late={use="./common_hooks.py:slow", points=["after_val"], from="9ep"}'


def dry(*options: str, cwd: Path, code: int = 0) -> CompletedProcess[str]:
    done = hookflow_here("run", str(TOY), "--dry-run", ONE, *options, cwd=cwd, code=code)
    assert [*cwd.iterdir()] == []
    return done


def test_it_says_what_the_run_would_train_and_keeps_nothing(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--dry-run", ONE, "--test", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, *facts, last = done.stdout.splitlines()
    assert first.startswith(f"{TOY}: dry run passed in ")
    assert last.startswith("  checkpoint written and read back, ")
    check_golden("dry-run.txt", "\n".join([*facts, ""]))
    assert [*tmp_path.iterdir()] == []


def test_it_says_what_is_frozen_and_how_many_examples_a_step_takes(tmp_path: Path) -> None:
    net = f"--set=model.use='{__file__}:Frozen'"
    stream = (
        '--set=data.val={use="./data_loaders.py:Numbers", args={examples=40},'
        " loader={batch_size=8}}"
    )
    printed = dry(net, stream, "--set=run.accumulate=3", cwd=tmp_path).stdout
    assert "Numbers, 5 batches of 8" in printed, "of the run, not of the dry run"
    assert "  layers     body.0  Linear       8×4, 8  40  160 B  32 frozen\n" in printed
    assert "             head    Linear       3×8, 3  27  108 B  frozen\n" in printed
    assert "             24 trainable parameters, 332 B of weights\n" in printed
    frozen = "--set=hooks.freeze={use='freeze', args={params=['head.*']}}"
    printed_of_hook = dry(frozen, cwd=tmp_path).stdout
    assert "             head    Linear       3×8, 3  27  108 B  frozen\n" in printed_of_hook
    assert "             56 trainable parameters, 332 B of weights\n" in printed_of_hook
    words = "examples of an optimizer step: 8 × accumulate 3 = 24; the last of an epoch has 16"
    assert f"  step       {words}\n" in printed


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)
        self.body[0].weight.requires_grad_(False)


def test_warnings_of_the_pipeline_are_printed_where_no_run_is_shown(tmp_path: Path) -> None:
    detached = hookflow(
        "run", str(TOY), "--detach", ONE, NEVER, "--set", "run.max_epochs=1", cwd=tmp_path
    )
    [run_dir] = (tmp_path / "runs" / "toy").iterdir()
    (tmp_path / "empty").mkdir()
    for done in (detached, dry(NEVER, cwd=tmp_path / "empty")):
        assert "warning: --set " in done.stderr
        assert done.stderr.count('hook "late" never fires') == 1
    wait_for(lambda: records(RunDir(run_dir), "end"))


def test_every_hook_fires_whatever_its_trigger_and_the_rest_is_told_with_the_reason(
    tmp_path: Path,
) -> None:
    hooks = (
        (
            'hooks.seldom={use="./common_hooks.py:slow", points=["after_train_iter"], every="90%",'
            ' when="loss > 100"}'
        ),
        'hooks.late={use="./common_hooks.py:slow", points=["after_val"], from="2ep"}',
        'hooks.own={use="./common_hooks.py:slow", points=["after_grow"]}',
        'hooks.export={use="export", args={out_dir="out"}}',
        'points.after_grow={follows="after_optimizer_step"}',
        'hooks.predicts={use="./common_hooks.py:slow", points=["after_predict_iter"]}',
        'hooks.rescue={use="checkpoint", points=["on_exception"]}',
        (
            'hooks.inside={use="./common_hooks.py:slow", points=["forward"], modules=["head"],'
            ' stages=["test"], every=3}'
        ),
        'hooks.bad={use="operator:truediv", args=[1, 0], points=["after_val"], on_error="ignore"}',
        (
            'hooks.judged={use="./common_hooks.py:slow", points=["forward"], modules=["head"],'
            ' stages=["val"], every=3}'
        ),
    )
    out = dry(*(f"--set={hook}" for hook in hooks), cwd=tmp_path).stdout
    silent = [line for line in out.splitlines(keepends=True) if ": " in line and " at " in line]
    check_golden("dry-run-silent.txt", "".join(silent))


def test_the_run_has_its_own_length_in_it(tmp_path: Path) -> None:
    """A chain of schedules that needs the whole run finds it."""
    chain = '{use="LinearLR", length="1ep"}, {use="CosineAnnealingLR"}'
    schedule = f'--set=hooks.schedule={{use="scheduler", args={{chain=[{chain}]}}}}'
    by_iters = dry(schedule, "--set=run.max_iters=100", "--set=run.val_every='50it'", cwd=tmp_path)
    assert "length     100 iterations" in by_iters.stdout
    assert (
        "3 epochs of 3 iterations: 9 iterations"
        in dry(schedule, "--set=run.accumulate=2", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize(
    ("change", "code", "printed"),
    [
        (
            'hooks.early_stop.args.monitor="top_accuracy"',
            2,
            'reads the metric "top_accuracy", which',
        ),
        ("model.args.width=true", 2, "model"),
        ('hooks.bad={use="./common_hooks.py:Fails", args={place="after_val"}}', 1, "Traceback"),
    ],
)
def test_what_is_wrong_is_told_as_in_a_run(
    tmp_path: Path, change: str, code: int, printed: str
) -> None:
    done = dry("--set", change, cwd=tmp_path, code=code)
    assert printed in done.stderr
    assert "passed" not in done.stdout


def test_it_goes_with_nothing_that_starts_a_run(tmp_path: Path) -> None:
    wrong = dry("--detach", "--resume", "--nproc=2", "--in-process", cwd=tmp_path, code=2).stderr
    for option in ("--detach", "--resume", "--nproc", "--in-process"):
        assert f"{option}: cannot be given here" in wrong


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("def made(): raise RuntimeError('cannot be made')\n", ("run", "--dry-run")),
        ("def made(): raise RuntimeError('cannot be made')\n", ("check", "--observe")),
        (
            (
                "import torch\n\nclass Broken(torch.nn.Linear):\n    def forward(self, x): raise"
                " RuntimeError('cannot be made')\n\ndef made(): return Broken(2, 2)\n"
            ),
            ("run", "--dry-run"),
        ),
    ],
)
def test_what_raises_is_printed_once_with_its_traceback(
    tmp_path: Path, code: str, command: tuple[str, str]
) -> None:
    (tmp_path / "broken.py").write_text(code)
    (tmp_path / "p.toml").write_text(TOY.read_text().replace("./", f"{TOY.parent}/"))
    model = f'model={{use="{tmp_path / "broken.py"}:made"}}'
    name, option = command
    done = hookflow_here(name, "p.toml", option, "--set", model, cwd=tmp_path, code=1)
    assert done.stderr.count("RuntimeError: cannot be made") == 1
    assert done.stderr.count("Traceback") == 1
