"""The time of a hook's calls over the run, as a chart."""

from collections.abc import Sequence

from textual.strip import Strip

from hookflow.graph.plan import Binding
from hookflow.monitor.charts import LABEL_WIDTH, Axis, Curve, render_chart
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import row
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import DURATION_UNITS, duration


class HookTrend(StripView):
    """A curve of the mean time of a call, over the iterations of the run."""

    DEFAULT_CSS = "HookTrend { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._store: RunStore | None = None
        self._binding: Binding | None = None
        self._is_log = False

    def show_binding(self, store: RunStore, binding: Binding | None, *, is_log: bool) -> None:
        """Show the times of a hook; `is_log`: with a logarithmic y-axis."""
        self._store = store
        self._binding = binding
        self._is_log = is_log
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        store = self._store
        binding = self._binding
        if store is None or binding is None:
            return []
        state = store.state
        num_parts = max(2 * (width - LABEL_WIDTH - 2), 1)
        means = state.histories.of(binding).compute_means(state.it + 1, num_parts)
        known = [mean for mean in means if mean is not None]
        if not known:
            return [row(width, (" no call yet", "dim"))]
        unit = duration(max(known)).split()[1]
        points = []
        for part, mean in enumerate(means):
            if mean is not None:
                value = mean / DURATION_UNITS[unit]
                points.append((state.it * (part + 0.5) / num_parts, value, value, value))
        heading = row(width, (f" {unit} a call", "dim"))
        curve = Curve("train", points)
        return [
            heading,
            *render_chart([curve], Axis(0, state.it), width, height - 1, log=self._is_log),
        ]
