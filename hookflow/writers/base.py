"""The base class of writers, and the writers that do without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from hookflow.errors import nearest_or_all


class Writer:
    """Carries what a run logs to somewhere else: a file, a service. `[writers.NAME]` names one by `use`.

    A class with one of the methods `write_…` is a writer, derived from this one or not (`as_writer`). A verb that
    it lacks does nothing.

    It is made before the training. Its constructor is given `dir` (a folder of its own in the run directory),
    `run_name` and `run_id` where it takes them and the pipeline does not give them. All other calls come from one
    thread of its own, one at a time, in the order in which things were logged; so a slow writer delays no training and
    no other writer. With several ranks, rank 0 alone has writers. An exception that a call raises
    loses that call; `docs/writers.md` says what follows.

    `iteration` and `epoch` are how many were done, `time` is in seconds since 1970.
    """

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        """Take a number of `run.log`, or a metric of a validation or test by its split: "val/accuracy"."""

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        """Take an image of `run.log_image`: a PNG file in the run directory, which stays there."""

    def write_figure(self, name: str, file: Path, iteration: int, epoch: int, time: float) -> None:
        """Take a figure of `run.log_figure` as it was drawn, a PNG file; left out, it is an image without a caption."""
        self.write_image(name, file, "", iteration, epoch, time)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        """Take a text of `run.log_text`."""

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        """Take a histogram of `run.log_histogram`: the edges of its bins, and the counts, one fewer."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Take the resolved pipeline, as the tables of its TOML. Called once in the whole run, before all else."""

    def close(self) -> None:
        """Finish. Called once at the end of each attempt, however it ends, unless the process is killed."""

    def flush(self) -> None:
        """Bring to its place what is kept back. Called whenever nothing more is waiting to be written."""

    def resume_at(self, iteration: int) -> bool:
        """Forget what earlier attempts have written after `iteration`, and return whether it does.

        Called first in every attempt but the first that has the writer. The run resumes at that iteration or later:
        what the writer may lack up to there, as the process was killed, is written again then. A writer that cannot
        forget returns False, and is not asked again: what it was given before is passed over when the resumed run logs
        it again.
        """
        return False


WHEN = ("iteration", "epoch", "time")
VALUES: dict[str, tuple[str, ...]] = {
    "write_scalar": ("name", "value"),
    "write_image": ("name", "file", "caption"),
    "write_figure": ("name", "file"),
    "write_text": ("name", "text"),
    "write_histogram": ("name", "edges", "counts"),
}
"""The arguments of each verb, to which `WHEN` is added."""
VERBS = (*VALUES, "write_config")
"""The methods of which a writer has at least one."""
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
OTHERS = ("close", "flush", "resume_at")


def as_writer(made: Any) -> Writer:
    """Return an object as a writer: each of its methods is given the arguments that it names, the others do nothing.

    `step` is another name of `iteration`. Raises TypeError for an object without any of `VERBS`, and for a method that
    needs an argument which is not offered.
    """
    own = {
        method: getattr(made, method)
        for method in (*VERBS, *OTHERS)
        if callable(getattr(made, method, None)) and getattr(type(made), method, None) is not getattr(Writer, method)
    }
    if not own.keys() & set(VERBS):
        raise TypeError(f"a writer has one of the methods {', '.join(VERBS)}, and {type(made).__name__} has none")
    writer = Writer()
    for method, call in own.items():
        setattr(writer, method, _fitted(call, VALUES[method]) if method in VALUES else call)
    return writer


def _fitted(call: Callable[..., None], values: tuple[str, ...]) -> Callable[..., None]:
    """Return a function of `values` and `WHEN` that gives `call` what it names; `call` itself where it takes all."""
    offered = (*values, *WHEN)
    parameters = signature(call).parameters
    with suppress(TypeError):
        signature(call).bind(*offered)
        return call
    places = {name: offered.index(name) for name in offered} | {"step": offered.index("iteration")}
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and parameter.kind in BY_NAME and name not in places:
            hint = nearest_or_all(name, places, lead="offered are")
            raise TypeError(f'{call.__qualname__} asks for "{name}", which is not offered ({hint})')
    taken = [(name, places[name]) for name, parameter in parameters.items() if name in places]
    return lambda *provided: call(**{name: provided[place] for name, place in taken})
