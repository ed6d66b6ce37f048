"""Numbers as people read them, and as the screens write them: few characters,
the same width for one kind.
"""

import json
import math
import re
import time
from bisect import bisect
from collections.abc import Callable, Mapping
from typing import Any

DECIMAL_BOUNDS = (0.1, 1.0, 10.0, 100.0, 1000.0)
DECIMAL_FORMATS = tuple(f"{{:.{5 - count}f}}".format for count in range(len(DECIMAL_BOUNDS) + 1))
"""From each bound on, a number has a decimal less."""


def number(value: float) -> str:
    """Return a metric with four significant digits or so.

    It has seven characters at most (eight below zero).
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-3 <= size < 9_999_999.5:
        return DECIMAL_FORMATS[bisect(DECIMAL_BOUNDS, size)](value)
    return f"{value:.2g}"


def number_of_4_digits(value: float) -> str:
    """Return a `number`; of one below a thousandth four significant digits, too: "3.142e-5"."""
    size = abs(value)
    if not 0 < size < 1e-3:
        return number(value)
    digits, _, exponent = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    return f"{digits}e{int(exponent)}"


def format_count(count: int, thing: str) -> str:
    """Return how many things there are: "1 edge", "2 edges", "1,000 batches"."""
    return f"{count:,} {format_plural(count, thing)}"


def format_plural(count: float, thing: str) -> str:
    """Return what so many of a thing are called."""
    if count == 1:
        return thing
    if thing.endswith(("tch", "ss")):
        return f"{thing}es"
    return f"{thing}s"


def strict_json(
    value: Any, instead: Callable[[float], str | None] = lambda number: None, **form: Any
) -> str:
    """Return a value as JSON.

    `instead` gives what stands for NaN and infinity, and `form` is for `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **form)
    except ValueError:

        def written(leaf: Any) -> Any:
            if isinstance(leaf, float) and not math.isfinite(leaf):
                return instead(leaf)
            return leaf

        return json.dumps(mapped(value, written), **form)


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return mappings and lists within one another with every key and every other value changed."""
    if isinstance(tree, Mapping):
        return {change(key): mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [mapped(value, change) for value in tree]
    return change(tree)


def format_frequency(every: int) -> str:
    """Return how often a hook fires of the times that it is due."""
    if every > 1:
        return f"fires 1 of {every:,} times that it is due"
    return "fires whenever it is due"


def format_ms(ns: float) -> str:
    """Return a duration in milliseconds, in five characters at most.

    Beyond 100 s it is in seconds, with their unit.
    """
    value = ns / 1e6
    if value >= 99999.5:
        return f"{value / 1000:.0f}s"
    decimals = 3 - bisect((9.9995, 99.995, 999.95), value)
    return f"{value:.{decimals}f}"


def format_signed(difference: float, written: Callable[[float], str] = format_ms) -> str:
    """Return a difference with its sign, by default ns in ms.

    The sign is left out where it is too small to be shown.
    """
    text = written(abs(difference))
    if not text.strip("0.") or math.isnan(difference):
        return text
    if difference > 0:
        return f"+{text}"
    return f"−{text}"


DURATION_UNITS = {"µs": 1e3, "ms": 1e6, "s": 1e9, "h": 3.6e12}
"""Units of durations in ns."""


def duration(ns: float) -> str:
    """Return a duration in three digits with its unit: "36.8 ms", "1.67 s"."""
    most = {"µs": 999.5, "ms": 999.5, "s": 99_999.5, "h": math.inf}
    unit = "h"
    for name, size in DURATION_UNITS.items():
        if ns < most[name] * size:
            unit = name
            break
    value = min(ns / DURATION_UNITS[unit], 99_999)
    decimals = 2 - bisect((9.995, 99.95), value)
    return f"{value:.{decimals}f} {unit}"


def format_aligned(ns: float) -> str:
    """Return a duration in eight characters, for columns: " 36.8 ms", " 1.67 s "."""
    value, _, unit = duration(ns).partition(" ")
    return f"{value:>5} {unit:<2}"


def format_rough(value: float) -> str:
    """Return a number in three digits or so."""
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


def format_speed(per_s: float) -> str:
    """Return iterations per second; of slower ones the seconds of an iteration."""
    if 0 < per_s < 0.95:
        return f"{1 / per_s:.1f} s/it"
    return f"{per_s:.1f} it/s"


def format_factor(value: float) -> str:
    """Return how many times as much; of less than a tenth the hundredths, too."""
    if value < 0.095:
        return f"×{value:.2f}"
    return f"×{format_rough(value)}"


def format_span(seconds: float) -> str:
    """Return a length of time as h:mm:ss, with days before it when there are any."""
    whole = max(int(seconds), 0)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    if days:
        return f"{days}d {clock}"
    return clock


def format_lasting(seconds: float) -> str:
    """Return how long something has lasted so far: "40 s", and from two minutes on as h:mm:ss."""
    if seconds < 119.5:
        return f"{max(seconds, 0):.0f} s"
    return format_span(seconds)


def out_of(count: int, whole: int | None) -> str:
    """Return "3/8", or "3" where the total is unknown."""
    if whole:
        return f"{count:,}/{whole:,}"
    return f"{count:,}"


def format_age(seconds: float) -> str:
    """Return how long ago, roughly: "12 s", "5 min", "3 h", "2 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_clock(t: float) -> str:
    """Return the time of day, hh:mm:ss, where the reader is."""
    return time.strftime("%H:%M:%S", time.localtime(t))


BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Return bytes with a unit."""
    if count < 999.5:
        return f"{count:.0f} B"
    for unit in BYTE_UNITS[1:-1]:
        count /= 1000
        if count < 999.5:
            return f"{count:.1f} {unit}"
    count /= 1000
    return f"{count:.1f} TB"


def parse_size(text: str) -> int:
    """Return how many bytes a text such as "2 GB" means; 0 where it is no size."""
    match = re.fullmatch(rf"([0-9]{{1,6}}(?:\.[0-9]+)?) ?({'|'.join(BYTE_UNITS)})", text)
    if match is None:
        return 0
    return int(float(match[1]) * 1000 ** BYTE_UNITS.index(match[2]))


def format_many(count: float) -> str:
    """Return a count in four characters or so: 312, 4.6k, 1.2M."""
    if count < 999.5:
        if count == int(count):
            return f"{count:.0f}"
        return format_rough(count)
    for unit in "kMG":
        count /= 1000
        if count < 999.5:
            return f"{format_rough(count)}{unit}"
    return f"{count / 1000:.1f}T"


def one_line(text: str) -> str:
    """Return the first line of a text, with "…" where there are more."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    if len(lines) > 1:
        return f"{lines[0]} …"
    return lines[0]


def format_percent(share: float) -> str:
    """Return a share in hundredths, with one decimal, no sign: at most five characters."""
    if share < 99.995:
        return f"{100 * share:.1f}"
    return "9999+"
