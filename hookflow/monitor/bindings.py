"""The keys that every page has.

One key means one thing everywhere, and what acts on the training is on ctrl.

The name of a binding is what `dashboard.toml`, the palette and the docs know it by.
"""

from textual.binding import Binding

PAGE_TITLES = {
    "overview": "Overview",
    "hooks": "Hooks",
    "metrics": "Metrics",
    "media": "Media",
    "log": "Log",
    "trace": "Trace",
    "runs": "Runs",
}
"""The pages by their names, in the order of their digits."""


def key(
    keys: str, action: str, about: str, name: str, *, footer: str = "", display: str | None = None
) -> Binding:
    """Return a binding by its name.

    `footer` is the word for it there, without which the footer leaves it out.
    """
    shown = footer != ""
    return Binding(
        keys, action, footer or about, id=name, show=shown, key_display=display, tooltip=about
    )


PAGE_KEYS = tuple(
    key(f"{digit}", f"show_page('{name}')", f"the page {title}", f"page-{name}")
    for digit, (name, title) in enumerate(PAGE_TITLES.items(), start=1)
)
"""The digits, which go to the pages."""

NAVIGATION_KEYS = (
    key(
        "question_mark",
        "help",
        "the keys of the page, and of every page",
        "help",
        footer="keys",
        display="?",
    ),
    key(
        "colon",
        "command_palette",
        "every action by its name",
        "palette",
        footer="commands",
        display=":",
    ),
    *PAGE_KEYS,
    key("i", "system", "the system: machine, run, data, ranks, layers of the model", "system"),
    key("w", "stacks", "where the training is now: the stack of each rank", "stacks"),
    key("space", "freeze_or_play", "freeze the view; of a replay, play and pause", "freeze"),
    key(
        "e", "older_trouble", "to the newest warning or error, then to older ones", "older-trouble"
    ),
    key("E", "newer_trouble", "to newer warnings and errors", "newer-trouble"),
    key("v", "toggle_window", "times of the last 60 s, or of the whole attempt", "window"),
)

TRAINING_KEYS = (
    key("ctrl+p", "pause", "pause the training, and resume it", "pause", footer="pause"),
    key("ctrl+n", "command('step')", "train one iteration of a paused training", "step"),
    key("ctrl+s", "command('checkpoint')", "save a checkpoint now", "checkpoint", footer="save"),
    key("ctrl+v", "command('validate')", "validate now", "validate"),
    key("ctrl+t", "command('trace')", "trace the next 10 iterations", "trace"),
    key("ctrl+o", "switch_hook", "switch the hook at the cursor off, and on again", "hook-off"),
    key("ctrl+e", "set_argument", "set an argument that its hook declares settable", "set"),
    key("ctrl+r", "rewind", "go back to a checkpoint (asks first)", "rewind"),
    key("ctrl+x", "stop", "stop the training (asks first)", "stop", footer="stop…"),
)

REPLAY_KEYS = (
    key("comma", "replay_step(-1)", "a frame back", "frame-back", display=","),
    key("full_stop", "replay_step(1)", "a frame on", "frame-on", display="."),
    key("shift+left", "replay_skip(-1)", "5 % back", "far-back"),
    key("shift+right", "replay_skip(1)", "5 % on", "far-on"),
    key("left_parenthesis", "replay_start", "to the start", "replay-start", display="("),
    key("right_parenthesis", "replay_end", "to the end", "replay-end", display=")"),
    key("less_than_sign", "replay_speed(0.5)", "slower", "slower", display="<"),
    key("greater_than_sign", "replay_speed(2.0)", "faster", "faster", display=">"),
    key(
        "left_curly_bracket",
        "epoch(-1)",
        "to the end of the epoch before",
        "epoch-before",
        display="{",
    ),
    key("right_curly_bracket", "epoch(1)", "to the end of this epoch", "epoch-after", display="}"),
    key("I", "replay_iteration", "to an iteration", "iteration"),
)

TERMINAL_KEYS = (
    key("T", "next_theme", "the next theme: dark, light, colour-blind; remembered", "theme"),
    key(
        "M",
        "switch_mouse",
        "leave the mouse to the terminal, to select text, and back; remembered",
        "mouse",
    ),
    key("P", "save_image", "save an image (SVG) in the run directory", "image"),
    key(
        "ctrl+z",
        "suspend_process",
        "suspend the dashboard, not the training; fg brings it back",
        "suspend",
    ),
    key(
        "q,ctrl+c,ctrl+q",
        "leave",
        "leave; asks whether the training goes on",
        "leave",
        footer="quit",
        display="q",
    ),
)
