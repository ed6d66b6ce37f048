"""Hooks inside the network that the tests put into pipelines: they note what fires,
and take themselves off.
"""

from pathlib import Path
from typing import Any

from torch.utils.hooks import RemovableHandle


class Notes:
    """Notes in a file each call at `forward`: who is called, for which module,
    after how many iterations, where.
    """

    def __init__(self, file: str, who: str = "probe") -> None:
        self.file, self.who = Path(file), who

    def forward(self, run: Any, name: str) -> None:
        self.note(f"{self.who} {name or 'net'} {run.iter} {run.stage}")

    def note(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")


class Once(Notes):
    def forward(self, run: Any, name: str) -> None:
        with run.handle as handle:
            super().forward(run, name)
            ids = handle.id, run.handle.id, run.handles["probe"].id
            assert isinstance(handle, RemovableHandle) and ids[0] == ids[1] != ids[2]


class NotesModel(Notes):
    def after_train_iter(self, run: Any) -> None:
        held = {name: len(module._forward_hooks) for name, module in run.model.named_modules()}
        self.note(
            f"{run.iter}: {' '.join(f'{name}={n}' for name, n in held.items() if n)}".rstrip()
        )

    forward = None  # type: ignore[assignment]


class Removes:
    def __init__(self, hook: str, at: int) -> None:
        self.hook, self.at = hook, at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            run.handles[self.hook].remove()


def by_hand(run: Any) -> None:
    run.model.head.register_forward_hook(lambda *given: run.say(f"{run.iter} by hand"))
    run.model.head.register_forward_hook(
        lambda *given: run.say(f"{run.iter} by hand, prepended"), prepend=True
    )


def says(run: Any, text: str) -> None:
    run.say(f"{run.iter} {text}")


def elsewhere(run: Any) -> None:
    run.handle.remove()


def halves(output: Any) -> Any:
    return output / 2


def halves_once(run: Any, output: Any) -> Any:
    run.handle.remove()
    return output / 2
