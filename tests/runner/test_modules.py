"""Hooks inside the network: where they fire, in which order, and against PyTorch call by call."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.runner.builder.components import RunComponents
from hookflow.runner.loop.trainer import Trainer
from hookflow.trials.temporary_run import with_checkpoint
from tests.conftest import TOY, NewRun, Train, Trained, messages, reason, records, strikes
from tests.support import pytorch_hooks
from tests.support.toy import Net

SWAP = ("max_epochs = 3", "max_iters = 1")


class Notes:
    """Notes in a file each call at `forward`: who is called, for which module,
    after how many iterations, where.
    """

    def __init__(self, file: str, who: str = "probe") -> None:
        self.file, self.who = Path(file), who

    def forward(self, run: Any, name: str) -> None:
        self.note(f"{self.who} {name or 'net'} {run.iter} {run.stage}")

    def note(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")


class Once(Notes):
    def forward(self, run: Any, name: str) -> None:
        with run.handle as handle:
            super().forward(run, name)
            ids = handle.id, run.handle.id, run.handles["probe"].id
            assert isinstance(handle, RemovableHandle) and ids[0] == ids[1] != ids[2]


class NotesModel(Notes):
    def after_train_iter(self, run: Any) -> None:
        held = {name: len(module._forward_hooks) for name, module in run.model.named_modules()}
        self.note(
            f"{run.iter}: {' '.join(f'{name}={n}' for name, n in held.items() if n)}".rstrip()
        )

    forward = None  # type: ignore[assignment]


def registers_by_hand(run: Any) -> None:
    run.model.head.register_forward_hook(lambda *given: run.say(f"{run.iter} by hand"))
    run.model.head.register_forward_hook(
        lambda *given: run.say(f"{run.iter} by hand, prepended"), prepend=True
    )


def says(run: Any, text: str) -> None:
    run.say(f"{run.iter} {text}")


def elsewhere(run: Any) -> None:
    run.handle.remove()


def notes(tmp_path: Path, who: str = "probe", use: str = "Notes", **keys: object) -> str:
    written = "".join(f", {key.rstrip('_')}={value}" for key, value in keys.items())
    args = f'{{file="{tmp_path / "notes"}", who="{who}"}}'
    return f'hooks.{who}={{use="tests.runner.test_modules:{use}", args={args}{written}}}'


def noted(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


PICKED = {
    '["*"]': ["body.0", "body.1", "body.2", "body.3", "body", "head", "net"],
    '["body.?"]': ["body.0", "body.1", "body.2", "body.3"],
    '["head", "*.[02]"]': ["body.0", "body.2", "head"],
    '["type:Linear"]': ["body.0", "head"],
    '["type:_BatchNorm", "head"]': ["body.1", "head"],
    '["type:*Norm1d"]': ["body.1"],
}


def test_globs_and_classes_pick_modules(trained: Trained, tmp_path: Path) -> None:
    hooks = [notes(tmp_path, f"p{k}", modules=globs) for k, globs in enumerate(PICKED)]
    trained(*hooks, swap=SWAP)
    lines = [line.split() for line in noted(tmp_path)]
    picked = {
        globs: [name for who, name, *_ in lines if who == f"p{k}"] for k, globs in enumerate(PICKED)
    }
    assert picked == PICKED


NO_MATCH = {
    "hed": 'no module of the network matches "hed"\n    did you mean "head"?',
    "layer*": 'no module of the network matches "layer*"\n    there are body, body.0,',
    "type:Liner": 'no module of the network is a "Liner"\n    did you mean "Linear"?',
    "type:Conv3d": (
        'no module of the network is a "Conv3d"\n    there are Net, Sequential, Linear,'
        " BatchNorm1d, GELU"
    ),
    "type:torch.nn:Linear": (
        'no module of the network is a "torch.nn:Linear"\n    did you mean "Linear"?'
    ),
}


def test_all_that_picks_nothing_is_told_at_once_with_the_nearest(
    trained: Trained, tmp_path: Path
) -> None:
    hooks = [
        notes(tmp_path, f"p{k}", modules=f'["head", "{glob}"]') for k, glob in enumerate(NO_MATCH)
    ]
    text = reason(trained(*hooks, "optimizer.groups=[{match='bodi*'}]", code=2))
    for k, told in enumerate(NO_MATCH.values()):
        assert f"--set hooks.p{k}" in text and told in text
    assert 'hook "p0" at forward: no module' in text
    assert '"bodi*" matches no parameter' in text


ITERS = ("max_epochs = 3", "max_iters = 6")
OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}]'


# Stages.


def test_they_fire_in_the_stages_that_are_named(trained: Trained, tmp_path: Path) -> None:
    """Before the training there is the sanity check, in which none fires."""
    stages = {"one": ["train"], "two": ["val"], "three": ["val", "test"]}
    hooks = [
        notes(tmp_path, who, modules='["head"]', stages=named) for who, named in stages.items()
    ]
    trained(*hooks, "run.test=true", "run.val_every=3", swap=ITERS)
    first, second = ([f"{k} train" for k in range(begin, begin + 3)] for begin in (0, 3))
    in_order = [*first, *["3 val"] * 2, *second, *["6 val"] * 2, *["6 test"] * 2]
    for who, named in stages.items():
        expected = [f"{who} head {line}" for line in in_order if line.split()[-1] in named]
        assert [line for line in noted(tmp_path) if line.startswith(f"{who} ")] == expected


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_checkpoint_is_evaluated_with_those_of_its_stage(
    trained: Trained, tmp_path: Path, split: str
) -> None:
    hooks = (
        notes(tmp_path, "a", modules='["head"]', stages='["val"]'),
        notes(tmp_path, "b", modules='["head"]', stages='["test"]'),
    )
    run_dir = trained(*hooks, notes(tmp_path, "c", modules='["head"]', until=2), "run.max_epochs=1")
    (tmp_path / "notes").unlink()
    (checkpoint,) = run_dir.checkpoints.glob("it*")
    with_checkpoint(Trainer.evaluate, run_dir, checkpoint, split, (), lambda text, level: None)  # type: ignore[arg-type]
    assert noted(tmp_path) == [f"{'a' if split == 'val' else 'b'} head 5 {split}"] * 2


# Triggers.


def test_an_idle_one_is_not_registered(trained: Trained, tmp_path: Path) -> None:
    model = (
        f'hooks.model={{use="tests.runner.test_modules:NotesModel",'
        f' args={{file="{tmp_path / "held"}"}}}}'
    )
    more = (
        notes(tmp_path, modules='["head", "body"]', every=3),
        notes(tmp_path, "late", modules='["head"]', from_=4),
    )
    val = notes(tmp_path, "val", modules='["head"]', stages='["val"]')
    trained(model, *more, val, "run.val_every=6", swap=ITERS)
    held = ["1: body=1 head=1", "2:", "3:", "4: body=1 head=1", "5: head=1", "6: head=1"]
    assert (tmp_path / "held").read_text().splitlines() == held
    fired = [f"probe {name} {k} train" for k in (0, 3) for name in ("body", "head")]
    late = [f"late head {k} train" for k in (4, 5)]
    assert noted(tmp_path) == [*fired, *late, "val head 6 val", "val head 6 val"]


class Own(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.register_forward_hook(lambda *given: None)


@pytest.mark.parametrize("own", [True, False])
def test_the_order_is_the_same_whatever_has_been_idle(trained: Trained, own: bool) -> None:
    model = [f'model.use="{Path(__file__)}:Own"'] if own else []
    at = 'points=["forward"], modules=["head"]'
    hooks = [
        f'hooks.one={{use="tests.runner.test_modules:says", args={{text="first"}}, every=2, {at}}}',
        f'hooks.two={{use="tests.runner.test_modules:says", args={{text="second"}}, {at}}}',
        f'hooks.three={{use="tests.runner.test_modules:says", args={{text="third"}}, every=3,'
        f" {at}}}",
        'hooks.manual={use="tests.runner.test_modules:registers_by_hand", points=["before_train"]}',
    ]
    run_dir = trained(*model, *hooks, "run.sanity=false", "run.val_every=9", swap=ITERS)
    due = {"first": (0, 2, 4), "second": range(6), "third": (0, 3)}
    expected = []
    for k in range(6):
        ours = [name for name, when in due.items() if k in when]
        expected += [f"{k} {name}" for name in ("by hand, prepended", *ours, "by hand")]
    assert [line for line in messages(run_dir) if line[:2].strip().isdigit()][
        : len(expected)
    ] == expected


@pytest.mark.parametrize("trigger", ['when="iter > 1"', "every=4, from=1"])
def test_a_resumed_run_fires_as_another_does(resumes_alike: NewRun, trigger: str) -> None:
    """Also between a validation and the next iteration, which one answer of a trigger holds for."""
    where = f'points=["forward"], modules=["head"], stages=["train", "val"], {trigger}'
    halves = f'hooks.halves={{use="./common_hooks.py:halves", {where}}}'
    resumes_alike(halves, OFTEN, "run.val_every=2", point="after_val", at=2, swap=ITERS)


# Handles.


def test_one_that_takes_itself_off_is_called_once_for_each_module(
    trained: Trained, tmp_path: Path
) -> None:
    model = (
        'hooks.model={use="tests.runner.test_modules:NotesModel",'
        f' args={{file="{tmp_path / "held"}"}}}}'
    )
    once = notes(tmp_path, use="Once", modules='["body.0", "head"]')
    trained(once, notes(tmp_path, "stays", modules='["head"]'), model, "run.max_epochs=1")
    assert [line for line in noted(tmp_path) if "probe" in line] == [
        "probe body.0 0 train",
        "probe head 0 train",
    ]
    assert len(noted(tmp_path)) == 2 + 5
    assert (tmp_path / "held").read_text().splitlines() == [f"{k}: head=1" for k in range(1, 6)]


@pytest.mark.parametrize("use", ["Once", "Notes"])
def test_a_resumed_run_remembers_removed_hooks(
    trained: Trained, train_here: Train, tmp_path: Path, use: str
) -> None:
    removes = 'hooks.removes={use="./common_hooks.py:Removes", args={hook="probe", at=2}}'
    hook = notes(tmp_path, use=use, modules='["body.0", "head"]', from_=1)
    struck = strikes(tmp_path, 15, ("after_train_iter", 3))
    run_dir = trained(hook, *[removes] * (use == "Notes"), OFTEN, *struck, code=143)
    assert train_here(run_dir, resume=True) == 0
    assert noted(tmp_path) == ["probe body.0 1 train", "probe head 1 train"]
    assert any(line.startswith('the hook "probe" remains removed') for line in messages(run_dir))


def test_a_run_that_never_began_has_no_hook(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = []

    def fails(parts: RunComponents, *_: object) -> None:
        hooks = [module._forward_hooks for module in parts.model.modules()]
        registered.append((hooks, any(hooks)))
        raise RuntimeError("cannot be registered")

    monkeypatch.setattr("hookflow.runner.loop.trainer.register_hooks", fails)
    trained(notes(tmp_path, modules='["*"]', points='["forward"]'), code=1)
    ((hooks, before),) = registered
    assert before
    assert not any(hooks)


OUTSIDE = 'hooks.outside={use="tests.runner.test_modules:elsewhere", points=["%s"]}'
NO_HANDLE = "run.handle is for a hook inside the network, while it is called"


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        (
            'hooks.removes={use="./common_hooks.py:Removes", args={hook="prob", at=1}}',
            'there is no hook inside the network "prob"',
            'did you mean "probe"?',
        ),
        (OUTSIDE % "after_forward", NO_HANDLE, 'another hook writes run.handles["probe"]'),
        (OUTSIDE % "before_run", NO_HANDLE, 'another hook writes run.handles["probe"]'),
    ],
)
def test_a_handle_that_is_not_there(
    trained: Trained, tmp_path: Path, override: str, message: str, hint: str
) -> None:
    (error,) = records(trained(notes(tmp_path, modules='["head"]'), override, code=2), "error")
    assert f"{message}\n    {hint}" in str(error["text"])


pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)

PIPELINE = """
run = { name = "modules", default_hooks = false, max_epochs = 2, threads = 1, device = "cpu" }
model = { use = "tests.support.pytorch_hooks:Net", args = { fails = FAILS, kind = "KIND" } }
task.use = "tests.support.pytorch_hooks:step"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.5 } }
data.train.use = "tests.support.pytorch_hooks:Batches"
"""


class Declared(NamedTuple):
    """A hook: a function of `tests.support.pytorch_hooks`, where it is registered, and how."""

    function: str
    point: str
    modules: tuple[str, ...]
    prepend: bool = False
    always_call: bool = False

    def table(self, name: str) -> str:
        keys = "prepend = true\n" * self.prepend + "always_call = true\n" * self.always_call
        where = f'points = ["{self.point}"]\nmodules = {list(self.modules)}\n{keys}'
        return f'[hooks.{name}]\nuse = "tests.support.pytorch_hooks:{self.function}"\n{where}'

    def register(self, net: nn.Module) -> None:
        function = getattr(pytorch_hooks, self.function)
        more: dict[str, Any] = {"prepend": self.prepend}
        more |= {"with_kwargs": True} if self.function.endswith("_kwargs") else {}
        more |= {"always_call": True} if self.always_call else {}
        for name in self.modules:
            getattr(net.get_submodule(name), f"register_{self.point}_hook")(function, **more)


Seen = tuple[list[Any], dict[str, torch.Tensor]]
Same = Callable[..., int]


def by_hand(hooks: list[Declared], fails: int, kind: str) -> Seen:
    """Train with the hooks registered in this order; of those that are prepended,
    the last comes first then.
    """
    pytorch_hooks.NOTES.clear()
    net = pytorch_hooks.Net(fails, kind)
    for hook in hooks:
        if not hook.prepend:
            hook.register(net)
    for hook in reversed(hooks):
        if hook.prepend:
            hook.register(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    try:
        for inputs, target in [*pytorch_hooks.Batches().epoch(0)] * 2:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), target).backward()
            optimizer.step()
    except (ValueError, KeyboardInterrupt):
        pass
    return [*pytorch_hooks.NOTES], net.state_dict()


@pytest.fixture
def same(new_run: NewRun, train_here: Train) -> Same:
    """Assert that hooks of a pipeline make the same calls and weights as by hand;
    return the exit code of the run.
    """

    def run(hooks: list[Declared], fails: int = 0, kind: str = "ValueError") -> int:
        text = PIPELINE.replace("FAILS", str(fails)).replace("KIND", kind)
        run_dir = new_run(
            swap=(TOY.read_text(), text + "".join(h.table(f"hook{k}") for k, h in enumerate(hooks)))
        )
        pytorch_hooks.NOTES.clear()
        code = train_here(run_dir)
        ours, weights = [*pytorch_hooks.NOTES], pytorch_hooks.NETS[-1].state_dict()
        theirs, expected = by_hand(hooks, fails, kind)
        assert ours == theirs
        assert ours, "something was called"
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        return code

    return run


LAYERS = ("block.0", "block.1", "scaled", "head")
EVERYTHING = [
    Declared("forward_pre", "forward_pre", ("", *LAYERS)),
    Declared("forward_pre_replaces", "forward_pre", ("block.1", "head")),
    Declared("forward_pre_kwargs", "forward_pre", ("scaled", "block.1")),
    Declared("forward", "forward", ("", *LAYERS)),
    Declared("forward_replaces", "forward", ("scaled", "block.1")),
    Declared("forward_kwargs", "forward", ("scaled", "head")),
    Declared("full_backward_pre", "full_backward_pre", ("block.1", "head")),
    Declared("full_backward", "full_backward", LAYERS),
    Declared("full_backward_replaces", "full_backward", ("scaled", "block.0")),
]


def test_every_kind_is_called_and_replaces_as_by_hand_with_arguments_of_any_names(
    same: Same,
) -> None:
    assert same(EVERYTHING) == 0
    terse = ("forward", "forward_pre", "full_backward")
    hooks = [
        Declared(f"terse_{name}", name.removesuffix("_kwargs"), ("scaled", "block.1"))
        for name in terse
    ]
    assert same([*hooks, *EVERYTHING]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_order_with_some_prepended_is_as_by_hand(seed: int, same: Same) -> None:
    draw = random.Random(seed)
    hooks = [
        hook._replace(
            modules=tuple(draw.sample(hook.modules, 1 + draw.randrange(len(hook.modules))))
        )
        for hook in draw.sample(EVERYTHING, 7)
    ]
    assert same([hook._replace(prepend=draw.random() < 0.4) for hook in hooks]) == 0


ALWAYS = [
    Declared("forward", "forward", ("block.0", "head")),
    Declared("forward_replaces", "forward", ("", "head"), always_call=True),
    Declared("forward_kwargs", "forward", ("", "block.1", "scaled"), always_call=True),
    Declared("forward", "forward", ("",), prepend=True, always_call=True),
]


@pytest.mark.parametrize(("kind", "code"), [("ValueError", 1), ("KeyboardInterrupt", 130)])
def test_always_call_is_called_after_an_exception_as_by_hand(
    kind: str, code: int, same: Same
) -> None:
    # without an output forward_replaces raises, which PyTorch turns into a warning
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert same(ALWAYS, fails=2, kind=kind) == code
    silenced = [str(each.message) for each in warned if "always_call=True" in str(each.message)]
    assert len(silenced) == (2 if kind == "ValueError" else 0)
    without = [note for note in pytorch_hooks.NOTES if note[-1] is None]
    assert bool(without) == (kind == "ValueError")


def test_a_hook_that_raises_ends_the_call_as_by_hand(same: Same) -> None:
    hooks = [
        Declared("forward", "forward", ("head",)),
        Declared("raises_late", "forward", ("head",)),
        Declared("forward_replaces", "forward", ("head",)),
        Declared("forward_kwargs", "forward", ("head", ""), always_call=True),
    ]
    assert same(hooks) == 1
