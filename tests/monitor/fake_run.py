"""Run directories as a training would leave them, made up record by record."""

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from hookflow.events.log import LogAppender
from hookflow.events.packing import bin_of
from hookflow.events.records import PHASES, VERSION
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding, Edge, Plan, PlannedHook, Trigger

ITERS_PER_EPOCH, EPOCHS, VAL_BATCHES, BATCH = 98, 8, 20, 512
RATE = 36.0
"""Iterations a second."""

Uses = dict[str, tuple[Trigger, int]]
ALWAYS = Trigger()
HOOKS: dict[str, tuple[str, dict[str, Any], str, Uses]] = {
    # name: (use, args, phase, {point: (trigger, usual ns)})
    "seed": ("seed", {"seed": 0}, "first", {"before_run": (ALWAYS, 400_000)}),
    "timer": (
        "timer",
        {},
        "normal",
        {"before_train_iter": (ALWAYS, 9_000), "after_train_iter": (ALWAYS, 11_000)},
    ),
    "nan_guard": ("nan_guard", {}, "early", {"after_train_iter": (ALWAYS, 31_000)}),
    "clip": ("grad_clip", {"max_norm": 1.0}, "normal", {"after_backward": (ALWAYS, 212_000)}),
    "ema": ("ema", {"decay": 0.999}, "normal", {"after_train_iter": (ALWAYS, 640_000)}),
    "schedule": (
        "lr_schedule",
        {"kind": "one_cycle"},
        "normal",
        {"after_train_iter": (ALWAYS, 21_000)},
    ),
    "accuracy": (
        "accuracy",
        {},
        "early",
        {"after_val_iter": (ALWAYS, 48_000), "after_val_epoch": (ALWAYS, 130_000)},
    ),
    "log": ("log", {}, "late", {"after_train_iter": (Trigger.parse(every="10"), 180_000)}),
    "checkpoint": ("checkpoint", {"monitor": "accuracy", "mode": "max"}, "late", {}),
    "early_stop": (
        "early_stop",
        {"monitor": "accuracy", "patience": 5},
        "late",
        {"after_val": (ALWAYS, 12_000)},
    ),
    "visual": ("./visual.py:Visual", {}, "last", {"after_val_epoch": (ALWAYS, 2_400_000)}),
}
HOOKS["ema"][3].update(before_val=(ALWAYS, 90_000), after_val=(ALWAYS, 85_000))
HOOKS["checkpoint"][3].update(after_train_epoch=(Trigger.parse(every="2ep"), 38_000_000))
ORDER = (
    ("before_run", ("seed",)),
    ("before_train_iter", ("timer",)),
    ("after_backward", ("clip",)),
    ("after_train_iter", ("nan_guard", "ema", "schedule", "timer", "log")),
    ("after_train_epoch", ("checkpoint",)),
    ("before_val", ("ema",)),
    ("after_val_iter", ("accuracy",)),
    ("after_val_epoch", ("accuracy", "visual")),
    ("after_val", ("ema", "early_stop")),
)
EDGES = (
    ("after_train_iter", "nan_guard", "ema"),
    ("after_train_iter", "nan_guard", "schedule"),
    ("after_train_iter", "ema", "log"),
    ("after_train_iter", "schedule", "log"),
    ("after_train_iter", "timer", "log"),
    ("after_val_epoch", "accuracy", "visual"),
)

TRACEBACK = """Traceback (most recent call last):
  File "visual.py", line 31, in after_val_epoch
    self.canvas.write(image)
OSError: [Errno 28] No space left on device: 'visual/epoch_3.png'
"""


def sets(use: str) -> tuple[str, ...]:
    return ("max_norm",) if use == "grad_clip" else ()


def plan() -> Plan:
    bindings = []
    for point, hooks in ORDER:
        for hook in hooks:
            half = {("ema", "before_val"): "enter", ("ema", "after_val"): "exit"}.get(
                (hook, point), "whole"
            )
            method, trigger = "around_val" if half != "whole" else point, HOOKS[hook][3][point][0]
            takes, reads = ("run",), ("outputs",)
            phase = HOOKS[hook][2]
            placed_by = "phase" if hook != hooks[0] and phase != bindings[-1].phase else "file"
            bindings.append(
                Binding(
                    hook,
                    point,
                    method,
                    half,
                    takes,
                    trigger,
                    phase,
                    reads,
                    id=len(bindings),
                    placed_by=placed_by,  # type: ignore[arg-type]
                )
            )
    ids = {(binding.point, binding.hook): binding.id for binding in bindings}
    hooks_of_it = (
        PlannedHook(
            name,
            use,
            args,
            phase,
            f"About {name}.",
            f"cifar.toml:{20 + 4 * at}",
            "disable",
            settable=sets(use),
        )
        for at, (name, (use, args, phase, _)) in enumerate(HOOKS.items())
    )
    edges = (
        Edge(
            point,
            first,
            then,
            "file",
            f"cifar.toml:{50 + at}",
            (),
            ids[point, first],
            ids[point, then],
        )
        for at, (point, first, then) in enumerate(EDGES)
    )
    return Plan(
        pipeline="cifar", hooks=tuple(hooks_of_it), bindings=tuple(bindings), edges=tuple(edges)
    )


class Training:
    """Invents what a training of eight epochs would have recorded, frame by frame (`step` seconds
    each).

    With `world` it is what one rank of so many records. `late` is by how many shares of an
    iteration each rank takes longer in "data" than it would; so long the others wait for the last
    of them in "backward".
    """

    def __init__(
        self, begin: float, step: float = 0.25, synthetic: bool = True, seed: int = 0, **ranks: Any
    ) -> None:
        self.t, self.began, self.step, self.synthetic = begin, begin, step, synthetic
        self.rank, self.world = ranks.get("rank", 0), ranks.get("world", 1)
        self.late: Mapping[int, float] = ranks.get("late") or {}
        self.random = random.Random(seed)
        self.plan = plan()
        self.it = self.ep = 0

    def records(self) -> Iterator[list[dict[str, Any]]]:
        """Yield what is recorded with each frame."""
        yield [self._run()]
        yield [self._frame("start", 0, 0, {"before_run": 1})]
        for epoch in range(1, EPOCHS + 1):
            yield from self._epoch(epoch)
            yield from self._validation(epoch)
            if epoch % 2 == 0:
                yield [self._checkpoint(epoch), self._frame("save", 0, 0, {"after_train_epoch": 1})]
        yield [
            self._stamp("end", status="finished", exit=0, reason="", seconds=self.t - self.began)
        ]

    def _stamp(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"k": kind, "t": round(self.t, 3), "it": self.it, "ep": self.ep, **fields}

    def _run(self) -> dict[str, Any]:
        note = "drawn at random, shaped like cifar10" if self.synthetic else ""
        kind = {"batch_size": BATCH, "synthetic": self.synthetic, "note": note}
        train = {"name": "cifar10", "examples": 50_000, "batches": ITERS_PER_EPOCH, **kind}
        val = {"name": "cifar10", "examples": 10_000, "batches": VAL_BATCHES, **kind}
        place = {
            "pid": 4121 + self.rank,
            "host": f"gpu{1 + self.rank // 2:02}",
            "device": f"cuda:{self.rank % 2}",
        }
        model = {
            "model": "ResNet9",
            "params": 6_573_130,
            "precision": "bf16",
            "python": "3.11.7",
            "torch": "2.13.0",
        }
        layers = [("stem", "64×3×3×3", 1_728, 0), ("head", "10×512", 5_120, 5_120)]
        keys = ("name", "kind", "shapes", "parameters", "trainable", "bytes")
        model["layers"] = [
            dict(zip(keys, (name, "Any", *rest, 4 * rest[1]), strict=True))
            for name, *rest in layers
        ]
        length = {
            "max_epochs": EPOCHS,
            "max_iters": 0,
            "iters_per_epoch": ITERS_PER_EPOCH,
            "limited": {},
        }
        length["epoch_lengths"] = []
        ranks = {"rank": self.rank, "world": self.world, "strategy": "", "seed": 0}
        ranks |= {"resumed_from": None, "forked_from": None}
        data = {"data": {"train": train, "val": val}, "modes": {"accuracy": "max"}}
        return self._stamp(
            "run", version=VERSION, pipeline="cifar", **place, **model, **length, **ranks, **data
        )

    def _epoch(self, epoch: int) -> Iterator[list[dict[str, Any]]]:
        done, due = 0, 0.0
        began = self.t
        while done < ITERS_PER_EPOCH:
            due += RATE * self.step * self.random.uniform(0.93, 1.05)
            count = min(int(due) - done, ITERS_PER_EPOCH - done)
            done += count
            self.it += count
            scalars = [
                self._scalars(it) for it in range(self.it - count + 1, self.it + 1) if it % 10 == 0
            ]
            fired = dict.fromkeys(
                ("before_train_iter", "after_backward", "after_train_iter"), count
            )
            extra = self._incidents(epoch, done, count)
            yield [*scalars, *extra, self._frame("train", done, ITERS_PER_EPOCH, fired, count)]
        self.ep = epoch
        yield [self._stamp("epoch", seconds=round(self.t - began, 3))]

    def _incidents(self, epoch: int, done: int, count: int) -> list[dict[str, Any]]:
        if epoch == 3 and done - count < 40 <= done:
            text = "ema took 8.1 ms at iteration 236, 12 times its usual time"
            return [self._stamp("message", level="warn", source="ema", text=text)]
        if epoch == 5 and done - count < 20 <= done:
            answer = {
                "id": "0badcafe",
                "cmd": "checkpoint",
                "args": [],
                "sent": self.t - 0.4,
                "ok": True,
                "note": "",
            }
            return [self._stamp("ack", **answer)]
        return []

    def _scalars(self, it: int) -> dict[str, Any]:
        share = it / (EPOCHS * ITERS_PER_EPOCH)
        loss = 0.25 + 2.05 * math.exp(-4 * share) + self.random.gauss(0, 0.05)
        rate = 0.4 * min(share / 0.2, (1 - share) / 0.8)
        return self._stamp("scalars", v={"loss": loss, "lr": rate}) | {"it": it}

    def _validation(self, epoch: int) -> Iterator[list[dict[str, Any]]]:
        for done in (7, 14, VAL_BATCHES):
            yield [
                self._frame(
                    "val", done, VAL_BATCHES, {"after_val_iter": 7 if done < VAL_BATCHES else 6}
                )
            ]
        share = epoch / EPOCHS
        values = {
            "loss": 0.42 + 1.5 * math.exp(-4 * share),
            "accuracy": 0.944 - 0.5 * math.exp(-4.2 * share),
        }
        records = [self._stamp("metrics", split="val", v=values, seconds=0.75)]
        if epoch == 3:
            where = {
                "hook": "visual",
                "point": "after_val_epoch",
                "type": "OSError",
                "action": "disable",
            }
            text = "[Errno 28] No space left on device: 'visual/epoch_3.png'"
            records.append(
                self._stamp("error", **where, text=text, traceback=TRACEBACK, at="", causes="")
            )
        fired = dict.fromkeys(("before_val", "after_val_epoch", "after_val"), 1)
        yield [*records, self._frame("val", VAL_BATCHES, VAL_BATCHES, fired)]

    def _checkpoint(self, epoch: int) -> dict[str, Any]:
        names = ["last", "best"] if epoch % 4 == 0 else ["last"]
        return self._stamp(
            "checkpoint",
            path=f"checkpoints/ep{epoch:04}.pt",
            names=names,
            bytes=52_600_000,
            ms=181.7,
        )

    def _frame(
        self, stage: str, bi: int, bn: int, fired: dict[str, int], iters: int = 0
    ) -> dict[str, Any]:
        self.t += self.step
        hooks = {}
        for binding in self.plan.bindings:
            count = fired.get(binding.point, 0)
            count = max(count // 10, 1) if str(binding.trigger.every) == "10" and count else count
            if count and not (binding.hook == "visual" and self.ep > 3):
                hooks[str(binding.id)] = self._entry(
                    count, HOOKS[binding.hook][3][binding.point][1]
                )
        whole = self._entry(iters, 1e9 / RATE) if iters else [0, 0, 0, 0, [0]]
        shares = {
            "data": 0.06,
            "forward": 0.31,
            "backward": 0.46,
            "optimizer": 0.1,
            "hooks": 0.041,
            "other": 0.029,
        }
        own = self.late.get(self.rank, 0.0)
        shares["data"] += own
        shares["backward"] -= own
        phases = {phase: int(whole[1] * part) for phase, part in shares.items()}
        inside = [
            binding
            for binding in self.plan.bindings
            if self.plan.points.in_iteration(binding.point)
        ]
        phases["hooks"] = sum(
            hooks[str(binding.id)][1] for binding in inside if str(binding.id) in hooks
        )
        cost = self.random.randrange(60_000, 90_000)
        times = {
            "samples": iters * BATCH,
            "phases": phases,
            "iters": whole,
            "hooks": hooks,
            "cost": cost,
        }
        return self._stamp("frame", stage=stage, bi=bi, bn=bn, **times)

    def _entry(self, count: int, usual: float) -> list[Any]:
        spikes = (self.random.random() < 0.004 for _ in range(count))
        times = [
            int(usual * self.random.lognormvariate(0, 0.12) * (9 if spike else 1))
            for spike in spikes
        ]
        bins = Counter(map(bin_of, times))
        counts = [bins[index] for index in range(min(bins), max(bins) + 1)]
        return [count, sum(times), max(times), times[-1], [min(bins), *counts]]


BEGAN = 1_790_000_000.0
"""A Monday in September 2026, 14:13:20 UTC."""


def make(
    root: Path, *, name: str = "cifar", world: int = 1, began: float = BEGAN, **options: Any
) -> RunDir:
    """Write a run, see `append_rank` for options. Nobody has signed for a process."""
    run = RunDir(root / name / "20260921-141320-a3f9")
    run.path.mkdir(parents=True)
    run.plan.write_text(json.dumps(plan().to_json()), "utf-8")
    run.sign(id=run.id, name=name)
    for rank in range(world):
        append_rank(run, rank, world, began=began, **options)
    return run


PIPELINE = """\
[run]
name = "cifar"
seed = {seed}
max_epochs = 8
[model]
use = "net.py:Net"
args = {{ width = {width} }}
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = {lr} }}
[data.train]
use = "circle"
[hooks.ema]
use = "ema"
"""


def make_several(root: Path, count: int, **options: Any) -> list[RunDir]:
    """Write runs that differ in seed, width and learning rate; the first is the oldest,
    the third was killed.
    """
    runs = []
    for k in range(count):
        began = BEGAN + 3600 * k
        made = make(root, began=began, seed=k, **({"upto": 60} if k == 2 else {}) | options)
        run = RunDir(made.path.with_name(f"20260921-14{13 + k}20-{k:04x}"))
        made.path.rename(run.path)
        run.sign(id=run.id, name="cifar", created=began)
        run.pipeline.write_text(PIPELINE.format(seed=k, width=64, lr=0.1 / (k + 1)))
        runs.append(gone(run) if k == 2 else run)
    return runs


def make_ranks(root: Path, world: int, **options: Any) -> RunDir:
    """Write a run of several ranks, of which two are on each machine and
    whose frames do not fall together.
    """
    return make(root, world=world, **{"synthetic": False, **options})


def append_rank(
    run: RunDir,
    rank: int,
    world: int,
    *,
    upto: int | None = None,
    began: float = BEGAN,
    **options: Any,
) -> None:
    """Append what one rank records, or its first `upto` frames."""
    late = tuple((options.pop("late", None) or {}).items())
    records, moved = invented(rank, world, upto, late, **options), began - BEGAN
    if moved:
        records = [
            each | {key: round(each[key] + moved, 3) for key in TIMES & each.keys()}
            for each in records
        ]
    append(run, records, rank=rank)


TIMES = {"t", "sent"}


@cache  # most tests read one of few runs, and to invent it takes longer than to read it
def invented(
    rank: int, world: int, upto: int | None, late: tuple[tuple[int, float], ...], **options: Any
) -> list[dict[str, Any]]:
    training = Training(BEGAN + 0.03 * rank, rank=rank, world=world, late=dict(late), **options)
    return [*itertools.chain.from_iterable(itertools.islice(training.records(), upto))]


def append(run: RunDir, *records: Sequence[Mapping[str, Any]], rank: int = 0) -> None:
    """Append records to the log of a rank."""
    log = LogAppender(run.find_events_path(rank))
    for together in records:
        log.append(together)  # type: ignore[arg-type]
    log.close()


def record(kind: str, t: float = BEGAN + 100, it: int = 784, ep: int = 8, **fields: Any) -> Any:
    """Return a record; what `fields` leave out is that of a finished run, an error,
    an idle frame or a warning.
    """
    usual = {
        "end": {"status": "finished", "exit": 0, "reason": "", "seconds": 1.0},
        "error": {
            "hook": "",
            "point": "",
            "type": "ValueError",
            "text": "too bad",
            "action": "raise",
        }
        | dict.fromkeys(("traceback", "at", "causes"), ""),
        "frame": {
            "stage": "train",
            "bi": 1,
            "bn": 32,
            "samples": 0,
            "phases": dict.fromkeys(PHASES, 0),
            "hooks": {},
        }
        | {"iters": [0, 0, 0, 0, [0]], "cost": 0},
        "message": {"level": "warn", "source": "data"},
    }
    return {"k": kind, "t": t, "it": it, "ep": ep, **usual.get(kind, {}), **fields}


end = partial(record, "end")


def gone(run: RunDir) -> RunDir:
    """Return the run, signed by a process that is no more."""
    run.sign_process()
    run.sign(process_started=1.0)
    return run
