"""Images, texts and histograms as a run would have logged them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookflow.monitor.charts import Pixels
from hookflow.png import encode_png
from tests.monitor.fake_run import BEGAN

VERSE = "It was the best of times,\nit was the worst of times.\n\n    indented\n\tby a tab\n数据数据" + "数据" * 40


def stamped(kind: str, it: int, hook: str = "draw", **fields: Any) -> dict[str, Any]:
    return {"k": kind, "t": BEGAN + it / 36, "it": it, "ep": it // 98, "name": "sample", "hook": hook, **fields}


def image(it: int, name: str = "rendered/ring", width: int = 24, height: int = 16, caption: str = "") -> dict[str, Any]:
    path = f"images/{name}/it{it:08}.png"
    size = {"width": width, "height": height}
    return stamped("image", it, name=name, path=path, caption=caption, figure=False, **size)


def text(it: int, said: str = VERSE) -> dict[str, Any]:
    return stamped("text", it, text=said)


def histogram(it: int, name: str = "head.weight", bins: int = 30) -> dict[str, Any]:
    counts = [round(900 * np.exp(-(((k - bins / 2) / bins * 5) ** 2))) for k in range(bins)]
    edges = np.linspace(-0.31, 0.42, bins + 1).round(4).tolist()
    return stamped("histogram", it, hook="stats", name=name, edges=edges, counts=counts)


def ring(width: int = 24, height: int = 16) -> NDArray[np.uint8]:
    """Return a ring of colours."""
    y, x = np.mgrid[0:height, 0:width]
    y, x = (y / height - 0.5) * 2, (x / width - 0.5) * 2
    distance = np.hypot(x, y)
    colours = np.stack([x / 2 + 0.5, y / 2 + 0.5, 1 - distance / 1.5], axis=-1)
    return np.where(abs(distance - 0.6)[..., None] < 0.25, colours * 255, 12).clip(0, 255).astype(np.uint8)


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write the file that a record of an image names."""
    path = folder / record["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(ring(record["width"], record["height"])))


PIXELS = Pixels(ring())
