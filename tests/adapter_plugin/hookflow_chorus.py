"""An adapter for Chorus, as a package on an index would offer it:
it uses hookflow's public interface alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import EdgeSpec, Nodes
from hookflow.hooks.adapter import (
    AdaptedClassSpec,
    AdaptedHook,
    FrameworkNames,
    HookAdapter,
    get_bases,
)
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run

METHODS = {"before_train": "started", "after_train_iter": "step_done", "after_train": "stopped"}


class ChorusHook(AdaptedHook):
    """A listener of Chorus, called with a session that is a view of the run."""

    capabilities = HookCapabilities(offload_blocker="it is a listener of Chorus")
    rank: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.listener = self.kind(*args, **kwargs)

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        session = SimpleNamespace(step=run.iter, note=run.log, say=run.say)
        method = getattr(self.listener, METHODS[point])
        if point == "after_train_iter":
            method(session, offered["outputs"]["loss"].item())
        else:
            method(session)

    def state_dict(self) -> dict[str, Any]:
        return {"total": getattr(self.listener, "total", 0.0)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.listener.total = state["total"]


class ChorusAdapter(HookAdapter):
    """Runs listeners of Chorus, those of a lower rank first."""

    prefix = "chorus"
    names = FrameworkNames(
        framework="Chorus",
        packages=("chorus",),
        base="Listener",
        arguments={"session": "run"},
        unmistakable=("session",),
        members={"on_chorus_step": "after_train_iter"},
    )

    def find(self, name: str, where: Where | None) -> type:
        import chorus

        kind = getattr(chorus, name, None)
        if not isinstance(kind, type):
            raise UserError(
                Problem(f'Chorus has no listener "{name}"', where, nearest(name, vars(chorus)))
            )
        return kind

    def claims(self, kind: type) -> bool:
        return any(
            base.__name__ == "Listener" and base.__module__ == "chorus"
            for base in get_bases(kind)[1:]
        )

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        if kind.__name__ == "Conductor":
            raise UserError(
                Problem("Conductor needs Chorus' session", where, "the pipeline conducts")
            )
        own_names = {
            name for base in get_bases(kind) if base.__name__ != "Listener" for name in vars(base)
        }
        points = [point for point, method in METHODS.items() if method in own_names]
        arguments = {point: ("outputs",) if point == "after_train_iter" else () for point in points}
        writes_outside = ("file",) if kind.__name__ == "FileWriter" else ()
        return AdaptedClassSpec(
            base=ChorusHook,
            arguments=arguments,
            reads={"after_train_iter": ("outputs",)} if "after_train_iter" in points else {},
            phase="late" if kind.rank > 30 else "early",
            capabilities=replace(ChorusHook.capabilities, writes_outside=writes_outside),
            attributes={"rank": kind.rank},
        )

    def edges(self, nodes: Nodes, hooks: Mapping[str, type[Any]]) -> dict[str, list[EdgeSpec]]:
        edges: dict[str, list[EdgeSpec]] = {}
        for name, hook in hooks.items():
            where = Where(f"rank {hook.rank}")
            lower = [other for other, kind in hooks.items() if kind.rank < hook.rank]
            edges[name] = [EdgeSpec(other, False, "class", where) for other in lower]
        return edges

    def problems(self, nodes: Nodes, hooks: Mapping[str, type[Any]]) -> Iterator[Problem]:
        echoes = [name for name, hook in hooks.items() if hook.kind.__name__ == "StepEcho"]
        for name in echoes[1:]:
            yield Problem(f'"{echoes[0]}" and "{name}" both echo', nodes[name].where, "keep one")


NOT_AN_ADAPTER = object()
