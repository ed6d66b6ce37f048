"""`hookflow check`: a valid pipeline in a few lines, its warnings, its mistakes; old runs,
odd files, odd terminals.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import TOY
from tests.support.golden_files import check_cases, check_golden

PRINT = '[hooks.print]\nuse = "builtins:print"\npoints = ["after_train_iter"]\n'
SOUND = f"""\
{SMALL.replace("max_iters = 10", "max_iters = 3_000; val_every = 200").replace("; ", chr(10))}\
[data.val]
use = "circle"
[hooks.clip]
use = "grad_clip"
args = {{ max_norm = 1.0 }}
[hooks.log]
use = "log"
{PRINT}\
args = {{ sep = "" }}
[hooks.ema]
use = "ema"
enabled = false
"""
SHORT = SMALL.replace("max_iters = 10", "max_iters = 40") + PRINT
CLASH = "hooks.clip2={use='grad_clip', args={max_norm=2.0}}"
NO_VAL = "data={train={use='circle'}}"
KEEPS = "hooks.keeps={use='checkpoint', args={monitor='x', mode='max', top=3}}"
OFTEN = "hooks.print.points=['after_train_epoch', 'after_val', 'after_run']"
NEVER = "hooks.print.from='5ep'"


@pytest.fixture(autouse=True)
def pipelines(here: Path) -> None:
    """Two valid pipelines, p.toml and short.toml, in the current folder."""
    (here / "p.toml").write_text(SOUND)
    (here / "short.toml").write_text(SHORT)


def check(
    *overrides: str, file: str = "p.toml", options: tuple[str, ...] = (), code: int = 0
) -> str:
    sets = [part for override in overrides for part in ("--set", override)]
    return invoke(
        "check", file, *sets, *options, code=code, columns=200 if file == "short.toml" else 100
    )


STRICT = ("--strict",)
JSON = ("--format", "json")


def test_a_sound_pipeline_is_summed_up_and_a_missing_device_is_no_mistake_of_it() -> None:
    check_golden("check.txt", check())
    assert check() == check(options=STRICT)
    sets = "data.val={a={use='circle'}, b={use='circle', val_every=500}}"
    assert "val.a circle, val.b circle every 500" in check(sets)
    lacking = '  device     run.device = "cuda", and this machine has no such device\n'
    assert (lacking in check("run.device='cuda'", options=STRICT)) is not torch.cuda.is_available()


def test_offload_lists_who_may_fire_beside_the_training_and_what_keeps_the_others() -> None:
    prints = 'hooks.print={use="builtins:print", points=["after_train_iter"], offload="process"}'
    shown = check(prints, 'hooks.stats={use="param_stats"}', file=str(TOY), options=("--offload",))
    table = {line.split()[0]: line.strip() for line in shown.partition("\n\n")[2].splitlines()}
    assert re.fullmatch(r"print +0 B in [\d.e-]+ ms +offloaded to a process", table["print"])
    assert re.fullmatch(
        r"stats +404 B in [\d.e-]+ ms +may be offloaded: offload = true", table["stats"]
    )
    assert re.fullmatch(r"clip +it writes grads at before_optimizer_step", table["clip"])
    found = json.loads(check(options=("--offload", *JSON)))["offload"]
    assert found["print"] == "may be offloaded: offload = true"
    assert found["clip"].startswith("it writes grads")
    assert "offload" not in json.loads(check(options=JSON))


def test_an_ambiguous_order_is_named_and_is_not_strict_and_what_gave_way_is_told() -> None:
    shown = check(CLASH, options=STRICT, code=1)
    assert shown == check(CLASH)
    assert shown.startswith("p.toml is valid, with 1 ambiguous pair\n")
    assert "  ambiguous  clip and clip2 touch grads, at before_optimizer_step\n" in shown
    allowed = check(CLASH, "hooks.clip.ambiguous_with=['clip2']", options=STRICT)
    assert allowed.startswith("p.toml is valid\n")
    many = [
        f"hooks.h{k}={{use='builtins:print', points=['after_train_iter'], writes=['lr']}}"
        for k in range(60)
    ]
    shown = check(*many)
    assert shown.startswith("p.toml is valid, with at least 1,000 ambiguous pairs\n")
    assert "             and 994 or more\n" in shown
    sched = "hooks.sched={use='builtins:print', points=['after_train_iter'], writes=['lr']}"
    shown = check("hooks.print.reads=['lr']", "hooks.print.before=['sched']", sched)
    assert (
        "  gave way   at after_train_iter, sched before print (writes lr) gave way to: print before"
        " sched" in shown
    )


SAVES = (
    "class Copies:\n    def around_save_checkpoint(self):\n        yield\n\n\n"
    "class Uploads:\n    def after_save_checkpoint(self, path): ...\n"
)
WARNED = {
    "no validation": ["hooks.stop={use='early_stop', args={monitor='x', mode='max'}}", NO_VAL],
    "too late": ["hooks.log.from='9000it'"],
    "too short with overfit": [
        *("run.max_epochs=30", "run.overfit=4"),
        *("hooks.log.every=200", "hooks.print.every=200"),
    ],
    "no validation for its metric": [KEEPS, NO_VAL],
    "an edge between the copy of a save and its end on disk": [
        "hooks.w={use='./saves.py:Copies'}",
        "hooks.s={use='./saves.py:Uploads', before=['w']}",
    ],
    "constant": ["hooks.print.when='1 > 2'"],
    "constant, too": ["hooks.print.when='2 > 1'"],
    "case": ["hooks.print.when='Epoch > 5'"],
    "run": ["hooks.print.when='run.iter > 5'"],
    "window": [NEVER, "hooks.print.until='2ep'"],
    "ranks": ["hooks.mean={use='ema', ranks='zero'}"],
}


def test_what_nobody_can_have_meant_is_warned_of(here: Path) -> None:
    (here / "saves.py").write_text(SAVES)
    told = {}
    for case, overrides in WARNED.items():
        assert check(*overrides, options=STRICT, code=1).startswith(
            "p.toml is valid, with 1 warning\n"
        ), case
        warnings = json.loads(check(*overrides, options=(*STRICT, *JSON), code=1))["warnings"]
        told[case] = [f"{each['message']}\n{each['hint']}" for each in warnings]
    check_cases("warnings.txt", told)


@pytest.mark.parametrize(
    "overrides",
    [
        [KEEPS],
        ["hooks.keeps={use='checkpoint'}", NO_VAL],
        [OFTEN, "hooks.print.every=10it"],
        ["hooks.print.when='value(\"Epoch\") > 5'"],
        ["hooks.print.when='metrics.epoch > 5'"],
        ["hooks.print.when='rank == 0'"],
        ["hooks.print.from='2ep'", "hooks.print.until='2ep'"],
        ["hooks.print.from='5it'", "hooks.print.until='2ep'"],
    ],
)
def test_what_may_be_meant_is_not_warned_of(overrides: list[str]) -> None:
    assert check(*overrides, options=STRICT).startswith("p.toml is valid\n")


def test_hooks_can_be_left_out_shuffled_and_fire_at_times_and_in_each_epoch_of_an_overfit() -> None:
    short = "run.max_epochs=30", "run.overfit=4"
    by_class = "hooks.log.use='hookflow.hooks.builtin.log:Log'"
    shown = {
        "every 50 iterations, longer than an epoch": check(*short, "hooks.log.every=50"),
        "every 4 iterations": check(*short, "hooks.log.every=4"),
        "every 50 iterations, by its class": check(*short, by_class, "hooks.log.every=50"),
        "every 500 iterations": check("hooks.print.every=500"),
        "--without log": check(options=("--without", "log")),
        "--only log": check(options=("--only", "log")),
    }
    rows = {
        case: [line for line in text.splitlines() if line.startswith(("  hooks ", "  fires "))]
        for case, text in shown.items()
    }
    check_cases("check-firings.txt", rows)
    assert "1 by the shuffle with seed 3 alone" in check(
        "hooks.log.phase=normal", options=("--shuffle", "3")
    )


def test_a_bare_number_counts_iterations_and_a_doubtful_condition_has_its_own_place(
    here: Path,
) -> None:
    text = SHORT.replace(
        '["after_train_iter"]', '["before_run", { at = "after_train_iter", when = "ITER > 3" }]'
    )
    (here / "short.toml").write_text(text)
    assert "warning: short.toml:13:52: " in check(file="short.toml")
    often = ["after_train_iter", "after_val_iter"]
    each = ["after_train_epoch", "after_val", "after_run"]
    mixed = check(
        f"hooks.print.points={[*often, *each]}", "hooks.print.every=10", options=JSON, code=2
    )
    assert "would be iterations at after_train_iter" in mixed, "one number of two kinds is refused"


MISTAKEN = (
    'use="builtins:print", every=9, points=[{at="after_run", every=5}]',
    'use="builtins:print", from="2ep", points=[{at="after_run", from=5}]',
    'use="builtins:print", modules=["*"], points=["after_run"]',
    'use="early_stop", args={monitor="score"}',
    'use="checkpoint", args=["score"]',
    'use="scheduler", args={metric="score", chain=[{use="ReduceLROnPlateau"}]}',
)


def test_a_key_without_effect_and_a_metric_without_a_mode_are_mistakes() -> None:
    told = {hook: [refused("check", "p.toml", "--set", f"hooks.h={{{hook}}}")] for hook in MISTAKEN}
    check_cases("check-mistakes.txt", told)
    override = "--set", "hooks.clip.args.clip_value=1"
    assert refused("check", "p.toml", *override).startswith(
        f"{' '.join(override)}: grad_clip needs max_norm or"
    )


def test_an_editor_is_told_in_json() -> None:
    shown = json.loads(check(CLASH, options=JSON))
    assert (shown["valid"], shown["problems"], shown["warnings"]) == (True, [], [])
    (pair,) = shown["ambiguities"]
    assert (pair["first"], pair["then"], pair["slots"]) == ("clip", "clip2", ["grads"])
    assert re.findall(r"\w+ = \S+ in \S+\]", pair["hint"]) == [
        'after = ["clip"] in [hooks.clip2]',
        'after = ["clip2"] in [hooks.clip]',
        'ambiguous_with = ["clip"] in [hooks.clip2]',
    ], "the hint takes no side"
    assert {firing["hook"] for firing in shown["firings"]} == {"clip", "clip2", "log", "print"}
    wrong = json.loads(check("hooks.log.afer=[]", options=JSON, code=2))
    assert wrong["valid"] is False
    (problem,) = wrong["problems"]
    assert (problem["source"], problem["hint"]) == (
        "--set hooks.log.afer=[]",
        'did you mean "after"?',
    )


OWN = """
class Odd(BaseException): ...

class Speaks:
    ranks = "zero"
    def after_train_epoch(self, run): ...

class Wrong(Speaks):
    ranks = "zeor"
"""


def test_a_hook_file_may_say_its_rank_print_and_raise_whatever_it_likes(here: Path) -> None:
    (here / "own.py").write_text(OWN)
    lines = invoke("graph", "p.toml", "--set", "hooks.speaks.use='./own.py:Speaks'").splitlines()
    (line,) = (line.split() for line in lines if "speaks" in line)
    assert line == ["after_train_epoch", "speaks", "rank", "0", "alone"]
    described = invoke("explain", "./own.py:Speaks").splitlines()
    assert [line.split() for line in described if line.startswith("ranks")] == [["ranks", "zero"]]
    wrong = refused("check", "p.toml", "--set", "hooks.speaks.use='./own.py:Wrong'")
    assert "Wrong.ranks must be one of zero, all" in wrong
    (here / "loud.py").write_text("print('hello')\ndef hook(run): ...\n")
    loud = "--set=hooks.loud={use='./loud.py:hook', points=['before_run']}"
    shown = CliRunner().invoke(app, ["check", "p.toml", loud, *JSON])
    assert json.loads(shown.stdout)["valid"]
    assert shown.stderr == "hello\n"
    (here / "odd.py").write_text(OWN + "raise Odd('no')\n")
    with pytest.raises(UserError, match=r'"\./odd\.py" cannot be imported: odd_.*Odd: no'):
        check("hooks.odd={use='./odd.py:hook'}")


def test_where_nothing_but_ascii_is_taken_there_are_substitutes() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}

    def printed(*command: str) -> tuple[int, str, str]:
        command = (sys.executable, "-m", "hookflow", *command)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, errors = printed("graph", "p.toml", "--set", "hooks.log.before=['print']")
    assert (code, errors) == (0, "")
    assert out.isascii() and "?" not in out
    assert printed("graph", "no…file.toml")[::2] == (2, "no~file.toml: there is no such file\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has such a device")
@pytest.mark.parametrize(
    ("full", "why"), [("/dev/full", "No space left on device"), ("file", "File too large")]
)
def test_a_full_disk_or_quota_is_a_line_without_a_traceback(full: str, why: str) -> None:
    command = f"ulimit -f 0; exec {sys.executable} -m hookflow graph p.toml >{full}"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"cannot be written: {why}\n")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ('model.weights="absent.pt"', "model.weights"),
        ('model.weights={file="absent.pt", exclude=["a"]}', "model.weights"),
        ("optimizer.args.lr=nan", "optimizer.args.lr"),
        ("optimizer.args.weight_decay=-inf", "optimizer.args.weight_decay"),
        ('optimizer.groups=[{match="*", args={lr=nan}}]', "optimizer.groups"),
    ],
)
def test_what_would_end_or_spoil_the_run_at_its_start_is_no_valid_pipeline(
    override: str, line: str
) -> None:
    (problem,) = json.loads(check(override, options=JSON, code=2))["problems"]
    assert problem["source"] == f"--set {override}"
    assert line in problem["source"]


def test_initial_weights_that_are_there_are_no_problem() -> None:
    torch.save({}, "there.pt")
    check('model.weights="there.pt"')
