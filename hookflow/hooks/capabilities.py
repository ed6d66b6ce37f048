"""The declarations of a hook beside its points: its capabilities.

They are the only way by which hookflow knows more of a hook than its points, slots and edges: a
hook of the user's has every one that a built-in hook has. `Hook.capabilities` holds them;
`Hook.capabilities_for` adds those that depend on arguments.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hookflow.errors import nearest
from hookflow.metric_mode import Mode
from hookflow.pipeline.amounts import parse_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoints:
    """The checkpoints that a hook saves by `run.save_checkpoint`, and how they are kept."""

    names: tuple[str, ...] = ("last",)
    """Every name that the hook gives to a checkpoint."""
    names_of_weights: tuple[str, ...] = ()
    """The names whose checkpoints hold weights alone, from which no run resumes."""
    keep: int = 1
    """How many of the newest stay, beside those that have a name."""
    folder: str | None = None
    """The folder in which they are; None: `checkpoints/` in the run directory."""
    copy_to: str | None = None
    """Where each is copied to, with names in braces; None: nowhere."""
    trail_bytes: int = 0
    """How many bytes older checkpoints may take beside those that stay anyway."""
    with_frozen: bool | None = None
    """Whether they hold parameters that the model is built with frozen.

    None: all but those of models that the pipeline declares frozen.
    """
    restored_at_end: str | None = None
    """The checkpoint whose weights the models get at the end; None: none.

    It is the name of one, and the end is that of the training.
    """

    def leaves_frozen_out(self, declared: bool) -> bool:
        """Return whether they leave frozen parameters out.

        The parameters are of a model that is `declared` frozen, or of another one.
        """
        if self.with_frozen is None:
            return declared
        return not self.with_frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedWeights:
    """The weights that a hook writes as files for others, when the run has ended."""

    checkpoint: str = "last"
    """The name of the checkpoint that has them."""
    weights: str = "model"
    """Their name in the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCapabilities:
    """The effects of a hook beside firing at its points.

    Raises TypeError for a field or a value that is not known. A subclass that declares capabilities
    of its own has these alone. To add to those of its base, it writes `capabilities =
    dataclasses.replace(Base.capabilities, accumulates=True)`.
    """

    writes_outside: Collection[str] | bool = ()
    """The writes of the hook outside the run directory: a file elsewhere, a message to a server.

    It holds the names of the arguments that say where (`("out_dir",)`); the hook writes nothing
    there while they are None. It is True if the hook writes outside whatever its arguments are. A
    rerun sets these arguments to None, or leaves the hook out.
    """
    saved_checkpoints: SavedCheckpoints | None = None
    """The checkpoints that the hook saves; None: it saves none, or any."""
    exported_weights: ExportedWeights | None = None
    """The weights that the hook exports; None: none."""
    monitors: Mapping[str, Mode] = field(default_factory=dict)
    """The metrics that the hook looks at, each with "min" or "max": what is better."""
    validates_average: bool = False
    """Whether a validation is of an average that the hook has put in place of the weights."""
    accumulates: bool = False
    """Whether the hook adds up the gradients of several batches."""
    needs_length: bool = False
    """Whether the hook needs the length of the run: a run without an end refuses it."""
    clips_gradients: bool = False
    """Whether the hook bounds the gradients before a step."""
    recomputes_statistics: bool = False
    """Whether the hook computes the statistics of batch norms anew before a validation."""
    runs_backward_twice: bool = False
    """Whether the hook computes the gradients of a batch a second time."""
    frozen_at_start: Collection[str] = ()
    """Globs over the parameters that the hook freezes from the first iteration on."""
    every_if_overfit: str | None = None
    """How often the hook fires where its `every` is longer than all batches of `run.overfit`."""
    offload_blocker: str = ""
    """Why no other thread can call the hook; "": its slots and its source decide."""
    process_blocker: str = ""
    """Why no other process can call the hook; "": its slots and its source decide."""
    attach_blocker: str = ""
    """Why the hook cannot fire in a loop of the user's own.

    "": its points and its source decide.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "HookCapabilities":
        """Refuse names that are no fields, with the nearest one."""
        for name in kwargs:
            if name not in FIELD_NAMES:
                hint = nearest(name, FIELD_NAMES) or f"it has {', '.join(FIELD_NAMES)}"
                raise TypeError(f'HookCapabilities has no "{name}": {hint}')
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in FIELD_NAMES:
            wanted = _find_fault(name, getattr(self, name))
            if wanted:
                raise TypeError(f"HookCapabilities.{name} must {wanted}")

    def declared(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that differ from their defaults, with their values."""
        for name in FIELD_NAMES:
            value = getattr(self, name)
            if value != getattr(NO_CAPABILITIES, name):
                yield name, value


FIELD_NAMES = tuple(each.name for each in fields(HookCapabilities))

FORMER_NAMES = {
    "backward_twice": "runs_backward_twice",
    "keeps_checkpoints_in": "saved_checkpoints",
}
"""Attributes of hooks that have been capabilities by other names."""

FLAGS = (
    "validates_average",
    "accumulates",
    "needs_length",
    "clips_gradients",
    "recomputes_statistics",
    "runs_backward_twice",
)
BLOCKERS = ("offload_blocker", "process_blocker", "attach_blocker")


def is_name_collection(value: object) -> bool:
    """Say whether a value is a collection of strings, and no string itself."""
    if not isinstance(value, Collection) or isinstance(value, str):
        return False
    return all(type(item) is str for item in value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_sentence(value: object) -> bool:
    return isinstance(value, str)


def _is_flag_or_names(value: object) -> bool:
    return isinstance(value, bool) or is_name_collection(value)


def _is_mode_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and {*value.values()} <= {"min", "max"}


def _is_saved_checkpoints(value: object) -> bool:
    return value is None or isinstance(value, SavedCheckpoints)


def _is_exported_weights(value: object) -> bool:
    return value is None or isinstance(value, ExportedWeights)


def _is_amount_or_none(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, str):
        return False
    try:
        parse_amount(value)
    except ValueError:
        return False
    return True


FIELD_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(FLAGS, (_is_flag, "be True or False")),
    **dict.fromkeys(BLOCKERS, (_is_sentence, "be a sentence that says why")),
    "writes_outside": (
        _is_flag_or_names,
        'be True or hold names of arguments, as writes_outside = ("out_dir",)',
    ),
    "frozen_at_start": (
        is_name_collection,
        'hold globs over parameters, as frozen_at_start = ("body.*",)',
    ),
    "monitors": (_is_mode_mapping, 'hold "min" or "max" by metric, as monitors = {"loss": "min"}'),
    "saved_checkpoints": (_is_saved_checkpoints, "be of the type SavedCheckpoints, or None"),
    "exported_weights": (_is_exported_weights, "be of the type ExportedWeights, or None"),
    "every_if_overfit": (_is_amount_or_none, 'be an amount, as every_if_overfit = "1ep"'),
}
"""By field: whether a value is right, and else what it must be."""


def _find_fault(name: str, value: object) -> str:
    """Return what a value of a field must be; "" where it is that."""
    is_right, must = FIELD_CHECKS[name]
    if is_right(value):
        return ""
    return must


NO_CAPABILITIES = HookCapabilities()


def read_capabilities(
    hook: Callable[..., Any], args: Mapping[str, Any] | None = None
) -> HookCapabilities:
    """Return the capabilities of a hook's class or function, with sound arguments, by name.

    Without arguments they are those of the class, where something of another type counts as none:
    the check of the class reports it. Raises TypeError where `capabilities_for` returns something
    else.
    """
    choose = getattr(hook, "capabilities_for", None)
    if args is not None and isinstance(hook, type) and callable(choose):
        chosen = choose(args)
        if not isinstance(chosen, HookCapabilities):
            kind = type(chosen).__name__
            raise TypeError(
                f"{hook.__name__}.capabilities_for must return HookCapabilities, not {kind}"
            )
        return chosen
    declared = getattr(hook, "capabilities", None)
    if isinstance(declared, HookCapabilities):
        return declared
    return NO_CAPABILITIES


def find_wrong_capabilities(hook: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with what a hook declares of its capabilities, each with a hint."""
    called = getattr(hook, "__name__", type(hook).__name__)
    declared = getattr(hook, "capabilities", NO_CAPABILITIES)
    if not isinstance(declared, HookCapabilities):
        message = f"{called}.capabilities must be HookCapabilities, not {type(declared).__name__}"
        yield message, "write it so: capabilities = HookCapabilities(accumulates=True)"
    for base in getattr(hook, "__mro__", ()):
        attributes = type.__getattribute__(base, "__dict__")
        for name, value in attributes.items():
            if isinstance(value, HookCapabilities) and name != "capabilities":
                yield (
                    f"{called}.{name} holds capabilities",
                    nearest(name, ["capabilities"]) or "call it capabilities",
                )
            field_name = FORMER_NAMES.get(name, name)
            is_method = callable(value) or isinstance(value, property)
            if field_name in FIELD_NAMES and not is_method:
                hint = f"write it so: capabilities = HookCapabilities({field_name}=…)"
                yield f"{called}.{name} is a capability, and does not stand among them", hint
