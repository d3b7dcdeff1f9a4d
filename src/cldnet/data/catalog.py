"""The data sets that CLDNet knows by name: where they come from, what they hold, and how to tell that they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cldnet.data.known import Download, KnownSet
from cldnet.names import nearest_names

if TYPE_CHECKING:
    from cldnet.data.dataset import Dataset

__all__ = ["KNOWN_SETS", "Download", "KnownSet", "known_set"]


def known_set(name: str) -> KnownSet:
    """Look a data set up by its name.

    Examples
    --------
    >>> known_set("cifar10")
    Traceback (most recent call last):
    ...
    ValueError: There is no data set 'cifar10'. Did you mean 'cifar-10' or 'cifar-100'?
    """
    if name not in KNOWN_SETS:
        raise ValueError(f"There is no data set {name!r}. {nearest_names(name, KNOWN_SETS)}")
    return KNOWN_SETS[name]


# Readers are imported when they are called, so that a list of names costs nothing.


def _read_mnist(folder: Path, *, name: str) -> Dataset:
    from cldnet.data.files.idx import read_mnist  # noqa: PLC0415

    return read_mnist(folder, name)


def _read_cifar10(folder: Path) -> Dataset:
    from cldnet.data.files.cifar import read_cifar10  # noqa: PLC0415

    return read_cifar10(folder)


def _read_cifar100(folder: Path, **options: Any) -> Dataset:
    from cldnet.data.files.cifar import read_cifar100  # noqa: PLC0415

    return read_cifar100(folder, **options)


def _read_images(folder: Path, *, name: str, **options: Any) -> Dataset:
    from cldnet.data.images.reader import read_images  # noqa: PLC0415

    return read_images(folder, name=name, **options)


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX_LAYOUT = tuple(
    "|".join((name, dotted := name.replace("-idx", ".idx"), f"{name}.gz", f"{dotted}.gz")) for name in _IDX
)


def _idx_downloads(addresses: tuple[str, ...], sizes: tuple[int, ...], sums: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{addresses[0]}{name}.gz", f"sha256:{sha256}", size, tuple(f"{at}{name}.gz" for at in addresses[1:]))
        for name, size, sha256 in zip(_IDX, sizes, sums, strict=True)
    )


_CIFAR10_PARTS = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")

_SETS = (
    KnownSet(
        name="mnist",
        title="MNIST, 28×28 grey digits",
        folders=("mnist", "MNIST/raw", "MNIST"),
        layouts=(_IDX_LAYOUT,),
        read=partial(_read_mnist, name="mnist"),
        downloads=_idx_downloads(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            (9_912_422, 28_881, 1_648_877, 4_542),
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        home="http://yann.lecun.com/exdb/mnist/",
        terms="Its authors state no licence.",
        size=11_594_722,
        train=60_000,
        test=10_000,
        classes=10,
        digest="4677731c69d869ba",
        hint="Any other copy of the four files will do as well, plain or .gz: torchvision's folder MNIST/raw, for example.",
    ),
    KnownSet(
        name="fashion-mnist",
        title="FashionMNIST, 28×28 grey clothes",
        folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fmnist"),
        layouts=(_IDX_LAYOUT,),
        read=partial(_read_mnist, name="fashion-mnist"),
        downloads=_idx_downloads(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            (26_421_880, 29_515, 4_422_102, 5_148),
            (
                "08dc20ab1689590a0bcd66e874647b6ee8464e2d501b5a3f1f78831db19a3fdc",
                "b0197879cbda89f3dc7b894f9fd52b858e68ea4182b6947c9d8c2b67e5f18dcc",
                "78dcbbfb5a27efaf1b6c1d616caca68560be8766c5bffcb2791df9273a534229",
                "42bd18137a62d5998cdeae52bf3a0676ac6b706f5cf8439b47bb5b151ae3dccf",
            ),
        ),
        home="https://github.com/zalandoresearch/fashion-mnist",
        terms="MIT licence.",
        size=30_878_645,
        train=60_000,
        test=10_000,
        classes=10,
        digest="ac9b32883b192f80",
        hint="On Debian and Ubuntu this is enough: apt install dataset-fashion-mnist",
    ),
    KnownSet(
        name="cifar-10",
        title="CIFAR-10, 32×32 colour photos",
        folders=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10"),
        layouts=(tuple(f"{part}.bin" for part in _CIFAR10_PARTS), _CIFAR10_PARTS),
        read=_read_cifar10,
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
            ),
        ),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="Its authors state no licence and ask to cite Krizhevsky's report of 2009.",
        size=184_380_060,
        train=50_000,
        test=10_000,
        classes=10,
        digest="cbb27316924d005e",
    ),
    KnownSet(
        name="cifar-100",
        title="CIFAR-100, 32×32 colour photos",
        folders=("cifar-100-binary", "cifar-100-python", "cifar-100"),
        layouts=(("train.bin", "test.bin", "fine_label_names.txt"), ("train", "test", "meta")),
        read=_read_cifar100,
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="Its authors state no licence and ask to cite Krizhevsky's report of 2009.",
        size=184_441_053,
        train=50_000,
        test=10_000,
        classes=100,
        digest="60f4df6dcd556600",
    ),
    KnownSet(
        name="imagenet-r",
        title="ImageNet-R, renditions of 200 ImageNet classes",
        folders=("imagenet-r", "ImageNet-R"),
        layouts=(("*/",),),
        read=partial(_read_images, name="imagenet-r"),
        downloads=(
            Download(
                "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
                "md5:a61312130a589d0ca1a8fca1f2bd3337",
                2_191_079_936,
            ),
        ),
        home="https://github.com/hendrycks/imagenet-r",
        terms="Pictures from the web, whose rights stay with their owners.",
        size=2_190_000_000,
        train=24_000,
        test=6_000,
        classes=200,
        photos=True,
    ),
    KnownSet(
        name="tiny-imagenet",
        title="Tiny-ImageNet, 64×64 colour photos",
        folders=("tiny-imagenet-200", "tiny-imagenet"),
        layouts=(("wnids.txt", "train/", "val/images/", "val/val_annotations.txt"),),
        read=partial(_read_images, name="tiny-imagenet"),
        downloads=(
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
        home="http://cs231n.stanford.edu/",
        terms="ImageNet's terms: research and teaching, not for profit.",
        size=250_000_000,
        train=100_000,
        test=10_000,
        classes=200,
        photos=True,
    ),
    KnownSet(
        name="cub-200",
        title="CUB-200-2011, photos of 200 kinds of birds",
        folders=("CUB_200_2011", "cub-200"),
        layouts=(("images/", "images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"),),
        read=partial(_read_images, name="cub-200"),
        downloads=(
            Download(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "md5:97eceeb196236b17998738112f37df78",
                1_150_585_339,
            ),
        ),
        home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        terms="For research and teaching, not for profit.",
        size=1_160_000_000,
        train=5_994,
        test=5_794,
        classes=200,
        photos=True,
    ),
)

#: The known sets by name.
KNOWN_SETS: Mapping[str, KnownSet] = {known.name: known for known in _SETS}
