"""Plans of hooks with groups."""

from collections.abc import Iterable
from dataclasses import replace

from hookflow.errors import UserError, Where
from hookflow.graph.groups import GroupExpander, make_planned_groups
from hookflow.graph.order import compile_plan
from hookflow.graph.plan import Node, Plan


def grouped(nodes: Iterable[Node], disabled: Iterable[str] = (), **entries: list[str]) -> Plan:
    """Return the plan of hooks with groups. Raises UserError."""
    by_name = {each.hook.name: each for each in nodes}
    disabled = list(disabled)
    hooks = [*by_name, *disabled]
    groups, problems = make_planned_groups(
        entries, hooks, disabled, lambda key: Where(f"p.toml {key}")
    )
    expander = GroupExpander(groups)
    expanded = {name: expand(each, expander) for name, each in by_name.items()}
    problems += expander.problems
    if problems:
        raise UserError(problems)
    return compile_plan("p", expanded, disabled, groups=groups)


def expand(node: Node, groups: GroupExpander) -> Node:
    """Return a node with the members of groups in the place of the groups."""
    name = node.hook.name
    after, before, ambiguous = (
        groups.expand(name, node.where, specs)
        for specs in (node.after, node.before, node.ambiguous_with)
    )
    groups.report_required_groups(name, node.where, node.requires)
    hook = replace(node.hook, ambiguous_with=tuple(spec.hook for spec in ambiguous))
    return replace(node, hook=hook, after=after, before=before, ambiguous_with=ambiguous)
