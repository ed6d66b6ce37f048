"""Exceptions of the user's code: where they were raised, and how they are shown."""

import dis
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

_TAKE_MORE = (
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
    BaseExceptionGroup,
    ExceptionGroup,
)
"""Built-in exceptions whose constructors take more than a text."""


def make_showable(error: BaseException, *notes: str) -> BaseException:
    """Return an exception with these notes, or one raised at the same place, with its name,
    if it cannot be shown.
    """
    try:
        for note in notes:
            error.add_note(note)
        str(error)
        # Since Python 3.13 a traceback leaves out notes that raise, so they are read here.
        getattr(error, "__notes__", ())
        traceback.format_exception(error)
    except (Exception, SystemExit) as raised:
        message = (
            f"{type(error).__name__}, which cannot be shown: that raises {type(raised).__name__}"
        )
        classes = (
            base
            for base in type(error).__mro__
            if base.__module__ == "builtins" and base not in _TAKE_MORE
        )
        shown: BaseException = next(classes)(message).with_traceback(error.__traceback__)
        shown.__cause__ = None  # nor a context, which is the one that cannot be shown
        if error.__cause__ is not None:
            shown.__cause__ = make_showable(error.__cause__)
        for note in notes:
            shown.add_note(note)
        return shown
    return error


@contextmanager
def only_showable(*notes: str) -> Iterator[None]:
    """Let nothing through that cannot be shown; add the notes to what is raised."""
    try:
        yield
    except BaseException as error:
        shown = make_showable(error, *notes)
        if shown is not error:
            raise shown from None
        raise


_PRINTED_ATTRIBUTE = "_hookflow_has_printed_it"


def mark_printed(error: BaseException) -> None:
    """Note on an exception that its traceback has been printed;
    one that takes no attribute is printed once more.
    """
    with suppress(AttributeError, TypeError):
        setattr(error, _PRINTED_ATTRIBUTE, True)


def is_printed(error: BaseException) -> bool:
    """Say whether the traceback of an exception,
    or of the one that it stands for, has been printed.
    """
    if getattr(error, _PRINTED_ATTRIBUTE, False):
        return True
    return error.__cause__ is not None and is_printed(error.__cause__)


_EXPLANATION_ATTRIBUTE = "_hookflow_explanation"


def explain(error: BaseException, lines: list[str]) -> None:
    """Note on an exception what is known of it: its traceback shows that,
    and `read_explanation` returns it.
    """
    for line in lines:
        error.add_note(line)
    setattr(error, _EXPLANATION_ATTRIBUTE, lines)


def read_explanation(error: BaseException) -> list[str]:
    """Return the lines that `explain` has noted on an exception."""
    lines: list[str] = getattr(error, _EXPLANATION_ATTRIBUTE, [])
    return lines


HOOKFLOW_FOLDER = Path(__file__).parent
RAISE_OPCODE = dis.opmap["RAISE_VARARGS"]

FRAME_PATTERN = re.compile(r'^[ |]*File "(?P<file>.+?)", line (?P<line>\d+)', re.MULTILINE)
"""A frame of a traceback as Python prints it;
also of one that a worker process has handed on as text.
"""

NOT_OWN = (
    "<",
    *(
        f"{folder}/"
        for folder in (*map(sysconfig.get_path, ("stdlib", "platstdlib")), HOOKFLOW_FOLDER)
    ),
)
"""How the names begin of files that are Python's, hookflow's, or none."""


def is_ours(error: BaseException) -> bool:
    """Say whether it was raised in a file of hookflow."""
    return Path(_find_origin(error).tb_frame.f_code.co_filename).is_relative_to(HOOKFLOW_FOLDER)


def is_ctrl_c(error: BaseException) -> bool:
    """Say whether a signal raised it, between two instructions or in hookflow,
    and no `raise` of the user's code.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    origin = _find_origin(error)
    return origin.tb_frame.f_code.co_code[origin.tb_lasti] != RAISE_OPCODE or is_ours(error)


def _find_origin(error: BaseException) -> TracebackType:
    """Return the place where a caught exception was raised."""
    place = error.__traceback__
    assert place is not None
    while place.tb_next is not None:
        place = place.tb_next
    return place


def find_innermost_line(printed: str) -> str:
    """Return "file:line" of the innermost frame of a printed traceback that lies in the user's own
    files.

    Frames of hookflow, of Python and of installed packages count only where there are no others.
    """
    frames = list(FRAME_PATTERN.finditer(printed))
    if not frames:
        return ""
    own = [frame for frame in frames if is_own_file(frame["file"])]
    frame = (own or frames)[-1]
    return f"{frame['file']}:{frame['line']}"


def has_user_frame(error: BaseException) -> bool:
    """Say whether the user's own files have a frame in its traceback."""
    return any(
        is_own_file(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def describe_error(error: BaseException) -> list[str]:
    """Return what an exception says, where it was raised (as `innermost` does),
    and the same of each of its causes.
    """
    shown = make_showable(error)
    return [*_format_cause("", shown), *describe_causes(shown)]


def describe_causes(error: BaseException) -> list[str]:
    """Return what led to an exception that can be shown, in lines: what each cause says,
    and where it was raised.
    """
    lines: list[str] = []
    seen = {id(error)}
    effect = error
    while True:
        link = "caused by "
        cause = effect.__cause__
        if cause is None and not effect.__suppress_context__:
            link = "while handling "
            cause = effect.__context__
        if cause is None or id(cause) in seen:
            return lines
        lines += _format_cause(link, cause)
        seen.add(id(cause))
        effect = cause


def _format_cause(link: str, error: BaseException) -> Iterator[str]:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    shown.__notes__ = None  # which Python prints behind the message
    yield link + list(shown.format_exception_only())[-1].strip()
    yield from (str(note) for note in getattr(error, "__notes__", ()))
    own = [frame for frame in shown.stack if is_own_file(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        yield f"at {error.filename}:{error.lineno}: {(error.text or '').strip()}"
    # The first frame of the whole chain is that of hookflow, which has caught the error.
    elif frames := own or shown.stack[not link :]:
        yield f"at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line or ''}"


def is_own_file(file: str) -> bool:
    """Say whether a file is the user's: no part of Python,
    of hookflow or of an installed package.
    """
    return not (
        file.startswith(NOT_OWN)
        or {"site-packages", "dist-packages"}.intersection(Path(file).parts)
    )
