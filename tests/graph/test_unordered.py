"""Pairs that nothing orders, and the search for those that make a difference;
bugs that it finds, no false alarms.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hookflow.cli.observe_report import ObservationReport
from hookflow.graph.order import PlanRequests, compile_plan
from hookflow.graph.plan import PHASES, Node, Plan, WantedPlaces
from hookflow.graph.swaps import (
    OrderedPair,
    apply_swaps,
    find_common_points,
    find_neighbours,
    find_swaps,
    find_turned,
    find_unordered,
    make_binding_key,
    order_key,
    order_pairs_adjacent,
)
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.registry import HOOKS
from hookflow.service.findings import Findings
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.trials.commute import (
    CommuteResult,
    PointVisit,
    TrialRunner,
    TrialTrace,
    _OrderSearch,
    run_commute_trials,
)
from tests.conftest import TESTS, TOY
from tests.support.built_in_hooks import SAMPLES, inline
from tests.support.gan import Adversarial
from tests.support.hook_nodes import AROUND, POINT, node, order, plan


class Tells(Adversarial):
    def evaluate(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        real = run.models["discriminator"](batch[0])
        scores = torch.cat([-real, real, torch.zeros_like(real)], 1)
        return {
            **super().evaluate(run, batch),
            "logits": scores,
            "target": torch.ones(len(real), dtype=torch.long),
        }


@st.composite
def pipelines(draw: st.DrawFn) -> list[Node]:
    """Hooks at a point or around a validation, of any phase, some after others,
    in another order than that.
    """
    hidden = draw(st.permutations("abcdef"))
    nodes = [
        node(
            name,
            after=draw(st.lists(st.sampled_from(hidden[:k]), unique=True, max_size=2)) if k else (),
            phase=draw(st.sampled_from(PHASES)),
            points=draw(
                st.sampled_from([((POINT, "whole"),), AROUND, (*AROUND, (POINT, "whole"))])
            ),
        )
        for k, name in enumerate(hidden[: draw(st.integers(2, 6))])
    ]
    return draw(st.permutations(nodes))


def wanted(nodes: list[Node], places: WantedPlaces) -> Plan:
    return compile_plan(
        "p", {item.hook.name: item for item in nodes}, requests=PlanRequests(wanted=places)
    )


def test_hooks_meet_where_both_fire_and_not_with_themselves_nor_where_arounds_are_left() -> None:
    both = (*AROUND, ("before_val", "whole"))
    result = {
        (pair.point, pair.hooks)
        for pair in find_unordered(plan(node("a", points=both), node("b", points=AROUND)))
    }
    assert result == {("before_val", ("a", "b"))}
    assert not [*find_unordered(plan(node("a", ambiguous_with=["b"]), node("b")))]
    compiled = plan(node("a", points=(*AROUND, (POINT, "whole"))), node("b", points=AROUND))
    assert find_common_points(compiled, "a", "b") == {"before_val"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("w a x< y b z", "w y a b x z"), ("a x< y< b", "a b x y")],
    ids=["one follows", "two follow"],
)
def test_a_pair_is_brought_together_and_what_must_follow_stays_behind_it(
    before: str, after: str
) -> None:
    nodes = [node(name[0], after=["a"] if "<" in name else []) for name in before.split()]
    declared = plan(*nodes)
    places = order_pairs_adjacent(
        declared, [OrderedPair(POINT, ("a", "whole"), ("b", "whole"))], {*find_unordered(declared)}
    )
    assert order(wanted(nodes, places)) == after.split()


def test_what_is_turned_is_told_where_arounds_are_entered_and_not_where_they_are_left() -> None:
    a, b, p = (
        node("a", points=AROUND),
        node("b", points=AROUND),
        node("p", points=(("before_val", "whole"),)),
    )
    assert find_turned(plan(a, b, p), plan(p, b, a)) == [
        OrderedPair("before_val", ("a", "enter"), ("b", "enter")),
        OrderedPair("before_val", ("a", "enter"), ("p", "whole")),
        OrderedPair("before_val", ("b", "enter"), ("p", "whole")),
    ]


def test_a_pair_that_a_moved_phase_orders_can_be_turned() -> None:
    """An early c behind b makes b early: nothing that is said of a and b."""
    nodes = [node("a"), node("b"), node("c", after=["b"], phase="early")]
    declared = plan(*nodes)
    assert [pair.hooks for pair in find_unordered(declared)] == [("b", "a")]
    turned_ = wanted(nodes, {(POINT, name, "whole"): place for place, name in enumerate("abc")})
    assert [binding.hook for binding in turned_.bindings] == ["a", "b", "c"]


@settings(max_examples=30)
@given(pipelines(), st.integers(0, 9))
def test_a_shuffle_turns_nothing_but_what_nothing_orders(nodes: list[Node], seed: int) -> None:
    declared = plan(*nodes)
    assert {*find_turned(declared, plan(*nodes, shuffle=seed))} <= {*find_unordered(declared)}


@settings(max_examples=30)
@given(pipelines(), st.integers(0, 9))
def test_the_way_to_a_shuffled_order_turns_each_pair_once_and_is_allowed(
    nodes: list[Node], seed: int
) -> None:
    declared, shuffled = plan(*nodes), plan(*nodes, shuffle=seed)
    swaps = find_swaps(declared, shuffled)
    assert len({*swaps}) == len(swaps)
    assert order_key(wanted(nodes, apply_swaps(declared, swaps))) == order_key(shuffled)
    for k in range(len(swaps)):
        assert {*find_turned(declared, wanted(nodes, apply_swaps(declared, swaps[:k])))} <= {
            *find_turned(declared, shuffled)
        }


@settings(max_examples=30)
@given(pipelines())
def test_neighbours_that_nothing_orders_change_places_and_nobody_else(nodes: list[Node]) -> None:
    declared = plan(*nodes)
    free = {*find_unordered(declared)}
    swaps = find_neighbours(declared, free)
    there = [item for swap in swaps for item in ((swap.point, swap.first), (swap.point, swap.then))]
    assert len({*there}) == len(there)
    plain = {swap for swap in swaps if swap.first[1] == swap.then[1] == "whole"}
    assert plain <= {*find_turned(declared, wanted(nodes, apply_swaps(declared, swaps)))} <= free


@dataclass
class Planted:
    """Trials that differ in nothing but which of some pairs fires first:
    the others make no difference.
    """

    nodes: list[Node]
    pairs: Collection[OrderedPair]
    count: int = 0
    seconds: float = 0.0

    def compiled(self, places: WantedPlaces) -> Plan:
        return wanted(self.nodes, places)

    def of(self, plan: Plan) -> TrialTrace:
        self.count += 1
        leaves: dict[tuple[str, ...], bytes] = {}
        for pair in self.pairs:
            row = {
                make_binding_key(binding): row for row, binding in enumerate(plan.at(pair.point))
            }
            leaves["model", str(pair)] = b"first" if row[pair.first] < row[pair.then] else b"then"
        return TrialTrace(
            (PointVisit(POINT, 1, leaves),),
            frozenset((item.point, make_binding_key(item)) for item in plan.bindings),
        )

    def again(self, plan: Plan, *, may_raise: bool = True) -> TrialTrace:
        return self.of(plan)


@settings(max_examples=30)
@given(pipelines(), st.data())
def test_exactly_the_pairs_are_found_that_make_a_difference(
    nodes: list[Node], data: st.DataObject
) -> None:
    declared = plan(*nodes)
    free = [*find_unordered(declared)]
    planted = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=3)) if free else []
    made = Planted(nodes, planted)
    outcome = _OrderSearch(cast("TrialRunner", made), declared, set(declared.hooks_by_name)).all(
        free
    )
    result = {pair for step in outcome.steps for pair in step.pairs}
    stuck = {pair for pair, _ in outcome.untried}
    assert {*planted} <= result | stuck
    assert all({*step.pairs} & {*planted} for step in outcome.steps), (
        "a step without a pair that makes a difference"
    )
    assert not {*outcome.same} & {*planted}
    assert result | {*outcome.same} | stuck == {*free}


def test_trials_are_about_as_many_as_hooks_at_a_point() -> None:
    nodes = [node(name) for name in "abcdefghij"]
    made = Planted(nodes, [])
    declared = plan(*nodes)
    search = _OrderSearch(cast("TrialRunner", made), declared, set(declared.hooks_by_name))
    outcome = search.all([*find_unordered(declared)])
    assert (outcome.steps, len(outcome.same), outcome.untried) == ([], 45, [])
    assert made.count <= 3 * len(nodes)


SHIPPED = TESTS.parent / "pipelines"
SMALL = {
    "hello": (),
    "cifar": (
        "model.args.widths=[4, 4, 4]",
        *(
            f"data.{split}.args.{each}"
            for split in ("train", "val")
            for each in ("root='no-images'", "download=false", "limit=64", "batch_size=16")
        ),
    ),
    "chargpt": (
        "model.args.width=8",
        "model.args.layers=1",
        "hooks.sample.args.count=2",
        *(f"data.{split}.args.batch_size=2" for split in ("train", "val")),
    ),
    "gaussian2d": (
        "model.args.count=20",
        "data.train.args.side=16",
        "data.train.args.batch_size=64",
    ),
}
"""What makes each shipped pipeline small, and its data synthetic."""

PAIRS = {
    "clip": ("grad_clip", 'max_norm = 0.5, model = "{}"'),
    "ema": ("ema", 'decay = 0.9, model = "{}"'),
    "schedule": ("scheduler", 'chain = [{{ use = "CosineAnnealingLR" }}], optimizer = "{}"'),
}
"""What each of two models has for itself."""


def tried_anew(pipeline: Loaded) -> CommuteResult:
    """Try every pair; nothing may be doubtful, before and after."""
    result = Findings.of(pipeline, valid_plan(pipeline))
    assert not result.doubtful, "\n".join(result.lines(120))
    commuted = run_commute_trials(pipeline, result.plan, pipeline.source.parent, lambda *said: None)
    result = replace(result, commuted=commuted)
    assert not result.doubtful, "\n".join(result.lines(120))
    return commuted


def names(commuted: CommuteResult) -> set[tuple[str, ...]]:
    return {tuple(sorted(pair.hooks)) for pair in commuted.same}


def test_every_shipped_pipeline_is_made_small() -> None:
    assert {path.stem for path in SHIPPED.glob("*.toml")} == SMALL.keys()


@pytest.mark.parametrize("name", SMALL)
def test_what_ships(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(SHIPPED.parent / "docs")  # which chargpt reads
    monkeypatch.chdir(tmp_path)
    pipeline = read_pipeline(
        SHIPPED / f"{name}.toml", ("run.threads=1", "run.device='cpu'", *SMALL[name])
    )
    assert not tried_anew(pipeline).untried


def test_a_pair_of_everything() -> None:
    hooks = [
        f'hooks.{hook}_{model}={{ use = "{use}", args = {{ {args.format(model)} }} }}'
        for hook, (use, args) in PAIRS.items()
        for model in ("generator", "discriminator")
    ]
    accuracies = [f'hooks.top{k}={{ use = "accuracy", args = {{ topk = {k} }} }}' for k in (1, 2)]
    task = ["run.threads=1", 'task.use="tests.graph.test_unordered:Tells"']
    pipeline = read_pipeline(
        TESTS / "support" / "gan.toml",
        (*task, *hooks, *accuracies),
        without=["clip", "ema", "schedule"],
    )
    same = names(tried_anew(pipeline))
    assert {(f"{hook}_discriminator", f"{hook}_generator") for hook in PAIRS} <= same
    assert ("top1", "top2") in same


def test_all_built_in_hooks_backwards(tmp_path: Path) -> None:
    # The rates that `lr_schedule` sets, too; one that is slow and reads nothing; one that needs
    # images; and one that refuses a run with `accumulation_schedule`.
    apart = {"scheduler", "profiler", "resize", "sam"}
    others = {"whiten", "comm_hook", "batch_size_finder"}
    assert HOOKS.built_in.keys() - SAMPLES.keys() == others, (
        "of one network; of several ranks; of no iteration"
    )
    run = (
        TOY.read_text()
        .partition("[hooks.")[0]
        .replace("./toy.py", str(TESTS / "support" / "toy.py"))
    )
    tables = [
        f'[hooks.{name}]\nuse = "{name}"\nargs = {inline(SAMPLES[name])}'
        for name in reversed(SAMPLES)
        if name not in apart
    ]
    file = tmp_path / "backwards.toml"
    file.write_text(
        "\n".join([run, f'[task]\nuse = "{TESTS / "support" / "own_tasks.py"}:paints"', *tables])
    )
    toy = TESTS / "support" / "toy.py"
    # Which are turned by `tta`.
    images = [f'data.{split}.use="{toy}:Squares"' for split in ("val", "test")]
    settings = ("run.threads=1", "run.test=true", f'model.use="{toy}:Pooled"', *images)
    commuted = tried_anew(read_pipeline(file, settings))
    assert len(commuted.same) > 40
    assert not commuted.untried


BUGS = Path(__file__).parent / "ordering_bugs"

FOUND = {
    "mmcv_689": {
        ("after_train_iter", "saver", "average"): "the file weights-1.pt",
        ("after_train_iter", "saver", "projection"): "the file weights-1.pt",
        ("after_train_iter", "average", "projection"): "model: 4 of 15 tensors",
    },
    "nequip_590": {("after_val", "saver", "average"): "the file weights-2.pt: 5 of 9 values"},
    "lightning_1464": {
        ("after_val", "saver", "early_stop"): "the file hooks-1.pt: early_stop.best"
    },
    "lightning_1592": {
        ("after_val", "saver", "patience"): "the file hooks-1.pt: patience.waited",
        ("after_val", "patience", "best"): "`patience`: seen, waited",
    },
    "lightning_9950": {
        ("before_val", "pruned", "quantized"): "`pruned`: 6 of 8 values",
        ("after_val", "pruned", "quantized"): "model: 6 of 9 tensors",
    },
    "lightning_18265": {
        ("after_train_iter", "writer", "normalization"): "the file predictions-1.pt"
    },
    "ignite_706": {("after_val_epoch", "logger", "accuracy"): "logged: accuracy"},
    "llm_foundry_1515": {
        ("after_val", "exporter", "saver"): "the file weights-2.pt: 8 of 9 values"
    },
}
"""The pairs that make a difference in each pipeline, and what they first differ in."""

MENDED = {
    "mmcv_689": ['hooks.average.after=["projection"]', 'hooks.saver.after=["average"]'],
    "nequip_590": ['hooks.saver.after=["average"]'],
    "lightning_1464": ['hooks.saver.after=["early_stop"]'],
    "lightning_1592": ['hooks.patience.after=["best"]', 'hooks.saver.after=["patience"]'],
    "lightning_9950": [
        f'hooks.{name}.use="./bugs.py:Encloses"' for name in ("pruned", "quantized")
    ],
    "lightning_18265": ['hooks.writer.after=["normalization"]'],
    "ignite_706": ['hooks.logger.after=["accuracy"]'],
    "llm_foundry_1515": ['hooks.exporter.after=["saver"]'],
}
"""What each file has to say.

Exits that are not reversed are mended by `around_val`, and impossible with it.
"""


QUICK = {"nequip_590", "lightning_1592", "lightning_9950"}


def loaded(name: str, *overrides: str) -> Loaded:
    return read_pipeline(BUGS / f"{name}.toml", overrides)


def tried(pipeline: Loaded) -> CommuteResult:
    return run_commute_trials(pipeline, valid_plan(pipeline), BUGS, lambda *line: None)


def found_in(name: str, commuted: CommuteResult) -> dict[tuple[str, str, str], str]:
    return {
        (pair.point, *pair.hooks): str(step.difference)
        for step in commuted.steps
        for pair in step.pairs
    }


def test_there_are_eight() -> None:
    assert {path.stem for path in BUGS.glob("*_*.toml")} == FOUND.keys() == MENDED.keys()


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_by_firing_the_hooks_both_ways_and_by_nothing_that_is_declared(
    name: str,
) -> None:
    pipeline = loaded(name)
    plan = valid_plan(pipeline)
    assert not any(b.reads or b.writes for b in plan.bindings if not plan.hook(b.hook).default)
    assert not plan.edges
    assert not Findings.of(pipeline, plan).doubtful
    commuted = tried(pipeline)
    differing = found_in(name, commuted)
    assert differing.keys() == FOUND[name].keys()
    for pair, what in FOUND[name].items():
        assert f"differ in {what}" in differing[pair]
    assert not commuted.untried
    assert not commuted.noise


@pytest.mark.parametrize("name", MENDED)
def test_with_the_edges_that_were_missing_no_pair_differs(name: str) -> None:
    commuted = tried(loaded(name, *MENDED[name]))
    assert not found_in(name, commuted)
    assert not commuted.untried


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FOUND],
)
def test_after_observe_write_no_bug_stands_in_silence(name: str, tmp_path: Path) -> None:
    """What is written down decides a pair the right way, or leaves it as loud as it was."""
    for file in (*BUGS.glob("*.*"), *(TESTS / "support").glob("*.py")):
        below = file.relative_to(TESTS)
        (tmp_path / below).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / below)
    folder = tmp_path / BUGS.relative_to(TESTS)
    pipeline = read_pipeline(folder / f"{name}.toml", ())
    assert list(ObservationReport.of(pipeline, valid_plan(pipeline)).write())
    written = read_pipeline(folder / f"{name}.toml", ())
    plan, right = valid_plan(written), valid_plan(loaded(name, *MENDED[name]))
    loud = found_in(name, run_commute_trials(written, plan, folder, lambda *line: None))
    for point, *pair in FOUND[name].keys() - loud.keys():
        orders = [[hook for hook in each.order[point] if hook in pair] for each in (plan, right)]
        assert orders[0] == orders[1]
