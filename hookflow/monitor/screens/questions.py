"""Questions of the dashboard before it acts on a training."""

from collections.abc import Callable
from pathlib import Path

from hookflow.events.commands import COMMANDS, split_setting
from hookflow.monitor.dashboard import Dashboard
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.dialogs import Choice, ChoiceDialog, PromptDialog

OFFERED_CHECKPOINTS = 6
"""Checkpoints that are offered to go back to, the newest first."""


def ask_to_leave(app: Dashboard) -> None:
    """Ask whether the training goes on."""
    is_stalled = app.store.health.condition == "stalled"
    stop = "stop after this iteration, with a checkpoint"
    if is_stalled:
        stop = "stop the training …"
    choices = [
        Choice("d", "detach", "detach: the training goes on"),
        Choice("s", "stop", stop),
        Choice("esc", "", "stay here"),
    ]

    def handle_answer(answer: str | None) -> None:
        if answer == "detach":
            app.leave()
        elif answer == "stop" and app.store.health.condition == "stalled":
            app.ask_to_stop()  # it may never get to the end of this iteration
        elif answer == "stop":
            app.stop_and_leave()

    note = f"later: hookflow watch {app.store.command_name}"
    app.push_screen(
        ChoiceDialog("leave the dashboard?", choices, note=note, about_training=True), handle_answer
    )


def ask_to_stop(app: Dashboard, kill: Callable[[], None]) -> None:
    """Ask whether to stop the training; to end it at once where that may be needed."""
    store = app.store
    why_not = store.find_command_obstacle("stop")
    if why_not:
        app.say(why_not, severity="warning")
        return
    choices = [
        Choice("esc", "", "no, let it train"),
        Choice("y", "stop", "stop after this iteration, with a checkpoint"),
    ]
    if store.can_kill:
        choices.append(Choice("k", "kill", "kill it: stops now, saves nothing"))

    def handle_answer(answer: str | None) -> None:
        if answer == "stop":
            app.send_command("stop")
        elif answer == "kill":
            kill()

    warning = ""
    if store.health.bad:
        warning = store.health.sentence
    note = _describe_stopping(store)
    dialog = ChoiceDialog(
        "stop the training?", choices, note=note, warning=warning, about_training=True
    )
    app.push_screen(dialog, handle_answer)


def _describe_stopping(store: RunStore) -> str:
    if not store.can_kill:
        return f"later: hookflow run --resume {store.command_name}"
    saved = store.state.checkpoints
    if not saved:
        return "there is no checkpoint yet"
    return f"newest checkpoint: iteration {saved[-1]['it']}"


def ask_for_rewind(app: Dashboard) -> None:
    """Ask which checkpoint to go back to. The offers stay as they are until that is answered."""
    store = app.store
    why_not = store.find_command_obstacle("rewind")
    if why_not:
        app.say(why_not, severity="warning")
        return
    on_disk = {path.name for path in store.directory.checkpoints.glob("it*") if path.is_dir()}
    saved = {Path(each["path"]).name: each for each in store.state.checkpoints}
    names = sorted(on_disk & saved.keys(), reverse=True)[:OFFERED_CHECKPOINTS]
    if not names:
        app.say("there is no checkpoint yet", severity="warning")
        return
    choices = [Choice("esc", "", "stay here")]
    for digit, name in enumerate(names, start=1):
        known_as = ", ".join(saved[name]["names"])
        choices.append(
            Choice(f"{digit}", name, f"iteration {saved[name]['it']}  {known_as}".rstrip())
        )

    def handle_answer(answer: str | None) -> None:
        if answer:
            app.send_command("rewind", answer)

    note = "what was trained after it is discarded"
    dialog = ChoiceDialog("go back to which checkpoint?", choices, note=note, about_training=True)
    app.push_screen(dialog, handle_answer)


def list_settable_arguments(app: Dashboard) -> list[str]:
    """Return the arguments that hooks of the run declare settable.

    The arguments of the hook at the cursor come first.
    """
    picked = app.find_picked_binding()
    names = [
        f"{hook}.{argument}"
        for hook, arguments in app.store.plan.settable.items()
        for argument in arguments
    ]
    if picked is None:
        return names
    return sorted(names, key=lambda name: not name.startswith(f"{picked.hook}."))


def value_of_setting(store: RunStore, name: str) -> str:
    """Return the value of an argument of a hook, by both their names.

    It is as it was set, or as the pipeline has it.
    """
    hook, _, argument = name.rpartition(".")
    change = store.state.find_setting(hook, argument)
    if change is not None:
        return split_setting(change["args"][0])[2]
    args = store.plan.hook(hook).args
    if isinstance(args, dict) and argument in args:
        return f"{args[argument]}"
    return "the default"


def ask_for_setting(app: Dashboard) -> None:
    """Ask for an argument and its value."""
    names = list_settable_arguments(app)
    if not names:
        app.say("no hook of this run declares an argument settable")
        return
    known = [f"{name} = {value_of_setting(app.store, name)}" for name in names]

    def handle_answer(text: str | None) -> None:
        if text:
            app.send_command("set", text.strip())

    suggestions = [f"{name}=" for name in names]
    dialog = PromptDialog(
        "set", text=suggestions[0], note="now: " + "   ".join(known), suggestions=suggestions
    )
    app.push_screen(dialog, handle_answer)


def ask_for_argument(app: Dashboard, command: str) -> None:
    """Ask for what a command of the palette takes."""
    hooks = [hook.name for hook in app.store.plan.hooks]

    def handle_answer(text: str | None) -> None:
        if text:
            app.send_command(command, text.strip())

    takes = COMMANDS[command].takes
    suggestions = []
    note = ""
    if takes == "HOOK":
        suggestions = hooks
        note = ", ".join(hooks)
    app.push_screen(
        PromptDialog(f"{command} {takes}", suggestions=suggestions, note=note), handle_answer
    )
