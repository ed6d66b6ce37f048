"""Adapters of other frameworks: the registry,
and one that a package offers for a framework of its own.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.hooks.adapter import AdaptedHook
from hookflow.hooks.adapter_registry import BUILT_IN_ADAPTERS, load_adapter, load_all_adapters
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import find_hook
from hookflow.pipeline.load import parse
from hookflow.pipeline.registry import list_installed
from tests.conftest import TOY, Trained, messages
from tests.runner.same import final_state, logged

MODULES = ("chorus", "hookflow_chorus")
Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Offer adapters by entry points, each call as another package; Chorus is installed."""

    def forget() -> None:
        list_installed.cache_clear()
        load_adapter.cache_clear()
        for module in MODULES:
            sys.modules.pop(module, None)

    def write(package: str, **entry_points: str) -> None:
        info = tmp_path / "site" / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        offers = [f"{name} = {place}\n" for name, place in entry_points.items()]
        (info / "entry_points.txt").write_text("[hookflow.adapters]\n" + "".join(offers))
        forget()

    forget()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "adapter_plugin")
    yield write
    forget()


@pytest.fixture
def chorus(offer: Offer) -> None:
    offer("hookflow-chorus", chorus="hookflow_chorus:ChorusAdapter")


def compiled(*hooks: str, **options: Any) -> Plan:
    return compile_pipeline(parse(TOY.read_text(), TOY, [*hooks]), **options)


def mistake(*hooks: str) -> str:
    with pytest.raises(UserError) as refused:
        compiled(*hooks)
    return str(refused.value)


SUM = 'hooks.sum={use="chorus:LossSum"}'
ECHO = 'hooks.echo={use="chorus:StepEcho"}'


@pytest.mark.usefixtures("chorus")
def test_a_hook_of_an_installed_adapter_does_its_work(trained: Trained) -> None:
    run_dir = trained(
        SUM, ECHO, 'hooks.theirs={use="chorus:LossSum", args={key="from_one", start=1.0}}'
    )
    losses = logged(trained("hooks.log.points=[{at='after_train_iter', every=1}]"), "loss")
    total = 0.0
    sums = {}
    for iteration, loss in losses.items():
        total += loss
        sums[iteration] = total
    assert logged(run_dir, "loss_sum") == pytest.approx(sums)
    assert logged(run_dir, "from_one") == pytest.approx(
        {it: value + 1.0 for it, value in sums.items()}
    )
    assert [*logged(run_dir, "chorus_step").values()] == [*range(1, 16)]
    assert "stopped after 15" in messages(run_dir)
    state: Any = final_state(run_dir)
    assert state["hooks"]["sum"] == {"total": pytest.approx(total)}


@pytest.mark.usefixtures("chorus")
def test_its_state_is_resumed_to_the_bit(resumes_alike: Any) -> None:
    resumes_alike(SUM, point="after_train_iter", at=7)


@pytest.mark.usefixtures("chorus")
def test_it_contributes_points_slots_phases_and_edges() -> None:
    plan = compiled(SUM, ECHO, 'hooks.late={use="chorus:StepEcho", enabled=false}')
    bound = {
        (each.hook, each.point): each for each in plan.bindings if each.hook in ("sum", "echo")
    }
    assert bound.keys() == {
        ("sum", "after_train_iter"),
        ("echo", "after_train_iter"),
        ("echo", "after_train"),
    }
    assert bound["sum", "after_train_iter"].reads == ("outputs",)
    assert {each.phase for each in bound.values()} == {"early"}
    (edge,) = (
        each
        for each in plan.edges_at("after_train_iter")
        if (each.first, each.then) == ("echo", "sum")
    )
    assert (edge.kind, str(edge.where)) == ("class", "rank 20")
    order = [each.hook for each in plan.at("after_train_iter") if each.hook in ("sum", "echo")]
    assert order == ["echo", "sum"]


@pytest.mark.usefixtures("chorus")
def test_a_class_with_a_base_that_it_claims_is_adapted(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from chorus import Listener\n"
        "class Own(Listener):\n"
        "    '''My listener.'''\n"
        "    def __init__(self, width: int): self.width = width\n"
        "    def stopped(self, session): pass\n"
    )
    kind: Any = find_hook("./own.py:Own", tmp_path, None)
    assert issubclass(kind, AdaptedHook)
    assert (kind.__name__, kind.__doc__, kind.rank) == ("Own", "My listener.", 50)
    own = f'hooks.own={{use="{tmp_path}/own.py:Own", args={{width=3}}}}'
    assert [each.point for each in compiled(own).bindings if each.hook == "own"] == ["after_train"]
    assert '"widht"' in mistake(own.replace("width", "widht"))


@pytest.mark.usefixtures("chorus")
@pytest.mark.parametrize(
    ("hooks", "said", "hint"),
    [
        ([ECHO, 'hooks.again={use="chorus:StepEcho"}'], '"echo" and "again" both echo', "keep one"),
        (
            ['hooks.a={use="chorus:Conductor"}'],
            "Conductor needs Chorus' session",
            "the pipeline conducts",
        ),
        (
            ['hooks.a={use="chorus:LossSun"}'],
            'Chorus has no listener "LossSun"',
            'did you mean "LossSum"',
        ),
        ([SUM[:-1] + ", offload=true}"], "it is a listener of Chorus", ""),
    ],
)
def test_what_an_adapter_refuses_is_refused_with_its_hint(
    hooks: list[str], said: str, hint: str
) -> None:
    text = mistake(*hooks)
    assert said in text
    assert hint in text


@pytest.mark.usefixtures("chorus")
def test_names_of_its_framework_are_translated(tmp_path: Path) -> None:
    (tmp_path / "ported.py").write_text(
        "class Ported:\n    def on_chorus_step(self, session): pass\n"
    )
    text = mistake(f'hooks.ported={{use="{tmp_path}/ported.py:Ported"}}')
    assert "Ported has names of Chorus" in text
    assert "on_chorus_step → after_train_iter; session → run" in text


@pytest.mark.usefixtures("chorus")
def test_nothing_of_it_is_imported_without_need() -> None:
    compiled()
    compiled(SUM, imports=False)
    assert not sys.modules.keys() & set(MODULES)


def test_an_entry_point_that_is_no_adapter_is_refused(offer: Offer) -> None:
    offer("broken", chorus="hookflow_chorus:NOT_AN_ADAPTER")
    assert '"hookflow_chorus:NOT_AN_ADAPTER"' in mistake(SUM)


def test_a_prefix_of_two_packages_is_refused(offer: Offer) -> None:
    offer("hookflow-chorus", chorus="hookflow_chorus:ChorusAdapter")
    offer("other", chorus="other:Adapter")
    text = mistake(SUM)
    assert '"chorus:" is ambiguous: 2 adapters ' in text
    assert "hookflow-chorus 1.0" in text and "other 1.0" in text


def test_each_adapter_has_the_prefix_and_the_packages_of_its_entry() -> None:
    for entry in BUILT_IN_ADAPTERS:
        adapter = load_adapter(entry.place)
        assert adapter.prefix == entry.prefix
        assert adapter.names.packages == entry.packages
    assert len({adapter.names.framework for adapter in load_all_adapters()}) >= len(
        BUILT_IN_ADAPTERS
    )
