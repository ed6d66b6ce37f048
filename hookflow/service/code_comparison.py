"""How the code of two pipelines or runs differs, as commands print it."""

from collections.abc import Iterator
from dataclasses import dataclass

from hookflow.events.recorded_code import CodeChange, describe_changes


@dataclass(frozen=True, slots=True)
class CodeComparison:
    """How the code of two pipelines or runs differs.

    `unknown` are those whose code was not recorded.
    """

    changes: tuple[CodeChange, ...] = ()
    unknown: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    """The models that begin with other weights of runs, a line each."""

    def __bool__(self) -> bool:
        return bool(self.changes or self.weights)

    def lines(self) -> Iterator[str]:
        """Yield what commands print.

        It is the files that differ with their differences, and whose code is not known.
        """
        if self.changes:
            yield "\ncode"
            yield from (f"  {line}" for line in describe_changes(self.changes))
        if self.weights:
            yield "\nweights"
            yield from (f"  {line}" for line in self.weights)
        if self.unknown:
            yield (
                f"\nthe code is not compared: that of {' and '.join(self.unknown)} was not recorded"
            )
