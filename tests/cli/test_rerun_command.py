"""`hookflow rerun`: the recording to the bit, the first difference where there is one,
and hooks that watch.
"""

import json
import random
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hookflow as api
from hookflow.api import recorded
from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.checkpoint.manifest import list_checkpoints
from hookflow.runner.logging import recorder
from tests.cli.conftest import HEAD
from tests.conftest import TESTS, Train, hookflow, hookflow_here, records, run_here
from tests.support.terminal import Terminal

HOOKS = """
import time

class Probe:
    def after_train_iter(self, run, outputs):
        run.log("probe/twice", 2 * outputs["loss"])

def clock(run):
    if run.iter == 9:
        run.log("clock", time.time())

def slow(run):
    time.sleep(0.005)
    run.log(f"slow/{run.iter}", run.iter)

def spike(run, batch):
    if run.iter == 37:
        batch[0].mul_(50)

def overflows(run, batch):
    if run.iter == 8:
        batch[0].fill_(float("inf"))

def fails(run):
    if run.iter == 9:
        raise ValueError("on purpose")
"""
FILE = f"""{HEAD}
[hooks.checkpoint]
use = "checkpoint"
args = {{ keep = 9, out_dir = "kept" }}
[hooks.log]
use = "log"
every = 1
[hooks.ema]
use = "ema"
[hooks.speed]
use = "throughput"
args = {{ window = 2 }}
[writers.csv]
use = "csv"
"""
DATA = (
    f'data.train={{use="{TESTS}/support/data_loaders.py:Numbers", loader={{batch_size=8,'
    " workers=2}}"
)

RANKS = DATA.replace("workers=2", "workers=0")


@pytest.fixture
def folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("reruns")))
    Path("p.toml").write_text(FILE)
    Path("probe.py").write_text(HOOKS)
    return here


def trained(*overrides: str, code: int = 0) -> RunDir:
    run_here(
        "p.toml",
        *(word for override in overrides for word in ("--set", override)),
        cwd=Path.cwd(),
        code=code,
    )
    return all_runs(Path("runs"))[0]


def rerun(*arguments: str, code: int = 0) -> str:
    done = hookflow_here("rerun", *arguments, cwd=Path.cwd(), code=code)
    return done.stdout if code < 2 else done.stderr


@pytest.mark.parametrize(
    "overrides", [(), (DATA, "run.accumulate=2", "run.max_epochs=4")], ids=["plain", "a stream"]
)
def test_every_number_is_the_recorded_one(folder: Path, overrides: tuple[str, ...]) -> None:
    """With a hook that watches; and nothing but the folder of the rerun is written."""
    run = trained(*overrides)
    before = {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }
    shown = rerun(run.id, "--at", "8", "--for", "3", "--with", "./probe.py:Probe")
    assert {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    } == before
    assert re.search(rf"iterations \d+ to 1[01] of {run.id} from it0000000\d", shown)
    assert re.search(
        r"[1-9]\d* numbers of \d names \(.*loss.*\): every one is as recorded, to the bit", shown
    )
    assert re.search(r"not compared, .*: samples_per_s", shown)
    assert re.search(r"iteration +8 +9 +10\n +probe/twice( +\d\.\d+){3}\n", shown)
    data = json.loads(
        rerun(run.id, "--at", "2", "--for", "2", "--with", "grad_norm", "--format", "json")
    )
    assert (data["begin"], data["end"], data["unlike"]) == (0, 3, [])
    assert [*data["more"]["grad_norm/total"]] == [
        "1",
        "2",
        "3",
    ], "the gradients of these iterations"


FROZEN = 'hooks.frozen={use="freeze", args={params=["body.*"], end="8it"}}'
SPIKE = 'hooks.spike={use="./probe.py:spike", points=["before_train_iter"], writes=["batch"]}'
PIPELINES = {
    "plain": (SPIKE,),
    "a stream, accumulated": (DATA, "run.accumulate=2", SPIKE),
    "frozen for a while": (
        'hooks.frozen={use="freeze", args={params=["body.*"], begin="10it", end="30it"}}',
        SPIKE,
    ),
    "half precision": ('run.precision="bf16"', 'optimizer={use="torch.optim:AdamW"}', SPIKE),
}


def numbers_of_reruns(run: RunDir) -> int:
    """Do four random iterations of a run of 60 again, and the spike;
    return how many numbers were compared.
    """
    compared = 0
    for at in (38, *random.choices(range(2, 60), k=4)):
        data = json.loads(
            rerun(run.id, "--at", str(at), "--for", "2", "--with", "grad_norm", "--format", "json")
        )
        assert data["unlike"] == [], at
        assert str(at) in data["more"]["grad_norm/total"]
        compared += data["compared"]
    return compared


@pytest.mark.long
@pytest.mark.parametrize("overrides", PIPELINES.values(), ids=PIPELINES)
def test_random_iterations_are_done_again(folder: Path, overrides: tuple[str, ...]) -> None:
    run = trained("run.max_epochs=100", "run.max_iters=60", *overrides)
    assert numbers_of_reruns(run) >= 10


@pytest.mark.long
def test_random_iterations_of_ranks_are_done_again(folder: Path) -> None:
    overrides = (
        "run.max_epochs=100",
        "run.max_iters=60",
        RANKS,
        RANKS.replace("train", "val"),
        SPIKE,
    )
    options = [word for override in overrides for word in ("--set", override)]
    hookflow("run", "p.toml", "--nproc", "2", *options, cwd=folder, code=0)
    assert numbers_of_reruns(all_runs(Path("runs"))[0]) >= 10


def test_a_rerun_skips_no_firing_for_its_cost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "QUICKEST", 0.1)  # by its frames the firings are judged
    slow = (
        'hooks.slow={use="./probe.py:slow", points=["after_train_iter"], budget="1%",'
        ' over_budget="throttle"}'
    )
    run = trained(slow, "run.max_epochs=100", "run.max_iters=200")
    log = [json.loads(line) for line in run.events.read_text().splitlines()]
    since, *_ = [record["it"] for record in log if record["k"] == "throttle"]
    data = json.loads(rerun(run.id, "--at", str(since + 1), "--for", "8", "--format", "json"))
    assert data["unlike"] == []
    assert len([name for name in data["more"] if name.startswith("slow/")]) > 1, (
        "those that the run has skipped"
    )


def test_the_first_difference_is_named_also_in_python(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(FROZEN, 'hooks.clock={use="./probe.py:clock", points=["after_train_iter"]}')
    shown = rerun(run.id, "--at", "7", code=1)
    assert re.search(
        r"first difference in iteration 9: clock was \d+\.\d+, and is \d+\.\d+\n  1 of \d+ numbers",
        shown,
    )
    assert "a hook may read the clock" in shown
    shown = rerun(run.id, "--at", "7", "--without", "clock")
    assert "to the bit" in shown and re.search(r"not compared, .*: clock\n", shown)
    shown = rerun(run.id, "--at", "7", "--without", "clock", "--without", "frozen", code=1)
    assert "and is nothing" not in shown and "hooks or keys are not those" in shown
    monkeypatch.setattr(  # a process that has imported torch, as for a shell
        recorded,
        "subprocess",
        SimpleNamespace(run=lambda words, **how: hookflow(*words[3:], cwd=folder)),
    )
    again = api.load_run(run.path).rerun(
        at=8, iters=2, with_=["./probe.py:Probe"], overrides={"run.seed": 0}
    )
    assert [(each.iter, each.name) for each in again.unlike] == [(9, "clock")]
    assert {8, 9} <= again.more["probe/twice"].keys() and again.compared > 4
    assert again.run.scalars("loss")["iter"][-1] >= 9
    with pytest.raises(UserError, match="has done 15 iterations"):
        api.load_run(run.path).rerun(at=99)


def test_a_fork_is_done_again_from_the_checkpoint_that_it_holds(
    folder: Path, train_here: Train
) -> None:
    """The parent may have removed its own; where nothing is left of it, that is said."""
    parent = trained("hooks.checkpoint.every=5", "hooks.checkpoint.points=['after_train_iter']")
    newest = list_checkpoints(parent.checkpoints)[0]
    fork = make_fork(
        f"{parent.path}:{newest.name}",
        None,
        PipelineChanges(("run.max_epochs=4", "hooks.checkpoint.every=5")),
    )
    start = fork.parent()
    assert start is not None
    held = shutil.copytree(fork.fork_start, folder / "held")
    assert train_here(fork) == 0
    at = str(start.it + 1)
    shutil.rmtree(newest)
    said = rerun(fork.id, "--at", at, "--for", "2", code=2)
    assert said.startswith(f"--at: iteration {at} ") and f"{parent.id}:{newest.name}" in said
    shutil.move(held, fork.fork_start)
    assert "as recorded, to the bit" in rerun(fork.id, "--at", at, "--for", "2")


def test_python_is_told_which_hooks_a_rerun_leaves_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("away.py").write_text(
        "from hookflow import HookCapabilities\n"
        "class Away:\n"
        "    capabilities = HookCapabilities(writes_outside=True)\n"
        "    def after_train_iter(self, run): run.log('away', 1)\n"
    )
    run = trained('hooks.away={use="./away.py:Away"}')
    monkeypatch.setattr(
        recorded,
        "subprocess",
        SimpleNamespace(run=lambda words, **how: hookflow(*words[3:], cwd=folder)),
    )
    assert api.load_run(run.path).rerun(at=8, iters=2).left_out == ["away"]


def test_a_run_that_failed_is_looked_into(folder: Path) -> None:
    run = trained('hooks.fails={use="./probe.py:fails", points=["after_train_iter"]}', code=1)
    shown = rerun(run.id, "--at", "8", "--with", "grad_norm")
    assert "to the bit" in shown
    assert "grad_norm" in shown
    assert "has done" in rerun(run.id, "--at", "99", code=2)
    assert "probe.py" not in rerun(run.id, "--at", "8", "--without", "failz", code=2)
    assert rerun(run.id, "--at", "8", "--with", "gradnorm", code=2).startswith(
        "--with gradnorm: there is nothing"
    )


def test_the_iteration_that_raised_has_no_numbers_and_no_trace(folder: Path) -> None:
    """It was "iterations 11 to 10", as recorded to the bit, and named a trace that is not there."""
    raises = 'hooks.fails={use="./probe.py:fails", points=["before_optimizer_step"]}'
    saves = 'hooks.checkpoint={use="checkpoint", points=["after_train_iter"], args={keep=99}}'
    run = trained(raises, saves, code=1)
    last = int(str(records(run, "end")[-1]["it"]))
    shown = rerun(run.id, "--at", str(last + 1), "--for", "1", "--trace")
    assert f"iteration {last + 1} of {run.id} from it{last:08d}: it has not ended\n" in shown
    assert "no number is recorded there that could be compared" in shown
    assert "it ended with ValueError: on purpose" in shown
    assert "there is no trace" in shown and "hookflow export" not in shown
    assert "to the bit" not in shown


def test_a_loss_that_is_not_finite_names_a_command_that_works(folder: Path) -> None:
    overflows = (
        'hooks.overflows={use="./probe.py:overflows", points=["before_train_iter"],'
        ' writes=["batch"]}'
    )
    done = run_here("p.toml", "--set", overflows, cwd=folder, code=1)
    watched = hookflow_here("watch", "mine", "--ui", "plain", cwd=folder).stdout
    assert (done.stderr.count("To look into it"), watched.count("To look into it")) == (1, 2)
    assert "Traceback" not in done.stderr + watched, "of hookflow's own code it would be"
    (command,) = {*re.findall(r"hookflow rerun (.* --with grad_norm)", done.stderr)}
    assert "--at 1" in command
    shown = rerun(*command.split(), "--set", "run.detect_anomaly=true")
    assert "to the bit" in shown
    assert "grad_norm/total" in shown, "what led to it"
    assert re.search(r"\n  it ended with NonFiniteLossError: the loss is \w+ in iteration 9", shown)


def test_the_batch_is_saved_and_keys_are_set(folder: Path) -> None:
    run = trained(RANKS, "run.accumulate=2", "run.max_epochs=2")
    shown = rerun(
        run.id,
        "--at",
        "4",
        "--for",
        "2",
        "--save-batch",
        "batch.pt",
        "--set",
        "run.detect_anomaly=true",
    )
    assert "to the bit" in shown
    first, second = torch.load("batch.pt", weights_only=True)
    assert first[0].shape[1:] == second[0].shape[1:] == (4,) and first[1].dtype == torch.int64
    rerun(run.id, "--at", "4", "--for", "1", "--save-batch", "again.pt")
    assert torch.equal(first[0], torch.load("again.pt", weights_only=True)[0][0])
    assert "run.detect_anomalies" in rerun(
        run.id, "--at", "4", "--set", "run.detect_anomalies=true", code=2
    )
    assert "b.pt: cannot be written: " in rerun(
        run.id, "--at", "4", "--save-batch", "again.pt/b.pt", code=2
    )
    missing = rerun(run.id, "--at", "4", "--with", f"{Path.cwd()}/no.py:No", code=2)
    assert f'there is no file "{Path.cwd()}/no.py"\n' in missing


@pytest.mark.parametrize(
    ("at", "first"), [("8", 7), ("6", 6), ("1", 1)], ids=["midway", "at its begin", "the first"]
)
def test_iterations_are_traced(folder: Path, at: str, first: int) -> None:
    run = trained()
    shown = rerun(run.id, "--at", at, "--for", "3", "--trace")
    assert "to the bit" in shown
    (command,) = re.findall(r"hookflow (export .*)", shown)
    assert hookflow_here(*command.split(), cwd=folder).returncode == 0
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {event["args"]["iteration"] for event in events[1:]} == {*range(first, int(at) + 3)}
    whole = [event["args"]["iteration"] for event in events if event["name"] == "iteration"]
    assert whole == [*range(first, int(at) + 3)]
    assert "at most 1,000 iterations" in rerun(
        run.id, "--at", at, "--for", "1001", "--trace", code=2
    )


def test_a_trail_leaves_a_checkpoint_near_every_iteration(folder: Path) -> None:
    """What it costs is part of `check`; the run writes no more than that,
    and a rerun begins nearer.
    """
    saves = 'points=["after_train_iter"]'
    trail = f'hooks.checkpoint={{use="checkpoint", args={{keep=1, trail="300 kB"}}, {saves}}}'
    checked = ("check", "p.toml", "--set", trail)
    Path("p.toml").write_text(FILE.replace("max_epochs = 3", "max_iters = 60"))
    assert " of checkpoint take 300.0 kB " in hookflow_here(*checked, cwd=folder).stdout
    run = trained(trail)
    *trail_paths, last = sorted(run.checkpoints.glob("it*"))
    assert last.name == "it00000060"
    assert 2 < len(trail_paths) < 12
    assert sum(file.stat().st_size for path in trail_paths for file in path.iterdir()) <= 300_000
    data = json.loads(rerun(run.id, "--at", "30", "--for", "2", "--format", "json"))
    assert data["unlike"] == [] and data["begin"] >= 8
    shown = " ".join(hookflow_here(*checked, cwd=folder).stdout.split())
    assert re.search(
        r"at most: room for 8 like the last one, of \d+\.\d kB and \d+\.\d ms; 60 saves take about"
        r" [\d.e-]+ s",
        shown,
    )
    for wrong in ('trail="2 gigabytes"', 'trail="2"', 'trail="2 GB", keep="all"'):
        refused = hookflow_here(
            "check", "p.toml", "--set", trail.replace('keep=1, trail="300 kB"', wrong), cwd=folder
        )
        assert refused.returncode == 2 and re.search("such as|one of the two", refused.stderr)


def test_several_ranks_are_done_again_by_as_many(folder: Path) -> None:
    hookflow(
        "run",
        "p.toml",
        "--nproc",
        "2",
        "--set",
        RANKS,
        "--set",
        RANKS.replace("train", "val"),
        cwd=folder,
        code=0,
    )
    run = all_runs(Path("runs"))[0]
    shown = rerun(run.id, "--at", "4", "--for", "2", "--with", "./probe.py:Probe", "--trace")
    assert re.search(
        r"[1-9]\d* numbers of \d names \(.*loss.*\): every one is as recorded, to the bit", shown
    )
    assert "probe/twice" in shown
    assert len([*Path(shown.split("hookflow show ")[-1].strip()).glob("traces/*.json")]) == 2
    assert "--pdb needs a terminal" in rerun(run.id, "--at", "4", "--pdb", code=2)
    early = rerun(run.id, "--at", "1", "--for", "2")
    assert "from the beginning" in early and "to the bit" in early
    hookflow("fork", run.id, "--set", "run.max_epochs=4", cwd=folder, code=0)
    fork = all_runs(Path("runs"))[0]
    done_by_one = rerun(fork.id, "--at", records(fork, "run")[0]["it"] + 1, "--for", "1")
    assert "to the bit" in done_by_one


def test_the_debugger_stops_before_the_iteration(folder: Path) -> None:
    run = trained()
    terminal = Terminal(
        sys.executable,
        "-m",
        "hookflow",
        "rerun",
        run.id,
        "--at",
        "8",
        "--for",
        "1",
        "--pdb",
        cwd=folder,
    )
    terminal.wait_for("before iteration 8")
    terminal.press("p run.iter, type(batch).__name__\n")
    terminal.wait_for("(7, 'tuple')")
    terminal.press("c\n")
    assert terminal.finish() == 0
    terminal.wait_for("to the bit")
