"""Lets a language model write while it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Sample(Hook):
    """Logs a text that the model writes after each validation, of bytes that it draws one by one.

    All ranks let it write, the same, and the first logs it: of a model that is sharded none could call it alone.
    """

    reads: ClassVar[Slots] = ("model",)

    def __init__(
        self,
        prompt: Annotated[str, Field(min_length=1, description="what the text begins with")] = "# ",
        count: Annotated[int, Field(ge=1, description="how many bytes the model adds")] = 200,
        temperature: Annotated[float, Field(gt=0, description="below 1: less random")] = 0.8,
    ) -> None:
        self.prompt = prompt
        self.count = count
        self.temperature = temperature

    def after_val(self, run: Run) -> None:
        from hookflow.zoo.chargpt import decode, encode, write

        context: int = run.model.context  # type: ignore[assignment]
        begun = encode(self.prompt).to(run.device)
        written = write(run.model, begun, self.count, self.temperature, context, seed=run.iter)
        if run.rank == 0:
            run.log_text("sample", decode(written))
