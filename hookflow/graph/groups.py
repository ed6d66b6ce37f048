"""Groups of hooks in a graph: an edge to a group is an edge to each of its members."""

from collections.abc import Iterable, Mapping, Sequence

from hookflow.errors import Locate, Problem, Where, nearest
from hookflow.graph.plan import EdgeSpec, PlannedGroup
from hookflow.pipeline.groups import (
    find_members,
    group_name,
    is_glob,
    is_group,
    match_entry,
    missing_group,
)


def make_planned_groups(
    entries: Mapping[str, Sequence[str]],
    hooks: Sequence[str],
    disabled: Iterable[str],
    locate: Locate,
) -> tuple[tuple[PlannedGroup, ...], list[Problem]]:
    """Return the groups of a pipeline, and what is wrong with them.

    `entries` are the names and globs of each group, `hooks` all hooks of the pipeline, with those
    that are `disabled`, which are no members. `locate` returns the place of a key.
    """
    off = set(disabled)
    groups: list[PlannedGroup] = []
    problems: list[Problem] = []
    for name, written in entries.items():
        key = f"groups.{name}"
        if name in hooks:
            message = f'a hook and a group are both called "{name}"'
            problems.append(Problem(message, locate(key), "give the group another name"))
        for number, entry in enumerate(written):
            problem = _check_entry(name, entry, hooks, locate(f"{key}.hooks.{number}"))
            if problem is not None:
                problems.append(problem)
        members = [hook for hook in find_members(written, hooks) if hook not in off]
        groups.append(
            PlannedGroup(name, tuple(written), tuple(members), locate(f"{key}.hooks").at_line)
        )
    return tuple(groups), problems


def _check_entry(group: str, entry: str, hooks: Sequence[str], where: Where) -> Problem | None:
    """Return what is wrong with an entry of a group, which is at `where`.

    It is None if nothing is.
    """
    if entry.endswith("?") or match_entry(entry, hooks):
        return None
    if is_group(entry):
        return Problem(f'group "{group}" names another group, "{entry}"', where, "name its hooks")
    optional = f'write "{entry}?" if it may be missing'
    if is_glob(entry):
        return Problem(f'group "{group}": the glob "{entry}" matches no hook', where, optional)
    message = f'group "{group}" has a hook "{entry}", which is not in this pipeline'
    return Problem(message, where, nearest(entry, hooks) or optional)


class GroupExpander:
    """Puts the members of groups in the place of the groups, and collects what is wrong."""

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self.problems: list[Problem] = []
        self._groups = {group.name: group for group in groups}

    def expand(self, hook: str, where: Where, specs: Iterable[EdgeSpec]) -> tuple[EdgeSpec, ...]:
        """Return the edges that a hook states, with an edge to each member in the place of a group.

        `where` is the place of the hook in the file.
        """
        expanded: list[EdgeSpec] = []
        for spec in specs:
            if not is_group(spec.hook):
                expanded.append(spec)
                continue
            name = group_name(spec.hook)
            group = self._groups.get(name)
            if group is None:
                if not spec.optional:
                    problem = missing_group(name, self._groups, spec.where, f'hook "{hook}" names')
                    self._report(problem, spec, where)
            elif hook in group.members:
                message = (
                    f'hook "{hook}" cannot stand before or after the group "{name}", of which it is'
                    " a member"
                )
                self._report(
                    Problem(message, spec.where, f"the group is declared at {group.where}"),
                    spec,
                    where,
                )
            else:
                for member in group.members:  # they have been checked
                    expanded.append(
                        EdgeSpec(member, True, spec.kind, spec.where, spec.at, group=name)
                    )
        return tuple(expanded)

    def report_required_groups(self, hook: str, where: Where, specs: Iterable[EdgeSpec]) -> None:
        """Report each group that a hook requires."""
        for spec in specs:
            if is_group(spec.hook):
                message = f'hook "{hook}" requires "{spec.hook}", and a group cannot be required'
                self._report(
                    Problem(message, spec.where, "name the hooks that it requires"), spec, where
                )

    def _report(self, problem: Problem, spec: EdgeSpec, where: Where) -> None:
        if spec.kind == "class":
            problem = Problem(f"{problem.message} (stated by {spec.where})", where, problem.hint)
        if problem not in self.problems:  # both halves of an around state the same
            self.problems.append(problem)
