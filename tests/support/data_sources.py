"""Sources of data, made as a pipeline makes them."""

from typing import Any

from hookflow.errors import Where
from hookflow.pipeline.components import LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.runner.data.loader_parts import loader_parts
from hookflow.runner.data.source import Source, as_source
from tests.conftest import TOY
from tests.support.data_loaders import context

HERE = Where("test")


def source(
    made: Any,
    *,
    seed: int = 5,
    rank: int = 0,
    world: int = 1,
    shards_itself: bool = False,
    say: Any = print,
    **section: Any,
) -> Source:
    described = LoaderSection.model_validate({"batch_size": 4, **section})
    settings = context(seed=seed, rank=rank, world=world, say=say)
    parts = loader_parts(
        described,
        "data.train.loader",
        SourceMap("test"),
        TOY.parent,
        settings,
        public=described,
        training=True,
    )
    return as_source(made, HERE, settings, parts, shards_itself=shards_itself)
