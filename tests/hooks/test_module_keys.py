"""The keys of hooks inside the network: what they come to in the plan,
and each mistake in them with its place.
"""

from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.graph.render.text import list_marks
from hookflow.graph.why import find_precedence
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded, parse
from tests.conftest import TESTS
from tests.support.golden_files import check_cases

HEAD = """\
run = { name = "keys", max_epochs = 1, default_hooks = false }
model.use = "torch.nn:Identity"
optimizer.use = "torch.optim:SGD"
data.train.use = "cifar10"
"""
PROBES = 'use = "./common_hooks.py:Probes"\nargs.file = "notes"\nmodules = ["*"]\n'
"""A class with a method for each point inside the network."""


def loaded(*tables: str, head: str = HEAD) -> Loaded:
    """Return a pipeline whose hooks are called a, b, c, …; the first table begins in line 5."""
    text = "".join(f"[hooks.{name}]\n{table}" for name, table in zip("abc", tables, strict=False))
    return parse(head + text, TESTS / "support" / "keys.toml")


def plan(*tables: str, head: str = HEAD) -> Plan:
    return compile_pipeline(loaded(*tables, head=head))


def wrong(*tables: str, head: str = HEAD) -> list[str]:
    with pytest.raises(UserError) as raised:
        plan(*tables, head=head)
    return [f"{p.where and p.where.line}: {p.message} ({p.hint})" for p in raised.value.problems]


def one(use: str, *lines: str) -> str:
    return f'use = "./pytorch_hooks.py:{use}"\n' + "".join(f"{line}\n" for line in lines)


MISTAKES = {
    "stages at no point of a module": one(
        "step", 'points = ["after_train_iter"]', 'stages = ["val"]'
    ),
    "each of these keys there": (
        'use = "builtins:print"\npoints = ["after_run"]\nprepend = true\nalways_call = true\n'
    ),
    "beside such a point": (
        'use = "builtins:print"\npoints = [{ at = "after_run", prepend = true, stages = ["val"]'
        " }]\n"
    ),
    "always_call at another point": one(
        "full_backward",
        'points = [{ at = "full_backward", always_call = true }]',
        'modules = ["*"]',
    ),
    "always_call for the whole hook, at other points": one(
        "full_backward", 'points = ["full_backward"]', 'modules = ["*"]', "always_call = true"
    ),
    "gradients where there are none": PROBES + 'stages = ["val"]\n',
    "gradients there beside the point": one(
        "full_backward",
        'points = [{ at = "full_backward", stages = ["train", "test"] }]',
        'modules = ["*"]',
    ),
    "no effect beside the points' own": one(
        "forward",
        'points = [{ at = "forward", stages = ["val"] }]',
        'modules = ["*"]',
        'stages = ["train"]',
    ),
    "what the point offers": one(
        "forward", 'points = ["forward"]', 'modules = ["*"]', "args = { input = 1 }"
    ),
    "a stage that is none": one(
        "forward", 'points = ["forward"]', 'modules = ["*"]', 'stages = ["valid"]'
    ),
}


def test_mistakes_are_told_with_their_lines() -> None:
    check_cases("module-mistakes.txt", {case: wrong(table) for case, table in MISTAKES.items()})


@pytest.mark.parametrize(
    ("function", "unknown"),
    [
        ("misplaced", ["inp"]),
        ("metrics_wanted", ["inp", "metrics"]),
        ("two_of_three", ["m", "i"]),
        ("by_name_alone", ["m", "i", "o"]),  # behind a star
    ],
)
def test_names_of_its_own_are_refused_where_it_is_unclear_what_they_mean(
    function: str, unknown: list[str]
) -> None:
    told = wrong(one(function, 'points = ["forward"]', 'modules = ["*"]'))
    assert [line.partition(": ")[2].partition(" (")[0] for line in told] == [
        f'{function} asks for "{name}", which forward does not offer' for name in unknown
    ]
    in_order = (
        "by position, as PyTorch does: (module, input, output) or (module, args, kwargs, output)"
    )
    assert any(in_order in line or "did you mean" in line for line in told)


@pytest.mark.parametrize(
    ("args", "takes"),
    [("args.scale = 0.1", ("module", "grad_input", "grad_output")), ("args = [0.1]", ())],
)
def test_names_of_its_own_beside_arguments_of_the_file(args: str, takes: tuple[str, ...]) -> None:
    """A list would fill them, too, so it is refused."""
    table = one("terse_full_backward", 'points = ["full_backward"]', 'modules = ["*"]', args)
    if takes:
        assert plan(table).bindings[0].takes == takes
    else:
        assert any("which full_backward does not offer" in line for line in wrong(table))


def test_torch_compile_does_not_honour_always_call() -> None:
    table = one("forward", 'points = ["forward"]', 'modules = ["*"]', "always_call = true")
    (told,) = wrong(table, head=HEAD.replace("max_epochs", "compile = true, max_epochs"))
    assert (
        told == '9: hook "a": torch.compile does not honour always_call (take it out, or take'
        " run.compile out)"
    )


def test_methods_have_the_usual_signatures_or_names_of_their_own(tmp_path: Path) -> None:
    methods = {
        "forward": "m, i, o",
        "forward_pre": "module, input",
        "full_backward": "module, grad_input, grad_output",
        "parameter_grad": "g",
        "optimizer_step_pre": "opt, args, kwargs",
    }
    body = "".join(f"    def {point}(self, {names}): ...\n" for point, names in methods.items())
    (tmp_path / "own.py").write_text(
        f"class Own:\n    modules = ('*',)\n    parameters = ('*',)\n{body}"
        "class Called:\n    def __call__(self, module, args, kwargs, output): ...\n"
    )
    called = '[hooks.b]\nuse = "./own.py:Called"\npoints = ["forward"]\nmodules = ["*"]\n'
    compiled = compile_pipeline(
        parse(f'{HEAD}[hooks.a]\nuse = "./own.py:Own"\n{called}', tmp_path / "keys.toml")
    )
    takes = {
        (binding.hook, binding.point): " ".join(binding.takes) for binding in compiled.bindings
    }
    assert takes == {
        ("a", "forward"): "module input output",
        ("b", "forward"): "module args kwargs output",
        ("a", "forward_pre"): "module input",
        ("a", "full_backward"): "module grad_input grad_output",
        ("a", "parameter_grad"): "grad",
        ("a", "optimizer_step_pre"): "optimizer args kwargs",
    }


def test_the_plan_holds_them_and_every_drawing_says_them() -> None:
    keys = (
        'modules = ["type:Linear"]',
        'stages = ["val", "test"]',
        "prepend = true",
        "always_call = true",
    )
    compiled = plan(one("forward_kwargs", 'points = ["forward"]', *keys))
    (binding,) = compiled.bindings
    assert (binding.stages, binding.prepend, binding.always_call) == (("val", "test"), True, True)
    assert list_marks(compiled, binding) == [
        "on type:Linear",
        "in val, test",
        "prepended",
        "always called",
    ]
    assert Plan.from_json(compiled.to_json()) == compiled


def test_stages_of_a_hook_leave_its_gradients_to_training() -> None:
    compiled = plan(PROBES + 'stages = ["train", "val"]\n')
    assert {binding.point: binding.stages for binding in compiled.bindings} == {
        "forward_pre": ("train", "val"),
        "forward": ("train", "val"),
        "full_backward_pre": (),
        "full_backward": (),
    }


def at_forward(*lines: str) -> str:
    return one("forward", 'points = ["forward"]', 'modules = ["*"]', *lines)


def test_what_is_prepended_comes_first_and_an_edge_against_it_is_a_cycle() -> None:
    compiled = plan(at_forward(), at_forward("prepend = true"), at_forward("prepend = true"))
    assert compiled.order["forward"] == ("b", "c", "a")
    edges = {(edge.first, edge.then): edge.where.rpartition("/")[2] for edge in compiled.edges}
    assert edges == {("b", "a"): "keys.toml:13", ("c", "a"): "keys.toml:18"}
    assert not compiled.warnings
    (answer,) = find_precedence(compiled, "b", "a")
    assert (answer.point, answer.first.hook) == ("forward", "b")
    with pytest.raises(UserError, match="ordering cycle") as raised:
        plan(at_forward('before = ["b"]'), at_forward("prepend = true"))
    assert "keys.toml:9:11" in str(raised.value)
    assert "keys.toml:14:1" in str(raised.value)
