"""Whether losses and gradients are finite, without waiting for the device."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from hookflow.errors import DiagnosisError
from hookflow.graph.plan import Plan
from hookflow.hooks.optimizer_state import list_group_entries
from hookflow.hooks.tensors import Weight, group_by_dtype, local, sum_dtype
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.process.state import RunState

Mark = TypeVar("Mark")


class AsyncScalarCopy(Generic[Mark]):
    """Single numbers on their way to the host, each with a mark that says what it is.

    They arrive in the order of sending. On CUDA each is copied to pinned memory when the device has
    computed it. On other devices the reader waits.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[Tensor, torch.cuda.Event | None, Mark]] = deque()

    def send(self, number: Tensor, mark: Mark) -> None:
        """Send a tensor of one element, with the value that the device computes for it."""
        if number.device.type == "cuda":
            copy = number.detach().to("cpu", non_blocking=True)  # which takes pinned memory for it
            self._under_way.append(
                (copy, torch.cuda.current_stream(number.device).record_event(), mark)
            )
        else:
            self._under_way.append((number.detach().clone(), None, mark))

    def iter_arrived(self, wait: bool = False) -> Iterator[tuple[float, Mark]]:
        """Yield what has arrived since the last time; with `wait` all that was sent."""
        while self._under_way:
            copy, copied, mark = self._under_way[0]
            if copied is not None and not copied.query():
                if not wait:
                    return
                copied.synchronize()
            self._under_way.popleft()
            yield float(copy), mark


class NonFiniteLossError(DiagnosisError, ArithmeticError):
    """A loss was NaN or infinite."""


Place = tuple[int, int, int]
"""Where a loss was computed: iterations and epochs that were done, and the batch of the epoch."""


class LossCheck:
    """Checks that each loss of a training is finite.

    It does so as soon as the host has the loss, on CUDA an iteration or so later.

    `explain` is given the batch of the loss, or None where it is gone, and its iteration. It
    returns the rest of the message.
    """

    def __init__(
        self,
        device: torch.device,
        state: RunState,
        explain: Callable[[Any, int], str] = lambda batch, it: "",
    ) -> None:
        self._state = state
        self._explain = explain
        self._sent: AsyncScalarCopy[Place] = AsyncScalarCopy()
        self.watch = self._watch_later if device.type == "cuda" else self._watch_now

    def _watch_now(self, loss: Tensor, batch: Any) -> None:
        """Take a loss.

        Raises NonFiniteLossError when this one, or one before it, is known not to be finite.
        """
        if not isfinite(value := loss.item()):
            raise self._error(value, self._read_place(), batch)

    def _watch_later(self, loss: Tensor, batch: Any) -> None:
        self._sent.send(loss, self._read_place())
        self.settle(wait=False)

    def settle(self, *, wait: bool = True) -> None:
        """Check every loss that has been taken.

        Raises NonFiniteLossError when one is not finite.
        """
        for value, place in self._sent.iter_arrived(wait):
            if not isfinite(value):
                raise self._error(value, place)

    def _read_place(self) -> Place:
        return self._state.iter, self._state.epoch, self._state.batch_idx

    def _error(self, value: float, place: Place, batch: Any = None) -> NonFiniteLossError:
        number = "infinite"
        if value != value:
            number = "NaN"
        it, ep, index = (done + 1 for done in place)
        where = f"iteration {it} (epoch {ep}, batch {index})"
        return NonFiniteLossError(
            f"the loss is {number} in {where}. {self._explain(batch, it)}".rstrip()
        )


def suggest_remedies(precision: str, *, clips: bool, saved: bool) -> str:
    """Return ways to avoid a loss that is not finite.

    The run may clip gradients and have saved checkpoints.
    """
    ways = ["lower the learning rate"]
    if not clips:
        ways.append("bound the gradients (the hook grad_clip)")
    if precision in ("fp16", "fp16-true"):
        ways.append('compute with a wider range (run.precision = "bf16" or "fp32")')
    if precision in ("bf16", "bf16-true"):
        ways.append('compute with more digits (run.precision = "fp32")')
    ways.append('or skip such steps: run.on_nan = "skip"')
    kept = ""
    if saved:
        kept = " Existing checkpoints are not affected."
    return f"To avoid it: {', '.join(ways)}.{kept}"


FIRST_SCALE, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""How the scale of float16 moves: up after so many steps in a row, down at each that is left out.

As in PyTorch.
"""


class StepGuard:
    """Checks the gradients before each step, and skips it when one of them is not finite.

    All ranks decide alike. In float16 it scales the losses, as `torch.amp.GradScaler`, which would
    wait for the device. With `run.on_nan = "skip"` it checks the losses as well: one that is not
    finite may have finite gradients. `waits` says whether the host must know before a step whether
    it is taken: an optimizer that is not fused cannot skip one by itself, and hooks fire after each
    step.
    """

    def __init__(
        self,
        parts: RunComponents,
        plan: Plan,
        state: RunState,
        *,
        log: Callable[[str, float], None],
        say: Callable[..., None],
    ) -> None:
        self._parts = parts
        self._device = device = parts.device
        self._state = state
        self._log = log
        self._say = say
        self._optimizers = parts.optimizers
        self._skips_nan = parts.section.on_nan == "skip"
        self._scales = parts.precision == "fp16"
        self._scale = torch.full((), FIRST_SCALE if self._scales else 1.0, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._found = torch.zeros((), device=device)
        self._left_out = torch.zeros((), device=device)
        self._bad_loss = {name: torch.zeros((), device=device) for name in parts.optimizers}
        """By optimizer: 1 where a loss was not finite whose gradients wait for a step, else 0."""
        self._reported = 0
        self._in_a_row: dict[tuple[str, ...], int] = {}
        """How many steps of these optimizers were skipped since their last one that was taken."""
        self._counts: AsyncScalarCopy[tuple[int, tuple[str, ...]]] = AsyncScalarCopy()
        self._began: set[str] = set()
        self._reason = host_sync_reason(plan, parts.optimizers)
        self.waits = device.type != "cuda" or bool(self._reason)

    def announce(self) -> None:
        if self.waits and self._device.type == "cuda":
            self._say(
                "one device sync before every step (check for non-finite gradients):"
                f" {self._reason}"
            )

    def seed(self, loss: Tensor, share: Weight) -> Tensor:
        """Return the gradient with which the backward pass of a loss begins: its share, scaled."""
        return (self._scale * share).to(loss.dtype)

    def watch(self, loss: Tensor, names: Iterable[str]) -> None:
        """Take in a loss whose gradients the next step of these optimizers uses."""
        if not self._skips_nan:
            return
        bad = loss.detach().isfinite().logical_not().float()
        for name in names:
            self._bad_loss[name] = torch.maximum(self._bad_loss[name], bad)

    def reset_losses(self, names: Iterable[str]) -> None:
        """Forget the losses whose gradients a step of these optimizers has used or left out."""
        if not self._skips_nan:
            return
        for name in names:
            self._bad_loss[name] = torch.zeros((), device=self._device)

    @torch.no_grad()
    def found_inf(self, names: tuple[str, ...]) -> Tensor:
        """Divide the gradients of these optimizers by the scale.

        Returns 1 if their step must be left out, else 0. It is left out where a gradient or a loss
        is not finite, on any rank. The scale depends on the gradients alone.
        """
        bad_gradient = self._unscale(names)
        bad_loss = torch.stack([self._bad_loss[name] for name in names]).max()
        flags = torch.stack([bad_gradient, bad_loss])
        if self._parts.strategy.several:
            torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
        self._found = torch.maximum(self._found, flags[0])
        result = flags.max()
        self._left_out = self._left_out + result
        return result

    def _unscale(self, names: tuple[str, ...]) -> Tensor:
        """Divide the gradients of these optimizers by the scale.

        Returns 1 if one of them is not finite, else 0.
        """
        result = torch.zeros((), device=self._device)
        inverse = None
        if self._scales:
            inverse = self._scale.to(sum_dtype(self._scale.device)).reciprocal().float()
        for alike in group_by_dtype(
            gradient for name in names for gradient in _iter_gradients(self._optimizers[name])
        ):
            if inverse is not None:
                torch._amp_foreach_non_finite_check_and_unscale_(alike, result, inverse)
            else:
                largest = torch.stack(torch._foreach_norm(alike, torch.inf))
                result = torch.maximum(result, largest.isfinite().all().logical_not().float())
        return result

    def should_skip(self, names: tuple[str, ...], found_inf: Tensor) -> bool:
        """Return whether the host knows that the step of these optimizers is not taken."""
        # An optimizer may skip a step by itself, but not its very first one: a fused SGD would go
        # on with uninitialised memory as its momentum.
        if not self.waits and self._began.issuperset(names):
            self._counts.send(self._left_out, (self._state.iter + 1, names))
            return False
        refused = bool(found_inf)
        # The host has waited already, so this is reported in the iteration itself, on any device.
        if refused:
            self._counts.send(self._left_out.cpu(), (self._state.iter + 1, names))
        else:
            self._in_a_row.pop(names, None)
            self._began.update(names)
        return refused

    def step(self, optimizer: Optimizer, found_inf: Tensor) -> None:
        """Let an optimizer step; one that can skip a step by itself is given what decides that."""
        if self.waits:
            optimizer.step()
            return
        step_unless(optimizer, found_inf)

    def update_scale(self) -> None:
        """Move the scale of the losses.

        No gradients may be left that were computed with the present scale.
        """
        if self._scales:
            torch._amp_update_scale_(
                self._scale, self._growth, self._found, GROWTH, BACKOFF, INTERVAL
            )
            self._found = torch.zeros_like(self._found)

    def report(self, wait: bool = False) -> None:
        """Log how many steps have been skipped.

        A message comes at the 1st, the 10th, the 100th, and so on. Raises NonFiniteLossError after
        too many in a row.
        """
        for count, (it, names) in self._counts.iter_arrived(wait):
            total = int(count)
            if total == self._reported:
                self._in_a_row.pop(names, None)
                continue
            self._in_a_row[names] = self._in_a_row.get(names, 0) + 1
            self._log("skipped_steps", total)
            if not self._reported or len(str(total)) > len(str(self._reported)):
                if total == 1:
                    so_far = ""
                else:
                    so_far = f"; {total} so far"
                scaled = ""
                if self._scales:
                    scaled = " in float16: the loss is scaled by half as much"
                message = (
                    f"iteration {it} takes no step: the loss or a gradient is not"
                    f" finite{so_far}{scaled}"
                )
                self._say(message, "info" if self._scales and total == 1 else "warn")
            self._reported = total
            if self._skips_nan and self._in_a_row[names] >= self._parts.section.max_skipped_steps:
                raise NonFiniteLossError(self._too_many(names, it))

    def _too_many(self, names: tuple[str, ...], it: int) -> str:
        if len(names) == len(self._optimizers):
            owner = ""
        else:
            owner = f" of {', '.join(names)}"
        skipped = (
            f"{self._in_a_row[names]} steps in a row{owner} were skipped, the last in iteration"
            f" {it}"
        )
        weights = []
        for name in names:
            weights += list_group_entries(self._optimizers[name].param_groups)
        broken = not all(bool(local(weight.detach()).isfinite().all()) for weight in weights)
        cause = "the loss or a gradient is not finite in each"
        if broken:
            cause = "the weights are not finite"
        return f"{skipped}: {cause}. To allow more: run.max_skipped_steps"

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were skipped, also in a row and since the scale moved.

        In float16 the scale is there, too.
        """
        scale = {}
        if self._scales:
            scale = {"scale": self._scale, "growth": self._growth}
        in_a_row = {}
        if self._in_a_row:
            in_a_row = {"in_a_row": dict(self._in_a_row)}
        bad_loss = {}
        if self._skips_nan:
            bad_loss = dict(self._bad_loss)
        return {
            "left_out": self._left_out,
            "found": self._found,
            "bad_loss": bad_loss,
            **in_a_row,
            **scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned.

        That run may have been in another precision.
        """
        if self._scales and "scale" in state:
            self._scale.copy_(state["scale"])
            self._growth.copy_(state["growth"])
        self._found.copy_(state["found"])
        self._left_out = state["left_out"].to(self._device)
        self._reported = int(self._left_out)
        self._in_a_row = dict(state.get("in_a_row", {}))
        for name, bad in state.get("bad_loss", {}).items():
            if name in self._bad_loss:  # a fork may have other optimizers
                self._bad_loss[name].copy_(bad)


def step_unless(optimizer: Optimizer, left_out: Tensor) -> None:
    """Let an optimizer that `can_skip` step, unless a tensor on the device is 1."""
    optimizer.found_inf = left_out  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]


def can_skip(optimizer: Optimizer) -> bool:
    """Return whether an optimizer can leave a step out by itself, by a tensor on the device."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class EmptySteps:
    """Reports the first step whose batches weigh nothing.

    On CUDA it does not wait for the device.
    """

    def __init__(self, state: RunState, say: Callable[..., None]) -> None:
        self._state = state
        self._say = say
        self._sent: AsyncScalarCopy[tuple[int, str]] = AsyncScalarCopy()
        self._said = False

    def note_left_out(self) -> None:
        """Note that this iteration leaves a step out because its batches weigh nothing."""
        self._tell(self._state.iter + 1, LEFT_OUT)

    def watch(self, is_empty: Tensor, outcome: str) -> None:
        """Take in a tensor that is 1 if the iteration's batches weigh nothing.

        `outcome` says what the step of the iteration does then.
        """
        if not self._said:
            self._sent.send(is_empty, (self._state.iter + 1, outcome))
            self.settle(wait=False)

    def settle(self, *, wait: bool) -> None:
        for is_empty, (it, outcome) in self._sent.iter_arrived(wait):
            if is_empty:
                self._tell(it, outcome)

    def _tell(self, it: int, outcome: str) -> None:
        if not self._said:
            self._said = True
            self._say(
                f"the batch of iteration {it} has weight 0 (nothing in it counts): {outcome}",
                "warn",
            )


LEFT_OUT = "it takes no step"
ZERO_STEP = (
    "its step has gradients of zero, since only an optimizer with fused = true leaves one out by"
    " itself"
)


def host_sync_reason(plan: Plan, optimizers: Mapping[str, Optimizer]) -> str:
    """Return why the host must check the gradients before each step.

    The text is empty where it need not.
    """
    for optimizer in optimizers.values():
        if not can_skip(optimizer):
            fused = ""
            if "fused" in optimizer.defaults:
                fused = ", as one with fused = true can"
            return f"this {type(optimizer).__name__} cannot leave one out by itself{fused}"
    for binding in plan.at("after_optimizer_step"):
        return f'the hook "{binding.hook}" is to fire only after a step that is taken'
    return ""


def _iter_gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the gradients of an optimizer's parameters.

    Of sparse ones it is the values, and of sharded ones those of this rank.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradient = local(gradient)
                if gradient.is_sparse:
                    gradient = gradient._values()
                if gradient.numel():  # a rank's share may be empty
                    yield gradient
