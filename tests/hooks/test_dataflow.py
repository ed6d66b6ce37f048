"""What sources of hooks tell: numbers that are logged and have conditions,
undeclared slots and calls on the run.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Plan
from hookflow.graph.why import find_ambiguities
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.hooks.stand_ins import HEAD, USE, pipeline_with, plan


def compiled(folder: Path, logs: str, when: str, more: str = "") -> Plan:
    """Return the plan of a hook with a condition ahead of one that logs in its second line."""
    file = f"h{len(list(folder.iterdir()))}.py"  # a file is imported once
    code = (
        f"class Logs:\n    def after_train_iter(self, run, name='x'):\n        {logs}\ndef"
        " gate(run): pass\n"
    )
    (folder / file).write_text(code)
    gate = f'[hooks.gate]\nuse = "./{file}:gate"\npoints = ["after_train_iter"]\nwhen = {when!r}\n'
    text = f'{HEAD}{gate}[hooks.logs]\nuse = "./{file}:Logs"\n{more}'
    return compile_pipeline(parse(text, folder / "p.toml"))


def flows(plan: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(edge.first, edge.then, edge.slots) for edge in plan.edges if edge.kind == "flow"]


@pytest.mark.parametrize(
    ("logs", "when", "certain"),
    [
        ('run.log("n", 1)', "n == 3", True),
        ('run.log(name="n", value=1)', "n == 3", True),
        ('run.log("train/n", 1)', 'value("train/n") == 3', True),
        ('run.log(f"train/{name}", 1)', 'value("train/n") == 3', True),
        ('run.log(f"{name}/n", 1)', 'value("train/n") == 3', True),
        ('run.log("n" if run.epoch else f"first/{name}", 1)', "n == 3", True),
        ('run.log("n" if run.epoch else f"first/{name}", 1)', 'value("first/x") == 3', True),
        ("self.tell(run)\n    def tell(self, it): it.log('n', 1)", "n == 3", True),
        ('run.log("n", 1)', "m == 3", False),
        ('run.log("n", 1)', "metrics.n == 3", False),
        ('run.log("n", 1)', "iter == 3", False),
        ("run.log(name, 1)", "n == 3", False),
        ('run.log(f"{name}", 1)', "n == 3", False),
        ('run.log(f"train/{name}", 1)', 'value("val/n") == 3', False),
        ('run.log_text("n", "1")', "n == 3", False),
        ('run.task.log("n", 1)', "n == 3", False),
    ],
)
def test_who_surely_logs_a_number_precedes_its_condition(
    tmp_path: Path, logs: str, when: str, certain: bool
) -> None:
    plan = compiled(tmp_path, logs, when)
    assert plan.order["after_train_iter"][:2] == (("logs", "gate") if certain else ("gate", "logs"))
    found = [(first, then, slot.partition(".")[0]) for first, then, (slot,) in flows(plan)]
    assert found == [("logs", "gate", "scalars")] * certain


def test_a_slot_of_a_number_may_be_declared_and_turned_and_needs_a_condition(
    tmp_path: Path,
) -> None:
    assert flows(compiled(tmp_path, "run.log(name, 1)", "n == 3", 'writes = ["scalars.n"]\n'))
    plan = compiled(tmp_path, 'run.log("n", 1)', "n == 3", 'after = ["gate"]\n')
    assert plan.order["after_train_iter"][:2] == ("gate", "logs")
    assert [given.edge.slots for given in plan.dropped_edges] == [("scalars.n",)]
    plan = compiled(tmp_path, 'run.log("n", 1); run.log("other", 1)', "n == 3")
    assert {slot for binding in plan.bindings for slot in binding.writes if "scalars" in slot} == {
        "scalars.n"
    }


def test_two_that_log_one_name_at_one_point_are_in_no_order_without_a_condition_too(
    tmp_path: Path,
) -> None:
    second = '[hooks.again]\nuse = "./h0.py:Logs"\n'
    for number, (logs, slots) in enumerate(
        [
            ('run.log("n", 1)', [("scalars.n",)]),
            ('run.log("n" if name else "m", 1)', []),
            ('run.log(f"n/{name}", 1)', []),
        ]
    ):
        (folder := tmp_path / str(number)).mkdir()
        assert [
            item.slots for item in find_ambiguities(compiled(folder, logs, "iter > 3", second))
        ] == slots


def test_a_metric_is_read_after_the_hook_that_makes_it(tmp_path: Path) -> None:
    gate = (
        '[hooks.gate]\nuse = "builtins:print"\npoints = ["after_val_epoch"]\nwhen = "accuracy >'
        ' 0"\n'
    )
    text = f'{HEAD}{gate}[hooks.accuracy]\nuse = "accuracy"\n'
    plan = compile_pipeline(parse(text, tmp_path / "p.toml"))
    assert plan.order["after_val_epoch"] == ("accuracy", "gate")


def test_a_number_of_an_epoch_is_read_after_the_hook_that_logs_it_and_refused_without(
    tmp_path: Path,
) -> None:
    stop = '[hooks.stop]\nuse = "early_stop"\nargs = { monitor = "loss_epoch", stage = "train" }\n'
    text = f'{HEAD}{stop}[hooks.log]\nuse = "log"\n'
    plan = compile_pipeline(parse(f'{text}args = {{ mean = "epoch" }}\n', tmp_path / "p.toml"))
    assert plan.order["after_train_epoch"][:2] == ("log", "stop")
    with pytest.raises(
        UserError, match='hook "stop" reads the number "loss_epoch", which no hook logs'
    ):
        compile_pipeline(parse(text, tmp_path / "p.toml"))


@pytest.mark.parametrize(
    ("logs", "when", "meant"),
    [
        ('run.log("average", 1)', "avrage > 3", "average"),
        ('run.log("average", 1)', "metrics.avreage > 3", "average"),
        ('run.log("average", 1)', "average > 3", ""),
        ('run.log("top1", 1)', "top5 > 3", ""),
        ('run.log("loss", 1)', 'value("loss_d") > 3', ""),
        ("pass", "los > 3", "loss"),
        ("pass", "metrics.lsos > 3", "loss"),
        ("pass", "Losss > 3", "loss"),
        ("pass", "loss > 3", ""),
        ("pass", "dloss > 3", ""),
        ("pass", "oss_s > 3", ""),
        ('run.log("los", 1)', "los > 3", ""),
    ],
)
def test_a_name_that_is_nearly_a_logged_one_is_warned_of(
    tmp_path: Path, logs: str, when: str, meant: str
) -> None:
    hints = [problem.hint for problem in compiled(tmp_path, logs, when).warnings]
    assert hints == ([f'did you mean "{meant}"?'] if meant else [])


SAVER = "def it(run):\n    save(run.model.state_dict())\n"
EMA = '[hooks.ema]\nuse = "ema"\n'


def warned(folder: Path, code: str, point: str, others: str, table: str = "") -> list[Problem]:
    """Return what is warned of a function of this code at a point, listed ahead of `others`."""
    tables = f'points = ["{point}"]\n{table}\n{others}'
    return list(compile_pipeline(pipeline_with(folder, code, tables, "it")).warnings)


def writer(slot: str, point: str, more: str = "") -> str:
    return (
        f'[hooks.writer]\nuse = "builtins:print"\npoints = ["{point}"]\nwrites ='
        f' ["{slot}"]\n{more}\n'
    )


def test_a_saver_beside_an_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = warned(tmp_path, SAVER, "after_val", EMA)
    assert (
        problem.message
        == 'hook "it" reads run.model at after_val (h0.py:2) and declares no slots: '
        'it fires before "ema" leaves around_val, which writes model'
    )
    assert (
        problem.hint
        == 'declare it, and it fires after "ema": reads = ["model"] in [hooks.it], or in its class'
    )


@pytest.mark.parametrize(
    "table",
    [
        'reads = ["model"]',
        'after = ["ema"]',
        'before = ["ema"]',
        'phase = "last"',
        'ambiguous_with = ["ema"]',
    ],
)
def test_it_is_mended_by_a_declaration_an_edge_a_phase_or_a_word_of_either(
    tmp_path: Path, table: str
) -> None:
    assert not warned(tmp_path, SAVER, "after_val", EMA, table)


@pytest.mark.parametrize(
    ("code", "point", "slot", "certain"),
    [
        ("def it(run): print(run.optimizer)", "before_train_iter", "lr", True),
        ("def it(run): print(run.optimizer)", "before_train_iter", "optimizer", True),
        ("def it(batch): print(batch)", "before_train_iter", "batch", True),
        (
            'def it(metrics): print(metrics["accuracy"])',
            "after_val_epoch",
            "metrics.accuracy",
            True,
        ),
        ('def it(metrics): print(metrics.get("accuracy"))', "after_val_epoch", "metrics", True),
        (
            f'def it(metrics): print({"-" * 1500}metrics["accuracy"])',
            "after_val_epoch",
            "metrics.accuracy",
            True,
        ),
        (
            'def it(checkpoint): print(checkpoint["extra"])',
            "before_save_checkpoint",
            "checkpoint.extra",
            True,
        ),
        (SAVER, "before_val", "metrics", False),
        ("def it(run): print(run.models)", "after_val", "model", False),
        ("def it(run): run = run.task; print(run.model)", "after_val", "model", False),
        ('def it(metrics): metrics["accuracy"] = 1', "after_val_epoch", "metrics.accuracy", False),
        ('def it(metrics): print(metrics["loss"])', "after_val_epoch", "metrics.accuracy", False),
        (
            'def it(metrics): metrics = {}; print(metrics["accuracy"])',
            "after_val_epoch",
            "metrics.accuracy",
            False,
        ),
        ("def it(metrics): print(len(metrics))", "after_val_epoch", "metrics.accuracy", False),
        ("it = print", "after_val_epoch", "metrics.accuracy", False),
    ],
)
def test_what_a_source_certainly_reads(
    tmp_path: Path, code: str, point: str, slot: str, certain: bool
) -> None:
    problems = warned(tmp_path, code + "\n", point, writer(slot, point))
    end = (
        f'it fires before "writer", which writes {slot.partition(".")[0]}, and nothing but the file'
        " says so"
    )
    assert [problem.message.endswith(end) for problem in problems] == [True] * certain


def test_a_hook_that_declares_a_slot_has_thought_of_them(tmp_path: Path) -> None:
    declared = writer("lr", "after_train", 'reads = ["grads"]') + "[hooks.it.args]\n"
    assert not warned(tmp_path, SAVER, "after_val", EMA + declared, 'writes = ["rng"]')


POINT = 'points = ["after_val"]'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def findings(folder: Path, code: str, table: str = "") -> list[str]:
    """Return what is said of the hook `It` of a file of this code, be it a warning or an error."""
    loaded = pipeline_with(folder, code, table)
    result: Sequence[Problem]
    try:
        result = compile_pipeline(loaded).warnings
    except UserError as error:
        result = error.problems
    return [re.sub(r"h\d+\.py", "FILE", problem.message) for problem in result]


def of_method(folder: Path, *lines: str, table: str = "") -> list[str]:
    """Return the lines of which is warned, of a class whose method
    at after_val begins in line 3.
    """
    body = "".join(f"        {line}\n" for line in lines)
    said = findings(folder, f"\nclass It:\n    def after_val(self, run):\n{body}", table)
    return [line.partition("FILE:")[2].partition(")")[0] for line in said]


STOP = "run.skip_step()"


def test_a_call_is_reported_with_its_place_and_what_to_declare(tmp_path: Path) -> None:
    code = (
        "class It:\n    writes = ('metrics',)\n    def after_forward(self, run):\n        if"
        " run.epoch > 3:\n"
    )
    (problem,) = compile_pipeline(
        pipeline_with(tmp_path, f"{code}            run.skip_step()\n")
    ).warnings
    assert (
        problem.message
        == 'hook "it" calls run.skip_step at after_forward (h0.py:5) without declaring that it'
        ' writes "control", which would end the run with an error'
    )
    assert (
        problem.hint == 'declare it: writes = ["control", "metrics"] in [hooks.it], or in its class'
    )
    assert problem.where is not None and problem.where.line == USE


@pytest.mark.parametrize(
    ("call", "slot", "point"),
    [
        ("accumulate(1.0, step=True)", "control", "before_backward"),
        ("skip_batch()", "control", "before_train_iter"),
        ("replace_batch(1)", "batch", "before_val_iter"),
    ],
)
def test_each_call_has_its_slot_and_its_points(
    tmp_path: Path, call: str, slot: str, point: str
) -> None:
    code = f"def It(run): run.{call}\n"
    (message,) = findings(tmp_path, code, f'points = ["{point}"]')
    assert message.startswith(
        f'hook "it" calls run.{call.partition("(")[0]} at {point} (FILE:1) without '
    )
    assert f'it writes "{slot}"' in message
    assert not findings(tmp_path, code, f'points = ["{point}"]\nwrites = ["{slot}"]')
    (message,) = findings(tmp_path, code, f'{POINT}\nwrites = ["{slot}"]')
    assert "at after_val (FILE:1) where " in message


TALKS = {
    "torch.distributed.all_reduce": (
        "import torch.distributed as dist\ndef It(run): dist.all_reduce(run.metrics)\n"
    ),
    "torch.distributed.barrier": (
        "def It():\n    from torch.distributed import barrier\n    barrier()\n"
    ),
    "full_tensor": "def It(run): [p.full_tensor() for p in run.model.parameters()]\n",
    "run.sum": "\ndef It(run): run.log('x', run.sum(1.0))\n",
    "run.mean": (
        "class It:\n    def after_val(self, run): self.log(run)\n    def log(self, it):"
        " it.mean(1.0)\n"
    ),
    "run.loss": "def It(run): run.loss(None)\n",
}


@pytest.mark.parametrize("call", TALKS)
def test_a_call_for_all_ranks_by_a_hook_of_one_is_reported(tmp_path: Path, call: str) -> None:
    table = "" if "class It" in TALKS[call] else POINT
    (message,) = findings(tmp_path, TALKS[call], f'{table}\nranks = "zero"')
    assert message.startswith(f'hook "it" fires on rank 0 alone and calls {call} ')
    assert not findings(tmp_path, TALKS[call], table)


def test_a_hook_of_one_rank_may_ask_for_its_place_among_them(tmp_path: Path) -> None:
    code = (
        "import torch.distributed as dist\ndef It(run): dist.is_initialized() and dist.get_rank()\n"
    )
    assert not findings(tmp_path, code, f'{POINT}\nranks = "zero"')


def test_a_metric_that_is_set_at_another_point_is_reported(tmp_path: Path) -> None:
    code = 'def It(run): run.metrics["x"] = 1\n'
    (message,) = findings(tmp_path, code, 'points = ["before_val"]')
    assert message.startswith('hook "it" sets metrics["x"] at before_val (FILE:1)')


@pytest.mark.parametrize(
    "code", ['def It(run): run.metrics["x"] = 1\n', 'def It(metrics): metrics["x"] = 1\n']
)
@pytest.mark.parametrize("point", ["after_val_epoch", "after_val"])
def test_a_metric_is_set_after_a_set_or_after_all(tmp_path: Path, code: str, point: str) -> None:
    assert not findings(tmp_path, code, f'points = ["{point}"]')


@pytest.mark.parametrize(
    ("code", "point", "instead"),
    [
        (
            "def It(batch): return batch[0] * 0, batch[1]\n",
            "before_train_iter",
            "run.replace_batch(batch)",
        ),
        (
            'def It(outputs): return {"loss": 2 * outputs["loss"]}\n',
            "after_forward",
            'outputs["loss"] = …',
        ),
        ("def It(run, batch): return run.say('x')\n", "before_train_iter", ""),
        ("def It(batch): return\n", "before_train_iter", ""),
        ("def It(run): return run.epoch\n", "after_train_iter", ""),
    ],
)
def test_a_value_that_is_returned_to_nobody_is_reported(
    tmp_path: Path, code: str, point: str, instead: str
) -> None:
    warned = compile_pipeline(pipeline_with(tmp_path, code, f'points = ["{point}"]')).warnings
    assert [problem.hint for problem in warned] == ([f"to change it: {instead}"] if instead else [])


def test_each_call_is_reported_once_unless_class_file_or_method_declares_it(tmp_path: Path) -> None:
    twice = f"        {STOP}\n        {STOP}\n"
    code = (
        f"class It:\n    def after_forward(self, run):\n{twice}    after_backward = after_forward\n"
    )
    assert len(findings(tmp_path, code)) == 2
    for table in ('writes = ["control"]', 'writes = ["control", "model"]'):
        assert not findings(tmp_path, code, table)
        assert len(findings(tmp_path, code, table.replace("control", "batch"))) == 2
    code = f"class It:\n    writes = ('control',)\n    def after_forward(self, run): {STOP}\n"
    assert not findings(tmp_path, code)
    assert findings(tmp_path, code, "writes = []"), "the file says otherwise"
    by_method = code.replace("('control',)", "{'after_forward': ('control',)}")
    (message,) = findings(tmp_path, f"{by_method}    def after_backward(self, run): {STOP}\n")
    assert "at after_backward (FILE:4)" in message


LATER = "def It(run):\n    {}\n    run.skip_step()\n"
AROUND = (
    "class It:\n    def around_train_epoch(self, run):\n        {}\n        yield\n        {}\n"
)
IN_BACKWARD = 'points = ["after_backward"]'


@pytest.mark.parametrize(
    ("code", "table", "is_error"),
    [
        (LATER.format("x = 1"), IN_BACKWARD, True),
        (LATER.format("if run.epoch: x = 1"), IN_BACKWARD, True),
        (LATER.format("if run.epoch: return"), IN_BACKWARD, False),
        (LATER.format("for _ in run.x: raise ValueError"), IN_BACKWARD, False),
        ("def It(run):\n    x = [run.skip_step()]\n", IN_BACKWARD, True),
        ("def It(run):\n    if run.skip_step(): pass\n", IN_BACKWARD, True),
        ("def It(run):\n    run.epoch and run.skip_step()\n", IN_BACKWARD, False),
        ("def It(run):\n    run.skip_step() and run.epoch\n", IN_BACKWARD, True),
        ("def It(run):\n    1 if run.epoch else run.skip_step()\n", IN_BACKWARD, False),
        ("def It(run):\n    [run.skip_step() for _ in run.x]\n", IN_BACKWARD, False),
        (
            "def It(run):\n    try: run.skip_step()\n    except Exception: pass\n",
            IN_BACKWARD,
            False,
        ),
        ("def It(run):\n    with run.x: run.skip_step()\n", IN_BACKWARD, False),
        (
            (
                "class It:\n    def after_backward(self, run): self.x(run)\n    def x(self, run):"
                " run.skip_step()\n"
            ),
            "",
            True,
        ),
        (
            (
                "class It:\n    def after_backward(self, run): run.epoch and self.x(run)\n"
                "    def x(self, run): run.skip_step()\n"
            ),
            "",
            False,
        ),
        (LATER.format("pass"), f"{IN_BACKWARD}\non_error = 'disable'", False),
        (LATER.format("pass"), f"{IN_BACKWARD}\non_error = 'ignore'", False),
        (LATER.format("pass"), f"{IN_BACKWARD}\nwhen = 'iter == 3'", False),
        (LATER.format("pass"), f"{IN_BACKWARD}\nevery = 1000", False),
        (LATER.format("pass"), 'points = ["after_val"]', False),
        (LATER.format("pass"), 'points = ["before_save_checkpoint"]', False),
        (LATER.format("pass"), 'points = ["after_train"]', True),
        ('def It(run):\n    run.metrics["x"] = 1\n', 'points = ["after_train_iter"]', True),
        (
            'def It(run):\n    if run.epoch: run.metrics["x"] = 1\n',
            'points = ["after_train_iter"]',
            False,
        ),
        (AROUND.format("pass", "run.skip_step()"), "", True),
        (AROUND.format("run.skip_step()", "pass"), "", True),
    ],
)
def test_what_ends_each_run_is_an_error_and_what_may_not_happen_a_warning(
    tmp_path: Path, code: str, table: str, is_error: bool
) -> None:
    loaded = pipeline_with(tmp_path, code, table)
    if is_error:
        with pytest.raises(UserError, match="would end the run with an error"):
            compile_pipeline(loaded)
    else:
        assert compile_pipeline(loaded).warnings


@pytest.mark.parametrize(("before", "after", "count"), [(1, 0, 0), (0, 1, 1), (1, 1, 1)])
def test_each_half_of_an_around_is_held_to_its_own_point(
    tmp_path: Path, before: int, after: int, count: int
) -> None:
    """A batch may be replaced at before_train_iter, where the first half is,
    and not at after_train_iter.
    """
    lines = ("pass", "run.replace_batch(1)")
    code = AROUND.replace("train_epoch", "train_iter").format(lines[before], lines[after])
    said = findings(tmp_path, code, 'writes = ["batch"]')
    assert len(said) == count and all(
        "at after_train_iter (FILE:5) where" in message for message in said
    )


BASE = (
    f"class Base:\n    def after_val(self, run):\n        {STOP}\n    def end(self, run):\n       "
    f" {STOP}\n"
)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (f"def It(run):\n    {STOP}\n", 2),
        (f"It = lambda run: {STOP}\n", 1),
        (f"from functools import partial\ndef f(much, run):\n    {STOP}\nIt = partial(f, 1)\n", 3),
        (f"class It:\n    def __call__(self, run):\n        {STOP}\n", 3),
        (f"class Made:\n    def __call__(self, run):\n        {STOP}\nIt = Made()\n", 3),
        (f"class Made:\n    def do(self, run):\n        {STOP}\nIt = Made().do\n", 3),
        (f"class Made:\n    @staticmethod\n    def do(run):\n        {STOP}\nIt = Made.do\n", 4),
        (
            (
                "from functools import wraps\ndef kept(f):\n    @wraps(f)\n    def w(*a, **k):"
                f" return f(*a, **k)\n    return w\n@kept\ndef It(run):\n    {STOP}\n"
            ),
            8,
        ),
        (f"class It:\n    def around_val(self, run):\n        yield\n        {STOP}\n", 4),
        (f"{BASE}class It(Base):\n    def after_val(self, run): self.end(run)\n", 5),
        (f"{BASE}class It(Base): pass\n", 3),
        *(
            (f"def It(run):\n    {line}\n", 2)
            for line in (f"with run.x: {STOP}", f"[{STOP} for _ in ()]")
        ),
        (f"def It(run):\n    {'-' * 1500}{STOP}\n", 2),
    ],
)
def test_where_a_call_is_found(tmp_path: Path, code: str, line: int) -> None:
    (message,) = findings(tmp_path, code, POINT if "_val" not in code else "")
    assert "calls run.skip_step at " in message and f"(FILE:{line})" in message


HELPER = (
    f"    def end(self, why, it, *, of=None):\n        {STOP.replace('run', 'it')}\n       "
    " of.skip_batch()\n"
)
STATIC = f"    @staticmethod\n    def end(why, it, of=None):\n        {STOP.replace('run', 'it')}\n"


@pytest.mark.parametrize(
    ("call", "helper", "calls"),
    [
        ("self.end(1, run)", HELPER, ["run.skip_step"]),
        ("self.end(1, it=run)", HELPER, ["run.skip_step"]),
        ("self.end(1, run, of=run)", HELPER, ["run.skip_step", "run.skip_batch"]),
        ("self.end(1, run)", STATIC, ["run.skip_step"]),
        ("self.end(run)", f"    def end(self, run): {STOP}; self.end(run)\n", ["run.skip_step"]),
        ("self.end(1, run.task)", HELPER, []),
        ("self.end(*run.x, run)", HELPER, []),
        ("self.other.end(1, run)", HELPER, []),
        ("self = run.task; self.end(1, run)", HELPER, []),
        ("self.end(1, run)", "    end = print\n", []),
    ],
)
def test_methods_that_a_call_gives_the_run_to(
    tmp_path: Path, call: str, helper: str, calls: list[str]
) -> None:
    code = f"class It:\n    def after_val(self, run):\n        {call}\n{helper}"
    assert [line.split()[3] for line in findings(tmp_path, code)] == calls


@pytest.mark.parametrize(
    "lines",
    [
        ("run = run.task", STOP),
        ("for run in run.tasks:", f"    {STOP}"),
        ("try: pass", "except E as run: pass", STOP),
        ("import run", STOP),
        ("def run(): pass", STOP),
        ("match run.x:", f"    case run: {STOP}"),
        ("def inside():", "    nonlocal run", STOP),
        (f"[{STOP} for run in ()]",),
        ("del run", STOP),
        (f"def later(): {STOP}",),
        (f"later = lambda: {STOP}",),
        (f"class Later: x = {STOP}",),
        ("self.run.skip_step()",),
        ("run.task.skip_step()",),
        ("skip = run.skip_step",),
        ("run.step_skipped()",),
    ],
    ids=lambda lines: lines[0],
)
def test_where_it_is_not_certain_nothing_is_reported(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    assert not of_method(tmp_path, *lines)


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (
            (
                f"from functools import partial\ndef f(run, metrics):\n    {STOP}\nIt = partial(f,"
                " print)\n"
            ),
            POINT,
        ),
        (f"run = print\nclass It:\n    def after_val(self, metrics): {STOP}\n", ""),
        (
            f"class It:\n    def after_val(self, run): {STOP}\n    def after_run(self): pass\n",
            'points = ["after_run"]',
        ),
        (
            f"exec(compile('class It:\\n  def after_val(self, run): {STOP}\\n', __file__, 'exec'))",
            "",
        ),
        (
            (
                "class It: after_val, after_run = lambda self, run: run.skip_step(), lambda self,"
                " run: 0"
            ),
            "",
        ),
        ("It = print", POINT),
        (
            (
                "from pathlib import Path\nPath(__file__).unlink()\nclass It:\n    def"
                f" after_val(self, run): {STOP}\n"
            ),
            "",
        ),
    ],
)
def test_of_another_run_or_an_unreadable_source_nothing_is_reported(
    tmp_path: Path, code: str, table: str
) -> None:
    assert findings(tmp_path, code, table) == []


def test_the_built_in_hooks_declare_what_they_call() -> None:
    """As `test_troubles.py` shows: none of them is warned of. This one would be."""
    (said,) = plan(more='[hooks.spike_guard]\nuse = "spike_guard"\nwrites = []\n').warnings
    assert "calls run.skip_step" in said.message
