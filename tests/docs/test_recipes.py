"""Recipes: the files that a page shows are written as they stand there,
and its commands run from top to bottom.
"""

import re
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import hookflow
from hookflow.events.rundir import RunDir
from hookflow.hooks.checkpoint_files import read_weights
from tests.conftest import TESTS, NewRun, Trained, hookflow_here, records, run_here
from tests.conftest import hookflow as command
from tests.runner.same import final_state, logged

RECIPES = sorted((TESTS.parent / "docs" / "how-to" / "recipes").glob("*.md"))
FILE = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    hookflow (.*)$", re.MULTILINE)

METRICS = {
    "batch-size": {"loss", "accuracy"},
    "diffusion": {"loss"},
    "distillation": {"loss", "soft", "accuracy"},
    "gan": {"real_score"},
    "k-fold": {"loss", "accuracy"},
    "lbfgs": {"loss"},
    "pretrain-probe": {"loss", "accuracy"},
    "sampler-collate": {"loss", "accuracy"},
    "several-train-sets": {"clean/loss", "clean/accuracy", "noisy/loss", "noisy/accuracy"},
    "sweep": {"loss", "accuracy"},
    "truncated-bptt": {"loss"},
}
"""What the newest run of each recipe has measured in its validation."""

ONE_TRIAL = {"trials = 3": "trials = 1"}
"""What is shorter in a sweep here: each of its trials is a process of its own."""


def text_of(recipe: str) -> str:
    text = next(page for page in RECIPES if page.stem == recipe).read_text("utf-8")
    for shown, shorter in ONE_TRIAL.items():
        text = text.replace(shown, shorter)
    return text


def follow(recipe: str, folder: Path) -> dict[str, str]:
    """Write the files of a recipe, run its commands, and return what each of them printed."""
    page = text_of(recipe)
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)
    printed = {}
    for line in COMMAND.findall(page):
        name, *arguments = line.split()
        if name == "run":
            done = run_here(
                *arguments, "--set", "run.threads=1", "--ui", "plain", cwd=folder, code=0
            )
        elif name == "sweep":
            done = command(name, *arguments, cwd=folder, code=0)  # its trials are processes
        else:
            done = hookflow_here(name, *arguments, cwd=folder, code=0)
        printed[line] = done.stdout
    return printed


@pytest.mark.parametrize("recipe", [recipe for recipe in METRICS if recipe != "k-fold"])
def test_a_recipe_trains(recipe: str, tmp_path: Path) -> None:
    check_recipe(recipe, tmp_path)


def check_recipe(recipe: str, tmp_path: Path) -> dict[str, str]:
    """Follow a recipe, look at its newest run, and return what each command printed."""
    printed = follow(recipe, tmp_path)
    newest = hookflow.runs(tmp_path / "runs")[0]
    assert newest.status == "finished"
    measured = records(RunDir(newest.dir), "metrics")[-1]["v"]
    assert measured.keys() == METRICS[recipe]  # type: ignore[attr-defined]
    assert all(text for line, text in printed.items() if not line.startswith("run "))
    return printed


def test_the_table_of_a_cross_validation_is_that_of_its_runs(tmp_path: Path) -> None:
    printed = check_recipe("k-fold", tmp_path)["sweep folds.toml"]
    best, last = [], []
    for fold in range(3):
        run = next(
            run for run in hookflow.runs(tmp_path / "runs") if run.config["run"]["fold"] == fold
        )
        assert run.config["data"]["val"]["args"] == {"fold": fold, "folds": 3, "part": "val"}
        values = [record["v"]["accuracy"] for record in records(RunDir(run.dir), "metrics")]
        best.append(max(values))
        last.append(values[-1])
    rows = [re.split(r"  +", line) for line in printed.splitlines()]
    begin = rows.index(["fold", "best.accuracy", "last.accuracy"])
    for fold in range(3):
        number, *cells = rows[begin + 1 + fold]
        assert number == str(fold)
        assert [*map(float, cells)] == pytest.approx([best[fold], last[fold]], abs=1e-4)
    expected = ["mean ± sd"]
    for values in (best, last):
        expected.append(f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.2g} (n = 3)")
    assert rows[begin + 4] == expected


def test_the_batch_size_grows_as_its_page_says(tmp_path: Path) -> None:
    check_recipe("batch-size", tmp_path)
    run = hookflow.runs(tmp_path / "runs")[0]
    run_dir = RunDir(run.dir)
    (began,) = records(run_dir, "run")
    assert began["max_iters"] == 3 * 16 + 8 + 4 == 60
    state: Any = final_state(run_dir)
    assert state["position"]["iter"] == 60
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.2)
    said = [str(record["text"]) for record in records(run_dir, "message")]
    assert "examples of an optimizer step: 32, 64 after 3 epochs, 128 after 4 epochs" in said


def test_no_recipe_is_left_out() -> None:
    assert [page.stem for page in RECIPES] == sorted(METRICS)


def module_of(recipe: str, name: str) -> dict[str, Any]:
    """Return what a Python file of a recipe defines."""
    namespace: dict[str, Any] = {"__name__": recipe}
    exec(dict(FILE.findall(text_of(recipe)))[name], namespace)
    return namespace


def test_the_folds_share_no_example_and_leave_none_out() -> None:
    points = module_of("k-fold", "folds.py")["points"]
    held_out = [points(fold, 3, "val").indices for fold in range(3)]
    assert sorted(chain.from_iterable(held_out)) == list(range(240))
    for fold, indices in enumerate(held_out):
        assert sorted(points(fold, 3, "train").indices + indices) == list(range(240))


def test_a_student_trains_as_in_a_plain_loop(tmp_path: Path, trained: Trained) -> None:
    """Beside a teacher that stays in evaluation and has no optimizer."""
    for name, text in FILE.findall(text_of("distillation")):
        (tmp_path / name).write_text(text)
    parts = module_of("distillation", "distill.py")
    torch.manual_seed(1)
    weights = parts["Net"](64).state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    from_file = f'model.teacher.weights={{file="{tmp_path / "weights.pt"}"}}'
    in_order = ["data.train.loader.shuffle=false", "run.sanity=false"]
    run_dir = trained(from_file, *in_order, pipeline=tmp_path / "student.toml")
    torch.manual_seed(0)
    student, teacher = parts["Net"](8), parts["Net"](64)
    teacher.load_state_dict(weights)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    task = parts["Distillation"]()
    run = SimpleNamespace(
        models={"student": student, "teacher": teacher.requires_grad_(False).eval()}
    )
    batches = list(DataLoader(parts["points"](0), batch_size=32))
    losses = {}
    for step in range(2 * len(batches)):
        loss = task.step(run, batches[step % len(batches)])["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step + 1] = loss.item()
    values = logged(run_dir, "loss")
    assert values == pytest.approx({it: losses[it] for it in values})
    saved = read_weights(run_dir.checkpoints / "last", "model_student")
    torch.testing.assert_close(saved, dict(student.state_dict()))


def test_several_sets_train_as_in_a_plain_loop(tmp_path: Path, trained: Trained) -> None:
    """Over the same batches in the same order: one of the clean set,
    then three of the noisy one, twice 12.
    """
    for name, text in FILE.findall(text_of("several-train-sets")):
        (tmp_path / name).write_text(text)
    in_order = [f"data.train.{name}.loader.shuffle=false" for name in ("clean", "noisy")]
    run_dir = trained(*in_order, "run.sanity=false", pipeline=tmp_path / "sets.toml")
    parts = module_of("several-train-sets", "sets.py")
    torch.manual_seed(0)
    net = parts["Net"]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    clean = list(DataLoader(parts["points"](0, 96), batch_size=32))
    noisy = list(DataLoader(parts["points"](1, 512, 0.5), batch_size=32))
    losses = {}
    for step in range(24):
        turn, place = divmod(step, 4)
        if place == 0:
            x, target = clean[turn % 3]
        else:
            x, target = noisy[(3 * turn + place - 1) % 16]
        loss = cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step + 1] = loss.item()
    of_clean, of_noisy = logged(run_dir, "clean/loss"), logged(run_dir, "noisy/loss")
    assert {*of_clean} == {it for it in losses if it % 4 == 1}
    assert {**of_clean, **of_noisy} == pytest.approx(losses)


def test_the_hidden_state_is_resumed(tmp_path: Path, resumes_alike: NewRun) -> None:
    for name, text in FILE.findall(text_of("truncated-bptt")):
        (tmp_path / name).write_text(text)
    resumes_alike(
        "run.threads=1", point="after_train_iter", at=6, pipeline=tmp_path / "chunks.toml"
    )


def test_checkpoints_of_a_student_lack_its_teacher(tmp_path: Path) -> None:
    follow("distillation", tmp_path)
    student = hookflow.runs(tmp_path / "runs")[0]
    saved = read_weights(student.checkpoint("last").path, "model_teacher")
    assert not any(tensor.numel() for tensor in saved.values() if isinstance(tensor, torch.Tensor))
