"""How far a writer has come in what its run logs: numbers in a file, which a killed process leaves behind."""

from __future__ import annotations

import os
import struct
from pathlib import Path

HEAD = struct.Struct("<QQ")
GAP = struct.Struct("<QQq")


class WriterProgress:
    """Calls are numbered as `hookflow.runner.writer_history.History` does it.

    `begun` is how many may have reached the writer, `safe` how many it had brought to their place; a file that is not
    there yet says that all of `calls` have been. But of the calls from one number up to another those alone have that
    are not after an iteration: `gaps` are such numbers, with the iteration at which the run was resumed then.
    """

    def __init__(self, path: Path, calls: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        kept = path.read_bytes()
        self.begun, self.safe = HEAD.unpack_from(kept) if len(kept) >= HEAD.size else (calls, calls)
        self.begun, self.safe = min(self.begun, calls), min(self.safe, calls)
        self.gaps: list[tuple[int, int, int]] = list(GAP.iter_unpack(kept[HEAD.size :]))

    def save(self, *, begun: int | None = None, safe: int | None = None) -> None:
        """Write down what has changed: with one call of the system, which a kill cannot tear."""
        self.begun = self.begun if begun is None else begun
        self.safe = self.safe if safe is None else safe
        os.pwrite(self._file, HEAD.pack(self.begun, self.safe), 0)

    def leave_out(self, begin: int, end: int, iteration: int) -> None:
        """Write down that of the calls from `begin` up to `end` those after the iteration are never made."""
        if begin < end:
            if not self.gaps:
                self.save()
            os.pwrite(self._file, GAP.pack(begin, end, iteration), HEAD.size + GAP.size * len(self.gaps))
            self.gaps.append((begin, end, iteration))

    def has_begun(self, number: int, iteration: int) -> bool:
        """Say whether a call of an iteration may have reached the writer."""
        return number < self.begun and not any(begin <= number < end and iteration > at for begin, end, at in self.gaps)

    def close(self) -> None:
        """Write nothing more."""
        os.close(self._file)
