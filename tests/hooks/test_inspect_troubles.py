"""Mistakes in a hook's class or function, those of other frameworks, and looks at it that raise:
each told in words.
"""

import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from hookflow.errors import Problem, UserError
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.adapter_registry import load_all_adapters
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline import use
from hookflow.pipeline.load import load
from tests.conftest import circle, hookflow_here
from tests.hooks.stand_ins import HEAD, IMPORTS, USE, faults, pipeline_with

FUNCTION = 'points = ["after_val"]'


def lines(*code: str) -> str:
    """Return a class with these lines beside a sound method."""
    return "class It:\n" + "".join(f"    {line}\n" for line in (*code, "def after_run(self): pass"))


NO_METHODS = {
    "lru_cache(lambda self: 1)": "_lru_cache_wrapper",
    "partial(print, 1)": "partial",
    "partialmethod(print, 1)": "partialmethod",
    "property(lambda self: 1)": "property",
    "3": "int",
}
WRAPPER = "def log(f):\n    def w(*a, **k): return f(*a, **k)\n    return w\n"
WRAPPED = f"{WRAPPER}class It:\n    @log\n    def after_run(self, run): pass\n"


@pytest.mark.parametrize(
    ("code", "table", "message"),
    [
        (
            lines("def after_val(self, run): yield"),
            "",
            "It.after_val has a yield, so that calling it would do nothing",
        ),
        ("def It(run): yield", FUNCTION, "has a yield"),
        ("It = partial((lambda x, run: (yield)), 1)", FUNCTION, "has a yield"),
        ("async def It(run): pass", FUNCTION, "It is async"),
        ("async def It(run): yield", FUNCTION, "It is async"),
        ("class It:\n    def __call__(self, run): yield", FUNCTION, "has a yield"),
        ("class It:\n    def __call__(self, run): yield\nIt = It()", FUNCTION, "has a yield"),
        *(
            (
                lines(f"before_val = {value}"),
                "",
                f"It.before_val must be a plain method, not a {kind}",
            )
            for value, kind in NO_METHODS.items()
        ),
        (
            lines("@classmethod", "def before_val(cls, run): pass"),
            "",
            "must be a plain method, which takes self",
        ),
        (lines("before_vall = partialmethod(print, 1)"), "", "is named like a point"),
        (
            lines("def before_train(self, *args, **kwargs): pass"),
            "",
            "It.before_train has only *args / **kwargs;",
        ),
        (WRAPPED, "", "has only *args"),
        (f"{WRAPPER}@log\ndef It(run): pass\n", FUNCTION, "w has only *args"),
        *(
            (lines(f"{key} = {value}"), "", f'It.{key} must hold names, as {key} = ("…",)')
            for key in ("after", "before", "requires")
            for value in ("None", "3", "[1]", '"ema"', "property(lambda self: 3)")
        ),
        *(
            (lines(line), "", f"It.{line.partition(' ')[0]} ")
            for line in (
                "points = 3",
                "reads = 3",
                "reads = None",
                "writes = {'after_run': 4}",
                "modules = 3",
            )
        ),
    ],
)
def test_what_would_do_nothing_is_refused(
    tmp_path: Path, code: str, table: str, message: str
) -> None:
    (said,) = faults(tmp_path, code, table)
    assert said.startswith(f"{USE}: ") or table
    assert message in said


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (lines("on_cpu = True", "after_steps: int = 3", "before_val = None"), ""),
        (WRAPPED.replace("    def w", "    @wraps(f)\n    def w"), ""),
        ("It = print", FUNCTION),
        ("class It(nn.Module):\n    forward = None\n    def after_run(self): pass\n", ""),
    ],
)
def test_what_is_sound_is_left_alone(tmp_path: Path, code: str, table: str) -> None:
    assert not faults(tmp_path, code, table)


@pytest.mark.parametrize(
    "name",
    [
        "befor_val",
        "afer_val",
        "aftertrain_epoch",
        "After_val",
        "arround_val",
        "forward_post",
        "full_backward_hook",
    ],
)
def test_a_point_may_be_misspelt_anywhere_in_its_name(tmp_path: Path, name: str) -> None:
    (said,) = faults(tmp_path, lines(f"def {name}(self, run): pass"))
    assert said.startswith(f"{USE}: It.{name} is named like a point")


@pytest.mark.parametrize(
    "name", ["save_checkpoint", "_befor_val", "train_epoch", "save_model", "reset"]
)
def test_other_names_are_left_alone(tmp_path: Path, name: str) -> None:
    assert not faults(tmp_path, lines(f"def {name}(self): pass"))


@pytest.mark.parametrize(
    "code", ["def It(run): pass\n", "class It:\n    def __call__(self, run): pass\nIt = It()\n"]
)
def test_a_function_or_an_object_may_say_where_it_belongs(tmp_path: Path, code: str) -> None:
    assert faults(
        tmp_path, f'{code}It.after = 3\nIt.phase = "lat"\n', 'points = ["after_val"]'
    ) == [
        f"{USE}: It.phase must be one of first, early, normal, late, last, not 'lat'",
        f'{USE}: It.after must hold names, as after = ("…",)',
    ]


def test_a_network_is_a_hook_that_says_no_modules_and_is_not_listed_in_the_file_of_a_hook(
    tmp_path: Path,
) -> None:
    assert faults(tmp_path, "It = nn.Identity")[-1].startswith(f'{USE}: hook "it" ')
    (tmp_path / "h.py").write_text(
        f"{IMPORTS}{lines()}class Net(nn.Module):\n    def forward(self, x): pass\n"
    )
    (tmp_path / "p.toml").write_text(f'{HEAD}[hooks.it]\nuse = "./h.py:It"\n')
    said = hookflow_here("explain", "hooks", "p.toml", cwd=tmp_path).stdout
    assert "./h.py:It" in said
    assert "./h.py:Net" not in said


class TestAnEdgeThatIsWrong:
    def test_of_a_class_it_is_told_once_at_the_use(self, tmp_path: Path) -> None:
        assert faults(tmp_path, lines('after = ("it", "nope", "nope")')) == [
            f'{USE}: hook "it" cannot stand before or after itself (stated by class It)',
            (
                f'{USE}: hook "it" has an edge to "nope", which is not in this pipeline (stated by'
                " class It)"
            ),
        ]

    def test_of_a_function_or_an_object(self, tmp_path: Path) -> None:
        made = "class Made:\n    def __call__(self, run): pass\nIt = Made()\n"
        for code, of in (("def It(run): pass\n", "function It"), (made, "class Made")):
            (said,) = faults(tmp_path, f'{code}It.requires = ["nope"]\n', 'points = ["after_val"]')
            assert (
                said == f'{USE}: hook "it" requires the hook "nope", which is not in this pipeline'
                f" (stated by {of})"
            )


def test_the_points_and_edges_of_a_hook_that_is_not_found_are_looked_at(tmp_path: Path) -> None:
    points = (
        '"after_vall", "forward", { at = "around_val", before = ["nope"] }, { at = "after_run",'
        ' after = ["b"] }'
    )
    other = '[hooks.b]\nuse = "builtins:print"\npoints = [{ at = "after_run", after = ["it"] }]'
    said = faults(tmp_path, "", f"points = [{points}]\n{other}")
    assert sorted(line.partition(": ")[2] for line in said) == [
        '"./h0.py:It": there is no "It" in ./h0.py',
        'hook "it" has an edge to "nope", which is not in this pipeline',
        "ordering cycle: it → b → it at after_run",
        'there is no point "after_vall"',
    ]


@pytest.mark.parametrize(
    ("points", "wrong"),
    [
        ('points = ["after_vall"]', 'there is no point "after_vall"'),
        ('points = ["around_val"]', "a plain function cannot stand around_val; a class can"),
        ("", 'hook "it" is a plain function, which does not say where it belongs'),
    ],
)
def test_where_a_point_is_wrong_its_arguments_are_not_missed(
    tmp_path: Path, points: str, wrong: str
) -> None:
    said = faults(tmp_path, "def It(run, module): pass\n", points)
    assert [line.partition(": ")[2] for line in said] == [wrong]


PIPELINE = circle("max_epochs = 1") + '[hooks.odd]\nuse = "./%s:It"\npoints = ["after_val"]\n'
OF_CLASS = """
class Odd(type):
    def __getattribute__(cls, name):
        look()
        return type.__getattribute__(cls, name)

class It(metaclass=Odd):
    reads = ("model",)

    def after_val(self, run):
        run.log("x", 1.0)
"""
OF_OBJECT = """
class Odd:
    def __getattribute__(self, name):
        look()
        return object.__getattribute__(self, name)

    def __call__(self, run): ...

It = Odd()
"""
IN_CLASS = """
class Odd(type):
    reads = property(lambda cls: look())

class It(metaclass=Odd):
    def after_val(self): ...
"""
LOOKS = """
looks = 0
def look():
    global looks
    looks += 1
    if looks == %s:
        %s
"""
AT_ONCE = "look()\n"
RAISES = (
    "raise KeyboardInterrupt",
    "raise SystemExit(0)",
    "sys.exit(7)",
    "raise GeneratorExit('no')",
)
COMES = "signal.raise_signal(signal.SIGINT)"


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let SIGINT do what it does in a process that nobody else has started otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def looked_at(folder: Path, code: str, at: int, does: str, *command: str) -> tuple[int, str, int]:
    """Run a command over a hook whose look number `at` does something; return its code,
    its errors, and the looks.
    """
    file = f"odd{len([*folder.iterdir()])}.py"
    (folder / file).write_text(f"import signal, sys\n{LOOKS % (at, does)}{code}")
    (folder / "p.toml").write_text(PIPELINE % file)
    told = hookflow_here(
        *(f"./{file}:It" if word == "IT" else word for word in command), cwd=folder
    )
    imported = [
        module
        for module in sys.modules.values()
        if getattr(module, "__file__", "") == str(folder / file)
    ]
    return told.returncode, told.stderr, imported[0].looks if imported else 1


@pytest.mark.parametrize(
    ("code", "does"),
    [*((OF_CLASS, does) for does in RAISES), *((code, RAISES[0]) for code in (IN_CLASS, AT_ONCE))],
)
def test_whatever_it_raises_is_a_problem(tmp_path: Path, code: str, does: str) -> None:
    status, told, _ = looked_at(tmp_path, code, 1, does, "check", "p.toml")
    kind = (
        "KeyboardInterrupt"
        if "Keyboard" in does
        else "GeneratorExit"
        if "Generator" in does
        else "SystemExit"
    )
    assert status == 2
    assert told.startswith("p.toml:11:")
    assert kind in told


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("does", "command"), [(RAISES[0], ("check", "p.toml")), (RAISES[1], ("explain", "IT"))]
)
@pytest.mark.parametrize("code", [OF_CLASS, OF_OBJECT], ids=["class", "object"])
def test_at_whichever_look(
    tmp_path: Path, code: str, command: tuple[str, ...], does: str, step: int
) -> None:
    for at in count(1, step):
        status, told, looks = looked_at(tmp_path, code, at, does, *command)
        if looks < at:
            break
        assert (status, "raises" in told) == (2, True), (at, status, told)
    assert at > 20, "it was looked at"
    assert status == 0


@pytest.mark.parametrize("code", [OF_CLASS, OF_OBJECT, AT_ONCE], ids=["class", "object", "file"])
def test_ctrl_c_is_still_the_end_of_it(tmp_path: Path, code: str) -> None:
    assert looked_at(tmp_path, code, 1, COMES, "check", "p.toml")[0] == 130


PORTED = (
    circle("max_epochs = 1", "default_hooks = false")
    + '[hooks.ported]\nuse = "./ported.py:Ported"\n'
)
LIGHTNING = "class Callback:\n" + "".join(
    f"    def {name}(self, trainer, pl_module): pass\n"
    for adapter in load_all_adapters()
    if adapter.names.framework == "Lightning"
    for name in adapter.names.members
)
CASES = {
    "MMEngine": (
        (
            "class Ported:\n    def after_train_iter(self, runner, batch_idx, data_batch=None,"
            " outputs=None): pass\n"
        ),
        "Ported has names of MMEngine, which mean nothing here: runner, data_batch",
        ["runner → run", "data_batch → batch"],
    ),
    "Lightning": (
        (
            "import lightning.pytorch as pl\nclass Ported(pl.Callback):\n    def"
            " on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):"
            " print(trainer)\n"
        ),
        "Ported is a hook of Lightning (lightning.pytorch.Callback)",
        ["on_train_batch_end → after_train_iter", "trainer → run", "pl_module → run.model"],
    ),
    "nothing of its own": (
        "import lightning.pytorch as pl\nclass Ported(pl.Callback):\n    pass\n",
        "Ported is a hook of Lightning (lightning.pytorch.Callback)",
        ["any class with methods named like points"],
    ),
}


@pytest.fixture
def lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a package that is not installed, found from the current folder."""
    package = tmp_path / "packages" / "lightning"
    (package / "pytorch").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pytorch" / "__init__.py").write_text(LIGHTNING)
    for name in ("lightning.pytorch", "lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    # A hook's process would import these files again, and cannot.
    monkeypatch.setattr(use, "_imported", {})
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(PORTED)


def problems(*, imports: bool) -> list[Problem]:
    with pytest.raises(UserError) as refused:
        compile_pipeline(load(Path("p.toml")), imports=imports)
    return refused.value.problems


@pytest.mark.usefixtures("lightning")
@pytest.mark.parametrize("case", CASES)
def test_a_ported_hook_is_refused_in_one_sentence_wherever_it_is_looked_at(case: str) -> None:
    source, said, hints = CASES[case]
    Path("ported.py").write_text(source)
    imported = problems(imports=True)
    assert [problem.message for problem in imported] == [said]
    assert all(hint in imported[0].hint for hint in hints)
    described = hookflow_here("explain", "./ported.py:Ported", cwd=Path.cwd())
    assert said in described.stdout + described.stderr
    assert hints[0] in described.stdout + described.stderr


def test_what_the_table_calls_a_point_is_one() -> None:
    members = {
        theirs: ours
        for adapter in load_all_adapters()
        for theirs, ours in adapter.names.members.items()
    }
    assert {name for ours in members.values() for name in ours.split(", ") if name} - {
        "phase"
    } <= set(DEFAULT_POINTS.names)
    assert not members.keys() & set(DEFAULT_POINTS.names), "a name of ours needs no other"


@pytest.mark.parametrize("name", ["after_warmup", "on_plateau", "after_step"])
def test_a_helper_named_like_a_point_has_two_ways_out(tmp_path: Path, name: str) -> None:
    helper = f"def {name}(self): pass"
    assert len(faults(tmp_path, lines(helper))) == 1
    assert not faults(tmp_path, lines(f"def _{name}(self): pass"))
    assert not faults(tmp_path, lines('points = ("after_run",)', helper))
    base = lines('points = ("after_run",)').replace("It", "Base")
    below = f"{base}class It(Base):\n    {helper}\n"
    assert len(faults(tmp_path, below)) == 1, (
        "a base that lists its points says nothing of what is added below it"
    )


@pytest.mark.parametrize(
    ("value", "is_warned"),
    [
        ("self.helper()", False),
        ("self.twice()", False),
        ("self.seen.append(1)", False),
        ("print(1)", False),
        ("None if batch else self.helper()", False),
        ("self.made()", True),
        ("batch", True),
        ("batch.to('cpu')", True),
    ],
)
def test_a_return_of_nothing_is_no_warning(tmp_path: Path, value: str, is_warned: bool) -> None:
    more = (
        "    def helper(self): self.n = 1\n    def twice(self): return self.helper()\n    def"
        " made(self): return 3\n"
    )
    code = (
        f"class It:\n    seen = []\n{more}    def before_train_iter(self, run, batch): return"
        f" {value}\n"
    )
    warnings = compile_pipeline(pipeline_with(tmp_path, IMPORTS + code, "")).warnings
    assert [
        warning for warning in warnings if "returns a value" in warning.message
    ] != [] or not is_warned
    assert is_warned or not warnings


@pytest.mark.parametrize(
    ("package", "base", "method", "ours"),
    [
        ("keras.callbacks", "Callback", "on_epoch_end", "after_train_epoch"),
        ("keras.src.callbacks.callback", "Callback", "on_train_batch_end", "after_train_iter"),
        ("fastai.callback.core", "Callback", "after_batch", "after_train_iter"),
        ("fastai.callback.core", "Callback", "after_validate", "after_val"),
        ("composer.core.callback", "Callback", "batch_end", "after_train_iter"),
        ("composer.core.callback", "Callback", "eval_end", "after_val"),
        ("composer.core.algorithm", "Algorithm", "apply", "nothing"),
    ],
)
def test_a_class_of_another_framework_is_translated(
    tmp_path: Path, package: str, base: str, method: str, ours: str
) -> None:
    code = (
        f"Base = type('{base}', (), {{'__module__': '{package}'}})\nclass It(Base):\n    def"
        f" {method}(self, *a): pass\n"
    )
    with pytest.raises(UserError) as refused:
        compile_pipeline(pipeline_with(tmp_path, IMPORTS + code, ""))
    (problem,) = refused.value.problems
    assert f"{method} → " in problem.hint
    assert ours in problem.hint


COMPOSER_SHAPED = """
class It:
    def batch_end(self, state, logger): pass
    def eval_end(self, state, logger): pass
    def close(self): pass
"""


def test_a_class_in_the_shape_of_another_framework_is_translated(tmp_path: Path) -> None:
    """Composer's methods are called by words without `on_`, `before_` or `after_`."""
    with pytest.raises(UserError) as refused:
        compile_pipeline(pipeline_with(tmp_path, COMPOSER_SHAPED, ""))
    (problem,) = refused.value.problems
    assert "has names of Composer" in problem.message
    for pair in ("batch_end → after_train_iter", "eval_end → after_val", "state → run"):
        assert pair in problem.hint


@pytest.mark.parametrize(
    "method", ["def close(self)", "def batch_end(self, batch)", "def go(state)"]
)
def test_a_class_with_such_words_alone_is_none_of_a_framework(tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError) as refused:
        compile_pipeline(pipeline_with(tmp_path, f"class It:\n    {method}: pass\n", ""))
    (problem,) = refused.value.problems
    assert "no method named like a point" in problem.message


@pytest.mark.parametrize(
    ("stated", "ours"),
    [
        ("EPOCH_COMPLETED", "after_train_epoch"),
        ("Events.EPOCH_STARTED", "before_train_epoch"),
        ("ITERATION_STARTED", "before_train_iter"),
        ("iteration_completed", "after_train_iter"),
        ("GET_BATCH_STARTED", "before_fetch"),
        ("Events.STARTED", "before_train"),
        ("COMPLETED", "after_train"),
        ("EXCEPTION_RAISED", "on_exception"),
        ("on_step_end", "after_train_iter"),
        ("on_train_batch_start", "before_train_iter"),
        ("after_train_itre", ""),
    ],
)
def test_a_point_by_the_name_of_another_framework_is_translated(
    tmp_path: Path, stated: str, ours: str
) -> None:
    loaded = pipeline_with(tmp_path, "def It(run): pass\n", f'points = ["{stated}"]')
    with pytest.raises(UserError, match="there is no point") as refused:
        compile_pipeline(loaded)
    (problem,) = refused.value.problems
    if ours:
        assert problem.hint.endswith(f"{stated} → {ours}") and ours in DEFAULT_POINTS.names
    else:
        assert problem.hint == 'did you mean "after_train_iter"?'


def test_methods_named_like_events_of_ignite_are_translated(tmp_path: Path) -> None:
    code = "class It:\n    def epoch_completed(self, engine): pass\n    def completed(self): pass\n"
    with pytest.raises(UserError) as refused:
        compile_pipeline(pipeline_with(tmp_path, code))
    (problem,) = refused.value.problems
    assert problem.hint == "in hookflow: epoch_completed → after_train_epoch; engine → run"


def test_a_class_without_a_module_is_looked_at(tmp_path: Path) -> None:
    assert not faults(
        tmp_path,
        f"{lines('def before_train_iter(self, batch): return None')}It.__module__ = None\n",
    )
    code = (
        "class It:\n    def before_train_iter(self, batch): return"
        " batch\nIt.before_train_iter.__module__ = None\n"
    )
    assert not faults(tmp_path, code)
