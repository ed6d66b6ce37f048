"""`hookflow check --observe` and `--commute`: hooks are judged by what they do,
and pairs by both of their orders.
"""

import re
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.pipeline.load import load
from hookflow.service.pipelines import valid_plan
from hookflow.trials import commute as trials
from tests.cli.conftest import HEAD, invoke, refused
from tests.conftest import TESTS
from tests.support.golden_files import check_cases, check_golden

ROOT = TESTS.parent


def hooks(**classes: str) -> str:
    return "".join(
        f'\n[hooks.{name}]\nuse = "{TESTS}/support/undeclared_hooks.py:{of}"\n'
        for name, of in classes.items()
    )


@pytest.fixture
def file(here: Path) -> Path:
    """Where a pipeline is to be written: p.toml in the current folder."""
    return Path("p.toml")


def check(file: Path | str, *options: str, exit_code: int = 0) -> str:
    return invoke("check", file, *options, code=exit_code)


BUGS = {
    "the average is swapped in while the weights are saved": (
        hooks(saver="Saver", average="SwappedAverage"),
        "saver",
        "average",
        "model",
        "after_val",
    ),
    "a state is saved before it is updated": (
        hooks(states="SaverOfStates", plateau="Plateau"),
        "states",
        "plateau",
        "hook.plateau, lr",
        "after_val",
    ),
    "a metric is read before it is computed": (
        hooks(judge="Judge", score="Score"),
        "judge",
        "score",
        "metrics.score",
        "after_val_epoch",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_order_of_hooks_that_declare_nothing_is_found_and_declared_away(
    bug: str, file: Path
) -> None:
    text, wrong, right, slots, point = BUGS[bug]
    file.write_text(HEAD + text)
    assert "ambiguous" not in check(file, "--strict"), "nothing declared, nothing known"
    shown = check(file, "--strict", "--observe", "--write", exit_code=1)
    assert f"  ambiguous  {wrong} and {right} touch {slots}, at {point}\n" in shown
    assert (
        f"once all is declared, {right} ahead of {wrong}, and now it is the other way"
        in " ".join(shown.split())
    )
    assert valid_plan(load(file)).order[point] == (right, wrong)
    assert "ambiguous" not in check(file, "--strict", "--observe")


def test_a_hook_that_changes_a_slot_and_one_that_reads_it_are_in_no_order_until_that_is_stated(
    file: Path,
) -> None:
    text = HEAD + hooks(counts="CountsQueue", fills="FillsQueue")
    file.write_text(text)
    shown = " ".join(check(file, "--strict", "--observe", "--write", exit_code=1).split())
    assert '"fills" changes task.queue, "counts" reads it' in shown
    assert 'after = ["fills"] in [hooks.counts], or after = ["counts"] in [hooks.fills]' in shown
    assert "[hooks.fills]" in shown.rpartition("p.toml: ")[2], "its own slots are declared"
    assert valid_plan(load(file)).order["after_train_iter"] == (
        "counts",
        "fills",
    ), "and turn nothing"
    again = check(file, "--strict", "--observe", "--write", exit_code=1)
    assert "counts and fills touch task.queue" in again, "as loud as before"
    assert "nothing is missing" not in again
    file.write_text(file.read_text().replace('CountsQueue"', 'CountsQueue"\nafter = ["fills"]'))
    check(file, "--observe", "--write")
    check(file, "--observe", "--strict")
    assert 'reads = ["task.queue"]' in file.read_text().partition("[hooks.fills]")[0]


def test_a_saver_beside_an_average_is_found_though_their_phase_decides(file: Path) -> None:
    """Whoever leaves an `around_val` does so after the plain hooks: so nothing is ambiguous,
    and the order is wrong.
    """
    file.write_text(HEAD + '[hooks.ema]\nuse = "ema"\n' + hooks(saver="Saver"))
    assert valid_plan(load(file)).order["after_val"] == ("saver", "ema")
    shown = check(file, "--strict", "--observe", "--write", exit_code=1)
    assert 'at after_val, "saver" fires ahead of "ema"; both touch model.' in shown
    assert valid_plan(load(file)).order["after_val"] == ("ema", "saver")
    check(file, "--strict", "--observe")


def test_the_report_says_what_each_hook_touches_and_which_lines_to_add(file: Path) -> None:
    file.write_text(HEAD + hooks(plateau="Plateau", average="SwappedAverage"))
    report = check(file, "--observe")
    check_golden(
        "observe.txt", re.sub(r" in [\d.]+ s;", " in TIME;", report[report.index("\nobserved ") :])
    )


def test_only_what_is_missing_is_written_and_all_else_in_the_file_stays(file: Path) -> None:
    text = HEAD + hooks(plateau="Plateau", score="Score")
    text = text.replace(
        'Plateau"\n', 'Plateau"  # halves\nreads = ["optimizer", # its settings\n]\n'
    )
    file.write_text(text)
    shown = check(file, "--observe", "--write")
    assert "declare it in" not in shown, "it is declared now"
    assert 'p.toml: writes = ["lr"] in [hooks.plateau]\n' in shown
    text = text.replace("# its settings\n", '# its settings\n    "lr",\n').replace(
        "]\n\n[hooks.score]", ']\nwrites = ["lr"]\n\n[hooks.score]'
    )
    assert file.read_text() == text + 'reads = ["metrics.loss"]\nwrites = ["metrics.score"]\n'
    shown = check(file, "--observe", "--write", "--strict")
    assert "  not seen   plateau reads optimizer\n" in shown
    assert shown.endswith("p.toml: nothing is missing\n")


def test_what_a_base_file_declares_stays_there(file: Path) -> None:
    base = HEAD + hooks(plateau="Plateau")
    (file.parent / "base.toml").write_text(base)
    file.write_text('extends = "base.toml"\n')
    assert 'p.toml: writes = ["lr"] in [hooks.plateau]\n' in check(file, "--observe", "--write")
    assert (
        file.read_text()
        == 'extends = "base.toml"\n\n[hooks.plateau]\nreads = ["lr"]\nwrites = ["lr"]\n'
    )
    assert (file.parent / "base.toml").read_text() == base
    check(file, "--strict", "--observe")


def test_what_cannot_be_written_is_told_and_nothing_is_and_options_that_exclude_one_another(
    file: Path,
) -> None:
    file.write_text(HEAD + hooks(score="Score"))
    before = file.read_text()
    given = f'hooks.plateau={{use="{TESTS}/support/undeclared_hooks.py:Plateau"}}'
    wrong = refused("check", "p.toml", "--observe", "--write", "--set", given)
    assert "p.toml: [hooks.plateau] " in wrong and 'add: reads = ["lr"]' in wrong
    assert file.read_text() == before
    assert "--write needs --observe" in refused("check", "p.toml", "--write")
    assert "--no-import runs nothing" in refused("check", "p.toml", "--observe", "--no-import")
    assert "--observe and --commute report in text" in refused(
        "check", "p.toml", "--commute", "--format", "json"
    )


def test_what_a_hook_raises_is_told_and_what_is_no_hook_ends_it(file: Path) -> None:
    file.write_text(HEAD + '\n[hooks.fails]\nuse = "./fails.py:fails"\npoints = ["after_train"]\n')
    (file.parent / "fails.py").write_text('def fails():\n    raise RuntimeError("on purpose")\n')
    assert "  not fired  fails at after_train: raised RuntimeError: on purpose\n" in check(
        file, "--observe"
    )
    check(file, "--observe", "--strict", exit_code=1)
    file.write_text(HEAD.replace("lr = 0.1", "lr = -1"))
    assert "Invalid learning rate" in str(
        CliRunner().invoke(app, ["check", "p.toml", "--observe"]).exception
    )
    file.write_text(HEAD + '\n[task]\nuse = "./task.py:step"\n')
    (file.parent / "task.py").write_text(
        'def step(run, batch):\n    raise RuntimeError("on purpose")\n'
    )
    check(file, "--observe", exit_code=1)


@pytest.mark.parametrize(
    "name",
    [
        "tests/support/toy.toml",
        "tests/support/gan.toml",
        "pipelines/hello.toml",
        "pipelines/gaussian2d.toml",
        pytest.param("pipelines/cifar.toml", marks=pytest.mark.long),
        pytest.param("pipelines/chargpt.toml", marks=pytest.mark.long),
    ],
)
def test_pipelines_whose_hooks_declare_what_they_do_raise_no_alarm(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = check(name, "--observe", "--strict", "--set", "run.threads=1")
    assert "ambiguous" not in shown
    assert "warning" not in shown


BUG_FILES = TESTS / "graph" / "ordering_bugs"
HOOKS = """\
import time
import torch

class Adds:
    writes = ("metrics",)
    reads = ("metrics",)
    def __init__(self): self.seen = []
    def after_val_epoch(self, metrics): metrics[self.name] = 1.0

class Doubles(Adds):
    def after_val_epoch(self, metrics): metrics["loss"] *= 2

class Clips(Adds):
    def after_val_epoch(self, metrics): metrics["loss"] = min(metrics["loss"], 0.5)

class Needs:
    def after_val_epoch(self, metrics): print("needs", metrics["one"])

class Clock:
    def after_val_epoch(self): self.now, self.late = time.perf_counter(), time.time_ns() % 2

COUNTED = []

class Leaks(Adds):
    def after_val_epoch(self, metrics):
        COUNTED.append(metrics["loss"])
        self.seen = len(COUNTED), metrics["loss"]

class Rare:
    def after_val_epoch(self): raise AssertionError("this fires too early")

class Saves:
    def after_val_epoch(self, run, metrics): torch.save(metrics["loss"], "mine.pt")

class Fails:
    def after_train_iter(self): raise ValueError("on its own")
"""


@pytest.fixture
def made(here: Path) -> Path:
    """Where the pipeline of two hooks is to be written."""
    (here / "two.py").write_text(HOOKS)
    return here / "two.toml"


def write(file: Path, first: str, second: str, more: str = "") -> Path:
    file.write_text(
        f'{HEAD}[hooks.one]\nuse = "./two.py:{first}"\n[hooks.two]\nuse ='
        f' "./two.py:{second}"\n{more}'
    )
    return file


def commute(file: Path, *options: str, code: int = 0) -> str:
    """Return what the command says, in one line."""
    return " ".join(invoke("check", "--commute", *options, file, code=code, columns=160).split())


def test_a_pair_that_differs_is_named_with_what_differs_and_fails_strict() -> None:
    file = BUG_FILES / "nequip_590.toml"
    printed = commute(file, "--strict", code=1)
    assert printed.startswith(f"{file} is valid, with 1 pair ")
    for part in (
        "saver and average at after_val: differ in the file weights-2.pt: 5 of 9 values",
        'average first: after = ["average"] in [hooks.saver]',
        (
            "commute 1 pair without a declared order, fired both ways: 1 made a difference, 0 did"
            " not (6 trials of"
        ),
    ):
        assert part in printed
    invoke("check", "--strict", file)
    around = "each as one method around_val: what is entered first is left last"
    assert around in commute(BUG_FILES / "lightning_9950.toml")


RARE = 'points = [{ at = "after_val_epoch", every = 1000, when = "loss > 1e9" }]'
CASES = {
    "an alarm that does not matter goes": (0, "Adds", "Adds"),
    "an alarm that matters stays": (1, "Doubles", "Clips"),
    "an order in which a hook raises": (1, "Adds", "Needs"),
    "what is saved elsewhere": (1, "Doubles", "Saves"),
    "what depends on the time": (0, "Adds", "Clock"),
    "a state that leaks from trial to trial: no trial has lifted the alarm": (
        1,
        "Doubles",
        "Leaks",
    ),
    "amounts in triggers do not count, and conditions do": (1, "Adds", "Rare", RARE),
    "without a pair nothing is run": (0, "Adds", "Rare", 'after = ["one"]'),
    "what raises in the declared order": (
        1,
        "Adds",
        "Adds",
        '[hooks.three]\nuse = "./two.py:Fails"\n',
    ),
}
VARIES = re.compile(
    r"^Traceback.*?\n(?=ValueError)|^warn: .*?\n|^  (?:model|data) .*?\n", re.DOTALL | re.MULTILINE
)
"""Lines with paths of this machine, and what the run says of hooks that no checkpoint holds."""


def test_what_is_said_of_a_pair(made: Path) -> None:
    told = {}
    for case, (code, *hooks) in CASES.items():
        file = write(made, *hooks)
        done = CliRunner().invoke(
            app, ["check", "--strict", "--commute", file.name], env={"COLUMNS": "160"}
        )
        assert done.exit_code == code, case
        assert "needs 1.0" not in done.output, (
            "what hooks print is theirs, and the output the command's"
        )
        told[case] = [re.sub(r"[\d.]+ s\b", "TIME", VARIES.sub("", done.output))]
    check_cases("commute.txt", told)


def test_the_limit_is_told_with_what_was_not_tried(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(made, "Adds", "Adds")
    monkeypatch.setattr(trials, "MAX_TRIALS", 2)
    printed = commute(made, "--strict", code=1)  # an ambiguous pair that was not tried is ambiguous
    assert "not tried, since the limit of" in printed
    monkeypatch.setattr(trials, "MAX_TRIALS", 1)
    with pytest.raises(UserError, match="no answer within 1 trials"):
        commute(made)


def test_it_leaves_nothing_behind(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    write(made, "Doubles", "Clips")
    before = {*made.parent.rglob("*")}
    commute(made)
    assert {
        path
        for path in made.parent.rglob("*")
        if path.suffix != ".pyc" and path.name != "__pycache__"
    } == before
