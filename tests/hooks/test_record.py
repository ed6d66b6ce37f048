"""Hooks that record: what they log is what the quantity is by hand,
or by an oracle of the field.
"""

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.hooks.builtin import log, metrics, statistics
from hookflow.hooks.builtin.gradients import GradNorm
from hookflow.hooks.builtin.log import LRMonitor, Throughput
from hookflow.hooks.builtin.memory import BYTES_PER_MIB, measure_memory
from hookflow.hooks.builtin.statistics import ActivationStats, ParamStats
from hookflow.hooks.tensors import EpochSums, Window, sum_dtype
from hookflow.runner.distributed.consensus import RUN_COMMANDS
from hookflow.runner.iteration import run as run_module
from hookflow.runner.logging import timing
from hookflow.runner.loop.evaluation import EvaluationLoop, WeightedMeans
from hookflow.runner.loop.loop import SafePoint
from hookflow.runner.state.checkpoint_manager import CheckpointManager
from tests.conftest import NewRun, Train, Trained, records
from tests.hooks.stand_ins import NOW, StandIn
from tests.support import own_tasks
from tests.support.toy import Tied


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))


class TestLRMonitor:
    def test_logs_the_settings_of_each_group_of_each_optimizer(self) -> None:
        critic = [
            {"params": net().parameters()},
            {"params": net().parameters(), "lr": 0.5, "name": "norms"},
        ]
        optimizers = {
            "generator": torch.optim.Adam(net().parameters(), lr=0.1, betas=(0.5, 0.9)),
            "critic": torch.optim.SGD(critic, lr=0.2),
        }
        run = StandIn(optimizers=optimizers)
        LRMonitor(["momentum"]).after_train_iter(run)  # type: ignore[arg-type]
        rates = {"lr/generator/0": 0.1, "lr/critic/0": 0.2, "lr/critic/norms": 0.5}
        momenta = {
            "momentum/generator/0": 0.5,
            "momentum/critic/0": 0.0,
            "momentum/critic/norms": 0.0,
        }
        assert run.last == {**rates, **momenta}
        run = StandIn(optimizers={"optimizer": optimizers["generator"]})
        LRMonitor().after_train_iter(run)  # type: ignore[arg-type]
        assert run.last == {"lr/0": 0.1}


class TestGradNorm:
    def run(self) -> StandIn:
        model = net()
        model(torch.randn(5, 3)).square().sum().backward()
        return StandIn(model=model, models={"model": model})

    def test_the_norms_are_those_by_hand(self) -> None:
        run = self.run()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        by_hand = {
            name: sum(float((p.grad**2).sum()) for p in module.parameters(recurse=False)) ** 0.5
            for name, module in run.model.named_modules()
            if list(module.parameters(recurse=False))
        }
        total = float(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]))
        assert run.last == pytest.approx(
            {f"grad_norm/{k}": v for k, v in {**by_hand, "total": total}.items()}
        )
        assert by_hand.keys() == {"0", "2"}
        run.logged.clear()
        GradNorm("parameter").before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.last.keys() == {
            f"grad_norm/{name}" for name in ("0.weight", "0.bias", "2.weight", "total")
        }

    def test_what_has_no_gradient_has_no_norm_and_sparse_ones_count(self) -> None:
        run = self.run()
        run.model[0].requires_grad_(False).zero_grad()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.last.keys() == {"grad_norm/2", "grad_norm/total"}
        run.logged.clear()
        run.model.zero_grad()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.last == {}
        model = nn.Embedding(10, 2, sparse=True)
        model(torch.tensor([1, 1, 3])).sum().backward()
        run = StandIn(model=model, models={"model": model})
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.last["grad_norm/total"] == pytest.approx((2 * 2**2 + 2 * 1) ** 0.5)


class TestThroughput:
    def test_tokens_and_utilization_follow_from_the_examples(self) -> None:
        hook = Throughput(tokens_per_sample=128, flops_per_sample=6e9, peak_flops=1e12)
        assert hook.compute_figures(100.0, 2) == {
            "samples_per_s": 100,
            "tokens_per_s": 12800,
            "mfu": pytest.approx(0.3),
        }
        assert Throughput().compute_figures(100.0, 2) == {"samples_per_s": 100}
        with pytest.raises(UserError, match="flops_per_sample needs peak_flops too"):
            Throughput.check_arguments({"flops_per_sample": 1e9})

    def test_a_figure_covers_every_iteration_over_epochs_and_no_validation_checkpoint_or_pause(
        self, trained: Trained, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The clock moves by a second in each iteration,
        and by a thousand in what is no training.
        """

        def slow(before: Any) -> Any:
            def passed(*args: Any) -> Any:
                NOW[0] += 1000
                return before(*args)

            return passed

        for module in (timing, run_module):
            monkeypatch.setattr(module, "perf_counter", lambda: NOW[0])
        monkeypatch.setattr(EvaluationLoop, "_pass", slow(EvaluationLoop._pass))
        monkeypatch.setattr(CheckpointManager, "_copied", slow(CheckpointManager._copied))
        monkeypatch.setattr(SafePoint, "_take_commands", slow(lambda self: []))
        monkeypatch.setattr(
            SafePoint, "_read_wishes", lambda self: RUN_COMMANDS * (self.state.iter == 9)
        )
        pauses = (
            'hooks.pauses={use="tests.hooks.stand_ins:takes_a_second", points=["after_backward"]}'
        )
        every = 'hooks.throughput={use="throughput", every=4, args={window=7}}'
        run_dir = trained("run.max_epochs=5", every, pauses)
        rates = {
            r["it"]: r["v"]["samples_per_s"]
            for r in records(run_dir, "scalars")
            if "samples_per_s" in r["v"]
        }  # type: ignore[index, operator]
        assert rates == {8: 8.0, 16: 8.0, 24: 8.0}

    def test_a_run_shorter_than_the_window_logs_one_figure(self, trained: Trained) -> None:
        run_dir = trained(
            'hooks.throughput={use="throughput"}', swap=("max_epochs = 3", "max_iters = 3")
        )
        logged = [r["it"] for r in records(run_dir, "scalars") if "samples_per_s" in r["v"]]  # type: ignore[operator]
        assert logged == [3]


def test_the_memory_is_that_of_this_process() -> None:
    before = measure_memory(torch.device("cpu"))
    assert before.keys() == {"rss"}
    block = bytearray(64 * BYTES_PER_MIB)
    block[::4096] = b"x" * len(block[::4096])  # or the system would not give it any memory yet
    assert measure_memory(torch.device("cpu"))["rss"] - before["rss"] > 48


def commit_in(folder: Path) -> str:
    """Make a repository with one commit, and return the commit."""

    def git(*words: str) -> str:
        command = [
            "git",
            "-c",
            "user.name=somebody",
            "-c",
            "user.email=somebody@example.com",
            *words,
        ]
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet", "--initial-branch", "trunk")
    (folder / "net.py").write_text("one")
    git("add", "net.py")
    git("commit", "--quiet", "-m", "it")
    return git("rev-parse", "HEAD")


class TestEnvInfo:
    def test_the_commit_and_what_differs_from_it(self, tmp_path: Path) -> None:
        assert log.read_git_state(tmp_path) is None
        commit = commit_in(tmp_path)
        assert log.read_git_state(tmp_path) == {"commit": commit, "branch": "trunk", "dirty": []}
        (tmp_path / "net.py").write_text("two")
        (tmp_path / "new.py").write_text("new")
        assert log.read_git_state(tmp_path) == {
            "commit": commit,
            "branch": "trunk",
            "dirty": ["net.py", "new.py"],
        }

    def test_settings_of_the_user_and_the_repository_of_a_hook_of_git_change_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, other, linked = tmp_path / "mine", tmp_path / "other", tmp_path / "linked"
        folder.mkdir()
        other.mkdir()
        commit = commit_in(folder)
        commit_in(other)
        settings = {
            "status.branch": "true",
            "status.showUntrackedFiles": "no",
            "core.quotePath": "false",
        }
        for name, value in settings.items():
            subprocess.run(["git", "config", name, value], cwd=folder, check=True)
        (folder / "new.py").write_text("new")
        monkeypatch.setenv("GIT_DIR", str(other / ".git"))
        monkeypatch.setenv("GIT_WORK_TREE", str(other))
        assert log.read_git_state(folder) == {
            "commit": commit,
            "branch": "trunk",
            "dirty": ["new.py"],
        }
        monkeypatch.delenv("GIT_DIR")
        monkeypatch.delenv("GIT_WORK_TREE")
        subprocess.run(
            ["git", "worktree", "add", "-q", "-b", "side", str(linked)], cwd=folder, check=True
        )
        assert log.read_git_state(linked) == {"commit": commit, "branch": "side", "dirty": []}

    def test_where_git_cannot_say_its_reason_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
        with pytest.raises(log.GitError, match="HEAD"):
            log.read_git_state(tmp_path)  # no commit yet
        commit_in(tmp_path)
        # git's own way to play a folder of somebody else.
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(log.GitError, match="dubious ownership"):
            log.read_git_state(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(log.GitError, match="not installed"):
            log.read_git_state(tmp_path)

    def test_a_name_that_is_no_utf_8_ends_nothing(self, tmp_path: Path) -> None:
        commit_in(tmp_path)
        subprocess.run(["git", "config", "core.quotePath", "false"], cwd=tmp_path, check=True)
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).touch()
        found = log.read_git_state(tmp_path)
        assert found is not None and found["dirty"] == ["caf\ufffd"]


class TestProfiler:
    def test_the_trace_of_the_active_iterations_is_kept_and_told_of(self, trained: Trained) -> None:
        args = "{wait=2, warmup=1, active=2, repeat=2}"
        run_dir = trained(f'hooks.profiler={{use="profiler", args={args}}}')
        traces = sorted((run_dir.path / "profile").iterdir())
        assert [path.name for path in traces] == ["it00000005.json", "it00000010.json"]
        for path in traces:
            events = json.loads(path.read_text())["traceEvents"]
            assert {event["ph"] for event in events} >= {"X", "M"}, (
                "as Chrome's trace format has them"
            )
            names = {event["name"] for event in events}
            assert (
                "aten::linear" in names
                and len([n for n in names if n.startswith("ProfilerStep#")]) == 2
            )
        told = {
            record["it"]: str(record["text"])
            for record in records(run_dir, "message")
            if "trace" in str(record)
        }
        assert told.keys() == {5, 10} and "profile/it00000010.json" in told[10]

    def test_a_run_that_ends_or_raises_within_a_trace_keeps_what_there_is(
        self, trained: Trained
    ) -> None:
        raises = 'hooks.raises={use="./common_hooks.py:Raises", args={at=6}}'
        run_dir = trained(
            'hooks.profiler={use="profiler", args={wait=3, warmup=1, active=9}}', raises, code=1
        )
        (path,) = (run_dir.path / "profile").iterdir()
        assert json.loads(path.read_text())["traceEvents"]


class TestConfusion:
    target = torch.tensor([0, 0, 1, 2, 2, 2, -100])
    predicted = torch.tensor([0, 1, 1, 2, 0, 2, 1])

    def test_the_counts_are_those_by_hand_in_text_and_image(self) -> None:
        assert metrics.count_confusions(self.predicted, self.target, 3).tolist() == [
            [1, 1, 0],
            [0, 1, 0],
            [1, 0, 2],
        ]
        assert (
            metrics.count_confusions(
                self.predicted.reshape(1, 7, 1), self.target.reshape(1, 7, 1), 3
            ).sum()
            == 6
        )
        matrix = metrics.count_confusions(self.predicted, self.target, 3)
        assert metrics.format_matrix(matrix.tolist(), ["cat", "dog", "cow"]).splitlines() == [
            "    cat dog cow",
            "cat   1   1   0",
            "dog   0   1   0",
            "cow   1   0   2",
        ]
        image = metrics.draw_matrix(matrix)
        assert (
            image.shape == (159, 159)
            and image[0, 0] == 0.5
            and image[-1, 0] == pytest.approx(1 / 3)
        )
        matrix = torch.eye(100, dtype=torch.int64) * 9
        matrix[3, 7], matrix[8, 2] = 4, 5
        assert metrics.format_matrix(
            matrix.tolist(), [f"c{k}" for k in range(100)]
        ).splitlines() == [
            "     5 × c8 taken for c2",
            "     4 × c3 taken for c7",
        ]


class TestImages:
    @pytest.mark.parametrize(
        ("args", "expected"),
        [({}, "target 1 2; predicted 0 1"), ({"caption": ("predicted",)}, "predicted 0 1")],
    )
    def test_the_caption_has_what_is_named(self, args: dict[str, Any], expected: str) -> None:
        seen: list[Any] = []
        run: Any = SimpleNamespace(log_image=lambda *logged: seen.append(logged))
        outputs = {"target": torch.tensor([1, 2]), "logits": torch.eye(2, 3)}
        statistics.Images(**args).after_val_iter(run, torch.rand(2, 3, 4, 4), 0, outputs)
        assert seen[0][2] == expected

    def test_the_first_tensor_of_images_is_taken_and_each_goes_from_black_to_white(self) -> None:
        photos, masks, other = torch.rand(5, 3, 4, 6), torch.rand(5, 4, 6), torch.rand(5, 7)
        assert statistics.first_images((other, photos, masks)) is photos
        assert statistics.first_images({"x": other, "masks": masks}).shape == (5, 1, 4, 6)  # type: ignore[union-attr]
        assert statistics.first_images((other, [1, 2])) is None
        result = statistics.rescale_images(
            torch.stack([torch.linspace(-3, 5, 12).reshape(3, 2, 2), torch.ones(3, 2, 2)])
        )
        assert (result[0].min(), result[0].max(), result[1].max()) == (0, 1, 0)

    def test_a_grid_has_every_image_in_its_place(self) -> None:
        shown = torch.arange(1.0, 4)[:, None, None, None].expand(3, 1, 2, 2)
        assert statistics.make_grid(shown, 2)[0].tolist() == [
            [1, 1, 0, 2, 2],
            [1, 1, 0, 2, 2],
            [0, 0, 0, 0, 0],
            [3, 3, 0, 0, 0],
            [3, 3, 0, 0, 0],
        ]


class TestParamStats:
    def test_the_statistics_are_those_of_numpy_and_tied_weights_go_by_the_name_that_matches(
        self,
    ) -> None:
        run = StandIn(model=net())
        ParamStats(["0.*"], ["mean", "std", "norm", "min", "max"]).after_train_iter(run)  # type: ignore[arg-type]
        expected = {}
        for name in ("0.weight", "0.bias"):
            values = run.model.get_parameter(name).detach().double().numpy()
            by_hand = {"mean": values.mean(), "std": values.std(), "norm": (values**2).sum() ** 0.5}
            by_hand |= {"min": values.min(), "max": values.max()}
            expected |= {f"param/{name}/{stat}": value for stat, value in by_hand.items()}
        assert run.last == pytest.approx(expected, rel=1e-5)
        hook, run = ParamStats(["head.*"], ["norm"]), StandIn(model=Tied())
        hook.before_train(run)  # type: ignore[arg-type]
        hook.after_train_iter(run)  # type: ignore[arg-type]
        assert run.last.keys() == {"param/head.weight/norm"}


class TestActivationStats:
    def test_the_statistics_are_those_by_hand(self) -> None:
        model, inputs = net(), torch.randn(6, 3)
        run, hook = StandIn(model=model), ActivationStats()
        hook.before_run(run)  # type: ignore[arg-type]
        hidden = model[1](model[0](inputs))  # type: ignore[index]
        hook.forward(run, model[1], hidden)  # type: ignore[index, arg-type]
        by_hand = hidden.detach().double().numpy()
        expected = {"mean": by_hand.mean(), "std": by_hand.std(), "zeros": (by_hand == 0).mean()}
        assert run.last == pytest.approx(
            {f"activation/1/{stat}": value for stat, value in expected.items()}
        )
        assert 0 < run.last["activation/1/zeros"] < 1


def test_they_are_recorded(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_in(tmp_path)
    run_dir = new_run(
        "run.max_epochs=2",
        "run.test=true",
        'task.use="./own_tasks.py:paints"',
        'hooks.env={use="env_info"}',
        'hooks.confusion={use="confusion_matrix"}',
        'hooks.images={use="images", args={output="image", count=4, columns=2}}',
        'hooks.params={use="param_stats", every=5, args={match=["head.*"], histogram=true}}',
        'hooks.stats={use="activation_stats", modules=["head", "body.?"], every=5}',
    )
    monkeypatch.chdir(tmp_path)
    assert train_here(run_dir) == 0
    kept = json.loads((run_dir.path / "environment.json").read_text())
    assert (
        kept["git"]["commit"] == commit
        and kept["packages"]
        == {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
        and kept["torch"] == torch.__version__
    )
    (_, environment), *matrices = [
        (record["name"], str(record["text"])) for record in records(run_dir, "text")
    ]
    assert commit[:12] in environment and torch.__version__ in environment
    assert [name for name, _ in matrices] == [
        "val/confusion_matrix",
        "val/confusion_matrix",
        "test/confusion_matrix",
    ]
    for _, text in matrices:
        rows = [list(map(int, line.split()[1:])) for line in text.splitlines()[1:]]
        assert sum(map(sum, rows)) == 16, "each example of a pass counts once"
    test = next(record for record in records(run_dir, "metrics") if record["split"] == "test")
    assert test["v"]["accuracy"] == sum(row[k] for k, row in enumerate(rows)) / 16  # type: ignore[index]
    images = records(run_dir, "image")
    assert [image["name"] for image in images if image["name"] != "val/image"] == [
        name for name, _ in matrices
    ]
    first, second = (image for image in images if image["name"] == "val/image")
    assert (first["it"], second["it"], first["width"], first["height"]) == (5, 10, 5, 5)
    assert str(first["caption"]).startswith("target ") and "; predicted " in str(first["caption"])
    assert (run_dir.path / str(second["path"])).stat().st_size
    histograms: Any = {str(record["name"]): record for record in records(run_dir, "histogram")}
    assert histograms.keys() == {"param/head.weight", "param/head.bias"}
    assert sum(histograms["param/head.weight"]["counts"]) == 24
    names = {name for record in records(run_dir, "scalars") for name in record["v"]}  # type: ignore[attr-defined]
    layers = {name.split("/")[1] for name in names if name.startswith("activation/")}
    assert layers == {"head", "body.0", "body.1", "body.2", "body.3"}


KEEPS = 'hooks.keeps={use="tests.hooks.test_record:Keeps"}'
EPOCHS = "run.max_epochs=3"


class Keeps:
    """Records the loss of each iteration, and how many examples it is a mean over."""

    def after_train_iter(self, run: Any, outputs: Any) -> None:
        run.say(json.dumps([run.iter, run.epoch, float(outputs["loss"].detach()), run.batch_size]))


def log_with(args: str, more: str = "") -> str:
    return f"hooks.log={{use='log', args={{{args}}}{more}}}"


def kept(run_dir: RunDir) -> dict[int, tuple[int, float, int]]:
    told = [
        json.loads(str(each["text"]))
        for each in records(run_dir, "message")
        if each["source"] == "keeps"
    ]
    return {it: (epoch, loss, size) for it, epoch, loss, size in told}


def logged(run_dir: RunDir, name: str) -> dict[Any, float]:
    return {r["it"]: r["v"][name] for r in records(run_dir, "scalars") if name in r["v"]}  # type: ignore[index, operator]


def mean(of: list[tuple[int, float, int]]) -> float:
    return sum(loss * size for _, loss, size in of) / sum(size for *_, size in of)


def window(losses: dict[int, tuple[int, float, int]], it: int, length: int) -> float:
    return mean([losses[k] for k in range(max(it - length, 0) + 1, it + 1)])


@pytest.mark.parametrize(
    "batches",
    ["data.train.args={examples=47, batch_size=5, whole=true}", "run.accumulate=3"],
    ids=["a smaller last batch", "accumulated"],
)
def test_means_over_windows_and_epochs_are_plain_means_whenever_they_are_logged(
    trained: Trained, batches: str
) -> None:
    run_dir = trained(KEEPS, EPOCHS, batches, log_with('window=4, mean="epoch"', ", every=3"))
    losses = kept(run_dir)
    assert list(logged(run_dir, "loss")) == [it for it in losses if it % 3 == 0]
    assert len({size for *_, size in losses.values()}) > 1
    for it, value in logged(run_dir, "loss").items():
        assert value == pytest.approx(window(losses, it, 4), rel=1e-12)
    of_epochs = [mean([loss for loss in losses.values() if loss[0] == epoch]) for epoch in range(3)]
    assert [*logged(run_dir, "loss_epoch").values()] == pytest.approx(of_epochs, rel=1e-12)


def test_it_is_bound_to_the_end_of_an_epoch_only_where_it_logs_there(new_run: NewRun) -> None:
    def bound(args: str) -> list[str]:
        plan = Plan.from_json(json.loads(new_run(log_with(args)).plan.read_text()))
        return [binding.point for binding in plan.bindings if binding.hook == "log"]

    assert bound("") == bound("window=3") == ["after_train_iter"]
    assert bound('mean="epoch"') == ["after_train_iter", "after_train_epoch"]


def alternates(run: Any, batch: Any) -> dict[str, Any]:
    """A task whose outputs differ by iteration: `rare` comes once."""
    always = own_tasks.step(run, batch)
    names = [("odd", "even")[run.iter % 2], *(["rare"] if run.iter == 4 else [])]
    return {
        **always,
        **{name: torch.tensor(float(run.iter + 1)) for name in names if run.stage == "train"},
    }


def by_batch(run: Any, batch: Any) -> dict[str, Any]:
    """A task that returns the batch's index for every second batch."""
    always = own_tasks.step(run, batch)
    return always if run.batch_idx % 2 else {**always, "even": run.batch_idx}


ALTERNATES = 'task={use="tests.hooks.test_record:alternates"}'


@pytest.mark.parametrize(
    ("args", "trigger", "rare", "odd", "even"),
    [
        ("", "every=4", {8: 5}, {4: 3, 8: 7, 12: 11}, {4: 4, 8: 8, 12: 12}),
        ("", "every='1ep'", {5: 5}, {5: 5, 10: 9, 15: 15}, {5: 4, 10: 10, 15: 14}),
        ("window=3", "every=4", {8: 5}, {4: 2, 8: 6, 12: 10}, {4: 3, 8: 7, 12: 11}),
        ('window=3, mean="epoch"', "every=4", {8: 5}, {4: 2, 8: 6, 12: 10}, {4: 3, 8: 7, 12: 11}),
    ],
)
def test_an_output_of_some_iterations_is_logged_when_the_hook_fires_next(
    trained: Trained, args: str, trigger: str, rare: Any, odd: Any, even: Any
) -> None:
    run_dir = trained(EPOCHS, ALTERNATES, log_with(args, f", {trigger}"))
    assert [logged(run_dir, name) for name in ("rare", "odd", "even")] == [rare, odd, even]


def test_of_accumulated_batches_those_count_that_have_the_number(trained: Trained) -> None:
    task = 'task={use="tests.hooks.test_record:by_batch"}'
    assert logged(trained("run.max_epochs=1", "run.accumulate=5", log_with(""), task), "even") == {
        1: 2.0
    }


def test_a_window_that_was_loaded_goes_on_where_the_numbers_are_computed() -> None:
    before, after = Window(3), Window(3)
    before.add(1, {"loss": torch.tensor(2.0, dtype=torch.float64)}, 8)
    after.load_state_dict(before.state_dict())
    after.add(2, {"loss": torch.ones((), dtype=torch.float64, device="meta")}, 8)
    assert (
        after.sums(["loss"])["loss"][0].device.type
        == after.state_dict()["loss"]["total"].device.type
        == "meta"
    )
    epoch = EpochSums()
    epoch.load_state_dict({"epoch": 0, "sums": {"loss": [torch.tensor(2.0), 8]}})
    epoch.add(0, {"loss": torch.ones((), device="meta")}, 8)
    assert epoch.sums()["loss"][0].device.type == "meta"  # type: ignore[union-attr]


def test_a_long_sum_is_exact_to_seven_digits_where_float64_is() -> None:
    of_pass, of_epoch, value = WeightedMeans(exact=True), EpochSums(), torch.tensor(0.1)
    for _ in range(10_000):
        of_pass.add({"loss": value}, 7)
        of_epoch.add(0, {"loss": value}, 7)
    total, seen = of_epoch.sums()["loss"]
    assert of_pass.over_ranks(lambda sums: [sums, sums])["loss"] == pytest.approx(0.1, rel=1e-7)
    assert float(total) / seen == pytest.approx(0.1, rel=1e-7)
    assert sum_dtype(torch.device("mps")) is torch.float32
    assert sum_dtype(torch.device("cuda")) is sum_dtype(torch.device("cpu")) is torch.float64
