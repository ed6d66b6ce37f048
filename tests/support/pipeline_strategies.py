"""Pipelines of every kind that the schema admits, for what must hold of all of them."""

from typing import Any

from hypothesis import strategies as st

from hookflow.pipeline.schema import Pipeline

texts = st.text(st.characters(codec="utf-8"))
plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    plain | st.sampled_from(["${a}", "$${", "$$${x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(texts, values, max_size=3)
few = st.lists(texts, max_size=3)
names = st.text("abc_-19", min_size=1, max_size=4)
amounts = st.none() | st.integers(1) | st.sampled_from(["3it", "2ep", "1.5s", "10%"])
components = st.fixed_dictionaries({"use": texts, "args": tables})
trigger: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("every", "from", "until"), amounts),
    "when": st.sampled_from([None, "loss > 10", "epoch >= 1 and rank == 0"]),
    "modules": st.none() | st.lists(texts, min_size=1, max_size=2),
    "after": few,
    "before": few,
}
bindings = st.fixed_dictionaries({"at": texts}, optional=trigger)
hooks = st.fixed_dictionaries(
    {"use": texts},
    optional={
        "args": tables | st.lists(values, max_size=3),
        "phase": st.sampled_from([None, "first", "early", "normal", "late", "last"]),
        "requires": few,
        "reads": st.none() | few,
        "writes": st.none() | few,
        "ambiguous_with": few,
        "points": st.none() | st.lists(texts | bindings, min_size=1, max_size=3),
        "enabled": st.booleans(),
        "on_error": st.sampled_from(["raise", "disable", "ignore"]),
        **trigger,
    },
)
points = st.fixed_dictionaries({"follows": texts}, optional={"offers": few, "about": texts})
lengths = st.sampled_from(["max_epochs", "max_iters"])
runs = st.builds(
    lambda run, length, amount: {**run, length: amount},
    st.fixed_dictionaries(
        {"name": names.filter(lambda name: name[0] != "-")},
        optional={
            "seed": st.integers(0, 2**63 - 1),
            "val_every": st.integers(0),
            "test": st.just(False),
            "limit_train": st.none() | st.integers(1) | st.just("50%"),
            "limit_val": st.none() | st.just("10%"),
            "overfit": st.none(),
            "deterministic": st.sampled_from([False, True, "warn"]),
            "sanity": st.booleans(),
            "device": st.sampled_from(["auto", "cpu", "cuda:3"]),
            "precision": st.sampled_from(["auto", "bf16"]),
            "channels_last": st.booleans(),
            "threads": st.none() | st.integers(1),
            "dir": texts,
        },
    ),
    lengths,
    st.integers(1, 2**40),
)
named = st.none() | texts | components
loaders = st.fixed_dictionaries(
    {"batch_size": st.integers(1)},
    optional={
        "shuffle": st.none() | st.just(False),
        "drop_last": st.booleans(),
        "on_device": st.booleans(),
        **dict.fromkeys(("collate", "sampler", "augment"), named),
        "batches": st.none() | st.integers(1),
    },
) | st.builds(dict, batch_size=st.integers(1), workers=st.integers(0), shuffle=st.just(True))
sources = st.fixed_dictionaries(
    {"use": texts, "args": tables}, optional={"loader": st.none() | loaders}
)
groups = st.lists(st.fixed_dictionaries({"match": texts, "args": tables}), max_size=2)
optimizers = st.fixed_dictionaries({"use": texts, "args": tables, "groups": groups})
pipelines = st.fixed_dictionaries(
    {
        "run": runs,
        "model": components,
        "optimizer": optimizers,
        "data": st.fixed_dictionaries(
            {"train": sources}, optional={"val": sources, "test": sources}
        ),
    },
    optional={
        "task": components,
        "points": st.dictionaries(texts, points, max_size=3),
        "hooks": st.dictionaries(names, hooks, max_size=3),
    },
).map(Pipeline.model_validate)
