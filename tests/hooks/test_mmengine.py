"""Hooks of MMEngine, unmodified: they see what MMEngine's Runner shows them, in its order,
and do their work.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookflow.adapters import mmengine_runner
from hookflow.adapters.mmengine import MMEngineAdapter
from hookflow.errors import UserError
from hookflow.hooks.adapter import adapt_class
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import TOY, Trained, ended, messages, reason, records
from tests.runner.same import assert_same, final_state, logged
from tests.support.golden_files import check_cases

pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = {
    "epochs": (
        "run.max_epochs = 2\nrun.val_every = 1",
        {"by_epoch": True, "max_epochs": 2, "val_interval": 1},
    ),
    "iterations": (
        "run.max_iters = 5\nrun.val_every = 2",
        {"by_epoch": False, "max_iters": 5, "val_interval": 2},
    ),
}
CUTS = {"epochs": (3, "epoch_1.pth"), "iterations": (2, "iter_2.pth")}
"""The iteration at whose validation a run is ended,
and MMEngine's checkpoint from just before that validation.
"""


@pytest.fixture(autouse=True, scope="module")
def _mmengine() -> Iterator[None]:
    """Import MMEngine, which warns of what it uses of torch,
    and needs libraries of the screen for OpenCV.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import mmengine.hooks
            import mmengine.runner  # noqa: F401
        except ImportError as error:
            pytest.skip(f"MMEngine cannot be imported here: {error}")
        yield


def comparable(seen: list[Any]) -> list[Any]:
    """Return calls without what differs, as docs/how-to/coming-from.md says.

    That is the place of a save, the pair of `after_run` and `before_run` between training and test,
    and the epochs that a resumed run begins again before its training.
    """
    calls = [call for call in seen if call[0] != "before_save_checkpoint"]
    between = {
        k for k, (a, b) in enumerate(pairwise(calls)) if (a[0], b[0]) == ("after_run", "before_run")
    }
    calls = [call for k, call in enumerate(calls) if not {k, k - 1} & between]
    begins = [call[0] for call in calls].index("before_train")
    return [call for k, call in enumerate(calls) if k > begins or call[0] != "before_train_epoch"]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_hook_sees_the_same_calls_counters_and_modes_also_when_resumed(
    trained: Trained, train_here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    from tests.hooks.mm_hooks import SEEN, Recorder
    from tests.hooks.mm_training import PIPELINE, train_theirs

    def seen(train: Callable[[], object]) -> list[Any]:
        SEEN.clear()
        train()
        return [*SEEN]

    # MMEngine's own resume fails without it.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    # 2 s an epoch.
    monkeypatch.setattr("mmengine.runner.loops.time", SimpleNamespace(sleep=lambda seconds: None))
    (length_of_ours, length_of_theirs), (at, checkpoint) = LENGTHS[length], CUTS[length]
    pipeline, folder = tmp_path / "mm.toml", tmp_path / "theirs"
    pipeline.write_text(PIPELINE.replace("LENGTH", length_of_ours))
    theirs = seen(lambda: train_theirs(folder, length_of_theirs, Recorder()))
    ours = seen(lambda: trained(pipeline=pipeline))
    assert comparable(ours) == comparable(theirs)
    saved = [call for call in ours if call[0] == "before_save_checkpoint"]
    assert saved
    assert all(call[-1] == [("has", True)] for call in saved)
    resume = {"resume": True, "load_from": str(folder / checkpoint)}
    theirs = seen(lambda: train_theirs(folder, length_of_theirs, Recorder(), **resume))
    ends = f'hooks.ends={{use="tests.hooks.mm_hooks:Ends", args={{at={at}}}}}'
    run_dir = trained(ends, pipeline=pipeline, code=143)
    ours = seen(lambda: train_here(run_dir, resume=True))
    assert ended(run_dir) == ("finished", 0)
    assert comparable(ours) == comparable(theirs)
    assert ("after_load_checkpoint", 0, 0) in [call[:3] for call in ours]


ALL = [
    'hooks.info={use="mmengine:RuntimeInfoHook"}',
    'hooks.seeds={use="mmengine:DistSamplerSeedHook"}',
    'hooks.average={use="mmengine:EMAHook", args={momentum=0.1}}',
    'hooks.early={use="mmengine:EarlyStoppingHook", args={monitor="accuracy", patience=40}}',
    'hooks.cache={use="mmengine:EmptyCacheHook", args={after_iter=true}}',
    'hooks.buffers={use="mmengine:SyncBuffersHook"}',
]


def test_mmengines_own_hooks_work_and_resume_to_the_bit(
    resumes_alike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmengine.hooks import RuntimeInfoHook

    monkeypatch.setattr("tests.runner.same.MEASURED", {"samples_per_s"})
    # The name and the file of each run would be in the message hub.
    monkeypatch.setattr(RuntimeInfoHook, "before_run", lambda self, runner: None)
    cut = resumes_alike(*ALL, "hooks.ema.enabled=false", point="after_train_iter", at=7)
    state: Any = final_state(cut)
    average = state["mmengine"]["ema_state_dict"]
    assert average["steps"] == 15
    assert not torch.equal(average["module.head.weight"], state["model"]["head.weight"])
    hubs = [
        each["hub"]
        for each in state["hooks"].values()
        if isinstance(each, dict) and each.get("hub")
    ]
    assert len(hubs) == 1
    assert len(hubs[0]["scalars"]["train/loss"][0]) == 15


def test_a_checkpoint_has_what_the_message_hub_has_and_names_what_it_cannot(
    trained: Trained, train_here: Any
) -> None:
    ends = 'hooks.ends={use="tests.hooks.mm_hooks:Ends", args={at=5}}'
    run_dir = trained('hooks.informs={use="tests.hooks.mm_hooks:Informs"}', ends, code=143)
    assert train_here(run_dir, resume=True) == 0, reason(run_dir)
    resumed = [text for text in messages(run_dir) if text.startswith("resumed: ")]
    assert resumed == [
        "resumed: {}",
        (
            "resumed: {'best': {'names': ('a', None), 'at': [4]}, 'sigmas': array([0.5 , 0.25],"
            " dtype=float32)}"
        ),
    ]
    assert [text for text in messages(run_dir, "warn") if "hub" in text] == [
        '"lock" of MMEngine\'s message hub is in no checkpoint: a _thread.lock cannot be loaded'
        " again"
    ] * 2, "once in each attempt"


SWITCHES = (
    (
        'hooks.switches={use="tests.hooks.mm_hooks:Switches", args={at=1,'
        " attributes={0={negated=false}, 1={negated=true}}}}"
    ),
    'data.train={use="tests.hooks.mm_hooks:Pairs", loader={batch_size=8, workers=%d}}',
)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_hook_does_to_the_dataset_and_modules_is_there_after_a_resume(
    resumes_alike: Any, workers: int
) -> None:
    cut = resumes_alike(SWITCHES[0], SWITCHES[1] % workers, point="after_train_iter", at=13)
    assert [*logged(cut, "moved").values()] == [0.0] * 5 + [1.0] * 10
    assert [*logged(cut, "negated").values()] == [0.0] * 5 + [1.0] * 5 + [0.0] * 5


@pytest.mark.parametrize(
    ("length", "workers"), [("max_epochs=3", 0), ("max_epochs=3", 2), ("max_iters=15", 0)]
)
def test_a_walk_over_the_training_data_changes_no_training(
    trained: Trained, length: str, workers: int
) -> None:
    table = (
        "data.train={use='tests.hooks.mm_hooks:Pairs', loader={batch_size=8,"
        f" workers={workers}}}}}"
    )
    swap = ("max_epochs = 3", length.replace("=", " = "))
    plain, walked = (
        trained(table, *more, swap=swap)
        for more in ((), ('hooks.walks={use="tests.hooks.mm_hooks:Walks"}',))
    )
    means = [*logged(walked, "mean").values()]
    assert means == pytest.approx([means[0]] * 3)
    states: list[Any] = [final_state(run_dir) for run_dir in (plain, walked)]
    assert_same(*(state["model"] for state in states))
    assert_same(*(state["random"] for state in states))


def test_a_visualizer_of_the_user_s_draws_into_the_run(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmengine.visualization import Visualizer

    monkeypatch.setattr(Visualizer, "_instance_dict", {})
    run_dir = trained(
        'hooks.draws={use="tests.hooks.mm_hooks:Draws"}',
        "model.use='tests.hooks.mm_hooks:drawn_net'",
        "task.use='tests.hooks.mm_hooks:drawing'",
        "hooks.accuracy.enabled=false",
        *(f"hooks.{name}.enabled=false" for name in ("early_stop", "checkpoint")),
    )
    assert [*logged(run_dir, "drawn").values()] == [3.0] * 3
    assert {record["name"] for record in records(run_dir, "image")} == {"sample"}


def test_a_visualizer_draws_into_the_latest_run_when_an_earlier_one_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mmengine.visualization import Visualizer

    class Run:
        def __init__(self) -> None:
            self.logged: list[str] = []

        def log(self, name: str, value: float) -> None:
            self.logged.append(name)

    monkeypatch.setattr(Visualizer, "_instance_dict", {})
    visualizer = Visualizer.get_instance("of the user", vis_backends=[])
    runs: list[Any] = [Run(), Run()]
    for run in runs:
        mmengine_runner.VisualizerView.of(run)
    del runs[0], run
    visualizer.add_scalar("kept", 1.0)
    assert runs.pop().logged == ["kept"]
    visualizer.add_scalar("dropped", 1.0)


TWO_SETS = (
    'data.val={near={use="tests.hooks.mm_training:loader", args={examples=10}},'
    ' far={use="tests.hooks.mm_training:loader", args={examples=7}}}'
)


@pytest.fixture
def on_two_sets(tmp_path: Path, trained: Trained) -> Any:
    """Train the pipeline of `mm_training` with two named sets of validation data."""
    from tests.hooks import mm_hooks, mm_training

    mm_hooks.SEEN.clear()

    def train(*hooks: str, epochs: int = 1) -> Any:
        file = tmp_path / "mm.toml"
        text = mm_training.PIPELINE.replace("LENGTH", f"run.max_epochs = {epochs}")
        kept = [line for line in text.splitlines() if "data.val" not in line]
        file.write_text("\n".join(kept))
        return trained(TWO_SETS, *hooks, pipeline=file)

    return train


def test_sets_of_a_validation_are_shown_one_after_another(on_two_sets: Any) -> None:
    """Ten examples are three batches, and seven are two. A metric has the name of its set, and
    what a hook adds does, too.
    """
    from tests.hooks import mm_hooks

    run_dir = on_two_sets(
        'hooks.recorder.use="tests.hooks.mm_hooks:SetRecorder"',
        'hooks.timer={use="mmengine:IterTimerHook"}',
    )
    near = [(0, 3, 3), (1, 3, 3), (2, 3, 3)]
    far = [(0, 2, 2), (1, 2, 2)]
    ends = [("after_val_epoch", [f"{name}/accuracy", f"{name}/loss"]) for name in ("near", "far")]
    assert [("before_val", 3), *near, ends[0], *far, ends[1]] == mm_hooks.SEEN
    validation = next(each["v"] for each in records(run_dir, "metrics"))
    assert {"near/5", "far/8"} <= {*validation}  # type: ignore[misc]


def test_early_stopping_follows_the_metric_of_a_set(on_two_sets: Any) -> None:
    """No epoch improves by 1.0: the second counts one, which is the patience."""
    args = 'args={monitor="near/loss", rule="less", patience=1, min_delta=1.0}'
    stops = f'hooks.stops={{use="mmengine:EarlyStoppingHook", {args}}}'
    run_dir = on_two_sets("hooks.recorder.enabled=false", stops, epochs=9)
    assert records(run_dir, "end")[-1]["ep"] == 2


def test_early_stopping_ends_the_run(trained: Trained) -> None:
    timer = 'hooks.timer={use="mmengine:IterTimerHook"}'
    stops = (
        'hooks.stops={use="mmengine:EarlyStoppingHook", args={monitor="accuracy", patience=1,'
        " min_delta=1.0}}"
    )
    run_dir = trained(stops, timer, "run.max_epochs=9", "hooks.early_stop.enabled=false")
    assert "train_loop.stop_training" in reason(run_dir)
    assert any("did not improve" in text for text in messages(run_dir))


def test_the_runner_has_what_is_public_and_names_what_it_has_not(trained: Trained) -> None:
    asks = 'hooks.asks%d={use="tests.hooks.mm_hooks:Asks", args={attribute="%s"}}'
    public = {
        "runner.optim_wrapper.get_lr()": "{'lr': [0.1]}",
        "len(runner.train_dataloader), runner.train_dataloader.batch_size": "(5, 8)",
        "runner.train_loop.max_epochs, runner.max_iters": "(3, 15)",
        "runner.message_hub.get_info('nothing')": "None",
        "runner.log_processor.window_size, runner.val_loop.total_length": "(10, 2)",
        "runner.rank, runner.world_size, runner.distributed": "(0, 1, False)",
    }
    run_dir = trained(*(asks % each for each in enumerate(public)), "hooks.schedule.enabled=false")
    assert {": ".join(each) for each in public.items()} <= {*messages(run_dir, "warn")}
    assert "MMEngine's Runner has no strategy" in reason(
        trained(asks % (0, "runner.strategy"), code=1)
    )
    replaces = "setattr(runner.train_loop, 'dataloader', 0)"
    assert "replaces the dataloader, which hookflow builds once" in reason(
        trained(asks % (0, replaces), code=2)
    )


def test_an_argument_that_the_file_changes_is_not_what_the_checkpoint_had() -> None:
    from tests.hooks.mm_hooks import Switches

    kind = adapt_class(MMEngineAdapter(), Switches, None)
    made: list[Any] = [kind(at, {"0": {}}) for at in (1, 2)]
    made[0].hook._switched = True
    made[1].load_state_dict(made[0].state_dict())
    assert (made[1].hook.at, made[1].hook._switched, made[1].hook.attributes) == (2, True, {0: {}})


def test_a_lower_priority_number_fires_first_whatever_the_file_says(trained: Trained) -> None:
    late = 'hooks.late={use="tests.hooks.mm_hooks:Asks", args={attribute="runner.iter"}}'
    early = 'hooks.first={use="tests.hooks.mm_hooks:Early"}'
    plan = compile_pipeline(parse(TOY.read_text(), TOY, [late, early]))
    assert [
        binding.hook for binding in plan.at("before_train") if binding.hook in ("late", "first")
    ] == [
        "first",
        "late",
    ]
    (edge,) = (
        edge
        for edge in plan.edges_at("before_train")
        if (edge.first, edge.then) == ("first", "late")
    )
    assert (edge.kind, edge.where) == ("class", "priority 70")
    run_dir = trained(late, early)
    assert "train_loop.stop_training" in reason(run_dir)


@pytest.mark.parametrize(
    "stated",
    [
        ['hooks.late.before=["first"]'],
        ['hooks.first.after=["late"]'],
        [
            (
                'hooks.between={use="builtins:print", points=["before_train"], after=["late"],'
                ' before=["first"]}'
            ),
        ],
    ],
)
def test_an_edge_of_the_file_is_stronger_than_a_priority(stated: list[str]) -> None:
    late = 'hooks.late={use="tests.hooks.mm_hooks:Asks", args={attribute="runner.iter"}}'
    early = 'hooks.first={use="tests.hooks.mm_hooks:Early"}'
    plan = compile_pipeline(parse(TOY.read_text(), TOY, [late, early, *stated]))
    fired = [
        binding.hook for binding in plan.at("before_train") if binding.hook in ("late", "first")
    ]
    assert fired == ["late", "first"]


@pytest.mark.parametrize(
    ("use", "point", "edges"),
    [
        ("mmengine:EarlyStoppingHook", "after_val_epoch", {("accuracy", "theirs")}),
        ("lightning:EarlyStopping", "after_val", set()),
        ("mmengine:EMAHook", "before_save_checkpoint", {("ema", "theirs")}),
        ("lightning:EMAWeightAveraging", "before_save_checkpoint", {("ema", "theirs")}),
    ],
)
def test_what_hooks_of_their_own_read_and_write_is_known(
    use: str, point: str, edges: set[Any]
) -> None:
    args = ', args={monitor="accuracy"}' * ("Stop" in use)
    plan = compile_pipeline(parse(TOY.read_text(), TOY, [f'hooks.theirs={{use="{use}"{args}}}']))
    by_data = {(edge.first, edge.then) for edge in plan.edges_at(point) if edge.slots}
    assert {pair for pair in by_data if "theirs" in pair} == edges
    (binding,) = (each for each in plan.at(point) if each.hook == "theirs")
    assert binding.reads and binding.writes


NOT_THERE = (
    "mmengine:EMAHok",
    "mmengine:LoggerHook",
    "mmengine:CheckpointHook",
    "tests.hooks.mm_hooks:YOLOXModeSwitchHook",
    "lightning:EarlyStoping",
    "lightning:BatchSizeFinder",
    "tests.hooks.pl_training:Clears",
)


def test_what_is_not_there_is_named() -> None:
    told = {}
    for use in NOT_THERE:
        with pytest.raises(UserError) as refused:
            compile_pipeline(parse(TOY.read_text(), TOY, [f'hooks.theirs={{use="{use}"}}']))
        told[use] = [str(refused.value)]
    check_cases("hooks-of-others.txt", told)


def test_it_is_not_offloaded() -> None:
    for use, what in (
        ("mmengine:ProfilerHook", "a hook of MMEngine, whose runner"),
        ("lightning:DeviceStatsMonitor", "a callback of Lightning, whose trainer"),
    ):
        with pytest.raises(UserError, match=f"{what} shows all of the run"):
            compile_pipeline(
                parse(TOY.read_text(), TOY, [f'hooks.a={{use="{use}", offload=true}}'])
            )


def test_a_wrong_argument_is_found_before_the_training() -> None:
    with pytest.raises(UserError, match='"after_itr"'):
        compile_pipeline(
            parse(
                TOY.read_text(),
                TOY,
                ['hooks.a={use="mmengine:EmptyCacheHook", args={after_itr=true}}'],
            )
        )
