"""`hookflow runs`, `show`, `tag`, `rm` and `compare`: which runs there are,
one of them on a page, and what differs.
"""

import csv
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import hookflow
from hookflow.cli.app import app
from hookflow.cli.runs import table_lines
from hookflow.cli.show import format_page
from hookflow.events.records import make_stamped_record
from hookflow.events.run_lock import release, try_lock
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.monitor import plain
from hookflow.monitor.aggregate import MetricAggregate
from hookflow.monitor.health import Health
from hookflow.monitor.index import Index
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.selection import make_headings
from hookflow.monitor.state import RunState
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.manifest import MANIFEST_FILE, TRAINING_FILE, VERSION
from hookflow.runner.process.launch import prepare
from hookflow.service.run_facts import RunFacts
from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import TOY, records
from tests.monitor.fake_run import BEGAN, append, end, make, make_several, plan, record
from tests.support.golden_files import check_cases, check_golden
from tests.support.limits import LIMIT
from tests.support.processes import Spawned


@pytest.fixture
def several(here: Path) -> list[RunDir]:
    """Four runs in the folder, the oldest first: two that finished,
    one that was killed, one that failed.
    """
    runs = make_several(here / "runs", 4, upto=100)
    append(runs[0], [end(t=1.79e9 + 100)])
    append(runs[1], [end(t=1.79e9 + 3700, it=300, ep=3, reason="accuracy has not improved")])
    append(
        runs[3],
        [end(t=1.79e9 + 10900, it=10, status="failed", exit=1, reason="ValueError: too bad")],
    )
    return runs


def ids(text: str) -> list[str]:
    return re.findall(r"20260921-\d{6}-(\d{4})", text)


def test_a_scalar_has_its_last_value_however_seldom_it_was_logged(here: Path) -> None:
    """In one run the loss is logged in the first of three epochs alone."""
    file = here / "p.toml"
    for lines in ("every = 1", 'every = 1\nuntil = "1ep"'):
        file.write_text(f'extends = "{TOY}"\n[hooks.log]\npoints = ["after_train_iter"]\n{lines}\n')
        hookflow.train(hookflow.load(file), ui="none")
    shown = json.loads(invoke("runs", "--columns", "id,loss,lr", "--format", "json"))
    assert len(shown) == 2
    for row in shown:
        last = {}
        for logged in csv.DictReader(io.StringIO(invoke("export", row["id"]))):
            last[logged["name"]] = float(logged["value"])
        assert row["loss"] == last["loss"]
        assert row["lr"] == last["lr"]


def test_a_table_has_the_keys_in_which_the_runs_differ_and_a_notebook_escapes_it(
    several: list[RunDir],
) -> None:
    invoke("tag", several[1].id, "good", "--note", "before the schedule")
    check_golden("runs.txt", re.sub(r"\d+ (s|min|h|d) ago", "1 d ago", invoke("runs")))
    check_golden(
        "runs-grouped.txt",
        re.sub(r"\d+ (s|min|h|d) ago", "1 d ago", invoke("runs", "--group", "status")),
    )
    invoke("tag", several[0].id, "--note", "<script>")
    assert "&lt;script&gt;" in hookflow.runs()._repr_html_()


def test_a_group_is_headed_by_its_value_as_a_filter_has_it(here: Path) -> None:
    file = here / "p.toml"
    lines = f'extends = "{TOY}"\n[run]\nmax_epochs = 1\n[optimizer.args]\nnesterov = '
    for value in ("true", "false"):
        file.write_text(f"{lines}{value}\n")
        hookflow.train(hookflow.load(file), ui="none")
    shown = invoke("runs", "--group", "optimizer.args.nesterov")
    headings = re.findall(r"^optimizer\.args\.nesterov = (\w+):", shown, re.MULTILINE)
    assert headings == ["false", "true"]
    for heading in headings:
        condition = f"optimizer.args.nesterov == {heading}"
        rows = json.loads(invoke("runs", "--filter", condition, "--format", "json"))
        assert len(rows) == 1


def test_a_group_has_the_mean_and_the_sample_deviation_of_the_best_and_the_last(
    several: list[RunDir],
) -> None:
    best, last = [], []
    for run, values in zip(several[:3], ([0.95, 0.5], [0.99, 0.7], [0.97, 0.9]), strict=True):
        for it, value in zip((400, 500), values, strict=True):
            append(
                run,
                [
                    record(
                        "metrics",
                        BEGAN + 20_000,
                        it,
                        5,
                        split="val",
                        seconds=0.1,
                        v={"accuracy": value},
                    )
                ],
            )
        best.append(max(values))
        last.append(values[-1])
    shown = invoke("runs", "--filter", f'id != "{several[3].id}"', "--group", "name")
    expected = []
    for key, values in {"best": best, "last": last}.items():
        expected.append(
            f"{key}.accuracy {np.mean(values):.4f} ± {np.std(values, ddof=1):.2g} (n = 3)"
        )
    assert f"name = cifar: 3 runs, {', '.join(expected)}\n" in shown
    rows = json.loads(
        invoke("runs", "--sort", "last.accuracy", "--columns", "last.accuracy", "--format", "json")
    )
    assert [row["last.accuracy"] for row in rows][:3] == pytest.approx(sorted(last))


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.4], [3.0, 1.0, 4.0, 1.0, 5.0]])
def test_an_aggregate_is_that_of_numpy(values: list[float]) -> None:
    aggregate = MetricAggregate.of(values)
    assert aggregate.mean == pytest.approx(np.mean(values))
    assert aggregate.count == len(values)
    if len(values) == 1:
        assert aggregate.deviation is None
    else:
        assert aggregate.deviation == pytest.approx(np.std(values, ddof=1))


def test_an_aggregate_with_a_diverged_run_is_no_number() -> None:
    aggregate = MetricAggregate.of([0.5, math.inf, -math.inf])
    assert math.isnan(aggregate.mean)
    assert aggregate.deviation is not None and math.isnan(aggregate.deviation)


def test_a_run_that_was_refused_at_the_start_is_listed_only_where_it_is_wanted(
    several: list[RunDir],
) -> None:
    refused_run = RunDir(several[0].path.with_name("20260921-172320-0009"))
    refused_run.path.mkdir()
    refused_run.sign(id=refused_run.id, name="cifar", created=BEGAN)
    why = f"p.toml:3:1: no such device{'.' * 500}"
    append(refused_run, [end(t=BEGAN + 2, it=0, status="failed", exit=2, reason=why)])
    shown = invoke("runs")
    assert len(ids(shown)) == 4 and "0009" not in shown
    assert shown.endswith(
        """without 1 run refused before the first iteration: --filter 'status == "refused"'\n"""
    )
    listed = invoke("runs", "--filter", 'status == "refused"')
    assert ids(listed) == ["0009"], listed
    assert f"  {why[:99]}…\n" in listed
    page = json.loads(invoke("show", str(refused_run.path), "--format", "json"))
    assert (page["status"], page["reason"]) == ("refused", f"refused: {why}")


def test_columns_give_way_on_a_narrow_terminal(
    several: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Index(several[0].path.parents[1]).refresh()
    for width, shown in ((200, True), (60, False), (40, False)):
        with monkeypatch.context() as context:
            context.setenv("COLUMNS", str(width))
            context.setattr(
                "hookflow.cli.runs.sys",
                SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)),
            )
            heading, *lines, last = table_lines([(None, rows)], [], None)
        assert max(map(len, [heading, *lines])) <= width
        assert ("lr" in heading.split()) == shown
        assert ("optimizer.args.lr" in last) != shown, "it is named below the table instead"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("status == 'failed'", ["0003"]),
        ("status != 'failed'", ["0002", "0001", "0000"]),
        ("optimizer.args.lr >= 0.05 and model.args.width == 64", ["0001", "0000"]),
        ("run.seed in 3", []),
        ("'good' in tags", ["0001"]),
        ("'SGD' in optimizer.use and not status == 'finished'", ["0003", "0002"]),
        ("status < 3", []),
        ("abs(optimizer.args.lr - 0.1) < 1e-6", ["0000"]),
        ("value('best.accuracy') > 0 and epochs == 8", ["0003", "0002", "0001", "0000"]),
    ],
)
def test_a_filter_is_a_condition_over_the_keys(
    several: list[RunDir], condition: str, expected: list[str]
) -> None:
    invoke("tag", several[1].id, "good")
    assert ids(invoke("runs", "--filter", condition)) == expected
    assert [run.id[-4:] for run in hookflow.runs(filter=condition)] == expected


MISTAKES = (
    ("--filter", "optimzer.args.lr > 1"),
    ("--filter", "width > 1"),
    ("--filter", "status = 'failed'"),
    ("--filter", "open('x')"),
    ("--filter", "(lambda: 1)() > 1"),
    ("--filter", "status.__class__ == 1"),
    ("--sort", "-best.acuracy"),
    ("--columns", "id,sead"),
    ("--group", "stats"),
)


@pytest.mark.usefixtures("several")
def test_a_mistake_names_the_nearest_key() -> None:
    check_cases(
        "runs-mistakes.txt",
        {" ".join(arguments): [refused("runs", *arguments)] for arguments in MISTAKES},
    )


def test_runs_are_sorted_and_a_key_with_a_slash_is_named_as_a_condition_takes_it(
    several: list[RunDir],
) -> None:
    (several[0].path / "pipeline.toml").write_text("x")
    assert ids(invoke("runs", "--sort", "optimizer.args.lr")) == ["0003", "0002", "0001", "0000"]
    assert ids(invoke("runs", "--sort", "-optimizer.args.lr")) == ["0001", "0002", "0003", "0000"]
    assert ids(invoke("runs", "--sort", "status")) == ["0003", "0001", "0000", "0002"]
    append(
        several[3],
        [
            record(
                "metrics", BEGAN + 10_900, 10, 1, split="val", seconds=0.1, v={"ood/accuracy": 0.5}
            )
        ],
    )
    assert 'value("best.ood/accuracy")' in refused("runs", "--filter", "best.ood/accuracy > 0.1")
    assert ids(invoke("runs", "--filter", 'value("best.ood/accuracy") > 0.1')) == [
        several[3].id[-4:]
    ]


def test_values_are_data_as_they_are(several: list[RunDir]) -> None:
    keys = "id,optimizer.args.lr,status,reason,tags,best.accuracy"
    facts = json.loads(invoke("runs", "--columns", keys, "--format", "json"))
    assert facts[0].keys() == {*keys.split(",")}
    assert [each["status"] for each in facts] == ["failed", "lost", "finished", "finished"]
    assert facts[0]["reason"] == "ValueError: too bad"
    rows = [*csv.DictReader(io.StringIO(invoke("runs", "--columns", keys, "--format", "csv")))]
    assert [row["optimizer.args.lr"] for row in rows] == [str(0.1 / (4 - k)) for k in range(4)]
    assert json.loads(rows[0]["tags"]) == []
    everything = json.loads(invoke("runs", "--format", "json", "--group", "run.seed"))
    assert [each["run.seed"] for each in everything] == [0, 1, 2, 3]
    listed = hookflow.runs(sort="run.seed")
    assert [{**row, "tags": []} for row in listed.rows] == everything
    assert listed[0].config["optimizer"]["args"] == {"lr": 0.1}
    assert listed[1].status == "finished"
    assert listed[0].best["accuracy"] == everything[0]["best.accuracy"]
    assert listed._repr_html_().count("<svg") == 4
    assert listed[0]._repr_html_().count("<svg") == len(listed[0].metrics["val"])


def test_headings_are_as_short_as_they_can_be_told_apart() -> None:
    keys = [
        "optimizer.args.lr",
        "best.accuracy",
        "hooks.ema.use",
        "model.args.width",
        "task.args.width",
        "id",
    ]
    assert make_headings(keys) == [
        "lr",
        "best.accuracy",
        "ema",
        "model.args.width",
        "task.args.width",
        "id",
    ]
    assert make_headings(["best.data", "last.data", "best.best.data"]) == [
        "best.data",
        "last.data",
        "best.best.data",
    ]


def test_tags_and_a_note(several: list[RunDir]) -> None:
    run = several[0]
    assert invoke("tag", run.id) == f"{run.id}  no tags\n"
    assert (
        invoke("tag", run.id, "good", "base", "good", "--note", "a note")
        == f"{run.id}  good, base  a note\n"
    )
    assert invoke("tag", run.id, "--remove", "good", "--note", "") == f"{run.id}  base\n"
    assert '"bse"\n    did you mean "base"?' in refused("tag", run.id, "--remove", "bse")
    assert run.read_notes() == (["base"], "")
    run.notes.write_text('{"tags": [1], "note": 2}')
    assert run.read_notes() == ([], "")
    run.notes.with_name(f"{run.notes.name}.{os.getpid()}.tmp").mkdir()  # where it is written aside
    with pytest.raises(IsADirectoryError) as raised:
        invoke("tag", run.id, "good")
    assert raised.value.filename == str(run.notes)


def test_tags_of_several_processes_at_once_are_all_kept(several: list[RunDir]) -> None:
    run = several[0]
    words = [f"word{k}" for k in range(12)]
    with ThreadPoolExecutor(len(words)) as pool:  # each opens a file of its own, as processes do

        def add(word: str) -> None:
            with run.lock_notes():
                before, _ = run.read_notes()
                run.note([*before, word], "")

        list(pool.map(add, words))
    assert sorted(run.read_notes()[0]) == sorted(words)
    invoke("tag", run.id, "last")
    assert run.read_notes()[0][-1] == "last"


def test_runs_are_deleted_with_all_that_is_theirs(several: list[RunDir], here: Path) -> None:
    first, second, *_ = several
    assert "add --yes" in refused("rm", first.id)
    assert invoke("rm", first.id, str(second.path), "--yes").splitlines() == [
        f"{first.id}  cifar  finished",
        f"{second.id}  cifar  finished",
    ]
    assert [row.id[-4:] for row in Index(here / "runs").refresh()] == ["0003", "0002"]
    assert {path.name for path in (here / "runs").iterdir()} == {"cifar", ".index.sqlite"}
    invoke("rm", "0002", "0003", "--yes")
    assert not (here / "runs" / "cifar").exists()


def test_a_run_that_lives_is_not_deleted_and_neither_are_the_others(several: list[RunDir]) -> None:
    several[2].sign_process()
    wrong = refused("rm", several[0].id, several[2].id, "--yes")
    assert f"the run {several[2].id} is" in wrong and f"hookflow stop {several[2].id}" in wrong
    locks = try_lock(several[1].path)
    assert locks is not None
    assert f"the run {several[1].id} is" in refused("rm", several[0].id, several[1].id, "--yes")
    release(locks)
    assert all(run.path.exists() for run in several)


@pytest.mark.parametrize(("answer", "stays"), [(b"n\n", True), (b"y\n", False)])
def test_it_asks_on_a_terminal(several: list[RunDir], answer: bytes, stays: bool) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hookflow", "rm", several[0].id]
    child = Spawned(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, answer)
    printed, errors = child.communicate(timeout=LIMIT)
    os.close(ours)
    assert (child.returncode, errors) == (int(stays), "")
    assert "Delete 1 run?" in printed
    assert several[0].path.exists() == stays


def run_of(root: Path, upto: int | None = None) -> RunDir:
    """Write a run that finished, or was killed after so many frames; with two checkpoints,
    one of them damaged.
    """
    run = make(root / "runs", upto=upto)
    run.sign(
        created=BEGAN,
        source="pipelines/cifar.toml",
        overrides=["run.precision=bf16", "hooks.ema.args.decay=0.9"],
    )
    if upto is not None:
        run.sign_process()
        run.sign(process_started=1.0)
    save(run, 196, 2)
    save(run, 392, 4, missing=1)
    (run.checkpoints / "best").symlink_to("it00000196")
    (run.checkpoints / "last").symlink_to("it00000392")
    return run


def save(run: RunDir, it: int, ep: int, missing: int = 0) -> None:
    """Write a checkpoint; so many of its bytes are missing."""
    folder = run.checkpoints / f"it{it:08}"
    folder.mkdir(parents=True)
    (folder / TRAINING_FILE).write_bytes(b"x" * 52_600)
    files = {TRAINING_FILE: {"bytes": 52_600 + missing, "sha256": ""}}
    printed = {"version": VERSION, "hookflow": "0.1.0", "it": it, "ep": ep, "files": files}
    (folder / MANIFEST_FILE).write_text(json.dumps(printed))


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["show", *arguments])
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    return done.stdout


@pytest.mark.parametrize(("upto", "golden"), [(None, "show-finished.txt"), (60, "show-lost.txt")])
def test_a_run_that_finished_or_was_killed(here: Path, upto: int | None, golden: str) -> None:
    run_of(here, upto)
    check_golden(golden, shown("cifar"))


def test_each_attempt_is_shown_with_what_had_changed_and_how_it_ended(here: Path) -> None:
    """The first left no end record, the second is ended twice, by its rank 0 and its agent,
    the third never began.
    """
    run = run_of(here, upto=60)
    (first,) = records(run, "run")

    changed = "since the checkpoint it00000196: hooks.ema.args.decay was 0.9, and is 0.8"
    odd, wrong = (
        f"the loss is odd {'x' * 70}",
        'mine.toml:3: there is no "x"\n    did you mean "y"?',
    )
    begun = BEGAN + 3600
    later = [
        record("message", begun, 0, 0, source="hookflow", text=changed),
        {**first, "t": begun + 5, "it": 196, "ep": 2, "resumed_from": "it00000196"},
        *(
            record("message", begun + 10 + k, 200 + k, 2, source="hookflow", text=odd)
            for k in range(3)
        ),
        end(
            begun + 60,
            300,
            3,
            status="interrupted",
            exit=143,
            reason="SIGTERM received",
            seconds=60,
        ),
        end(
            begun + 61,
            300,
            3,
            status="failed",
            exit=1,
            reason="rank 1 was killed by SIGKILL",
            seconds=61,
        ),
        end(begun + 3600, 0, 0, status="failed", exit=2, reason=wrong, seconds=2),
    ]
    append(run, later)
    check_golden("show-attempts.txt", shown())
    lines = io.StringIO()
    plain.print_run(run, lines)
    printed = [line[9:] for line in lines.getvalue().splitlines()]
    assert printed.index("resumed    attempt 2") + 1 == printed.index(
        f"warn       hookflow: {changed}"
    )


def test_a_run_that_a_hook_ended_is_resumed_and_not_extended(here: Path) -> None:
    """Twice its iterations would be another length for its schedules,
    and `val_every` would count iterations.
    """
    run = run_of(here, upto=60)
    append(run, [end(BEGAN + 60, 300, 3, reason="no progress", seconds=60.0)])
    page = shown()
    assert "stopped early: no progress" in page
    assert "resume      not possible: it has no checkpoint" in page
    assert "extend" not in page


def test_of_many_attempts_warnings_and_errors_the_first_few_are_shown(here: Path) -> None:
    state = RunState()
    for k in range(1, 12):
        state.apply(
            make_stamped_record("message", k, 0, {"level": "warn", "source": "a", "text": f"x{k}"})
        )
        state.apply(
            make_stamped_record(
                "end", k, 0, {"status": "failed", "exit": 2, "reason": "no", "seconds": -k}
            )
        )
    for k in range(30):
        state.journal.add(0.0, "warn", "hook", f"text {k}")
    facts = RunFacts(RunDir(here), state, NO_PLAN, Health("failed"), [])
    lines = list(format_page(facts))
    assert [line for line in lines if line.endswith((" 3 earlier", " x4"))] == [
        "              3 earlier",
        "              x4",
    ]
    assert "              x3" not in lines
    assert "              and 11 more: hookflow watch --ui plain" in lines


def test_of_many_checkpoints_the_first_are_shown_and_all_as_data(here: Path) -> None:
    run = run_of(here)
    for it in range(1, 9):
        save(run, it, 1)
    assert shown().count("  it0") == 8
    assert "\n  and 2 more\n" in shown()
    page = json.loads(CliRunner().invoke(app, ["show", "--format", "json"]).stdout)
    assert page["id"] == run.id
    assert len(page["checkpoints"]) == 10
    assert page["hooks"]
    assert page["attempts"]
    assert page["errors"]


START = SMALL.replace("max_iters = 10", "max_epochs = 8")
PRINT = '[hooks.print]\nuse = "builtins:print"\n'
COUNT = '[hooks.count]\nuse = "builtins:print"\n'
EMA = '[hooks.ema]\nuse = "ema"\nargs = { decay = 0.97 }\n'
OLD = f"""\
{START}{EMA}{PRINT}points = ["before_train", "after_val"]
{COUNT}points = [{{ at = "before_train", every = 5 }}]
after = ["print"]
"""
NEW = f"""\
{SMALL.replace("max_iters = 10", "max_iters = 500")}\
[hooks.speed]
use = "throughput"
args = {{ window = 5 }}
{PRINT}points = ["before_train", "after_run"]
after = ["count"]
{COUNT}points = [{{ at = "before_train", every = 10, from = "1ep" }}]
"""


@pytest.fixture(autouse=True)
def pipelines(here: Path) -> None:
    """Two pipelines in the current folder."""
    (here / "old.toml").write_text(OLD)
    (here / "new.toml").write_text(NEW)


def diff(*arguments: str, exit_code: int = 1) -> str:
    return invoke("compare", *arguments, code=exit_code)


def recorded(file: str, shuffle: int | None = None) -> RunDir:
    """Prepare a run of a pipeline, as `hookflow run` does before it starts it."""
    loaded = load(Path(file))
    run = RunDir.create(Path("runs"), loaded.pipeline.run.name)
    prepare(loaded, compile_pipeline(loaded, shuffle=shuffle), run, Path())
    return run


def test_everything_that_differs_is_shown_and_nothing_twice_or_the_same() -> None:
    check_golden("diff.txt", diff("old.toml", "new.toml"))
    Path("same.toml").write_text("# a comment moves every line\n" + OLD.replace("8\n", "0x8\n"))
    assert diff("old.toml", "same.toml", exit_code=0).startswith(
        "old.toml and same.toml amount to "
    )
    same = json.loads(diff("old.toml", "same.toml", "--format", "json", exit_code=0))
    assert [name for name, value in same["differences"][0].items() if value] == ["with"]
    Path("less.toml").write_text(OLD.replace(EMA, ""))
    shown = json.loads(diff("old.toml", "less.toml", "--format", "json"))
    (difference,) = shown["differences"]
    names = [name for name, value in difference.items() if value]
    assert names == ["with", "hooks_removed"], "the order of the others is the same"
    Path("swept.toml").write_text(
        f'{OLD}[sweep]\nmetric = "loss"\ngrid = {{ "run.seed" = [1, 2] }}\n'
    )
    assert "sweep.grid.run.seed  nothing → [1, 2]" in diff("old.toml", "swept.toml")
    assert "amount to the same" in diff(recorded("old.toml").id, "swept.toml", exit_code=0), (
        "no run records a sweep"
    )
    assert "2 to 8 pipelines or runs" in refused("compare", "old.toml")
    assert "and there are 9" in refused("compare", *["old.toml"] * 9)


def test_a_run_is_what_it_was_started_with_and_a_shuffle_a_difference_of_its_own() -> None:
    run = recorded("old.toml")
    Path("old.toml").write_text(NEW)
    assert diff(run.id, "old.toml").startswith(f"- {run.id}\n+ old.toml\n\nkeys\n  run.max_epochs")
    Path("old.toml").write_text(OLD)
    # This run has not trained, so that its code was not recorded.
    same = diff("p", "old.toml", exit_code=0)
    assert same.startswith(f"the pipelines of {run.id} and old.toml amount to ")
    Path("free.toml").write_text(OLD.replace('after = ["print"]\n', ""))
    seed = next(
        seed
        for seed in range(20)
        if compile_pipeline(load(Path("free.toml")), shuffle=seed).at("before_train")[0].hook
        != "ema"
    )
    plain, shuffled = recorded("free.toml"), recorded("free.toml", seed)
    shown = diff(str(plain.path), str(shuffled.path))
    assert f"keys\n  --shuffle  nothing → {seed}\n\norder\n  before_train\n    - ema → " in shown
    why = invoke("why", "ema", "print", shuffled.id, "--point", "before_train")
    assert f"the shuffle with seed {seed}\n" in why


def test_what_is_neither_a_pipeline_nor_a_run() -> None:
    wrong = refused("compare", "odl.toml", "new.toml")
    assert "there is no such file" in wrong
    assert 'did you mean "old.toml"?' in wrong
    wrong = refused("compare", "old.toml", "nope")
    assert 'there is no file "nope"' in wrong
    assert "name their folder (--dir)" in wrong
    run = recorded("old.toml")
    assert 'no run "q"' in refused("compare", "q", "new.toml")
    run.plan.write_text("{}")
    assert "cannot be read" in refused("compare", run.id, "new.toml")


def test_runs_are_compared_by_what_came_of_them_too(here: Path) -> None:
    first, second, third = make_several(here / "runs", 3)
    (first.path / "environment.json").write_text(
        '{"git": {"commit": "aaaa", "dirty": ["a.py"]}, "cpus": 2}'
    )
    (second.path / "environment.json").write_text(
        '{"git": {"commit": "bbbb", "dirty": []}, "cpus": 2}'
    )
    check_golden("compare-runs.txt", diff(first.id, second.id))
    facts = json.loads(diff(first.id, second.id, third.id, "--format", "json"))
    assert [difference["with"] for difference in facts["differences"]] == [second.id, third.id]
    assert facts["environment"]["git.commit"] == ["aaaa", "bbbb", None]
    assert facts["metrics"]["accuracy"]["last"] == facts["metrics"]["accuracy"]["best"]
    assert len(facts["ns_per_iteration"]["ema @ after_train_iter"]) == 3
    # What fires once is not divided by the iterations, of which the third run has fewer.
    assert not [name for name in facts["ns_per_iteration"] if name.endswith("@ before_run")]
    frames = [
        json.loads(line) for line in third.events.read_text().splitlines() if '"k":"frame"' in line
    ]
    seed = str(next(binding.id for binding in plan().bindings if binding.hook == "seed"))
    took = sum(frame["hooks"][seed][1] for frame in frames if seed in frame["hooks"])
    assert facts["ns_once"].keys() == {"seed @ before_run"}
    assert facts["ns_once"]["seed @ before_run"][2] == took > 0
