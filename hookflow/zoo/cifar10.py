"""CIFAR-10 (A. Krizhevsky, 2009): 32x32 images of ten classes, fetched and read in the archive's
binary version.

The images lie on the device, and are flipped and shifted there. Synthetic ones stand in where there
are none. `AirNet` is a small convolutional net that learns them in a few epochs, after K. Jordan's
airbench (arXiv 2404.00498).
"""

import fcntl
import hashlib
import http.client
import shutil
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hookflow.errors import Problem, UserError
from hookflow.runner.data.loader_parts import BatchSharding

CHANNEL_MEANS = (0.4914, 0.4822, 0.4465)
CHANNEL_STDS = (0.2470, 0.2435, 0.2616)
"""Of CIFAR-10's training images, channel by channel, on a scale from 0 to 1."""

MAX_SHIFT = 2
"""The most pixels by which an augmented image is shifted, each way."""

Split = Literal["train", "val", "test"]


class Batch(NamedTuple):
    """Normalised images, float32 (batch, 3, height, width), channels last;
    and their classes, int64 (batch,).
    """

    images: Tensor
    classes: Tensor


@dataclass(frozen=True, slots=True)
class Options:
    """How images become batches: arguments of `hookflow.zoo.cifar10:cifar10`."""

    split: Split
    batch_size: int
    augment: bool | None
    sizes: Sequence[int]
    seed: int
    device: torch.device
    rank: int
    world: int


class Images(BatchSharding):
    """Batches of images; each is a pure function of the seed, the epoch and its index.

    `images` is uint8 of shape (examples, height, width, 3) and `classes` is int64 of shape
    (examples,). On the device they take a byte a value: 155 MB for 40,000 images of 32x32 with the
    border that shifting needs.

    Only the `train` split is shuffled, anew each epoch, drops an incomplete last batch, and is
    augmented if `augment` is left out. `augment` shifts each image by up to two pixels each way,
    the border reflected, and flips it: at random in the first epoch, and the other way round in
    every other epoch.

    `sizes` are the sides, in pixels, that images are scaled to, epoch by epoch; the last goes for
    all that follow. Random draws come from generators of their own on the CPU, so they are the same
    on every device.
    """

    def __init__(
        self,
        images: Tensor,
        classes: Tensor,
        options: Options,
        *,
        name: str,
        note: str,
        synthetic: bool,
    ) -> None:
        training = options.split == "train"
        batch_size = min(options.batch_size, len(classes))
        super().__init__(
            len(classes), batch_size, drop_last=training, rank=options.rank, world=options.world
        )
        self.info = self.describe(name, note, synthetic=synthetic)
        device = options.device
        self._height, self._width = images.shape[1:3]
        self._shuffle = training
        self._augment = options.augment
        if self._augment is None:
            self._augment = training
        self._sizes = options.sizes
        self._seed = options.seed
        if self._augment:
            border = ((0, 0), (MAX_SHIFT, MAX_SHIFT), (MAX_SHIFT, MAX_SHIFT), (0, 0))
            images = torch.from_numpy(np.pad(images.numpy(), border, mode="reflect"))
        self._images = images.to(device)
        self._classes = classes.to(device)
        mean = torch.tensor(CHANNEL_MEANS, device=device)
        std = torch.tensor(CHANNEL_STDS, device=device)
        self._scale = (1 / (255 * std)).view(3, 1, 1)
        self._offset = (-mean / std).view(3, 1, 1)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        device = self._classes.device
        examples = len(self._classes)
        generator = self._generator(epoch)
        if self._shuffle:
            order = torch.randperm(examples, generator=generator)
        else:
            order = torch.arange(examples)
        order = order.to(device)
        if self._augment:
            shifts = torch.randint(2 * MAX_SHIFT + 1, (2, examples), generator=generator)
            down, right = shifts.to(device)
            # `windows` is a view of every shift of every image, and copies nothing.
            windows = self._images.unfold(1, self._height, 1).unfold(2, self._width, 1)
            coin = torch.randint(2, (examples,), generator=self._generator()).to(device)
            flip = coin != epoch % 2
        for index in range(start, len(self)):
            rows = self.shard(order, index)
            if self._augment:
                images = windows[rows, down[rows], right[rows]]
                images = torch.where(flip[rows].view(-1, 1, 1, 1), images.flip(3), images)
            else:
                images = self._images[rows].permute(0, 3, 1, 2)
            images = self._normalize_images(images)
            if self._sizes:
                side = self._sizes[min(epoch, len(self._sizes) - 1)]
                images = functional.interpolate(
                    images, size=(side, side), mode="bilinear", antialias=True
                )
            yield Batch(images, self._classes[rows])

    def sample(self, count: int) -> Tensor:
        """Return the first `count` images (or all, if fewer), normalised, without augmentation."""
        images = self._images[:count]
        if self._augment:
            images = images[:, MAX_SHIFT:-MAX_SHIFT, MAX_SHIFT:-MAX_SHIFT]
        return self._normalize_images(images.permute(0, 3, 1, 2))

    def _normalize_images(self, images: Tensor) -> Tensor:
        pixels = images.to(torch.float32, memory_format=torch.channels_last)
        return pixels.mul_(self._scale).add_(self._offset)

    def _generator(self, *key: int) -> torch.Generator:
        """Return a generator seeded by the source's seed and `key`,
        unlike that of any other key.
        """
        sequence = np.random.SeedSequence((self._seed, *key))
        (seed,) = sequence.generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(seed))


SPLIT_SIZES = {"train": 3_000, "val": 1_000, "test": 1_000}
"""Images of each split, the ten classes in equal parts."""

IMAGE_SIDE = 32
SYNTHETIC_NOTE = "generated by hookflow: an accuracy on these images says nothing about CIFAR-10"


def make_synthetic_images(
    options: Options, limit: int | None, say: Callable[[str], None]
) -> Images:
    """Return one split of the synthetic images: 3,000 to train, 1,000 to validate and 1,000 to
    test.

    The images are the same whatever the run's `seed`, which orders and augments them.
    """
    split = options.split
    split_seed = list(SPLIT_SIZES).index(split)
    generator = torch.Generator().manual_seed(split_seed)
    order = torch.randperm(SPLIT_SIZES[split], generator=generator)
    classes = (order % len(CLASS_PATTERNS))[:limit]
    say(f"SYNTHETIC {split}: generating {len(classes):,} images")
    images = draw(classes, generator)
    return Images(
        images, classes, options, name="drawn shapes", note=SYNTHETIC_NOTE, synthetic=True
    )


def draw(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Return an image, uint8 (32, 32, 3), of each class: each with its own place, size, turn,
    colours and noise.
    """
    examples = len(classes)
    u, v = _make_axes(examples, generator)
    inside = torch.empty_like(u)
    for number, pattern in enumerate(CLASS_PATTERNS):
        rows = classes == number
        inside[rows] = pattern(u[rows], v[rows])
    cover = (8 * inside).sigmoid().unsqueeze(3)
    front, back = _make_colours(examples, generator)
    noise = torch.randn(examples, IMAGE_SIDE, IMAGE_SIDE, 3, generator=generator)
    noise = noise * _uniform(0.02, 0.2, examples, generator)
    images = torch.lerp(back, front, cover)
    return images.add_(noise).clamp_(0, 1).mul_(255).to(torch.uint8)


def _make_axes(examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the coordinates (examples, 32, 32) of every pixel as its image's pattern sees them."""
    axis = torch.linspace(-1, 1, IMAGE_SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    right = _uniform(-0.4, 0.4, examples, generator)[..., 0]
    down = _uniform(-0.4, 0.4, examples, generator)[..., 0]
    size = _uniform(0.35, 0.8, examples, generator)[..., 0]
    angle = _uniform(-torch.pi, torch.pi, examples, generator)[..., 0]
    x = (x - right) / size
    y = (y - down) / size
    u = angle.cos() * x - angle.sin() * y
    v = angle.sin() * x + angle.cos() * y
    return u, v


def _make_colours(examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two colours (examples, 1, 1, 3) an image,
    which differ by at least 0.2 in one channel.
    """
    front, back = torch.rand(2, examples, 1, 1, 3, generator=generator)
    channel = torch.randint(3, (examples, 1, 1, 1), generator=generator)
    back_value = back.gather(3, channel)
    distance = _uniform(0.2, 0.6, examples, generator)
    front_value = torch.where(back_value < 0.5, back_value + distance, back_value - distance)
    return front.scatter(3, channel, front_value), back


def _uniform(low: float, high: float, examples: int, generator: torch.Generator) -> Tensor:
    return torch.rand(examples, 1, 1, 1, generator=generator) * (high - low) + low


def _cross(u: Tensor, v: Tensor) -> Tensor:
    u = u.abs()
    v = v.abs()
    thickness = 0.3 - torch.minimum(u, v)
    length = 1 - torch.maximum(u, v)
    return torch.minimum(thickness, length)


CLASS_PATTERNS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda u, v: 1 - u.hypot(v),  # a disc
    lambda u, v: 0.25 - (u.hypot(v) - 0.75).abs(),  # a ring
    lambda u, v: 0.85 - torch.maximum(u.abs(), v.abs()),  # a square
    _cross,
    lambda u, v: 0.55 - torch.maximum(v, u.abs() * 0.75**0.5 - v / 2),  # a triangle
    lambda u, v: (5 * u).sin() / 2,  # stripes
    lambda u, v: (4 * u).sin() * (4 * v).sin(),  # a chessboard
    lambda u, v: ((6 * u).cos() + (6 * v).cos()) / 2 - 0.4,  # dots
    lambda u, v: (6 * u.hypot(v)).sin() / 2,  # ripples
    lambda u, v: (5 * torch.atan2(v, u)).sin() * u.hypot(v) / 2,  # rays
)
"""The height of each class's pattern over the plane: above zero inside, below zero outside."""

ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
ARCHIVE_FOLDER = "cifar-10-batches-bin"  # the archive's only folder
MAX_ARCHIVE_BYTES = 200_000_000
"""The most bytes that the archive may have."""

TIMEOUT_SECONDS = 10.0
"""How long to wait for a connection, or for the next bytes on one."""

CHUNK_BYTES = 1 << 24
"""Bytes of the download between two lines about its progress."""

SPLIT_FILES = {
    "train": tuple(f"data_batch_{part}.bin" for part in range(1, 5)),
    "val": ("data_batch_5.bin",),
    "test": ("test_batch.bin",),
}
RECORD_BYTES = 1 + 3 * IMAGE_SIDE * IMAGE_SIDE
"""Bytes of an example: its class, then the red, the green and the blue plane, row by row."""

RECORDS_PER_FILE = 10_000
"""Examples of a file."""


def cifar10(
    *,
    root: str,
    split: Split = "train",
    batch_size: Annotated[int, Field(ge=1)] = 256,
    limit: Annotated[int, Field(ge=1)] | None = None,
    download: bool = True,
    on_missing: Literal["error", "synthetic"] = "error",
    augment: bool | None = None,
    sizes: Sequence[Annotated[int, Field(ge=1)]] = (),
    seed: int,
    device: torch.device,
    say: Callable[[str], None],
    rank: int = 0,
    world: int = 1,
) -> Images:
    """Return one split of CIFAR-10 on `device`.

    `train` is the first four training batches, 40,000 images, `val` the fifth and `test` the
    archive's own, 10,000 each. (Published accuracies are those of `test` after training on all
    50,000: expect half a point to one less.)

    The files of the binary version are looked for in `root` and in `root/cifar-10-batches-bin`. If
    they are in neither, the official archive is fetched into `root` (unless `download` is false).
    If that fails, `on_missing` decides between an error and the synthetic images (`synthetic`). An
    incomplete folder is always an error.

    `limit` takes the first examples of the split, which are in random order. `augment` (flips and
    shifts) is on for `train` if left out. `sizes` are the sides in pixels that images are scaled
    to, epoch by epoch, the last for all that follow.

    Raises UserError when the images are not there or not whole.
    """
    options = Options(split, batch_size, augment, sizes, seed, device, rank, world)
    root_dir = Path(root).expanduser()
    if _find_folder(root_dir) is None:
        reason = "download = false"
        if download:
            reason = _fetch_archive(root_dir, say)
        if reason and on_missing == "synthetic":
            consequence = "synthetic images take its place, and accuracies on them mean little"
            say(f"no CIFAR-10 in {root_dir} ({reason}): {consequence}")
            return make_synthetic_images(options, limit, say)
        if reason:
            inner = root_dir / ARCHIVE_FOLDER
            message = (
                f"no CIFAR-10: neither {root_dir} nor {inner} holds its binary version, and"
                f" {reason}"
            )
            hint = (
                f"put {ARCHIVE_URL} into {root_dir} by hand, name the root of a copy that you have,"
            )
            raise UserError(
                Problem(
                    message, hint=f'{hint} or allow synthetic images with on_missing = "synthetic"'
                )
            )
    folder = _find_folder(root_dir) or root_dir / ARCHIVE_FOLDER
    images, classes = _read(folder, split, limit)
    say(f"CIFAR-10 {split}: {len(classes):,} images from {folder}")
    note = f"{split}, from {folder}"
    return Images(images, classes, options, name="CIFAR-10", note=note, synthetic=False)


def _find_folder(root: Path) -> Path | None:
    """Return the folder of the binary version, or None when there is none,
    not even a broken one.
    """
    for files in SPLIT_FILES.values():
        if any((root / file).exists() for file in files):
            return root
    if (root / ARCHIVE_FOLDER).exists():
        return root / ARCHIVE_FOLDER
    return None


@lru_cache(maxsize=1)  # of a download that has failed, the next split has the answer at once
def _fetch_archive(root: Path, say: Callable[[str], None]) -> str:
    """Fetch the archive into `root` and unpack it; return why it could not be done,
    or an empty string.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "cifar-10.lock").open("w") as lock:
            # Where several processes want the archive at once, one fetches it and the others wait.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / ARCHIVE_FOLDER).exists():
                archive = root / Path(ARCHIVE_URL).name
                unpacked = root / f"{ARCHIVE_FOLDER}.tmp"
                download(ARCHIVE_URL, archive, ARCHIVE_MD5, MAX_ARCHIVE_BYTES, say)
                say(f"unpacking {archive}")
                shutil.rmtree(unpacked, ignore_errors=True)
                with tarfile.open(archive) as tar:
                    tar.extractall(unpacked, filter="data")
                (unpacked / ARCHIVE_FOLDER).rename(root / ARCHIVE_FOLDER)
                unpacked.rmdir()
        return ""
    # A redirect to no address is a ValueError.
    except (OSError, http.client.HTTPException, tarfile.TarError, ValueError) as error:
        return f"the download failed: {error}"


def download(url: str, target: Path, md5: str, max_bytes: int, say: Callable[[str], None]) -> None:
    """Fetch `url` into `target` unless it is there; `say` takes lines about the progress.

    Raises OSError where the file has another MD5 sum, or more than `max_bytes`; OSError,
    http.client.HTTPException or ValueError where there is no answer, or none that is HTTP.
    """
    path = target
    if not target.exists():
        say(f"fetching {url}")
        path = target.with_name(f"{target.name}.part")
        answer = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)  # noqa: S310  # the caller's, not the user's
        with answer, path.open("wb") as file:
            chunk_bytes = min(CHUNK_BYTES, max_bytes + 1)
            data = answer.read(chunk_bytes)
            while data:
                if file.tell() + len(data) > max_bytes:
                    path.unlink()
                    raise OSError(
                        f"{url} sends more than the {max_bytes:,} bytes that the file has at most"
                    )
                file.write(data)
                say(f"{file.tell() / 1e6:.0f} MB")
                data = answer.read(chunk_bytes)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if digest != md5:
        if path != target:
            path.unlink()
        raise OSError(f"{path} has the MD5 sum {digest} instead of {md5}")
    path.replace(target)


def _read(folder: Path, split: str, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (examples, height, width, 3), and classes, int64 (examples,)."""
    hint = "remove the folder to have it fetched again, or give the root of a whole one"
    files = [folder / name for name in SPLIT_FILES[split]]
    problems = []
    expected_size = RECORDS_PER_FILE * RECORD_BYTES
    for file in files:
        if not file.is_file():
            problems.append(Problem(f"{file} is missing", hint=hint))
            continue
        size = file.stat().st_size
        if size != expected_size:
            problems.append(
                Problem(f"{file} has {size:,} bytes instead of {expected_size:,}", hint=hint)
            )
    if problems:
        raise UserError(problems)
    contents = [np.fromfile(file, np.uint8) for file in files]
    records = np.concatenate(contents).reshape(-1, RECORD_BYTES)[:limit]
    classes = torch.from_numpy(records[:, 0].astype(np.int64))
    if classes.max() > 9:
        raise UserError(
            Problem(f"{folder} is not CIFAR-10: it has a class {classes.max()}, beyond 9")
        )
    planes = records[:, 1:].reshape(-1, 3, IMAGE_SIDE, IMAGE_SIDE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return torch.from_numpy(images), classes


Width = Annotated[int, Field(ge=1)]


class Group(nn.Module):
    """Two 3x3 convolutions, each normalised and through GELU;
    the image is halved between the first and its norm.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = _make_convolution(inputs, outputs)
        self.norm1 = _norm(outputs)
        self.conv2 = _make_convolution(outputs, outputs)
        self.norm2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x), 2)
        x = functional.gelu(self.norm1(x))
        return functional.gelu(self.norm2(self.conv2(x)))


class AirNet(nn.Module):
    """A frozen 2x2 convolution that whitens, one `Group` for each width, the maximum over the
    image, a linear layer.

    Takes images (batch, 3, height, width) of at least 16 by 16 and returns logits (batch,
    num_classes). The `whiten` layer's weights are not trained: the hook `hookflow.zoo.hooks:Whiten`
    sets them from the training images. The scales of the batch norms are fixed at one. `widths` is
    the one dial: it sets cost and accuracy.
    """

    def __init__(
        self,
        widths: Annotated[Sequence[Width], Field(min_length=1, max_length=4)] = (32, 128, 128),
        num_classes: Annotated[int, Field(ge=1)] = 10,
    ) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2, bias=False)
        self.whiten.weight.requires_grad_(False)
        groups = []
        inputs = self.whiten.out_channels
        for width in widths:
            groups.append(Group(inputs, width))
            inputs = width
        self.groups = nn.Sequential(*groups)
        self.head = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.groups(functional.gelu(self.whiten(images)))
        # amax() compares again for its gradient. Where Inductor computes x anew in bf16, nothing is
        # equal, and the gradient is NaN.
        features = x.flatten(2).max(2).values
        logits: Tensor = self.head(features) / 9
        return logits


def _make_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first filters are the identity; the others are random."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight[: min(inputs, outputs)].detach())
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with a trained bias and a fixed scale; its averages follow fast,
    for runs are short.
    """
    layer = nn.BatchNorm2d(channels, momentum=0.4, eps=1e-12)
    layer.weight.requires_grad_(False)
    return layer
