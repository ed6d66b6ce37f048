"""Plans to draw: a small one, one with everything in it,
one with names that mean something elsewhere, and any.
"""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st

from hookflow.errors import Where
from hookflow.graph.order import PlanRequests, compile_plan
from hookflow.graph.plan import (
    DeclaredBinding,
    EdgeKind,
    EdgeSpec,
    Half,
    Node,
    Plan,
    PlannedHook,
    Trigger,
)
from hookflow.graph.points import DEFAULT_POINTS as ALL
from hookflow.graph.points import Point, Points
from hookflow.pipeline.condition import Condition

AROUND: tuple[tuple[str, str, Half], ...] = (
    ("before_val", "around_val", "enter"),
    ("after_val", "around_val", "exit"),
)


def node(
    name: str,
    points: Iterable[str] = ("before_train", "after_train_iter", "after_val"),
    after: Iterable[str] = (),
    phase: str = "normal",
    trigger: Trigger | None = None,
    around: bool = False,
    source: str = "pipelines/p.toml",
    kind: EdgeKind = "file",
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    after_at: tuple[tuple[str, str], ...] = (),
    about: str = "",
) -> Node:
    """Return a hook that is bound to `points`; its edges stand on line 7 of `source`, those
    `after_at` on line 8.

    With `around` it stands around the validation, too.
    """
    whole: tuple[tuple[str, str, Half], ...] = tuple((point, point, "whole") for point in points)
    halves = (*whole, *(AROUND if around else ()))

    def wish(other: str, line: int) -> EdgeSpec:
        return EdgeSpec(
            other,
            False,
            kind,
            Where(f"class {name.title()}") if kind == "class" else Where(source, line),
        )

    def bind(point: str, method: str, half: Half) -> DeclaredBinding:
        globs = modules if point in ALL and ALL[point].kind == "module" else ()
        return DeclaredBinding(
            name, point, method, half, ("run",), trigger or Trigger(), phase, reads, writes, globs
        )

    bound = tuple(bind(*where) for where in halves)
    near = [
        replace(wish(other, 8), at=(b.point, b.half))
        for b in bound
        for at, other in after_at
        if at == b.point
    ]
    hook = PlannedHook(name, name, {}, phase, about, f"{source}:1", "raise")
    return Node(hook, Where(source, 1), bound, (*(wish(other, 7) for other in after), *near))


def plan(*nodes: Node, points: Points = ALL, name: str = "p", shuffle: int | None = None) -> Plan:
    return compile_plan(
        name,
        {node.hook.name: node for node in nodes},
        (),
        points,
        requests=PlanRequests(shuffle=shuffle),
    )


HOSTILE_CONDITION = Condition(
    "loss > 1 and name != \"<&\\n`#quot;`>\" or 損失 < 'π' and tab\t== 1",
    frozenset(),
    frozenset(),
    (),
    lambda look: True,
)

EXAMPLE = plan(
    node("whiten", ["before_train"], phase="early"),
    node("ema", (), after=["whiten"], around=True),
    node("average", ["before_train", "after_train_iter"], after=["whiten"]),
    node("throughput", ["after_train_iter"]),
    node(
        "log",
        ["after_train_iter"],
        after=["throughput"],
        phase="late",
        trigger=Trigger.parse(every="50", since="1ep"),
    ),
    node("early_stop", ["after_val"], after=["ema"]),
    node(
        "checkpoint", ["after_val", "after_train_epoch"], after=["ema", "early_stop"], phase="last"
    ),
)

OWN = Points(
    [
        Point(
            "after_densify",
            3,
            ("run", "added"),
            "firing",
            "points were added",
            "own",
            "after_train_iter",
        ),
        Point(
            "before_prune", 3, ("run",), "firing", "some are about to go", "own", "after_densify"
        ),
    ]
)

RICH = plan(
    node("timer", phase="first"),
    node(
        "viewer",
        ["before_train", "after_train_iter"],
        ["timer"],
        "first",
        Trigger.parse(every="30s", when="rank == 0"),
    ),
    node("whiten", ["before_train"], phase="early", writes=("model",)),
    node(
        "ema",
        ["before_train", "after_train_iter"],
        ["whiten"],
        around=True,
        kind="class",
        reads=("model",),
    ),
    node("freeze_the_backbone", (), around=True),
    node(
        "densify",
        ["after_train_iter", "after_densify"],
        trigger=Trigger.parse("100", "500it", "10%"),
        writes=("model",),
    ),
    node("metrics_of_the_validation", ["after_train_iter", "after_val"], writes=("metrics",)),
    node(
        "psnr",
        ["after_train_iter", "after_val"],
        writes=("metrics",),
        after_at=(("after_train_iter", "reader"), ("after_val", "metrics_of_the_validation")),
    ),
    node("reader", ["after_train_iter", "after_densify", "after_val"], reads=("metrics", "model")),
    node(
        "probe",
        ["forward", "full_backward"],
        trigger=Trigger.parse(every="50"),
        modules=("layer*.conv?", "head"),
    ),
    node("log", phase="late", after=["psnr", "timer"]),
    node("tensorboard", ["after_train_iter"], after=["log"]),
    node("summary", after_at=(("after_train_iter", "log"),)),
    node("nan_guard", phase="first"),
    node("prune", ["before_prune"]),
    node("checkpoint", phase="last", after=["ema", "log"]),
    points=OWN,
    name="rich",
)

HOSTILE = plan(
    node("first", about='Says <b>"no"</b> & `maybe`; \x1b[31mü — 損失 ]]>'),
    node(
        "then",
        after=["first"],
        source='a "b" <c> & `d` #1;\\n\x07/it\'s "p" <&> `q`\\.toml',
        trigger=Trigger(when=HOSTILE_CONDITION),
    ),
    name='"p" & <q>\n---',
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Some hooks with slots, each after some of those before it;
    those around the validation state no edges.
    """
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=5), unique=True, max_size=8))
    nodes = []
    for k, name in enumerate(names):
        points = draw(
            st.lists(st.sampled_from([point.name for point in ALL]), unique=True, max_size=4)
        )
        phase = draw(st.sampled_from(["early", "normal", "last"]))
        trigger = draw(st.sampled_from([Trigger(), Trigger.parse(every="2ep", until="90%")]))
        around = not points or draw(st.booleans())
        after = draw(st.lists(st.sampled_from(names[:k]), unique=True)) if k and not around else []
        kind = draw(st.sampled_from(["file", "class"]))
        reads, writes = (
            draw(st.sampled_from([(), ("model",), ("metrics", "model")])) for _ in range(2)
        )
        nodes.append(
            node(
                name,
                points,
                after,
                phase,
                trigger,
                around,
                kind=kind,
                reads=reads,
                writes=writes,
                modules=("*",),
            )
        )
    return plan(*nodes)


def wide(hooks: int) -> Plan:
    """Return many hooks with edges of every kind, short ones and long ones,
    some of them around the validation.
    """
    kinds: tuple[EdgeKind, ...] = ("file", "class")
    nodes = []
    for k in range(hooks):
        after = sorted(
            {f"hook{k - back}" for back in (1, 5, 17, 60) if k >= back and k * 7 % (back + 2) == 0}
        )
        slots = (
            (("metrics",), ()) if k % 23 == 11 else ((), ("metrics",)) if k % 23 == 3 else ((), ())
        )
        nodes.append(
            node(
                f"hook{k}",
                ["after_train_iter"],
                after if k % 9 else [],
                around=k % 9 == 0,
                kind=kinds[k % 4 == 0],
                trigger=Trigger.parse(every="50", since="1ep") if k % 5 == 2 else None,
                reads=slots[0],
                writes=slots[1],
            )
        )
    return plan(*nodes, name="wide")
