"""A hook that raises, anywhere, and what `on_error` makes of it; functions,
partials and callable objects as hooks.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import Problem, UserError
from hookflow.runner.checkpoint.manifest import list_checkpoints
from tests.conftest import TRACER, NewRun, Train, Trained, ended, messages, reason, records
from tests.support.common_hooks import KINDS
from tests.support.data_loaders import Rarest

PLACES = (
    "before_run", "before_train", "before_train_epoch", "after_forward", "before_val",
    "after_val_iter",
    "after_val_epoch", "before_save_checkpoint", "after_copy_checkpoint", "after_save_checkpoint",
    "after_train",
    "after_run", "around_val first", "around_val second", "around_run second",
)  # fmt: skip


class Unreadable(Rarest):
    def state_dict(self) -> dict[str, Any]:
        return {"kinds": frozenset("ab")}


class CannotBeMade:
    def __init__(self, kind: str) -> None:
        raise KINDS[kind]("as told")

    def after_val(self) -> None: ...


class Yields:
    def __init__(self, times: int) -> None:
        self.times = times

    def around_val(self) -> Iterator[None]:
        yield from [None] * self.times


def logs(run: Any) -> None:
    run.log("weights", torch.ones(3))


def measures(metrics: dict[str, Any], value: Any) -> None:
    metrics["mine"] = value


def tell(prefix: str, count: int, run: Any, suffix: str = "!") -> None:
    """Say what it is given."""
    run.say(f"{prefix} {count}{suffix}")


def skips(prefix: str, sep: str = ":", run: Any = None) -> None:
    """Take something that has a default, and the run behind it."""
    run.say(f"{prefix}{sep}{run.iter}")


def named(prefix: str, *, times: int = 1, run: Any) -> None:
    run.say(f"{prefix * times} at {run.iter}")


def last(run: Any, prefix: str, metrics: dict[str, float] | None = None, suffix: str = "!") -> None:
    """Take what is given between what is offered."""
    run.say(f"{prefix} {metrics is not None}{suffix}")


def wordy(run: Any, *words: str) -> None:
    """Can be given its words in their place alone."""


def typed(
    run: Any, out: Path, pair: tuple[int, int] = (0, 0), some: frozenset[int] = frozenset()
) -> None:
    run.say(f"{out.name} {pair} {sorted(some)}")


twice = partial(tell, "twice", 2)
"""A partial of a function whose first arguments are given."""


class Teller:
    def __call__(self, run: Any, prefix: str = "call") -> None:
        run.say(f"{prefix} {run.iter}")


teller = Teller()


class Counter:
    """Makes objects that are called, each with a state of its own."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, run: Any) -> None:
        self.count += 1
        run.say(f"call {self.count}")


class Listed:
    """Is made with a list of arguments; its methods take things in ways of their own."""

    def __init__(self, prefix: str, numbers: list[int], last: bool = False) -> None:
        self.said = f"{prefix} {numbers} {last}"

    def before_train(self, loud: bool = False, run: Any = None) -> None:
        run.say(f"{self.said} {loud}")

    def after_train(self, *, run: Any) -> None:
        run.say("after")

    def around_val(self, *, run: Any) -> Iterator[None]:
        run.say("in")
        yield
        run.say("out")


class SaysName:
    """Has the name that the pipeline gives it."""

    name: str

    def after_train(self, run: Any) -> None:
        run.say(self.name)


class HasName(SaysName):
    def __init__(self, name: str) -> None:
        self.name = name


class HasSlots:
    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said = "no name"

    def after_train(self, run: Any) -> None:
        run.say(self.said)


def fails(
    place: str, on_error: str = "raise", kind: str = "RuntimeError", name: str = "bad"
) -> str:
    args = f'{{place="{place}", kind="{kind}"}}'
    return f'hooks.{name}={{use="./common_hooks.py:Fails", args={args}, on_error="{on_error}"}}'


def point_of(place: str) -> str:
    name, _, half = place.partition(" ")
    return name.replace("around", "before" if half == "first" else "after")


@pytest.mark.parametrize("place", PLACES)
def test_it_ends_the_run_unless_told_otherwise(
    trained: Trained, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = trained(fails(place), "run.max_epochs=1", code=1)
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"], error["action"]) == ("bad", point_of(place), "raise")
    assert re.fullmatch(r".*/tests/support/common_hooks\.py:\d+", str(error["at"]))
    assert ended(run_dir) == ("failed", 1)
    printed = capfd.readouterr().err
    assert printed == error["traceback"], "the whole traceback, once"
    assert f'raised by the hook "bad" at {point_of(place)}' in printed
    assert 'raise KINDS[self.kind]("as told")' in printed


DISABLED = (
    "before_run",
    "after_forward",
    "around_val first",
    "around_val second",
    "after_copy_checkpoint",
)


def test_all_may_fail_where_they_may_fail(trained: Trained) -> None:
    hooks = {
        f"bad{k}": hook
        for k, hook in enumerate([*product(PLACES, ["ignore"]), *product(DISABLED, ["disable"])])
    }
    run_dir = trained(
        *(fails(*hook, name=name) for name, hook in hooks.items()), "run.max_epochs=2"
    )
    errors = [
        (error["hook"], error["point"], error["action"]) for error in records(run_dir, "error")
    ]
    assert {*errors} == {
        (name, point_of(place), on_error) for name, (place, on_error) in hooks.items()
    }
    assert all(errors.count(error) == 1 for error in errors if error[2] == "disable")
    assert ended(run_dir) == ("finished", 0)
    assert records(run_dir, "checkpoint")[-1]["it"] == 10


@pytest.mark.parametrize("place", ["on_exception", "after_run"])
def test_on_the_way_out_every_hook_has_its_turn(
    trained: Trained, tmp_path: Path, place: str
) -> None:
    trace = tmp_path / "trace"
    first = fails("after_train_iter", name="first")
    around = (
        f'hooks.around={{use="./common_hooks.py:Around", args={{file="{tmp_path / "marks"}"}}}}'
    )
    run_dir = trained(first, fails(place), around, TRACER % trace, code=1)
    assert (tmp_path / "marks").read_text().split() == [
        "entered",
        "left",
    ], "left, though what lay between raised"
    errors = [(error["hook"], error["action"], error["it"]) for error in records(run_dir, "error")]
    assert errors == [("first", "raise", 1), ("bad", "ignore", 1)]
    assert "as told" in reason(run_dir)
    assert [line.split()[0] for line in trace.read_text().splitlines()[-2:]] == [
        "on_exception",
        "after_run",
    ]


def test_a_users_mistake_found_by_a_hook_stays_one(trained: Trained) -> None:
    """It stands where the hook does in the pipeline, as any other."""
    bad = fails("before_train", kind="UserError")
    run_dir = trained(bad, code=2)
    (error,) = records(run_dir, "error")
    assert error["hook"] == "bad"
    assert ended(run_dir) == ("failed", 2)
    message = (
        f'--set {bad}: as told\n    raised by the hook "bad" at before_train\n    iteration 0,'
        " epoch 0"
    )
    assert records(run_dir, "end")[0]["reason"] == message


CANNOT = ", which cannot be shown: that raises"
GIVEN_BACK = 'raised while the hook "bad" was given back its state'


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (fails("after_load_checkpoint"), 'hook "bad" at after_load_checkpoint: '),
        (fails("load_state_dict"), f"RuntimeError: as told; {GIVEN_BACK}"),
        (
            fails("load_state_dict", kind="NoTextError"),
            f"RuntimeError: NoTextError{CANNOT} KeyError; {GIVEN_BACK}",
        ),
    ],
)
def test_a_hook_that_fails_in_a_resume_is_named(
    trained: Trained, train_here: Train, hook: str, message: str
) -> None:
    run_dir = trained(hook, "run.max_epochs=1")
    assert train_here(run_dir, resume=True) == 1
    (refused,) = records(run_dir, "refused")
    assert message in str(refused["reason"])
    assert GIVEN_BACK not in message or GIVEN_BACK in str(refused["traceback"])
    assert records(run_dir, "error") == [], "the run is as it was"


TASK = 'task={use="./common_hooks.py:BadTask", args={kind="%s"}}'
CANNOT_BE_MADE = 'hooks.bad={use="tests.runner.test_hook_errors:CannotBeMade", args={kind="%s"}}'


@pytest.mark.parametrize(
    ("override", "hook", "message"),
    [
        (fails("after_forward", "raise", "SystemExit"), "bad", "SystemExit: as told"),
        (fails("after_forward", "ignore", "GeneratorExit"), "bad", "GeneratorExit: as told"),
        (
            fails("after_forward", "raise", "NoTextError"),
            "bad",
            f"RuntimeError: NoTextError{CANNOT} KeyError",
        ),
        (
            fails("after_forward", "raise", "NoReprError"),
            "bad",
            f"Exception: NoReprError{CANNOT} ValueError",
        ),
        (
            fails("after_forward", "raise", "NoNotesError"),
            "bad",
            f"LookupError: NoNotesError{CANNOT} OSError",
        ),
        (
            fails("after_forward", "raise", "OwnNotesError"),
            "bad",
            f"UnicodeError: OwnNotesError{CANNOT} TypeError",
        ),
        (TASK % "raises", "", "RuntimeError: the task cannot"),
        (TASK % "NoTextError", "", "RuntimeError: NoTextError, which cannot be shown"),
        (CANNOT_BE_MADE % "NoTextError", "", "NoTextError, which cannot be shown"),
        (CANNOT_BE_MADE % "NoNotesError", "", "NoNotesError, which cannot be shown"),
        (
            'hooks.bad={use="tests.runner.test_hook_errors:logs", points=["after_train_iter"]}',
            "bad",
            'run.log("weights", …) needs a',
        ),
        (
            (
                'hooks.bad={use="tests.runner.test_hook_errors:measures",'
                ' points=["after_val_epoch"],'
                ' args={value=["a"]}}'
            ),
            "bad",
            'metrics["mine"] needs a number',
        ),
    ],
)
def test_whatever_else_raises_is_recorded_and_printed_once(
    trained: Trained, capfd: pytest.CaptureFixture[str], override: str, hook: str, message: str
) -> None:
    run_dir = trained(override, "run.max_epochs=1", code=1)
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["action"]) == (hook, "raise")
    assert message in f"{error['type']}: {error['text']}" == reason(run_dir)
    assert capfd.readouterr().err == error["traceback"]
    assert not hook or 'raised by the hook "bad" at ' in str(error["traceback"])
    assert not list_checkpoints(run_dir.checkpoints)


@pytest.mark.parametrize(
    ("yields", "wrong"),
    [(0, "returns before its yield"), (2, "yields a second time")],
    ids=["never", "twice"],
)
def test_an_around_must_yield_once(trained: Trained, yields: int, wrong: str) -> None:
    run_dir = trained(
        f'hooks.bad={{use="tests.runner.test_hook_errors:Yields", args={{times={yields}}}}}', code=2
    )
    assert re.match(
        rf".*test_hook_errors\.py:\d+: around_val {wrong}, and must yield once\n", reason(run_dir)
    )
    assert f'raised by the hook "bad" at {"after" if yields else "before"}_val' in reason(run_dir)


SAMPLED = (
    'data.train={use="./data_loaders.py:Counted", loader={batch_size=8,'
    ' sampler="tests.runner.test_hook_errors:Unreadable"}}'
)


@pytest.mark.parametrize(
    ("override", "key", "at"),
    [
        (fails("0 iterations: state_dict"), "hooks.bad", 0),
        (fails("1 iterations: state_dict"), "hooks.bad", 1),
        (fails("2 iterations: state_dict"), "hooks.bad", 5),
        (SAMPLED, "data.train", 0),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_early_or_at_the_checkpoint(
    trained: Trained, override: str, key: str, at: int
) -> None:
    run_dir = trained(override, "run.max_epochs=1", code=2)
    assert f"{key}: state_dict()['kinds'] is a builtins.frozenset" in reason(run_dir)
    assert records(run_dir, "end")[0]["it"] == at


SHORT = ("run.max_epochs=1", "data.train.args={examples=8}")


def table(name: str, args: str = "", points: str = '"after_train"') -> str:
    given = f", args={args}" if args else ""
    at = f", points=[{points}]" if points else ""
    return f'{{use="tests.runner.test_hook_errors:{name}"{given}{at}}}'


CALLABLES = [
    (table("tell", '["hello", 3]'), ["hello 3!"]),
    (table("skips", '["x"]'), ["x:1"]),
    (table("skips", '["x", "="]'), ["x=1"]),
    (table("named", '["ha"]'), ["ha at 1"]),
    (table("named", '{prefix="ha", times=2}'), ["haha at 1"]),
    (table("twice"), ["twice 2!"]),
    (table("teller", "", '"before_train", "after_train"'), ["call 0", "call 1"]),
    (table("teller", '{prefix="now"}', '"before_train"'), ["now 0"]),
    (table("Counter", "[7]", '"before_train", "after_train"'), ["call 8", "call 9"]),
    (table("Counter", "{start=1}", '"before_run"'), ["call 2"]),
    (table("Listed", '["l", [1, 2]]', ""), ["l [1, 2] False False", "in", "out", "after"]),
    (table("Listed", '["l", [], true]', '"before_train"'), ["l [] True False"]),
    (table("last", '["p"]'), ["p False!"]),
    (table("last", '["p", "."]', '"after_val"'), ["p True."]),
    (table("typed", '["a/b", [1, 2], [3]]'), ["b (1, 2) [3]"]),
    (table("SaysName", "", ""), ["mine15"]),
    (table("HasName", '{name="its own"}', ""), ["its own"]),
    (table("HasSlots", "", ""), ["no name"]),
]


def test_whatever_can_be_called_is_a_hook_and_a_partial_is_described(
    trained: Trained, new_run: NewRun
) -> None:
    run_dir = trained(*(f"hooks.mine{k}={text}" for k, (text, _) in enumerate(CALLABLES)), *SHORT)
    said: dict[object, list[object]] = {}
    for record in records(run_dir, "message"):
        said.setdefault(record["source"], []).append(record["text"])
    assert said == {f"mine{k}": expected for k, (_, expected) in enumerate(CALLABLES)}
    plan = json.loads(new_run(f"hooks.mine={table('twice')}", *SHORT).plan.read_text())
    assert [h["about"] for h in plan["hooks"] if h["name"] == "mine"] == ["Say what it is given."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table("tell", '["a"]'), 'asks for "count", which after_train does not offer'),
        (table("tell", '["a", "b"]'), '"count" must be an integer, not the string "b"'),
        (
            table("tell", '["a", 1, 2, "b", "c"]'),
            "takes 3 arguments, and is given 5\n    it takes prefix, count",
        ),
        (table("twice", '["a", 1, 2]'), "takes 1 argument, and is given 3"),
        (table("teller", '{prefx="b"}'), 'takes no argument "prefx"\n    did you mean "prefix"?'),
        (table("teller", "{prefix=3}"), '"prefix" must be a string, not 3'),
        (table("Counter", "[7]", ""), "does not say where it belongs"),
        (table("Counter", "{strat=7}"), 'did you mean "start"?'),
        (
            table("tell", '{prefix="a", count=1, run="b"}'),
            '"run" is what the point offers, so it cannot be given here',
        ),
        (table("wordy", '["a"]'), '"run" is what the point offers, so it cannot be given here'),
        (table("last", '["a", "b", "c"]', '"after_val"'), "takes 2 arguments, and is given 3"),
        (table("Listed", '["a"]'), 'needs the argument "numbers"'),
        (table("Listed", '["a", ["b"]]'), "must be an integer"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(new_run: NewRun, text: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        new_run(f"hooks.mine={text}", *SHORT)


class Forks:
    """Forks the training once, and lets the copy go on; notes how that has ended."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)
        self.child = 0

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            self.child = os.fork()
            if self.child == 0:
                return
            _, status = os.waitpid(self.child, 0)
            self.mark.write_text(str(os.waitstatus_to_exitcode(status)))


# Python warns of a fork in a process with threads, which is what is tried
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_copy_of_the_training_that_a_hook_forks_does_not_train_on(
    trained: Trained, tmp_path: Path
) -> None:
    mark = tmp_path / "ended"
    run_dir = trained(f'hooks.forks={{use="{__file__}:Forks", args={{mark="{mark}"}}}}')
    assert mark.read_text() == "1"
    assert len(records(run_dir, "end")) == 1
    assert [record["ep"] for record in records(run_dir, "epoch")] == [1, 2, 3]


class Shaky:
    """Raises at the first `times` calls of each iteration."""

    def __init__(self, times: int, kind: str = "OSError") -> None:
        self.times, self.kind = times, kind
        self.calls: dict[int, int] = {}

    def after_train_iter(self, run: Any) -> None:
        calls = self.calls[run.iter] = self.calls.get(run.iter, 0) + 1
        if calls <= self.times:
            raise (
                OSError("out of reach")
                if self.kind == "OSError"
                else UserError(Problem("out of reach"))
            )
        run.say(f"done after {calls}")


def shaky(times: int, *keys: str, kind: str = "OSError") -> str:
    args = f'{{times={times}, kind="{kind}"}}'
    table = ", ".join([f'use="{__file__}:Shaky"', f"args={args}", "retry=2", *keys])
    return f"hooks.shaky={{{table}}}"


@pytest.mark.parametrize("offload", [(), ("offload=true",), ('when="iter > 0"',)])
def test_a_firing_that_raises_is_called_again(trained: Trained, offload: tuple[str, ...]) -> None:
    run_dir = trained(shaky(2, "every=5", *offload), "run.max_epochs=2")
    said = [
        record["text"]
        for record in records(run_dir, "message")
        if "done after" in str(record["text"])
    ]
    assert said == ["done after 3"] * 2
    again = [
        text for text in messages(run_dir, "warn") if '"shaky" raised at after_train_iter' in text
    ]
    assert [re.findall(r"\((\d) of 2\): OSError: out of reach", text) for text in again] == [
        ["1"],
        ["2"],
    ] * 2
    assert not records(run_dir, "error")


def test_it_ends_the_run_after_the_last_try_and_a_users_mistake_at_once(trained: Trained) -> None:
    run_dir = trained(shaky(3), code=1)
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["action"], error["it"]) == ("shaky", "raise", 1)
    ignored = trained(shaky(9, 'on_error="ignore"'), "run.max_epochs=1")
    assert len(records(ignored, "error")) == 5
    mistaken = trained(shaky(1, kind="UserError"), code=2)
    assert not [text for text in messages(mistaken, "warn") if "is called again" in text]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("hooks.ema.retry=1", "it is half of an around"),
        ("hooks.clip.retry=1", "it writes grads"),
        (
            (
                'hooks.told={use="./common_hooks.py:tells", points=["forward"], modules=["head"],'
                " retry=1}"
            ),
            "PyTorch calls it",
        ),
    ],
)
def test_what_would_begin_with_something_else_is_not_called_again(
    new_run: NewRun, override: str, expected: str
) -> None:
    with pytest.raises(UserError, match=f"cannot have retry: {expected}"):
        new_run(override)
