"""The interface of the dashboard for every screen.

It has the run that is shown, the choices of the user, the questions.
"""

from dataclasses import dataclass, field

from hookflow.events.now import NO_BINDING
from hookflow.graph.plan import Binding
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.settings import Preferences
from hookflow.monitor.terminal import Terminal


@dataclass(slots=True)
class ViewChoices:
    """The choices of the user that more than one page follows.

    `binding_id` is the hook at the cursor, by the id of its binding; None until a hook is chosen.
    `by_order`: hooks are shown in the order of the loop, else by cost. `whole_attempt`: times are
    of the attempt, else of the last minute.
    `folded_groups`: the groups of hooks that have one row each. `empty_points`: points to which
    nothing is bound are shown, too. `log_scale`: charts of hooks have a logarithmic y-axis.
    `log_metrics`: the metrics whose chart has one.
    `log_entry`: the number of the entry of the journal to go to in the log. `media_number`: that of
    the item of the gallery to go to on the page Media.
    """

    binding_id: int | None = None
    by_order: bool = False
    whole_attempt: bool = False
    folded_groups: set[str] = field(default_factory=set)
    empty_points: bool = False
    log_scale: bool = False
    log_metrics: set[str] = field(default_factory=set)
    log_entry: int | None = None
    media_number: int | None = None


class Dashboard(Terminal):
    """The app, as its screens know it."""

    def __init__(self, store: RunStore, preferences: Preferences) -> None:
        super().__init__(preferences)
        self.store = store
        self.choices = ViewChoices()

    def find_picked_binding(self) -> Binding | None:
        """Return the hook at the cursor.

        It is the chosen one, else that which ended the run or hangs, else the costliest.
        """
        plan = self.store.plan
        state = self.store.state
        chosen = self.choices.binding_id
        if chosen is not None and chosen < len(plan.bindings):
            return plan.bindings[chosen]
        if state.ranks.first_failure:
            _, error = state.ranks.first_failure
            for binding in plan.bindings:
                if (binding.hook, binding.point) == (error["hook"], error["point"]):
                    return binding
        if self.store.health.condition == "stalled":
            binding_id, _seconds = self.store.inside.get(0, (NO_BINDING, 0.0))
            if NO_BINDING < binding_id < len(plan.bindings):
                return plan.bindings[binding_id]
        return max(plan.bindings, key=self._time_spent, default=None)

    def _time_spent(self, binding: Binding) -> float:
        return self.store.share(binding)

    def send_command(self, name: str, *args: str) -> bool:
        """Send a command to the run; return whether that was possible. A notice says why not."""
        why_not = self.store.find_command_obstacle(name, *args)
        if why_not:
            self.say(why_not, severity="warning")
            return False
        with self.telling(f"cannot ask the run to {name}"):
            self.store.send(name, *args)
            sent = " ".join([name, *args])
            self.say(f"◉ {sent} requested")
            self.show_changes()
            return True
        return False

    def show_changes(self) -> None:
        """Show what has changed, now."""
        raise NotImplementedError

    def open_run(self, store: RunStore) -> None:
        """Show another run."""
        raise NotImplementedError

    def show_page(self, name: str) -> None:
        """Go to a page by its name."""
        raise NotImplementedError

    def read_stacks(self) -> None:
        """Take the stacks of all ranks again."""
        raise NotImplementedError

    def ask_to_stop(self) -> None:
        """Ask whether to stop the training."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the dashboard; the training goes on, if it does."""
        raise NotImplementedError

    def stop_and_leave(self) -> None:
        """Ask the run to stop, and leave where that was possible; else a notice says why not."""
        raise NotImplementedError
