"""`hookflow check --observe`: what hooks were seen to touch, what of that is not declared, and the lines to add."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hookflow.cli.output import columns, exits_after_traceback, warn, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.graph.ambiguity import Ambiguity, ambiguities
from hookflow.graph.observation import Method, Seen, Slots, missing, never_seen, to_json
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.declarations import Declaration, declarations
from hookflow.pipeline.add_keys import with_key
from hookflow.pipeline.load import Loaded, load

if TYPE_CHECKING:
    from hookflow.runner.observed_run import Observed


@dataclass(frozen=True, slots=True)
class Report:
    """What an observed run says of the declarations of a pipeline."""

    loaded: Loaded
    plan: Plan
    observed: Observed
    missing: Mapping[Method, Slots]
    never: Mapping[str, Slots]
    declarations: Sequence[Declaration]

    @classmethod
    def of(cls, loaded: Loaded, plan: Plan) -> Report:
        """Run a few iterations; exit with 1 when something raised that is no hook, with 130 after Ctrl-C."""
        from hookflow.runner.observed_run import observe

        with exits_after_traceback(), redirect_stdout(sys.stderr):  # what hooks print is no part of the report
            observed = observe(loaded, plan, loaded.source.parent, _say)
        found = missing(plan, observed.seen)
        never = never_seen(plan, observed.seen)
        return cls(loaded, plan, observed, found, never, list(declarations(loaded, plan, found)))

    @property
    def doubtful(self) -> bool:
        """Whether there is anything that `--strict` does not let pass."""
        return bool(self.missing or self.raised)

    @property
    def raised(self) -> list[str]:
        """What hooks have raised, and where."""
        return [f"{one.hook} at {one.point} {one.why}" for one in self.observed.silent if one.why.startswith("raised")]

    def lines(self, ambiguous: Sequence[Ambiguity], width: int) -> Iterator[str]:
        """Yield all of it for people; `ambiguous` are the pairs that nothing orders, with what was seen."""
        many = f"{self.observed.iters} iterations"
        yield f"\nobserved {many} in {self.observed.seconds:.1f} s; nothing was kept"
        seen = [one for one in self.observed.seen if one.firings]
        rows = [("hook", "at", "firings", "reads", "writes"), *map(_row, seen)]
        yield from (f"  {line}" for line in columns(rows))
        for name, texts in (
            ("not seen", [*_never(self.never)]),
            ("not fired", [f"{one.hook} at {one.point}: {one.why}" for one in self.observed.silent]),
            ("ordered", [*self._ordered(ambiguous)]),
            ("limit", [] if self.observed.by_content else [LARGE]),
        ):
            for k, text in enumerate(texts):
                head = f"  {'' if k else name:<10} "
                yield textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * 15)
        for problem in self.problems():
            yield f"\nwarning: {problem}"

    def problems(self) -> Iterator[Problem]:
        """Yield a warning for each hook that touches more than it declares, with the lines to add."""
        for hook in dict.fromkeys(one.hook for one in self.declarations):
            at: dict[str, list[str]] = {}
            for (name, method), both in self.missing.items():
                for verb, slots in (("reads", both.reads), ("writes", both.writes)):
                    if name == hook and slots:
                        at.setdefault(f"{verb} {', '.join(slots)}", []).append(self._points(hook, method))
            touched = "; ".join(f"{slots} at {' and '.join(points)}" for slots, points in at.items())
            lines = [f"\n        {one}" for one in self.declarations if one.hook == hook]
            yield Problem(
                f'hook "{hook}" touches what it does not declare: {touched}',
                self.loaded.places.of(f"hooks.{hook}"),
                f"declare it in [hooks.{hook}], or in its class:{''.join(lines)}",
            )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain lists, mappings and values."""
        return {
            "iters": self.observed.iters,
            "bindings": to_json(self.observed.seen, self.missing),
            "undeclared": [problem.to_json() for problem in self.problems()],
            "declare": [{"hook": one.hook, "key": one.key, "value": one.value} for one in self.declarations],
            "not_seen": {name: {"reads": both.reads, "writes": both.writes} for name, both in self.never.items()},
            "not_fired": [{"hook": one.hook, "point": one.point, "why": one.why} for one in self.observed.silent],
            "contents_compared": self.observed.by_content,
        }

    def write(self) -> Iterator[str]:
        """Put what is missing into the pipeline file, and yield a line for each. Raises UserError where that cannot be.

        What stands there stays as it is. Nothing is written unless everything can be.
        """
        source = self.loaded.source
        of_file, text = load(source).pipeline.hooks, source.read_bytes().decode("utf-8")
        mark = "\ufeff" * text.startswith("\ufeff")
        text, said, problems = text.removeprefix(mark), [], []
        for one in self.declarations:
            try:
                if one.hook not in of_file:
                    raise ValueError(one.hook)
                text = with_key(text, ("hooks", one.hook), one.key, one.value)
            except ValueError:
                problems.append(
                    Problem(f"[hooks.{one.hook}] cannot be changed here", Where(str(source)), f"add: {one}")
                )
            said.append(f"{source}: {one} in [hooks.{one.hook}]")
        if problems:
            raise UserError(problems)
        if said:
            write_file(source, mark + text)
        yield from said or [f"{source}: nothing is missing"]

    def _points(self, hook: str, method: str) -> str:
        names = dict.fromkeys(b.point for b in self.plan.bindings if (b.hook, b.method) == (hook, method))
        return method if method.startswith("around_") else " and ".join(names)

    def _ordered(self, ambiguous: Sequence[Ambiguity]) -> Iterator[str]:
        """Yield what the declarations would decide, of the pairs that nothing orders."""
        if not self.declarations or not ambiguous:
            return
        declared = self._declared()
        open_pairs = {(one.point, frozenset((one.first.hook, one.then.hook))) for one in ambiguities(declared)}
        for one in ambiguous:
            first, then = one.first.hook, one.then.hook
            if (one.point, frozenset((first, then))) in open_pairs:
                yield f"{first} and {then} at {one.point}: by no declaration, so state which fires first"
                continue
            turned = _place(declared, one.then) < _place(declared, one.first)
            ahead = (
                f"{then} ahead of {first}, and now it is the other way round" if turned else f"{first} ahead, as now"
            )
            yield f"{first} and {then} at {one.point}: once all is declared, {ahead}"

    def _declared(self) -> Plan:
        """Return the plan that the pipeline would have with the declarations in it."""
        hooks = dict(self.loaded.pipeline.hooks)
        for one in self.declarations:
            hooks[one.hook] = hooks[one.hook].model_copy(update={one.key: one.value})
        pipeline = self.loaded.pipeline.model_copy(update={"hooks": hooks})
        return compile_pipeline(replace(self.loaded, pipeline=pipeline), shuffle=self.plan.shuffle)


LARGE = "the network is large: writes to its memory by other code than PyTorch's were not looked for"


def _place(plan: Plan, binding: Binding) -> int:
    return next(
        k
        for k, other in enumerate(plan.at(binding.point))
        if (other.hook, other.method, other.half) == (binding.hook, binding.method, binding.half)
    )


def _row(seen: Seen) -> tuple[str, ...]:
    binding = seen.binding
    at = f"{binding.point} ({'left' if binding.half == 'exit' else 'entered'})" * (binding.half != "whole")
    reads, writes = (_without_own(binding, slots) for slots in (seen.touched.reads, seen.touched.writes))
    return binding.hook, at or binding.point, str(seen.firings), reads, writes


def _without_own(binding: Binding, slots: Sequence[str]) -> str:
    return ", ".join(slot for slot in slots if slot != f"hook.{binding.hook}") or "-"


def _never(never: Mapping[str, Slots]) -> Iterator[str]:
    for name, both in never.items():
        told = [
            f"{verb} {', '.join(slots)}" for verb, slots in (("reads", both.reads), ("writes", both.writes)) if slots
        ]
        yield f"{name} {' and '.join(told)}"


def _say(text: str, level: str = "info") -> None:
    if level != "info":
        warn(f"{level}: {text}")
