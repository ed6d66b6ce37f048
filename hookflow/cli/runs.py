"""The commands runs, tag and rm: the runs there are, notes about them, and those that are no longer wanted."""

import gc
import io
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.errors import Problem, UserError, Where, first_few
from hookflow.numbers import counted, number
from hookflow.text import cut

if TYPE_CHECKING:
    from hookflow.monitor.index import Row

Format = Literal["table", "json", "csv"]

COLUMNS = "What to show: keys of a run or of its pipeline. By default also the keys in which the runs differ."
LESS = ("data", "updated", "reason", "iter", "note", "tags", "parent")
"""Usual columns that give way on a narrow terminal, the last one first."""

FILTER = """A condition: 'accuracy > 0.9 and model.args.width == 64', 'status == "failed"', '"good" in tags'."""


def _key(name: str, sentence: str) -> Any:
    return typer.Option(name, metavar="KEY", help=sentence)


def runs(
    shown: Annotated[str | None, typer.Option("--columns", metavar="KEY,…", help=COLUMNS)] = None,
    filter_: Annotated[str | None, typer.Option("--filter", metavar="CONDITION", help=FILTER)] = None,
    sort: Annotated[str | None, _key("--sort", "Sort by a key; -KEY: the largest first.")] = None,
    group: Annotated[str | None, _key("--group", "Group by a key, with the mean of each metric.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show the forks of each run below it.")] = False,
    format_: Annotated[Format, typer.Option("--format", "-f", help="json: a list of objects.")] = "table",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List the runs, the newest first.

    The keys of a run are those of its pipeline, its metrics (`accuracy`: the last value, `best.accuracy`), and facts
    as `status`, `reason` and `duration`; `--format json` shows all of them. The table leaves out runs that were refused
    before their first iteration.

    Example: `hookflow runs --filter 'best.accuracy > 0.9' --sort -best.accuracy`
    """
    gc.set_threshold(500_000)  # 10,000 rows stay: to search them for garbage takes a tenth of the time
    from hookflow.monitor.index import Index
    from hookflow.monitor.selection import groups, select

    index = Index(dir)
    every = index.refresh(_progress)
    gc.freeze()  # the exit would search them, too
    wanted = shown.split(",") if shown else []
    by_group = [group] if group else []
    rows = select(every, filter_, sort, wanted, group)
    hidden = filter_ is None and format_ == "table"
    rows = [row for row in rows if not (hidden and row.values["status"] == "refused")]
    parts = groups(rows, group) if group else [(None, rows)]
    ordered = [row for _, part in parts for row in part]
    if format_ != "table":
        _print_data(ordered, [*dict.fromkeys([*by_group, *wanted])] if wanted else [], format_)
        return
    if rows:
        echo("\n".join(table(parts, wanted, group, tree)))
    else:
        echo(f"none of {counted(len(every), 'run')} in {dir} is meant" if every else f"no runs in {dir}")
    if hidden and len(rows) < len(every):
        count = counted(len(every) - len(rows), "run")
        echo(f"without {count} refused before the first iteration: --filter 'status == \"refused\"'")
    for why in index.unreadable:
        echo(why)
    for row in rows:
        if row.values["status"] == "unreadable":
            echo(f"{row.id} is unreadable: {row.values['reason']}")
        for why in row.refused:
            echo(f"{row.id}: {why}")


def _progress(done: int, whole: int) -> None:
    """Tell a person that many runs are being read, for the first time."""
    if done and done % 100 == 0 and sys.stderr.isatty():
        print(f"\rreading runs: {done:,} of {whole:,} ", end="", file=sys.stderr, flush=True)
        if done + 100 >= whole:
            print("\r\x1b[K", end="", file=sys.stderr)


def _print_data(rows: "Sequence[Row]", keys: list[str], format_: Format) -> None:
    """Print the values of the runs as they are: those of some keys, or all."""
    from hookflow.monitor.selection import known_keys

    if format_ == "json":
        echo_json([{key: row.get(key) for key in keys} if keys else {**row.values, **row.config} for row in rows])
        return
    import csv

    keys = keys or known_keys(rows)
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    written.writerow(keys)
    for row in rows:
        values = (row.get(key) for key in keys)
        written.writerow(json.dumps(value) if isinstance(value, list) else value for value in values)
    echo(text.getvalue().removesuffix("\n"))


def table(
    parts: "Sequence[tuple[Any, Sequence[Row]]]", keys: list[str], group: str | None, tree: bool = False
) -> Iterator[str]:
    """Yield the lines of a table, with a heading for each group, and the keys that have no column.

    With `tree` the forks of a run are below it, and indented.
    """
    from hookflow.monitor.selection import DIFFERENT, by_descent, column, default_columns, differing, headings

    now = time.time()
    placed = [each for _, part in parts for each in (by_descent(part) if tree else ((0, row) for row in part))]
    rows = [row for _, row in placed]
    differ = differing(rows)
    usual = [] if keys else [key for key in default_columns(rows, differ) if not (tree and key == "parent")]
    best = [key for key in usual if key.startswith("best.")]
    spare = [key for key in (*LESS, *best[1:]) if key in usual] + differ[:DIFFERENT] * bool(usual)
    keys = keys or [*usual]
    cells = {key: column(rows, key, now) for key in keys}
    terminal, room = sys.stdout.isatty(), shutil.get_terminal_size().columns
    if "reason" in usual and not terminal:  # a column that is named has the whole
        cells["reason"] = [cut(text, 100) for text in cells["reason"]]
    if tree:
        indents = (f"{'  ' * (depth - 1)}└ " if depth else "" for depth, _ in placed)
        cells[keys[0]] = [f"{indent}{text}" for indent, text in zip(indents, cells[keys[0]], strict=True)]
    widest = {key: max(texts, key=len, default="") for key, texts in cells.items()} if terminal else {}
    while terminal and spare and max(map(len, columns([headings(keys), [widest[key] for key in keys]]))) > room:
        keys.remove(spare.pop())  # the keys in which the runs differ give way first, the last one before the others
    lined = columns([headings(keys), *zip(*map(cells.__getitem__, keys), strict=True)])
    if terminal and (usual or keys[-1] in ("reason", "note")):  # of columns that are named, only a long text is cut
        most = room if usual else max(room, len(lined[0]))
        lined = [cut(line, most) for line in lined]
    lines = iter(lined)
    yield next(lines)
    for value, part in parts:
        if group:
            yield f"\n{group} = {'none' if value is None else value}: {', '.join(_means(part))}"
        yield from (next(lines) for _ in part)
    if more := [key for key in dict.fromkeys([*usual, *differ]) if key not in keys]:
        about = "they differ in " * (not {*more} - {*differ})
        yield f"{about}{counted(len(more), 'more key')}: --columns {','.join(more[:8])}{',…' * (len(more) > 8)}"


def _means(rows: "Sequence[Row]") -> Iterator[str]:
    """Yield how many runs there are, and of each best metric the mean and the standard deviation."""
    from statistics import fmean, pstdev

    yield counted(len(rows), "run")
    for metric in dict.fromkeys(row.values["metric"] for row in rows):
        if values := [value for row in rows if metric and (value := row.values.get(f"best.{metric}")) is not None]:
            deviation = f" ± {pstdev(values):.2g}" if len(values) > 1 else ""
            yield f"best.{metric} {number(fmean(values))}{deviation}"


def tag(
    run: options.RunName,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]…", help="Words to find it by.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="Remove a tag.")] = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="NOTE", help="A line about it; an empty one removes it.")
    ] = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Give a run tags and a note, and show those that it has.

    Example: `hookflow tag cifar baseline --note "before the new schedule"`
    """
    from hookflow.errors import nearest_or_all
    from hookflow.service.runs import find_run

    result = find_run(run, dir)
    if not (tags or remove or note is not None):  # it may be a run that this user may only read
        words, text = result.noted()
    else:
        with result.editing_notes():
            words, text = result.noted()
            if unknown := [word for word in remove or () if word not in words]:
                raise UserError(
                    Problem(f'the run {result.id} has no tag "{word}"', Where("--remove"), nearest_or_all(word, words))
                    for word in unknown
                )
            words = [word for word in dict.fromkeys([*words, *(tags or ())]) if word not in (remove or ())]
            text = text if note is None else note
            if (words, text) != result.noted():
                result.note(words, text)
    echo(f"{result.id}  {', '.join(words) or 'no tags'}" + f"  {text}" * bool(text))


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Runs: paths, ids, or parts of ids.", autocompletion=options.runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Delete runs, with their logs and checkpoints.

    Checkpoints that a run keeps elsewhere (`out_dir`) go, too; remote copies of them (`copy_to`) stay. It asks first.
    Where a run is training, or others that stay were forked from it, none is deleted. Of a link to a run, the link
    alone is deleted.
    """
    from hookflow.events.deletion import delete_run
    from hookflow.events.run_lock import is_locked
    from hookflow.monitor.index import forks_that_stay
    from hookflow.monitor.summary import read_overview
    from hookflow.service.runs import find_run

    wanted = {run.path: run for run in (find_run(name, dir) for name in runs)}
    links = [run for run in wanted.values() if run.path.is_symlink()]
    seen = [read_overview(run, time.time()) for run in wanted.values() if run not in links]
    if alive := [item for item in seen if is_locked(item.run.path) or not item.health.over]:
        raise UserError(
            Problem(f"the run {item.run.id} is {item.health.condition}", Where("RUN"), f"hookflow stop {item.run.id}")
            for item in alive
        )
    if forks := forks_that_stay([item.run for item in seen]):
        raise UserError(
            Problem(f"the run {id_} has forks: {first_few(names)}", Where("RUN"), "delete these, too, or none")
            for id_, names in forks.items()
        )
    if not yes and not sys.stdin.isatty():
        raise UserError(Problem("nobody can be asked here", Where("rm"), "add --yes to delete without a question"))
    listed = [(item.run.id, item.run.path.parent.name, str(item.health.condition)) for item in seen]
    listed += [(run.id, run.path.parent.name, f"a link to {run.path.resolve()}") for run in links]
    echo("\n".join(columns(listed)))
    if not yes and not typer.confirm(f"Delete {counted(len(wanted), 'run')}?"):
        raise typer.Exit(1)
    for run in wanted.values():
        delete_run(run)
