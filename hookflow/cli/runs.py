"""The commands runs, tag and rm.

They list runs, write notes about them, and delete those that are no longer wanted.
"""

from __future__ import annotations

import gc
import io
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.errors import Problem, UserError, Where, first_few
from hookflow.numbers import format_count
from hookflow.text import cut

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.index import Row
    from hookflow.monitor.summary import RunSummary

    RunGroup = tuple[Any, Sequence[Row]]
    """The runs with one value of a key."""

Format = Literal["table", "json", "csv"]

COLUMNS_HELP = (
    "What to show: keys of a run or of its pipeline. By default also the keys in which the runs"
    " differ."
)
DROPPABLE_COLUMNS = ("data", "updated", "reason", "iter", "note", "tags", "parent")
"""Usual columns that give way on a narrow terminal, the last one first."""

MAX_NAMED_KEYS = 8
"""The keys without a column that are named."""

MAX_REASON_WIDTH = 100
"""Characters of a reason where there is no terminal."""

FILTER_HELP = (
    "A condition: 'accuracy > 0.9 and model.args.width == 64', 'status == \"failed\"',"
    " '\"good\" in tags'."
)

GROUP_HELP = "Group by a key, with mean ± sample deviation of the best and the last of each metric."


def _key(name: str, sentence: str) -> Any:
    return typer.Option(name, metavar="KEY", help=sentence)


def runs(
    shown: Annotated[
        str | None, typer.Option("--columns", metavar="KEY,…", help=COLUMNS_HELP)
    ] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="CONDITION", help=FILTER_HELP)
    ] = None,
    sort: Annotated[str | None, _key("--sort", "Sort by a key; -KEY: the largest first.")] = None,
    group: Annotated[str | None, _key("--group", GROUP_HELP)] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show the forks of each run below it.")
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="json: a list of objects.")
    ] = "table",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List the runs, the newest first.

    The keys of a run are those of its pipeline, its metrics (`best.accuracy`, `last.accuracy`), and
    facts as `status`, `reason` and `duration`; `--format json` shows all of them. The table leaves
    out runs that were refused before their first iteration.

    Example: `hookflow runs --filter 'best.accuracy > 0.9' --sort -best.accuracy`
    """
    # The rows of 10,000 runs stay: searching them for garbage takes a tenth of the time.
    gc.set_threshold(500_000)
    from hookflow.monitor.index import Index
    from hookflow.monitor.selection import groups, select

    index = Index(dir)
    every = index.refresh(_show_progress)
    gc.freeze()  # the exit would search them, too
    keys = []
    if shown:
        keys = shown.split(",")
    rows = select(every, filter_, sort, keys, group)
    hides_refused = filter_ is None and format_ == "table"
    if hides_refused:
        rows = [row for row in rows if row.values["status"] != "refused"]
    parts: Sequence[RunGroup] = [(None, rows)]
    if group:
        parts = groups(rows, group)
    if format_ != "table":
        if keys and group:
            keys = [*dict.fromkeys([group, *keys])]
        _print_data([row for _, part in parts for row in part], keys, format_)
        return
    if rows:
        echo("\n".join(table_lines(parts, keys, group, tree)))
    elif every:
        echo(f"none of {format_count(len(every), 'run')} in {dir} is meant")
    else:
        echo(f"no runs in {dir}")
    if hides_refused and len(rows) < len(every):
        count = format_count(len(every) - len(rows), "run")
        echo(
            f"without {count} refused before the first iteration: --filter 'status == \"refused\"'"
        )
    _print_problems(index.unreadable, rows)


def _print_problems(unreadable: Sequence[str], rows: Sequence[Row]) -> None:
    """Print what of the runs cannot be read."""
    for problem in unreadable:
        echo(problem)
    for row in rows:
        if row.values["status"] == "unreadable":
            echo(f"{row.id} is unreadable: {row.values['reason']}")
        for problem in row.refused:
            echo(f"{row.id}: {problem}")


def _show_progress(done: int, whole: int) -> None:
    """Tell a person that many runs are being read, for the first time."""
    if done == 0 or done % 100 or not sys.stderr.isatty():
        return
    print(f"\rreading runs: {done:,} of {whole:,} ", end="", file=sys.stderr, flush=True)
    if done + 100 >= whole:
        print("\r\x1b[K", end="", file=sys.stderr)


def _print_data(rows: Sequence[Row], keys: list[str], format_: Format) -> None:
    """Print the values of the runs as they are: those of some keys, or all."""
    if format_ == "json":
        data = []
        for row in rows:
            if keys:
                data.append({key: row.get(key) for key in keys})
            else:
                data.append({**row.values, **row.config})
        echo_json(data)
    else:
        _print_csv(rows, keys)


def _print_csv(rows: Sequence[Row], keys: list[str]) -> None:
    import csv

    from hookflow.monitor.selection import list_keys

    keys = keys or list_keys(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(keys)
    for row in rows:
        cells = []
        for key in keys:
            value = row.get(key)
            cells.append(json.dumps(value) if isinstance(value, list) else value)
        writer.writerow(cells)
    echo(text.getvalue().removesuffix("\n"))


def table_lines(
    parts: Sequence[RunGroup], keys: list[str], group: str | None, tree: bool = False
) -> Iterator[str]:
    """Yield the lines of a table, with a heading for each group, and the keys that have no column.

    With `tree` the forks of a run are below it, and indented.
    """
    from hookflow.monitor.selection import find_differing_keys

    placed = _order_rows(parts, tree)
    rows = [row for _, row in placed]
    differ = find_differing_keys(rows)
    if not keys:
        columns_ = _default_columns(rows, differ, tree)
    else:
        columns_ = TableColumns(keys)
    table = _make_table(placed, columns_, tree)
    lines = iter(table.lines)
    yield next(lines)
    for value, part in parts:
        if group:
            name = value
            if value is None:
                name = "none"
            elif isinstance(value, bool):
                name = str(value).lower()  # as a pipeline and a filter have it
            yield f"\n{group} = {name}: {', '.join(_format_aggregates(part))}"
        for _ in part:
            yield next(lines)
    if columns_.are_default:
        wanted = [*columns_.keys, *differ]
    else:
        wanted = differ
    left_out = [key for key in dict.fromkeys(wanted) if key not in table.keys]
    if left_out:
        yield _left_out_text(left_out, differ)


def _left_out_text(keys: Sequence[str], differ: Sequence[str]) -> str:
    text = f"{format_count(len(keys), 'more key')}: --columns {','.join(keys[:MAX_NAMED_KEYS])}"
    if len(keys) > MAX_NAMED_KEYS:
        text += ",…"
    if set(keys) <= set(differ):
        return f"they differ in {text}"
    return text


def _order_rows(parts: Sequence[RunGroup], tree: bool) -> list[tuple[int, Row]]:
    """Return the rows in the order of the table, each with the number of its ancestors above it."""
    from hookflow.monitor.selection import sort_by_descent

    placed: list[tuple[int, Row]] = []
    for _, part in parts:
        if tree:
            placed += sort_by_descent(part)
        else:
            placed += [(0, row) for row in part]
    return placed


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The keys of a table.

    `spare` are those that give way on a narrow terminal, the last one first.
    """

    keys: Sequence[str]
    spare: Sequence[str] = ()
    are_default: bool = False


@dataclass(frozen=True, slots=True)
class RunTable:
    """A table of runs: the keys that have a column, and the lines, the first with the headings."""

    keys: Sequence[str]
    lines: Sequence[str]


def _default_columns(rows: Sequence[Row], differ: Sequence[str], tree: bool) -> TableColumns:
    from hookflow.monitor.selection import MAX_DIFFERING_KEYS, default_columns

    keys = default_columns(rows, differ)
    if tree and "parent" in keys:
        keys.remove("parent")
    best = [key for key in keys if key.startswith("best.")]
    spare = [key for key in (*DROPPABLE_COLUMNS, *best[1:]) if key in keys]
    spare += differ[:MAX_DIFFERING_KEYS]  # the keys in which the runs differ give way first
    return TableColumns(keys, spare, True)


def _make_table(placed: Sequence[tuple[int, Row]], wanted: TableColumns, tree: bool) -> RunTable:
    """Return the table as wide as it may be."""
    from hookflow.monitor.selection import make_cells, make_headings

    now = time.time()
    rows = [row for _, row in placed]
    keys = list(wanted.keys)
    cells = {key: make_cells(rows, key, now) for key in keys}
    is_terminal = sys.stdout.isatty()
    # A column that the user has named is not cut.
    if wanted.are_default and "reason" in cells and not is_terminal:
        cells["reason"] = [cut(text, MAX_REASON_WIDTH) for text in cells["reason"]]
    if tree:
        cells[keys[0]] = [
            _indent(depth) + text for (depth, _), text in zip(placed, cells[keys[0]], strict=True)
        ]
    width = shutil.get_terminal_size().columns
    if is_terminal:
        keys = _keys_that_fit(keys, wanted.spare, cells, width)
    body = zip(*(cells[key] for key in keys), strict=True)
    lines = columns([make_headings(keys), *body])
    if is_terminal and wanted.are_default:
        lines = [cut(line, width) for line in lines]
    # Among columns that the user has named, only a last one of long texts is cut.
    elif is_terminal and keys[-1] in ("reason", "note"):
        width = max(width, len(lines[0]))
        lines = [cut(line, width) for line in lines]
    return RunTable(keys, lines)


def _indent(depth: int) -> str:
    if depth == 0:
        return ""
    return "  " * (depth - 1) + "└ "


def _keys_that_fit(
    keys: Sequence[str], spare: Sequence[str], cells: Mapping[str, list[str]], width: int
) -> list[str]:
    """Return the keys without those that give way to the width of the terminal."""
    from hookflow.monitor.selection import make_headings

    kept = list(keys)
    giving_way = list(spare)
    widest = {key: max(texts, key=len, default="") for key, texts in cells.items()}
    while giving_way:
        lines = columns([make_headings(kept), [widest[key] for key in kept]])
        if max(map(len, lines)) <= width:
            break
        kept.remove(giving_way.pop())
    return kept


def _format_aggregates(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many runs there are, and statistics of each metric.

    These are the mean and the sample deviation of its best and its last.
    """
    from hookflow.monitor.aggregate import MetricAggregate

    yield format_count(len(rows), "run")
    metrics = [row.values["metric"] for row in rows if row.values["metric"]]
    for metric in dict.fromkeys(metrics):
        for key in (f"best.{metric}", f"last.{metric}"):
            values = [row.values[key] for row in rows if row.values.get(key) is not None]
            if values:
                yield f"{key} {MetricAggregate.of(values)}"


def tag(
    run: options.RunName,
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]…", help="Words to find it by.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="Remove a tag.")
    ] = None,
    note: Annotated[
        str | None,
        typer.Option("--note", metavar="NOTE", help="A line about it; an empty one removes it."),
    ] = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Give a run tags and a note, and show those that it has.

    Example: `hookflow tag cifar baseline --note "before the new schedule"`
    """
    from hookflow.service.runs import find_run

    run_dir = find_run(run, dir)
    if tags or remove or note is not None:
        with run_dir.lock_notes():
            _change_notes(run_dir, tags or [], remove or [], note)
    words, text = run_dir.read_notes()  # else it may be a run that this user may only read
    line = f"{run_dir.id}  {', '.join(words) or 'no tags'}"
    if text:
        line += f"  {text}"
    echo(line)


def _change_notes(
    run: RunDir, added: Sequence[str], removed: Sequence[str], note: str | None
) -> None:
    """Add and remove tags, and replace the note unless it is None.

    Raises UserError for a tag that is not there.
    """
    from hookflow.errors import nearest_or_all

    words, text = run.read_notes()
    problems = []
    for word in removed:
        if word not in words:
            message = f'the run {run.id} has no tag "{word}"'
            problems.append(Problem(message, Where("--remove"), nearest_or_all(word, words)))
    if problems:
        raise UserError(problems)
    new_words = [word for word in dict.fromkeys([*words, *added]) if word not in removed]
    if note is None:
        new_text = text
    else:
        new_text = note
    if (new_words, new_text) != (words, text):
        run.note(new_words, new_text)


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Runs: paths, ids, or parts of ids.",
            autocompletion=options.complete_runs,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Delete runs, with their logs and checkpoints.

    Checkpoints that a run keeps elsewhere (`out_dir`) go, too; remote copies of them (`copy_to`)
    stay. It asks first. Where a run is training, or others that stay were forked from it, none is
    deleted. For a link to a run, only the link is deleted.
    """
    from hookflow.events.deletion import delete_run
    from hookflow.service.runs import find_run

    wanted: dict[Path, RunDir] = {}
    for name in runs:
        run = find_run(name, dir)
        wanted[run.path] = run
    links = [run for run in wanted.values() if run.path.is_symlink()]
    summaries = _check_deletable([run for run in wanted.values() if run not in links])
    if not yes and not sys.stdin.isatty():
        raise UserError(
            Problem(
                "nobody can be asked here", Where("rm"), "add --yes to delete without a question"
            )
        )
    listed = []
    for summary in summaries:
        listed.append((summary.run.id, summary.run.path.parent.name, str(summary.health.condition)))
    for link in links:
        listed.append((link.id, link.path.parent.name, f"a link to {link.path.resolve()}"))
    echo("\n".join(columns(listed)))
    if not yes and not typer.confirm(f"Delete {format_count(len(wanted), 'run')}?"):
        raise typer.Exit(1)
    for run in wanted.values():
        delete_run(run)


def _check_deletable(runs: Sequence[RunDir]) -> list[RunSummary]:
    """Return how the runs are. Raises UserError where one goes on, or has forks that would stay."""
    from hookflow.events.run_lock import is_locked
    from hookflow.monitor.index import find_remaining_forks
    from hookflow.monitor.summary import read_run_summary

    summaries = [read_run_summary(run, time.time()) for run in runs]
    problems = []
    for summary in summaries:
        run = summary.run
        if is_locked(run.path) or not summary.health.over:
            message = f"the run {run.id} is {summary.health.condition}"
            problems.append(Problem(message, Where("RUN"), f"hookflow stop {run.id}"))
    if problems:
        raise UserError(problems)
    for run_id, names in find_remaining_forks(runs).items():
        message = f"the run {run_id} has forks: {first_few(names)}"
        problems.append(Problem(message, Where("RUN"), "delete these, too, or none"))
    if problems:
        raise UserError(problems)
    return summaries
