"""What can be wrong with a hook's class or function without Python saying so: each is told before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import hookflow_here

HEAD = """
run = { name = "troubles", max_epochs = 1 }
model.use = "torch.nn:Identity"
optimizer.use = "torch.optim:SGD"
data.train.use = "cifar10"
"""
IMPORTS = "from enum import Enum\nfrom functools import *\nfrom pathlib import Path\nfrom torch import nn\n"


def faults(folder: Path, code: str, table: str = "") -> list[str]:
    """Return what is said of the hook `It` of a file of this code."""
    file = f"h{len(list(folder.iterdir()))}.py"  # a file is imported once
    (folder / file).write_text(IMPORTS + code)
    text = f'{HEAD}[hooks.it]\nuse = "./{file}:It"\n{table}\n'
    try:
        compile_pipeline(parse(text, folder / "p.toml"))
    except UserError as error:
        return [f"{problem.where.line if problem.where else ''}: {problem.message}" for problem in error.problems]
    return []


def of_class(folder: Path, *lines: str, bases: str = "", table: str = "") -> list[str]:
    """Return what is said of a class with these lines beside a sound method."""
    body = "".join(f"    {line}\n" for line in (*lines, "def after_run(self): pass"))
    return faults(folder, f"class It({bases}):\n{body}", table)


USE = 7
"""The line of `use`."""


class TestWhatWouldDoNothing:
    def test_a_generator_that_is_no_around(self, tmp_path: Path) -> None:
        (said,) = of_class(tmp_path, "def after_val(self, run): yield")
        assert said == f"{USE}: It.after_val has a yield, so that calling it would do nothing"

    @pytest.mark.parametrize("code", ["def It(run): yield", "It = partial((lambda x, run: (yield)), 1)"])
    def test_a_function_that_yields(self, tmp_path: Path, code: str) -> None:
        (said,) = faults(tmp_path, code, 'points = ["after_val"]')
        assert "has a yield" in said

    @pytest.mark.parametrize("code", ["async def It(run): pass", "async def It(run): yield"])
    def test_a_function_that_is_async(self, tmp_path: Path, code: str) -> None:
        (said,) = faults(tmp_path, code, 'points = ["after_val"]')
        assert "It is async" in said

    @pytest.mark.parametrize("end", ["", "\nIt = It()"])
    def test_an_object_whose_call_yields(self, tmp_path: Path, end: str) -> None:
        (said,) = faults(tmp_path, f"class It:\n    def __call__(self, run): yield{end}", 'points = ["after_val"]')
        assert "has a yield" in said


class TestWhatIsNoMethod:
    @pytest.mark.parametrize(
        ("line", "kind"),
        [
            ("before_val = lru_cache(lambda self: 1)", "_lru_cache_wrapper"),
            ("before_val = partial(print, 1)", "partial"),
            ("before_val = partialmethod(print, 1)", "partialmethod"),
            ("before_val = property(lambda self: 1)", "property"),
            ("before_val = 3", "int"),
        ],
    )
    def test_at_a_point_it_is_refused(self, tmp_path: Path, line: str, kind: str) -> None:
        assert of_class(tmp_path, line) == [f"{USE}: It.before_val must be a plain method, not a {kind}"]

    def test_a_class_method_is_refused(self, tmp_path: Path) -> None:
        (said,) = of_class(tmp_path, "@classmethod", "def before_val(cls, run): pass")
        assert "must be a plain method, which takes self" in said

    def test_a_misspelt_one_is_no_less_misspelt(self, tmp_path: Path) -> None:
        (said,) = of_class(tmp_path, "before_vall = partialmethod(print, 1)")
        assert "is named like a point" in said

    def test_values_that_begin_like_a_point_are_none(self, tmp_path: Path) -> None:
        assert not of_class(tmp_path, "on_cpu = True", "after_steps: int = 3", "before_val = None")


@pytest.mark.parametrize(
    "name",
    ["befor_val", "afer_val", "aftertrain_epoch", "After_val", "arround_val", "forward_post", "full_backward_hook"],
)
def test_a_point_may_be_misspelt_anywhere_in_its_name(tmp_path: Path, name: str) -> None:
    (said,) = of_class(tmp_path, f"def {name}(self, run): pass")
    assert said == f"{USE}: It.{name} is named like a point, but there is no such point"


@pytest.mark.parametrize("name", ["save_checkpoint", "_befor_val", "train_epoch", "save_model", "reset", "state_dict"])
def test_other_names_are_left_alone(tmp_path: Path, name: str) -> None:
    assert not of_class(tmp_path, f"def {name}(self): pass")


class TestWhatTakesAnything:
    WRAPPER = "def log(f):\n    def w(*a, **k): return f(*a, **k)\n    return w\n"

    def test_a_method_is_refused(self, tmp_path: Path) -> None:
        assert of_class(tmp_path, "def before_train(self, *args, **kwargs): pass") == [
            f"{USE}: It.before_train has only *args / **kwargs; name the arguments"
        ]

    def test_a_decorator_that_hides_the_method_is_refused(self, tmp_path: Path) -> None:
        code = f"{self.WRAPPER}class It:\n    @log\n    def after_run(self, run): pass\n"
        (said,) = faults(tmp_path, code)
        assert "has only *args" in said
        assert not faults(tmp_path, code.replace("    def w", "    @wraps(f)\n    def w"))

    def test_a_function_is_refused_unless_it_is_of_python_itself(self, tmp_path: Path) -> None:
        (said,) = faults(tmp_path, f"{self.WRAPPER}@log\ndef It(run): pass\n", 'points = ["after_val"]')
        assert "w has only *args" in said
        assert not faults(tmp_path, "It = print", 'points = ["after_val"]')


class TestWhatItSaysOfItsPlace:
    @pytest.mark.parametrize("value", ["None", "3", "[1]", '"ema"', "property(lambda self: 3)"])
    @pytest.mark.parametrize("key", ["after", "before", "requires"])
    def test_a_class_that_holds_no_names(self, tmp_path: Path, key: str, value: str) -> None:
        (said,) = of_class(tmp_path, f"{key} = {value}")
        assert said == f'{USE}: It.{key} must hold names, as {key} = ("…",)'

    @pytest.mark.parametrize(
        "code", ["def It(run): pass\n", "class It:\n    def __call__(self, run): pass\nIt = It()\n"]
    )
    def test_a_function_or_an_object(self, tmp_path: Path, code: str) -> None:
        assert faults(tmp_path, f'{code}It.after = 3\nIt.phase = "lat"\n', 'points = ["after_val"]') == [
            f"{USE}: It.phase must be one of first, early, normal, late, last, not 'lat'",
            f'{USE}: It.after must hold names, as after = ("…",)',
        ]

    @pytest.mark.parametrize("line", ["points = 3", "reads = 3", "reads = None", "writes = {3: 4}", "modules = 3"])
    def test_other_attributes(self, tmp_path: Path, line: str) -> None:
        assert of_class(tmp_path, line)[0].startswith(f"{USE}: It.{line.partition(' ')[0]} ")

    def test_a_network_is_a_hook_that_does_not_say_at_which_modules(self, tmp_path: Path) -> None:
        assert (
            faults(tmp_path, "It = nn.Identity")[-1] == f'{USE}: hook "it" does not say at which modules forward fires'
        )
        assert not of_class(tmp_path, "forward = None", bases="nn.Module")


def test_a_wrong_hook_is_told_of_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text('class It:\n    after = [1]\n    phase = "lat"\n    def after_run(self): pass\n')
    said = hookflow_here("explain", "./h.py:It", cwd=tmp_path).stdout
    assert "wrong: It.after must hold names" in said


def test_a_network_in_the_file_of_a_hook_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(
        f"{IMPORTS}class It:\n    def after_run(self): pass\nclass Net(nn.Module):\n    def forward(self, x): pass\n"
    )
    (tmp_path / "p.toml").write_text(f'{HEAD}[hooks.it]\nuse = "./h.py:It"\n')
    said = hookflow_here("explain", "hooks", "p.toml", cwd=tmp_path).stdout
    assert "./h.py:It" in said
    assert "./h.py:Net" not in said


class TestAnEdgeThatIsWrong:
    def test_of_a_class_it_is_told_once_at_the_use(self, tmp_path: Path) -> None:
        assert of_class(tmp_path, 'after = ("it", "nope", "nope")') == [
            f'{USE}: hook "it" cannot stand before or after itself (stated by class It)',
            f'{USE}: hook "it" has an edge to "nope", which is not in this pipeline (stated by class It)',
        ]

    @pytest.mark.parametrize(
        ("code", "of"),
        [
            ("def It(run): pass\n", "function It"),
            ("class Made:\n    def __call__(self, run): pass\nIt = Made()\n", "class Made"),
        ],
    )
    def test_of_a_function_or_an_object(self, tmp_path: Path, code: str, of: str) -> None:
        (said,) = faults(tmp_path, f'{code}It.requires = ["nope"]\n', 'points = ["after_val"]')
        assert said == f'{USE}: hook "it" requires the hook "nope", which is not in this pipeline (stated by {of})'


def test_the_points_and_edges_of_a_hook_that_is_not_found_are_looked_at(tmp_path: Path) -> None:
    points = '"after_vall", "forward", { at = "around_val", before = ["nope"] }, { at = "after_run", after = ["b"] }'
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
def test_where_a_point_is_wrong_what_it_would_give_a_function_is_not_missed(
    tmp_path: Path, points: str, wrong: str
) -> None:
    said = faults(tmp_path, "def It(run, module): pass\n", points)
    assert [line.partition(": ")[2] for line in said] == [wrong]
