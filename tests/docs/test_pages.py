"""Pages of docs/: their files, commands and examples work as they stand there,
and their tables leave out nothing.
"""

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file
from torch import nn

import hookflow
from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.run import Run
from hookflow.pipeline.load import parse
from hookflow.pipeline.registry import HOOKS as HOOK_REGISTRY
from hookflow.pipeline.schema import DistributedSection, RunSection
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.device.random_state import seed_everything
from hookflow.runner.iteration.run import Run as Offered
from hookflow.zoo import tasks
from tests.conftest import (
    TESTS,
    TOY,
    NewRun,
    Train,
    Trained,
    hookflow_here,
    reason,
    records,
    run_here,
)
from tests.conftest import hookflow as command
from tests.support.run_results import only_run

DOCS = TESTS.parent / "docs"


class Staged(nn.Sequential):
    """A network of images whose parts are called as those of a ResNet."""

    def __init__(self, model_name: str, num_classes: int) -> None:
        layers = {f"layer{k}": nn.Conv2d(4, 4, 3, stride=2, padding=1) for k in range(1, 5)}
        first = {"conv1": nn.Conv2d(3, 4, 3, padding=1), "bn1": nn.BatchNorm2d(4)}
        last = {
            "pool": nn.AdaptiveAvgPool2d(1),
            "flat": nn.Flatten(),
            "fc": nn.Linear(4, num_classes),
        }
        super().__init__(OrderedDict({**first, **layers, **last}))


class Documented(nn.Module):
    """A net with the parts that the examples of the documentation name,
    and ten classes as they have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.body(inputs)))  # type: ignore[no-any-return]


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return what a page shows in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


def files(name: str) -> dict[str, str]:
    """Return the files that a page shows, each named in its first line."""
    return {
        file: text for text, file in re.findall(r"```\w+\n(# (\S+)\n.*?)```", page(name), re.DOTALL)
    }


@pytest.mark.parametrize(
    ("name", "least"), [("explanation/guarantees.md", 31), ("explanation/faults.md", 23 + 8)]
)
def test_every_row_names_a_test_that_there_is(name: str, least: int) -> None:
    named = re.compile(r"`tests/([\w/]+\.py)::(test_\w+)`")
    rows = re.findall(
        r"^\| (?!promise|fault|what is fed|---).*$",
        page(name).partition("## Soak")[0],
        re.MULTILINE,
    )
    assert len(rows) >= least
    assert not [row for row in rows if not named.search(row)]
    tests = named.findall(page(name))
    assert not [
        test for file, test in tests if f"def {test}(" not in (TESTS / file).read_text("utf-8")
    ]


PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_names_formats_that_its_commands_take_and_breaks_off_nowhere(path: Path) -> None:
    text = path.read_text("utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, given in re.findall(r"hookflow (\w+)[^`\n]* --format (\w+)", text):
        (formats,) = (
            option.type.choices for option in commands[name].params if option.name == "format_"
        )
        assert given in formats, f"hookflow {name} --format {given}"
    assert not re.findall(
        r"^.*:\n+#.*$", re.sub(r"```.*?```", "a block", text, flags=re.DOTALL), re.MULTILINE
    )


FENCE = re.compile(r"```(?:python|toml)\n# ([\w.]+)(?:, continued)?\n(.*?)```", re.DOTALL)
COMMAND = re.compile(
    r"^    hookflow (.*)\n()|^    \$ hookflow (.*)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE
)
TERMINAL = ("watch --replay", "--version")


def test_every_step_for_beginners_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom in an empty folder."""
    monkeypatch.setenv("COLUMNS", "100")
    text, commands = page("tutorial/getting-started.md"), 0
    for match in sorted(
        [*FENCE.finditer(text), *COMMAND.finditer(text)], key=lambda match: match.start()
    ):
        name, shown = (group for group in match.groups() if group is not None)
        if match.re is FENCE:
            with (tmp_path / name).open("a") as file:
                file.write(f"{shown}\n")
        elif not name.startswith(TERMINAL):
            commands += 1
            here = ("--ui=plain", "--in-process") if name.startswith("run ") else ()
            done = hookflow_here(*name.split(), *here, cwd=tmp_path, code=0)
            expected = [line.strip() for line in shown.splitlines() if line.strip()]
            assert [
                line.strip() for line in done.stdout.splitlines() if line.strip()
            ] == expected or not expected, name
    assert commands == 10


def test_the_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (pipeline,) = blocks("how-to/python.md", "toml")
    Path("mine.toml").write_text(pipeline)
    Path("page.py").write_text("\n".join(blocks("how-to/python.md", "python")))
    runpy.run_path("page.py", run_name="page")
    printed = capfd.readouterr().out
    assert 'overrides["hooks.log.evry"]: [hooks.log] ' in printed
    assert 'did you mean "every"?' in printed
    assert len(hookflow.runs(tmp_path / "runs")) == 4
    unnamed = [
        name
        for name in hookflow.__all__
        if not re.search(rf"`(?:hookflow\.)?{name}`", page("how-to/python.md"))
    ]
    assert unnamed == ["__version__"]


def test_a_loop_of_ones_own_is_attached_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loop by hand and the attached one draw the same numbers, but for the validations."""
    monkeypatch.chdir(tmp_path)
    for name, text in files("how-to/own-loop.md").items():
        Path(name).write_text(text)
    losses = {}
    for program in ("by_hand.py", "train.py"):
        done = runpy.run_path(program, run_name="page")
        losses[program] = float(done["loss"].detach())
    assert losses["by_hand.py"] < 0.01
    assert losses["train.py"] < 0.1
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume"])
    runpy.run_path("train.py", run_name="page")
    (run,) = hookflow.runs("runs")
    assert (run.status, run.checkpoint("last").iter, run.checkpoint("best").metrics.keys()) == (
        "finished",
        300,
        {"loss"},
    )
    checked = hookflow_here("check", "hooks.toml", cwd=tmp_path, code=0)
    assert "run.validation() in the loop: checkpoint" in checked.stdout
    capfd.readouterr()
    runpy.run_path("hello.py", run_name="page")
    assert capfd.readouterr().out.split() == ["hello", "main", "goodbye"]


@pytest.mark.filterwarnings("ignore")  # their trainers advise
@pytest.mark.parametrize(
    ("program", "packages", "iters"),
    [
        ("train_huggingface.py", ("transformers", "accelerate"), 72),
        ("train_lightning.py", ("pytorch_lightning",), 96),
        ("train_keras.py", ("keras",), 72),
    ],
)
def test_hooks_in_another_trainer_are_those_of_the_page(
    program: str,
    packages: tuple[str, ...],
    iters: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    for package in packages:
        pytest.importorskip(package, reason=f"needs {package}")
    monkeypatch.chdir(tmp_path)
    for file, text in files("how-to/in-your-trainer.md").items():
        Path(file).write_text(text)
    runpy.run_path(program, run_name="page")
    (run,) = hookflow.runs("runs")
    run_dir = RunDir(run.dir)
    assert (run.status, records(run_dir, "end")[-1]["it"]) == ("finished", iters)
    assert [record["it"] for record in records(run_dir, "metrics")] == [
        iters // 3,
        2 * iters // 3,
        iters,
    ]
    for shown in ("show", "graph"):
        hookflow_here(shown, str(run.dir), cwd=tmp_path, code=0)


HOOKS = page("reference/hooks.md")
EXAMPLES = {
    name: text
    for text, name in re.findall(
        r"^```toml\n(\[hooks\.(\w+)\]\n.*?)^```$", HOOKS, re.MULTILINE | re.DOTALL
    )
}
NEED_MORE = {"images", "resize", "tta", "whiten", "comm_hook", "batch_size_finder"}
"""Hooks that need images or several ranks: they train in tests of their own,
and are only checked here.
"""

LONG_ENOUGH = {"lr_finder": "run.max_epochs=21"}
"""Hooks that one epoch of these data is too short for."""


def pipeline_with(name: str) -> str:
    """Return a pipeline with an example and nothing else but the accuracy,
    and a net that has what examples name.
    """
    head = (
        TOY.read_text()
        .partition("[hooks.")[0]
        .replace("./toy.py:Net", "tests.docs.test_pages:Documented")
    )
    accuracy = "" if name == "accuracy" else '[hooks.accuracy]\nuse = "accuracy"\n\n'
    return f"{head}{accuracy}{EXAMPLES[name]}"


def test_every_hook_is_there_once() -> None:
    assert (
        [*EXAMPLES] == re.findall(r"^## `(\w+)`$", HOOKS, re.MULTILINE) == [*HOOK_REGISTRY.built_in]
    )


@pytest.mark.parametrize("name", HOOK_REGISTRY.built_in)
def test_an_example_can_be_pasted_and_trains(name: str, trained: Trained) -> None:
    plan = compile_pipeline(parse(pipeline_with(name), TOY))
    assert plan.hook(name).use == name
    if name not in NEED_MORE:
        run_dir = trained(
            LONG_ENOUGH.get(name, "run.max_epochs=1"), swap=(TOY.read_text(), pipeline_with(name))
        )
        assert not records(run_dir, "error")


def test_every_point_of_pytorch_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", page("reference/pytorch_hooks.md")))
    assert {point.name for point in DEFAULT_POINTS if point.nested and point.kind != "log"} <= named
    row = r"^\| `(\w+)` \| `register_(\w+)_hook` \| ([^|]*) \|"
    listed = re.findall(row, page("how-to/module-hooks.md"), re.MULTILINE)
    assert [point for point, *_ in listed] == [
        point.name for point in DEFAULT_POINTS if point.kind == "module"
    ]
    for point, by, given in listed:
        assert point == by
        assert hasattr(nn.Module, f"register_{by}_hook")
        assert set(re.findall(r"`(\w+)`", given)) <= set(DEFAULT_POINTS[point].offers)


@pytest.mark.parametrize(
    "example",
    blocks("reference/pytorch_hooks.md", "toml"),
    ids=lambda text: text.partition("\n")[0],
)
def test_the_examples_of_pytorchs_points(example: str, tmp_path: Path, trained: Trained) -> None:
    """Each is added to the toy pipeline, with the functions that its comments define."""
    for file, function in re.findall(r'"\./(\w+\.py):\w+" +# (def .*)', example):
        with (tmp_path / file).open("a") as written:
            written.write(f"import torch\n{function}\n")
    (tmp_path / "toy.py").write_text((TESTS / "support" / "toy.py").read_text())
    toy = TOY.read_text().replace("max_epochs = 3", "max_iters = 2")
    (tmp_path / "toy.toml").write_text(f"{toy}\n{example}")
    code = 2 if "compress" in example else 0  # in one process there is nothing to compress
    trained(code=code, pipeline=tmp_path / "toy.toml")


def test_the_examples_inside_modules_do_what_the_page_says(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/runner/test_modules.py compares such hooks with ones that are registered by hand."""
    shown = files("how-to/module-hooks.md")
    for file, text in shown.items():
        (tmp_path / file).write_text(text)

    def weights(name: str, *overrides: str) -> dict[str, torch.Tensor]:
        run_dir = trained("run.device=cpu", *overrides, pipeline=tmp_path / f"{name}.toml")
        checkpoint = CheckpointStore(run_dir.checkpoints, {}).names()["last"]
        return torch.load(checkpoint / "model.pt", weights_only=True)  # type: ignore[no-any-return]

    examples = {"base", "prints", "once", "clamps", "zeroes"}
    assert {name for name in shown if name.endswith(".toml")} == {
        f"{name}.toml" for name in examples
    }
    base = weights("base")
    assert capsys.readouterr().out == ""
    weights("prints")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == [
        "0.weight",
        "0.bias",
        "0",
        "1",
        "2.weight",
        "2.bias",
        "2",
    ]
    assert all(torch.equal(weight, base[name]) for name, weight in weights("once").items())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Linear(in_features=16, out_features=1, bias=True) makes "), (
        "it is removed afterwards"
    )
    assert not torch.equal(weights("clamps")["2.weight"], base["2.weight"])
    first, later = weights("zeroes", "run.max_epochs=1"), weights("zeroes")
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    exec(shown["net.py"], namespace)
    untrained = namespace["Net"]().get_parameter("0.weight")
    assert torch.equal(first["0.weight"], untrained), "in the first epoch it learns nothing"
    assert not torch.equal(later["0.weight"], untrained)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline in an empty folder."""
    monkeypatch.chdir(tmp_path)
    file, hello = tmp_path / "mine.toml", TESTS.parent / "pipelines" / "hello.toml"
    file.write_text(
        f'extends = "{hello}"\n[run]\nthreads = 1\nmax_epochs = 1\n[hooks.accuracy]\nuse ='
        ' "accuracy"\n'
    )
    return file


def test_the_tables_of_the_page_are_sweeps(mine: Path) -> None:
    head, tables = mine.read_text(), blocks("how-to/sweeps.md", "toml")
    for table in tables:
        mine.write_text(head + table)
        assert hookflow.load(mine).loaded.pipeline.sweep is not None
    mine.write_text(head + tables[0].replace("[0, 1, 2]", "[0]"))
    command("sweep", "mine.toml", cwd=mine.parent, code=0)
    assert len(hookflow.runs()) == 2


@pytest.mark.usefixtures("mine")
def test_a_study_of_optuna_trains_in_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    code, _ = blocks("how-to/sweeps.md", "python")
    Path("study.py").write_text(code)
    runpy.run_path("study.py")
    assert "{'lr': " in capsys.readouterr().out
    assert len({run.config["optimizer"]["args"]["lr"] for run in hookflow.runs()}) == 3


@pytest.mark.long
@pytest.mark.usefixtures("mine")
def test_trials_of_ray_train_and_report() -> None:
    pytest.importorskip("ray.tune", reason="needs ray[tune]")
    _, code = blocks("how-to/sweeps.md", "python")
    Path("study.py").write_text(code)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
    done = subprocess.run(
        [sys.executable, "study.py"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    trials = {
        run.config["optimizer"]["args"]["lr"]: run.best["accuracy"] for run in hookflow.runs()
    }
    assert len(trials) == 2
    assert f"{{'lr': {max(trials, key=trials.__getitem__)}}}" in done.stdout


def test_a_job_of_slurm_resumes_what_it_has_begun(mine: Path) -> None:
    """`srun` and `hookflow` are replaced by a script that prints the command;
    the rest is bash and the page.
    """
    job, several = blocks("how-to/slurm.md", "bash")
    Path("job.sh").write_text(job)
    tools = mine.parent / "tools"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\necho "$@"\n')
    (tools / "srun").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}

    def submitted() -> list[str]:
        return subprocess.check_output(["bash", "job.sh"], env=environment, text=True).split()

    first = submitted()
    assert first[:3] == ["hookflow", "run", "pipelines/cifar.toml"]
    run_here("mine.toml", *first[3:], cwd=mine.parent, code=0)
    again = submitted()
    assert [word for word in again if word not in first] == ["--resume"]
    assert "nothing is left to do" in run_here("mine.toml", *again[3:], cwd=mine.parent).stderr
    subprocess.run(["bash", "-n"], input=several, text=True, check=True, env=os.environ)


TASKS = page("how-to/tasks.md")
MEASURED = {
    "function.toml": {"loss", "mae"},
    "class.toml": {"loss", "mse", "rmse"},
}


@pytest.mark.parametrize(("pipeline", "metrics"), MEASURED.items())
def test_the_examples_of_tasks_train(pipeline: str, metrics: set[str], tmp_path: Path) -> None:
    shown = files("how-to/tasks.md")
    assert {name for name in shown if name.endswith(".toml")} == {"base.toml", *MEASURED}
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    run_here(pipeline, "--set", "run.threads=1", cwd=tmp_path, code=0)
    assert records(only_run(tmp_path), "metrics")[-1]["v"].keys() == metrics  # type: ignore[attr-defined]


def test_all_that_a_run_offers_and_all_tasks_are_listed() -> None:
    promised = {name for name in {*vars(Run), *Run.__annotations__} if not name.startswith("_")}
    listed = re.findall(r"^\| `run\.(\w+)[^|]*` \| \S", TASKS, re.MULTILINE)
    assert sorted(listed) == sorted({*promised, "backward", "step"})
    assert all(hasattr(Offered, name) for name in promised - Run.__annotations__.keys())
    there = {
        name
        for name, kind in vars(tasks).items()
        if getattr(kind, "__module__", "") == tasks.__name__
    }
    listed = re.findall(r"^\| `hookflow\.zoo\.tasks:(\w+)`", TASKS, re.MULTILINE)
    assert set(listed) == {name for name in there if hasattr(vars(tasks)[name], "step")}


def told(task: str, column: int) -> set[str]:
    (row,) = re.findall(rf"^\| `hookflow\.zoo\.tasks:{task}` .*$", TASKS, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row.split(" | ")[column].partition(";")[0]))


TOKENS = torch.arange(6).reshape(2, 3)
X = torch.ones(2, 3)


class Computes(nn.Linear):
    """A model with the interface of those of transformers: arguments by name,
    an output with `loss` and `logits`.
    """

    def __init__(self) -> None:
        super().__init__(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(x)
        return SimpleNamespace(
            loss=None if labels is None else (logits - labels).square().mean(), logits=logits
        )

    def generate(self, x: torch.Tensor, new: int) -> torch.Tensor:
        return torch.full((len(x), new), 7)


def test_a_model_that_computes_its_loss_generates_and_predicts_with_ids() -> None:
    task, model = tasks.OwnLoss(extra=["id"], generate={"new": 3}, max_length=4, pad=9), Computes()
    run: Any = SimpleNamespace(model=model)
    batch = {"x": X, "labels": torch.ones(2, 1), "id": torch.tensor([5, 6])}
    outputs = task.evaluate(run, batch)
    assert outputs["loss"] == (model(X).logits - 1).square().mean()
    assert outputs["generated"].tolist() == [[7, 7, 7, 9]] * 2
    del batch["labels"]
    assert {name: rows.tolist() for name, rows in task.predict(run, batch).items()} == {
        "id": [5, 6],
        "generated": [[7, 7, 7, 9]] * 2,
    }
    assert tasks.OwnLoss(extra=["id"]).predict(run, batch).keys() == {"id", "logits"}
    with pytest.raises(UserError, match='the key "labels"'):
        task.step(run, batch)
    with pytest.raises(UserError, match="raise max_length"):
        tasks.OwnLoss(extra=["id"], generate={"new": 3}, max_length=2).evaluate(
            run, {**batch, "labels": X[:, :1]}
        )


@pytest.mark.parametrize(
    ("task", "model", "batch"),
    [
        (tasks.Classification(), nn.Linear(3, 4), (X, torch.tensor([0, 1]))),
        (tasks.Regression(), nn.Linear(3, 1), (X, torch.ones(2))),
        (tasks.LanguageModelling(), nn.Embedding(6, 6), TOKENS),
        (tasks.OwnLoss(), Computes(), {"x": X, "labels": torch.ones(2, 1)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_tasks_that_come_along(task: Any, model: nn.Module, batch: Any) -> None:
    run, name = SimpleNamespace(model=model), type(task).__name__
    assert task.step(run, batch).keys() == told(name, 2)
    evaluated = getattr(task, "evaluate", task.step)(run, batch)
    means = {key: value.item() for key, value in evaluated.items() if not value.ndim}
    assert {*means, *(task.metrics(means) if hasattr(task, "metrics") else ())} == told(name, 3)


def written(name: str, folder: Path) -> None:
    for file, text in files(name).items():
        (folder / file).write_text(text)


SHORT = ("data.train.args.episodes=6", "data.train.loader.batch_size=3", "data.val.args.episodes=1")
BUFFER = (
    "data.train.args={warm_up=20, batches=6, size=40}",
    "task.args={explore=8}",
    "data.val.args.episodes=1",
)


@pytest.mark.parametrize(("name", "less", "at"), [("reinforce", SHORT, 3), ("dqn", BUFFER, 9)])
def test_an_agent_is_trained_evaluated_and_resumed_in_the_same_episode(
    name: str, less: tuple[str, ...], at: int, tmp_path: Path, resumes_alike: NewRun
) -> None:
    pytest.importorskip("gymnasium", reason="needs gymnasium")
    written("how-to/rl.md", tmp_path)
    pipeline = tmp_path / f"{name}.toml"
    run = resumes_alike(
        "run.max_epochs=2", *less, point="after_train_iter", at=at, pipeline=pipeline
    )
    assert records(run, "metrics")[-1]["v"].keys() == {"length"}  # type: ignore[attr-defined]
    assert (run.checkpoints / "best").exists()


@pytest.mark.long
def test_a_model_of_transformers_is_trained_and_predicts_with_ids(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers, which takes 130 MB")
    written("how-to/transformers.md", tmp_path)
    command("run", "texts.toml", "--set", "run.threads=1", cwd=tmp_path, code=0)
    assert records(only_run(tmp_path), "metrics")[-1]["v"].keys() == {"loss", "accuracy"}  # type: ignore[attr-defined]
    command("predict", "--split", "val", "--out", "rows.npz", cwd=tmp_path, code=0)
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["index"].tolist() == rows["id"].tolist() == list(range(256))
        assert rows["logits"].shape == (256, 2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # peft asks transformers in its former words
def test_adapters_alone_are_saved_resumed_loaded_and_exported(
    tmp_path: Path, resumes_alike: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="needs peft and transformers")
    written("how-to/transformers.md", tmp_path)
    export = 'hooks.export={use="export", args={formats=["safetensors"]}}'
    pipeline = tmp_path / "lora.toml"
    run = resumes_alike(
        "run.max_epochs=2", export, point="after_train_iter", at=11, pipeline=pipeline
    )
    saved = read_weights(run.checkpoints / "last", "model")
    assert saved and all("lora_" in name or "classifier" in name for name in saved)
    assert all(saved[name].any() for name in saved if "lora_B" in name), "they are zero at first"
    monkeypatch.syspath_prepend(tmp_path)
    adapted = importlib.import_module("lora").adapted
    last = hookflow.load_run(run.path).checkpoint("last")
    with pytest.raises(hookflow.UserError, match="this model has others"):
        last.load_into(adapted())
    seed_everything(0)
    model = last.load_into(adapted())
    assert all(
        saved[name].equal(value) for name, value in model.state_dict().items() if name in saved
    )
    (exported,) = (run.path / "export").glob("*.safetensors")
    assert load_file(exported).keys() == saved.keys()


@pytest.mark.parametrize(
    "model",
    [pytest.param("timm:create_model", marks=pytest.mark.long), "tests.docs.test_pages:Staged"],
)
def test_layers_are_fine_tuned_one_by_one(
    model: str, tmp_path: Path, new_run: NewRun, train_here: Train
) -> None:
    pytest.importorskip(model.partition(":")[0], reason="needs timm and torchvision")
    written("how-to/fine-tuning.md", tmp_path)
    keep = 'hooks.checkpoint={use="checkpoint", args={keep="all"}}'
    run = new_run("run.threads=1", keep, f'model.use="{model}"', pipeline=tmp_path / "fine.toml")
    assert train_here(run) == 0, reason(run)
    recorded = hookflow.load_run(run.path)
    for name, rate, begin in (("head", 1e-2, 0), ("last", 1e-3, 16), ("2", 1e-4, 32)):
        rates = recorded.scalars(f"lr/{name}")["value"]
        ramp = [min(max(step - begin + 1, 0) / 8, 1) * rate for step in range(48)]
        assert rates == pytest.approx(ramp)
    first, second = (
        read_weights(recorded.checkpoint(f"it{it:08}").path, "model") for it in (16, 32)
    )
    changed = {
        name.partition(".")[0] for name, value in first.items() if not value.equal(second[name])
    }
    assert changed == {"fc", "layer4"}


def test_what_others_are_told_to_use_is_there() -> None:
    text = page("how-to/coming-from.md")
    keys = {*RunSection.model_fields, *vars(Run)}
    assert set(re.findall(r"`run\.(\w+)", text)) <= keys
    assert set(re.findall(r"`distributed\.(\w+)", text)) <= DistributedSection.model_fields.keys()
    points = {point.name for point in DEFAULT_POINTS}
    rows = text.partition("## Points")[2].partition("\n## ")[0].splitlines()[4:]
    assert {
        point for row in rows for point in re.findall(r"`(\w+)`", row.split(" | ")[0])
    } <= points
    flags = text.partition("| Lightning | hookflow |\n")[2].partition("The other three")[0]
    assert (
        len(re.findall(r"`\w+`", "".join(row.split(" | ")[0] for row in flags.splitlines()))) == 38
    )
    table = (
        text.partition("| MMEngine | hookflow | without")[2].partition("\n\n")[0].splitlines()[2:]
    )
    covered, others = (" ".join(row.split("|")[k] for row in table) for k in (1, 3))
    assert [len(re.findall(r"`[a-z_]+`", cells)) for cells in (covered, others)] == [58, 4]
