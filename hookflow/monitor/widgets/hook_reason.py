"""Why the hook at the cursor runs where it does, in one to three lines."""

from rich.text import Text
from textual.content import Content
from textual.widgets import Static

from hookflow.events.records import Error
from hookflow.graph.plan import Binding
from hookflow.monitor.durations import ITERATION_HISTORY
from hookflow.monitor.hook_facts import describe_offload, describe_reason, describe_trouble
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.hook_order import OrderRow
from hookflow.numbers import format_count
from hookflow.pipeline.groups import GROUP_PREFIX

PHASE_WORDS = {
    "data": "the training thread waits for the next batch",
    "forward": "the forward pass, with its waits for the device",
    "backward": "the backward pass, with its waits for the device and for other ranks",
    "optimizer": "the step of the optimizer",
}


class HookReason(Static):
    """The problem of a hook, its work in background, and why it runs where it does."""

    DEFAULT_CSS = "HookReason { height: 2; width: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, markup=False)
        self._shown = ""

    def show_binding(
        self, store: RunStore, binding: Binding | None, *, told: Error | None = None
    ) -> None:
        """Show the reason of a hook; nothing where there is none at the cursor.

        The error that is `told` elsewhere on the page is left out.
        """
        if binding is None:
            self._show(Text(""))
            return
        lines = []
        is_told = told is not None and (told["hook"], told["point"]) == (
            binding.hook,
            binding.point,
        )
        if is_told:
            trouble = ""
        else:
            trouble = describe_trouble(store, binding)
        if trouble:
            lines.append(text_of((trouble, "error" if trouble.startswith(("✗", "⊘")) else "warn")))
        offload = describe_offload(store, binding)
        if offload:
            lines.append(text_of(offload))
        lines.append(text_of((binding.hook, "strong"), f" {describe_reason(store.plan, binding)}"))
        self._show(Text("\n", no_wrap=False).join(lines))

    def show_row(
        self, store: RunStore, each: OrderRow | None, *, told: Error | None = None
    ) -> None:
        """Show what a row of the loop is: the reason of its hook, else what a phase or a round is.

        `told` is as in `show_binding`.
        """
        if each is None:
            self._show(Text(""))
            return
        loop = each.loop
        if loop.binding is not None and not each.num_folded:
            self.show_binding(store, loop.binding, told=told)
            return
        text = ""
        if each.group:
            members = ", ".join(member.hook for member in each.members)
            self._show(
                text_of((f"{GROUP_PREFIX}{each.group}", "strong"), f"  {members}: f unfolds")
            )
            return
        if each.num_folded:
            text = f"{format_count(each.num_folded, 'hook')} folded: → unfolds"
        elif loop.kind == "phase":
            text = PHASE_WORDS[loop.name]
        elif loop.kind == "round":
            text = "a round of the loop; ← folds"
            if loop.name == ITERATION_HISTORY:
                text = "times of whole iterations; ← folds"
        else:
            text = f"no hook is called here: {store.plan.points[loop.name].about}"
        self._show(text_of((loop.name, "strong"), f"  {text}"))

    def _show(self, text: Text) -> None:
        if text.markup != self._shown:
            self._shown = text.markup
            text.no_wrap = False
            # A rich text has rows without a style, where NO_COLOR fails.
            self.update(Content.from_rich_text(text), layout=False)
