"""Hooks inside the network that the tests put into pipelines: they note what fires,
and take themselves off.
"""

from typing import Any


class Removes:
    def __init__(self, hook: str, at: int) -> None:
        self.hook, self.at = hook, at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            run.handles[self.hook].remove()


def halves(output: Any) -> Any:
    return output / 2
