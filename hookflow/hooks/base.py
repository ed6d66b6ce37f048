"""The base class of hooks: an object with methods named like points."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from hookflow.graph.plan import Phase, Ranks
from hookflow.hooks.capabilities import NO_CAPABILITIES, HookCapabilities

Slots = Collection[str] | Mapping[str, Collection[str]]
"""The slots that a hook touches.

They are those of all its methods, or those of each, by the method's name.
"""


class Hook:
    """The base class of hooks, for the defaults that it gives.

    Any class with the right methods is a hook, too.

    A method named like a point (`after_train_iter`) is called there. It takes the arguments that it
    names, out of those that the point offers (`hookflow.graph.points`).

    A generator method `around_X` that yields once runs its first half at `before_X` and its second
    at `after_X`. An exception in between that ends the run is raised at the `yield`, as in a
    context manager: put into `finally` what must run in any case.

    The class attributes say how the hook stands among others. The pipeline file may say otherwise.
    """

    points: ClassVar[tuple[str, ...] | None] = None
    """The points of the hook; None: wherever it has a method."""
    after: ClassVar[tuple[str, ...]] = ()
    """The hooks that fire earlier at its points, by name; `"ema?"`: only if it is there."""
    before: ClassVar[tuple[str, ...]] = ()
    """The hooks that fire later at its points, by name; `"ema?"`: only if it is there."""
    requires: ClassVar[tuple[str, ...]] = ()
    """The hooks that must be there."""
    phase: ClassVar[Phase] = "normal"
    """Its place in the order, for which no neighbour is named: "early", say."""
    reads: ClassVar[Slots] = ()
    """The slots of run state that it reads (`hookflow.graph.slots`).

    At one point, who writes a slot fires before who reads it. Give the slots by method where the
    methods differ: `{"around_val": ("model",)}`. A slot has parts: `metrics.psnr` and
    `metrics.accuracy` have nothing to do with one another, and are both of `metrics`.
    """
    writes: ClassVar[Slots] = ()
    """The slots of run state that it changes."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Globs over the names of modules, or classes ("type:Conv2d").

    Methods named like a module point (`forward`) are bound to these modules.
    """
    parameters: ClassVar[tuple[str, ...]] = ()
    """Globs over the names of parameters, for `parameter_grad` and `post_accumulate_grad`."""
    ranks: ClassVar[Ranks] = "all"
    """On which of the processes that train together it fires: on "all", or on rank "zero" alone.

    On rank zero alone it must call nothing that the others would have to take part in, such as
    `run.mean`.
    """
    settable: ClassVar[tuple[str, ...]] = ()
    """The arguments that a user may set during the run.

    `hookflow ctl RUN set grad_clip.max_norm=0.5` sets one. The hook keeps each as an attribute of
    the same name, and reads that at every firing.
    """
    capabilities: ClassVar[HookCapabilities] = NO_CAPABILITIES
    """What the hook does beside firing (`hookflow.HookCapabilities`).

    It saves checkpoints, writes outside the run directory, accumulates gradients or cannot be
    offloaded, say.
    """

    watches: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The method that is called before each method at every visit of its point.

    The keys are names of methods. The other one is called with the same arguments, whether or not
    the method is due. It is for a hook that must see each iteration, and reports now and then.
    """

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the points of a hook with these arguments; `points` by default.

        The arguments may be wrong.
        """
        return cls.points

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the names in the braces of slots; the arguments by default.

        A slot with braces is in `reads = ("model.{model}",)`. `args` are all of them, as the file
        gives them (not checked yet) or by default. A list makes a slot of each item. None leaves
        the whole slot (`model`), or no slot where the key is optional: `metrics.{monitor?}`.
        `{name}` is the hook's name.
        """
        return args

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        """Return the capabilities of a hook with these arguments; `capabilities` by default.

        `args` are all of them, each valid, as the file gives them or by default. When the run has
        made the hook, they are those that the object has as attributes of the same names, where it
        has any.
        """
        return cls.capabilities

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        """Raise UserError or ValueError where arguments, each of them valid, do not go together.

        The check before a run asks this of the class, with what the file gives, by name; no
        instance is made for it.
        """

    name: str = ""
    """The hook's name in the pipeline.

    The runner gives it before the first point fires, unless there is one.
    """

    bound_points: Collection[str] = ()
    """The points at which the hook fires in its pipeline; the runner gives them, as the name."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume.

        It holds numbers, strings, tensors, and lists and mappings of them. It is called when a
        checkpoint is saved, and before a validation, for a checkpoint that may have to take its
        place: so what a validation changes should be returned as a copy.
        """
        return {}

    def forked_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what a fork of a run loads in the place of its parent's `state`.

        The result leaves out what belongs to the parent alone. An entry that stays is the same
        object.
        """
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
