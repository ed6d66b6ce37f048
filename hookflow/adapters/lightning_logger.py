"""The logger that Lightning's callbacks find in a Trainer: what they log goes into the run."""

from collections.abc import Mapping
from typing import Any

from hookflow.adapters.views import RunView
from hookflow.hooks.run import Run


class SummaryWriterView(RunView):
    """The methods of TensorBoard's SummaryWriter, which log into the run."""

    shown = "TensorBoard's SummaryWriter"

    def __init__(self, run: Run) -> None:
        self._run = run

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, **_: Any
    ) -> None:
        self._run.log(tag, scalar_value)

    def add_image(
        self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any
    ) -> None:
        self._run.log_image(tag, img_tensor)

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, **_: Any) -> None:
        self._run.log_figure(tag, figure)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, **_: Any
    ) -> None:
        self._run.log_text(tag, text_string)

    def add_histogram(
        self, tag: str, values: Any, global_step: int | None = None, **_: Any
    ) -> None:
        self._run.log_histogram(tag, values)


class LoggerView(RunView):
    """Logs into the run.

    It is an instance of Lightning's TensorBoardLogger, `kind`, for which callbacks look.
    """

    shown = "Lightning's logger"
    group_separator = "/"

    def __init__(self, run: Run, kind: type) -> None:
        self._run = run
        self._kind = kind
        folder = str(run.dir)
        self.save_dir = folder
        self.log_dir = folder
        self.root_dir = folder
        self.name = ""
        self.version = run.dir.name
        self.experiment = SummaryWriterView(run)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self._run.log(name, value)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None: ...
