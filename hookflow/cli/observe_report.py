"""The report of `hookflow check --observe`.

It has observed slots, missing declarations, and the lines to add.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tomli

from hookflow.cli.output import columns, exit_after_traceback, warn_of, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.graph.observation import (
    Method,
    Slots,
    find_turned_pairs,
    find_undecided_pairs,
    find_unseen_slots,
    missing,
    with_observed,
    without_reads,
)
from hookflow.graph.plan import Plan
from hookflow.graph.slots import SLOT_VERBS, Verb, select_widest_slots
from hookflow.graph.why import Ambiguity, find_ambiguities
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.source_map import Key, as_toml, format_key
from hookflow.service.findings import wrap_labelled

if TYPE_CHECKING:
    from hookflow.trials.temporary_run import ObservationResult


@dataclass(frozen=True, slots=True)
class SlotDeclaration:
    """The value of `[hooks.<hook>]` for key `key`: slots of all its methods, or by method."""

    hook: str
    key: Verb
    value: list[str] | dict[str, list[str]]

    def __str__(self) -> str:
        return f"{self.key} = {as_toml(self.value)}"


def list_declarations(
    loaded: Loaded, plan: Plan, missing: Mapping[Method, Slots]
) -> Iterator[SlotDeclaration]:
    """Yield what the file should say so that what is `missing` is declared.

    Existing statements of the file and the class stay.
    """
    for hook in plan.hooks:
        for verb in SLOT_VERBS:
            missing_slots: dict[str, Sequence[str]] = {}
            for (name, method), touched in missing.items():
                slots = touched.of(verb)
                if name == hook.name and slots:
                    missing_slots[method] = slots
            if missing_slots:
                value = _make_declared_value(loaded, plan, hook.name, verb, missing_slots)
                yield SlotDeclaration(hook.name, verb, value)


def _make_declared_value(
    loaded: Loaded, plan: Plan, hook: str, verb: Verb, missing_slots: Mapping[str, Sequence[str]]
) -> list[str] | dict[str, list[str]]:
    """Return what the file should say.

    It is a list if all methods touch the same, or the file has one already.
    """
    table = loaded.pipeline.hooks[hook]
    stated = table.writes
    if verb == "reads":
        stated = table.reads
    if isinstance(stated, list):
        added: list[str] = []
        for slots in missing_slots.values():
            added += slots
        return list(dict.fromkeys([*stated, *select_widest_slots(added)]))  # each once
    slots_by_method: dict[str, list[str]] = {}
    for binding in plan.bindings:
        if binding.hook == hook:
            declared = Slots(binding.reads, binding.writes).of(verb)
            touched = {*declared, *missing_slots.get(binding.method, ())}
            slots_by_method[binding.method] = list(select_widest_slots(touched))
    first, *others = slots_by_method.values()
    if stated is None and all(other == first for other in others):
        return first
    value = dict(stated or {})
    for method in missing_slots:
        value[method] = slots_by_method[method]
    return value


def with_key(text: str, table: Key, key: str, value: Any) -> str:
    """Return a TOML text in which `key` of a table is `value`.

    A list or a table that is there is extended. Raises ValueError where that would change anything
    else.
    """
    import tomlkit
    from tomlkit.items import InlineTable

    wanted = tomli.loads(text)
    there: Any = wanted
    whole_lines = text
    if not text.endswith("\n"):
        whole_lines += "\n"
    document = tomlkit.parse(whole_lines)
    edited: Any = document
    for name in table:
        there = there.setdefault(name, {})
        if name not in edited:
            if edited is document and text:
                document.add(tomlkit.nl())
            if isinstance(edited, InlineTable):
                edited[name] = tomlkit.inline_table()
            else:
                edited[name] = tomlkit.table()
        edited = edited[name]
    there[key] = value
    _put(edited, key, value)
    changed = tomlkit.dumps(document)
    if "\r\n" in text:
        changed = re.sub("(?<!\r)\n", "\r\n", changed)
    if tomli.loads(changed) != wanted:
        raise ValueError(f"{format_key((*table, key))} cannot be put in")
    return changed


def _put(table: Any, key: str, value: Any) -> None:
    """Set a key of a tomlkit table, and keep the items that a list or a table has already."""
    import tomlkit

    before = table.get(key)
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        for name, inner in value.items():
            if before.get(name) != inner:
                _put(before, name, inner)
    elif isinstance(before, list) and isinstance(value, list) and value[: len(before)] == before:
        before.extend(value[len(before) :])
    else:
        table[key] = tomlkit.value(as_toml(value))


def _make_pair(ambiguity: Ambiguity) -> tuple[str, frozenset[str]]:
    return ambiguity.point, frozenset((ambiguity.first.hook, ambiguity.then.hook))


BYTE_ORDER_MARK = "\ufeff"

HALF_SUFFIXES = {"whole": "", "enter": " (entered)", "exit": " (left)"}
"""The text after the point of a binding, by its half."""

LARGE_NETWORK = (
    "the network is large: writes to its memory by other code than PyTorch's were not looked for"
)


def _format_other_slots(slots: Sequence[str], hook: str) -> str:
    """Return the slots but that of the hook itself; "-" for none."""
    others = [slot for slot in slots if slot != f"hook.{hook}"]
    return ", ".join(others) or "-"


@dataclass(frozen=True, slots=True)
class ObservationReport:
    """The findings of an observed run about the declarations of a pipeline."""

    loaded: Loaded
    plan: Plan
    observed: "ObservationResult"
    missing: Mapping[Method, Slots]
    declarations: Sequence[SlotDeclaration]
    declared: Plan
    """The plan that the pipeline would have with these declarations."""
    turned: Sequence[Ambiguity]
    """The pairs that clash and fire the other way round there."""
    undecided: Sequence[Ambiguity]
    """Pairs of a hook that changes a slot and a hook that reads it.

    The read stays undeclared until an order is stated.
    """

    @classmethod
    def of(cls, loaded: Loaded, plan: Plan) -> "ObservationReport":
        """Run a few iterations.

        Exits with 1 when something raised that is no hook, and with 130 after Ctrl-C.
        """
        from hookflow.trials.temporary_run import observe

        # Hooks may print, and stdout is for the report alone.
        with exit_after_traceback(), redirect_stdout(sys.stderr):
            observed = observe(loaded, plan, loaded.source.parent, warn_of)
        gaps = missing(plan, observed.seen)
        touched = with_observed(plan, observed.seen)
        open_ = list(find_undecided_pairs(touched, gaps))
        more = list(list_declarations(loaded, plan, without_reads(gaps, open_)))
        declared = _add_declarations(loaded, plan, more)
        if open_:  # a pair may be ordered by another slot
            left = {
                _make_pair(ambiguity)
                for ambiguity in find_ambiguities(with_observed(declared, observed.seen))
            }
            open_ = [item for item in open_ if _make_pair(item) in left]
            more = list(list_declarations(loaded, plan, without_reads(gaps, open_)))
            declared = _add_declarations(loaded, plan, more)
        still = {_make_pair(item) for item in (*find_ambiguities(declared), *open_)}
        wrong = [
            item for item in find_turned_pairs(touched, declared) if _make_pair(item) not in still
        ]
        return cls(loaded, plan, observed, gaps, more, declared, wrong, open_)

    @property
    def doubtful(self) -> bool:
        """Whether there is anything that `--strict` does not let pass."""
        return bool(self.missing) or any(
            item.why.startswith("raised") for item in self.observed.silent
        )

    def lines(self, ambiguous: Sequence[Ambiguity], width: int, *, written: bool) -> Iterator[str]:
        """Yield the report.

        `ambiguous` are the pairs that nothing orders, with the slots that were seen. Declarations
        that are `written` into the file are not repeated.
        """
        seconds = f"{self.observed.seconds:.1f} s"
        yield f"\nobserved {self.observed.iters} iterations in {seconds}; nothing was kept"
        yield from columns(self._list_firing_rows(), "  ")
        sections = {
            "not seen": self._list_never_seen(),
            "not fired": [
                f"{item.hook} at {item.point}: {item.why}" for item in self.observed.silent
            ],
            "ordered": list(self._ordered(ambiguous)),
            "limit": [] if self.observed.by_content else [LARGE_NETWORK],
        }
        for name, texts in sections.items():
            label = name
            for text in texts:
                yield wrap_labelled(label, text, width)
                label = ""
        for problem in self.problems(undeclared=not written):
            yield f"\nwarning: {problem}"

    def _list_firing_rows(self) -> list[tuple[str, ...]]:
        """Return a table's rows: each hook that has fired, with the slots it was seen to touch."""
        rows: list[tuple[str, ...]] = [("hook", "at", "firings", "reads", "writes")]
        for seen in self.observed.seen:
            if not seen.firings:
                continue
            binding = seen.binding
            place = binding.point + HALF_SUFFIXES[binding.half]
            reads = _format_other_slots(seen.touched.reads, binding.hook)
            writes = _format_other_slots(seen.touched.writes, binding.hook)
            rows.append((binding.hook, place, str(seen.firings), reads, writes))
        return rows

    def _list_never_seen(self) -> list[str]:
        """Return what each hook declares and was never seen to touch."""
        texts = []
        for hook, slots in find_unseen_slots(self.observed.seen).items():
            declared = " and ".join(
                f"{verb} {', '.join(names)}" for verb, names in slots.iter_by_verb()
            )
            texts.append(f"{hook} {declared}")
        return texts

    def problems(self, *, undeclared: bool = True) -> Iterator[Problem]:
        """Yield a warning for each pair that nothing orders or that declarations turn.

        Each hook without a needed declaration has a warning, too.
        """
        place = self.loaded.places.of
        for item in self.undecided:
            change = item.first.hook
            reader = item.then.hook
            slots = ", ".join(item.slots)
            yield Problem(
                f'at {item.point}, "{change}" changes {slots}, "{reader}" reads it, and nothing'
                " states the order",
                place(f"hooks.{reader}"),
                f"state it, then --write declares the rest: "
                f'after = ["{change}"] in [hooks.{reader}], or after = ["{reader}"] in'
                f" [hooks.{change}]",
            )
        for item in self.turned:
            first = item.first.hook
            then = item.then.hook
            yield Problem(
                f'at {item.point}, "{first}" fires ahead of "{then}"; both touch'
                f" {', '.join(item.slots)}. Once that is declared, it is the other way round",
                place(f"hooks.{first}"),
                f'declare what they touch (--write), or state which is right: after = ["{then}"] in'
                f" [hooks.{first}]",
            )
        if undeclared:
            for hook in dict.fromkeys(declaration.hook for declaration in self.declarations):
                yield self._make_undeclared_problem(hook)

    def _make_undeclared_problem(self, hook: str) -> Problem:
        """Return the warning that a hook touches slots without a declaration."""
        places_by_slots: dict[str, list[str]] = {}
        for (name, method), slots in self.missing.items():
            if name == hook:
                places = self._list_places(hook, method)
                for verb, names in slots.iter_by_verb():
                    places_by_slots.setdefault(f"{verb} {', '.join(names)}", []).extend(places)
        touched = "; ".join(
            f"{slots} at {' and '.join(places)}" for slots, places in places_by_slots.items()
        )
        lines = [
            f"\n        {declaration}"
            for declaration in self.declarations
            if declaration.hook == hook
        ]
        return Problem(
            f'hook "{hook}" touches what it does not declare: {touched}',
            self.loaded.places.of(f"hooks.{hook}"),
            f"declare it in [hooks.{hook}], or in its class:{''.join(lines)}",
        )

    def _list_places(self, hook: str, method: str) -> list[str]:
        """Return where a method fires: its points, or its own name if it stands around a pair."""
        if method.startswith("around_"):
            return [method]
        points = {}
        for binding in self.plan.bindings:
            if (binding.hook, binding.method) == (hook, method):
                points[binding.point] = True
        return list(points)

    def write(self) -> Iterator[str]:
        """Put the missing declarations into the pipeline file.

        Yields a line for each. Existing lines stay. Raises UserError where one of them cannot be
        added; nothing is written then.
        """
        source = self.loaded.source
        of_file = load(source).pipeline.hooks
        whole_text = source.read_bytes().decode("utf-8")
        text = whole_text.removeprefix(BYTE_ORDER_MARK)
        mark = whole_text.removesuffix(text)
        lines = []
        problems = []
        for item in self.declarations:
            try:
                if item.hook not in of_file:
                    raise ValueError(item.hook)
                text = with_key(text, ("hooks", item.hook), item.key, item.value)
            except ValueError:
                message = f"[hooks.{item.hook}] cannot be changed here"
                problems.append(Problem(message, Where(str(source)), f"add: {item}"))
            lines.append(f"{source}: {item} in [hooks.{item.hook}]")
        if problems:
            raise UserError(problems)
        if lines:
            write_file(source, mark + text)
        elif not self.undecided:
            yield f"{source}: nothing is missing"
        yield from lines

    def _ordered(self, ambiguous: Sequence[Ambiguity]) -> Iterator[str]:
        """Yield how the declarations would order the ambiguous pairs, and the pairs they turn."""
        still = {_make_pair(item) for item in (*find_ambiguities(self.declared), *self.undecided)}
        turned = {_make_pair(item) for item in self.turned}
        for entry in {_make_pair(each): each for each in (*ambiguous, *self.turned)}.values():
            first = entry.first.hook
            then = entry.then.hook
            if _make_pair(entry) in turned:
                decided = (
                    f"once all is declared, {then} ahead of {first}, and now it is the other way"
                    " round"
                )
            elif _make_pair(entry) in still:
                decided = f"nothing declares that {first} is ahead, as now; state which fires first"
            else:
                decided = f"once all is declared, {first} ahead, as now"
            yield f"{first} and {then} at {entry.point}: {decided}"


def _add_declarations(loaded: Loaded, plan: Plan, more: Sequence[SlotDeclaration]) -> Plan:
    """Return the plan that a pipeline would have with these declarations in it."""
    hooks = dict(loaded.pipeline.hooks)
    for item in more:
        hooks[item.hook] = hooks[item.hook].model_copy(update={item.key: item.value})
    pipeline = loaded.pipeline.model_copy(update={"hooks": hooks})
    return compile_pipeline(replace(loaded, pipeline=pipeline), shuffle=plan.shuffle)
