"""The models and optimizers of a pipeline: where each is declared, and which optimizer trains which model."""

from __future__ import annotations

from collections.abc import Iterator

from hookflow.errors import Problem, nearest
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import Component, Pipeline


def named_parts(pipeline: Pipeline) -> dict[str, Component]:
    """Return every model and optimizer by its key in the file: "model", or "model.generator"."""
    models = {key_of("model", name): model for name, model in pipeline.models.items()}
    return models | {key_of("optimizer", name): optimizer for name, optimizer in pipeline.optimizers.items()}


def key_of(section: str, name: str) -> str:
    """Return where the file declares a model or an optimizer; one without a name bears that of its section."""
    return section if name == section else f"{section}.{name}"


def trained_by(pipeline: Pipeline, optimizer: str) -> str | None:
    """Return the name of the model that an optimizer trains; None when it trains all there are."""
    stated = pipeline.optimizers[optimizer].model
    if stated is not None or not isinstance(pipeline.optimizer, dict):
        return stated
    return optimizer


def wrong_parts(loaded: Loaded) -> Iterator[Problem]:
    """Yield what does not go together: an optimizer of no model, a model with two, a name that two things bear."""
    pipeline, place = loaded.pipeline, loaded.places.of
    several = pipeline.model if isinstance(pipeline.model, dict) else {}
    takers: dict[str, str] = {}
    for name, section in pipeline.optimizers.items():
        key = key_of("optimizer", name)
        model = trained_by(pipeline, name)
        if model is None:
            continue
        if not several:
            hint = "give it a name, [model.net], or write one [optimizer]"
            yield Problem(f'[{key}] trains a model "{model}", and [model] has no name', place(key), hint)
        elif model not in several:
            at = place(f"{key}.model") if section.model else place(key)
            hint = nearest(model, several) or f'say which it trains: model = "{next(iter(several))}"'
            yield Problem(f'[{key}] trains a model "{model}", and there is none', at, hint)
        elif model in takers:
            said = f'[{key}] and [optimizer.{takers[model]}] train the same model "{model}"'
            yield Problem(said, place(key), "two optimizers of one model would step it twice")
        takers.setdefault(model, name)
    for name in several.keys() & pipeline.hooks.keys():
        said = f'a model and a hook are both called "{name}", and a checkpoint could not tell their weights apart'
        yield Problem(said, place(f"hooks.{name}"))
