"""What data sets there are: names, folders, files with published checksums, downloads, licences.

A table and nothing else. :mod:`gflowout.data.store` finds the files on disk,
:mod:`gflowout.data.download` fetches them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gflowout.core import checks


@dataclass(frozen=True)
class File:
    """A file of a data set as it lies in the data set's folder.

    Attributes:
        name: Its path inside the folder. Without its ``.gz`` it is as good.
        checksum: ``"md5:..."`` or ``"sha256:..."`` of the published file, if one is published.
        split: The part of the data it holds; empty for files that every part needs.
        optional: Whether the data set counts as whole without it.
    """

    name: str
    checksum: str | None = None
    split: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Download:
    """Something to fetch for a data set.

    Attributes:
        url: Where it is.
        checksum: ``"md5:..."``, ``"sha256:..."``, or ``"sums:URL"``: a published list of SHA-256
            sums, in the form of ``sha256sum``, that is fetched along with it.
        name: What to call the file in the folder. Default: the last part of the URL.
        unpack: Whether it is an archive to unpack, after which the archive goes.
        strip: Leading folders of the archive that are left out, as ours stands for them.
    """

    url: str
    checksum: str
    name: str = ""
    unpack: bool = False
    strip: int = 0

    @property
    def filename(self) -> str:
        """What the file is called on disk."""
        return self.name or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Entry:
    """One data set.

    Attributes:
        name: What users call it.
        title: What it is, in a few words.
        kind: ``"images"``, ``"overlays"``, ``"vqa"`` or ``"clinical"``: which loader reads it.
        folders: Sub-folders of the data directory that may hold it; a download goes to the first.
        files: Its files. A folder with any of them that holds a split is taken to hold the data
            set; with any at all, if no file is for one split only.
        licence: Terms of use.
        home: Page that describes it.
        citation: Whom to cite.
        downloads: What ``gflowout data get`` fetches; empty if it must be got by hand.
        by_hand: How to get it otherwise.
        package: A Python package that ships the data, and the folder inside it.
        size: About how many bytes the downloads have.
        inside: Sub-folders of the data set's folder that may hold the files.
    """

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    files: tuple[File, ...]
    licence: str
    home: str
    citation: str
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    package: tuple[str, str] | None = None
    size: int = 0
    inside: tuple[str, ...] = ("",)

    @property
    def splits(self) -> tuple[str, ...]:
        """The parts of the data, in the order of the files."""
        return tuple(dict.fromkeys(file.split for file in self.files if file.split))


def entry(name: str) -> Entry:
    """Return the data set called ``name``.

    Examples:
        >>> entry("mnist").licence
        'CC BY-SA 3.0'
        >>> entry("minst")
        Traceback (most recent call last):
            ...
        ValueError: name must be one of 'mnist', ..., got 'minst'; did you mean 'mnist'?
    """
    return ENTRIES[checks.choice("name", name, ENTRIES)]


_IDX = (
    ("train-images-idx3-ubyte.gz", "train"),
    ("train-labels-idx1-ubyte.gz", "train"),
    ("t10k-images-idx3-ubyte.gz", "test"),
    ("t10k-labels-idx1-ubyte.gz", "test"),
)


def _idx(base: str, *sums: str) -> tuple[tuple[File, ...], tuple[Download, ...]]:
    files = tuple(
        File(name, f"md5:{md5}", split) for (name, split), md5 in zip(_IDX, sums, strict=True)
    )
    downloads = tuple(Download(base + file.name, str(file.checksum)) for file in files)
    return files, downloads


def _corrupted(classes: int, record: int, md5: str) -> Entry:
    title = f"CIFAR-{classes}-C"
    names = ("labels", "gaussian_noise", "snow", "frost")
    return Entry(
        name=f"cifar{classes}-c",
        title=f"{title}: the test images of CIFAR-{classes} under 19 corruptions, 5 severities",
        kind="images",
        folders=(title, f"cifar{classes}_c"),
        files=tuple(File(f"{name}.npy", split="test") for name in names),
        licence="CC BY 4.0",
        home=f"https://zenodo.org/records/{record}",
        citation="Hendrycks & Dietterich, Benchmarking Neural Network Robustness, ICLR 2019",
        downloads=(
            Download(
                f"https://zenodo.org/records/{record}/files/{title}.tar",
                f"md5:{md5}",
                unpack=True,
                strip=1,
            ),
        ),
        size=2_918_471_680,
    )


_MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION = _idx(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_KMNIST = _idx(
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    "bdb82020997e1d708af4cf47b453dcf7",
    "e144d726b3acfaa3e44228e80efcd344",
    "5c965bf0a639b31b8f53240b1b52f4d7",
    "7320c461ea6c1c855c0b718fb2a4b134",
)
_NOTMNIST = (
    File("train-images-idx3-ubyte.gz", split="train", optional=True),
    File("train-labels-idx1-ubyte.gz", split="train", optional=True),
    File("t10k-images-idx3-ubyte.gz", "md5:2c87c839a4ef9b238846600eec8c35b7", "test"),
    File("t10k-labels-idx1-ubyte.gz", "md5:7ea9118cbafd0f6e3ee2ad771d782a01", "test"),
)
_CIFAR10 = (
    File("data_batch_1", "md5:c99cafc152244af753f735de768cd75f", "train"),
    File("data_batch_2", "md5:d4bba439e000b95fd0a9bffe97cbabec", "train"),
    File("data_batch_3", "md5:54ebc095f3ab1f0389bbae665268c751", "train"),
    File("data_batch_4", "md5:634d18415352ddfa80567beed471001a", "train"),
    File("data_batch_5", "md5:482c414d41f54cd18b22e5b47cb7c3cb", "train"),
    File("test_batch", "md5:40351d587109b95175f43aff81a1287e", "test"),
    File("batches.meta", "md5:5ff9c542aee3614f3951f8cda6e48888"),
)
_CIFAR100 = (
    File("train", "md5:16019d7e3df5f24257cddd939b257f8d", "train"),
    File("test", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc", "test"),
    File("meta", "md5:7973b15100ade9c7d40fb424638fde48"),
)
_SVHN = (
    File("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", "train"),
    File("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", "test"),
    File("extra_32x32.mat", "md5:a93ce644f1a588dc4d68dda5feec44a7", "extra", optional=True),
)
_FROST = (
    File("frost1.png", "md5:6ead634ace1f366d77e87078b465863c"),
    File("frost2.png", "md5:98f0d2b1d74a048d3bc9c7ecfd886939"),
    File("frost3.png", "md5:b3ed8eb147824261888e730f916c0d8b"),
    File("frost4.jpg", "md5:d70b9d6aa0b1fe7bd8133b113787e078"),
    File("frost5.jpg", "md5:50984ae2c871b7df2c28f1d71ca460a0"),
    File("frost6.jpg", "md5:bd01b8fc7c34a4ff3265c6fb476cff7b"),
)
_VQA_URL = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa/"
_VQA_SUMS = (
    ("Questions_Train", "05a64b6e2582d06d7585f5429674a9a33851878be1bff9f8668cdcf792df611e"),
    ("Annotations_Train", "fb101bcefe91422c543c2bb6d70af11eb3119d0ff745ae283d09acdf66250853"),
    ("Questions_Val", "e71f6c5c3e97a51d050f28243e262b28cd0c48d11a6b4632d769d30d3f93222a"),
    ("Annotations_Val", "0caae7c8d1dafd852727f5ac046bc1efca9b72026bd6ffa34fc489f3a7b3291e"),
)
_VQA = (
    File("v2_OpenEnded_mscoco_train2014_questions.json", split="train"),
    File("v2_mscoco_train2014_annotations.json", split="train"),
    File("v2_OpenEnded_mscoco_val2014_questions.json", split="test"),
    File("v2_mscoco_val2014_annotations.json", split="test"),
)
_EICU = (
    File("patient.csv.gz"),
    File("medication.csv.gz"),
    File("infusionDrug.csv.gz"),
    File("admissionDrug.csv.gz", optional=True),
    File("hospital.csv.gz", optional=True),
)
_EICU_DEMO_URL = "https://physionet.org/files/eicu-crd-demo/2.0.1/"
_EICU_CITATION = "Pollard et al., The eICU Collaborative Research Database, Scientific Data 2018"

_ALL = (
    Entry(
        name="mnist",
        title="MNIST: 70,000 handwritten digits, 28x28",
        kind="images",
        folders=("mnist", "MNIST/raw", "MNIST"),
        files=_MNIST[0],
        licence="CC BY-SA 3.0",
        home="http://yann.lecun.com/exdb/mnist/",
        citation="LeCun, Cortes & Burges, The MNIST database of handwritten digits, 1998",
        downloads=_MNIST[1],
        size=11_594_722,
    ),
    Entry(
        name="fashion-mnist",
        title="Fashion-MNIST: 70,000 pictures of clothes, 28x28",
        kind="images",
        folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
        files=_FASHION[0],
        licence="MIT",
        home="https://github.com/zalandoresearch/fashion-mnist",
        citation="Xiao, Rasul & Vollgraf, Fashion-MNIST, arXiv:1708.07747",
        downloads=_FASHION[1],
        size=30_878_645,
    ),
    Entry(
        name="kmnist",
        title="KMNIST: 70,000 cursive Japanese characters, 28x28",
        kind="images",
        folders=("kmnist", "KMNIST/raw", "KMNIST"),
        files=_KMNIST[0],
        licence="CC BY-SA 4.0",
        home="https://codh.rois.ac.jp/kmnist/",
        citation="Clanuwat et al., Deep Learning for Classical Japanese Literature, 2018",
        downloads=_KMNIST[1],
        size=21_288_000,
    ),
    Entry(
        name="notmnist",
        title="notMNIST in MNIST's format: letters A to J in many fonts, 28x28",
        kind="images",
        folders=("notmnist", "notmnist_test", "notMNIST"),
        files=_NOTMNIST,
        licence="posted with the author's permission; no licence stated",
        home="https://github.com/davidflanagan/notMNIST-to-MNIST",
        citation="Bulatov, notMNIST dataset, 2011",
        downloads=tuple(
            Download(
                "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/master/"
                + file.name,
                file.checksum,
            )
            for file in _NOTMNIST
            if file.checksum
        ),
        size=3_177_493,
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10: 60,000 colour pictures of 10 classes, 32x32",
        kind="images",
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
        files=_CIFAR10,
        licence="none stated; cite the report",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                unpack=True,
                strip=1,
            ),
        ),
        size=170_498_071,
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100: 60,000 colour pictures of 100 classes, 32x32",
        kind="images",
        folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
        files=_CIFAR100,
        licence="none stated; cite the report",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                unpack=True,
                strip=1,
            ),
        ),
        size=169_001_437,
    ),
    Entry(
        name="svhn",
        title="SVHN: 99,289 house numbers (and 531,131 extra), 32x32",
        kind="images",
        folders=("svhn", "SVHN"),
        files=_SVHN,
        licence="non-commercial use only",
        home="http://ufldl.stanford.edu/housenumbers/",
        citation="Netzer et al., Reading Digits in Natural Images, 2011",
        downloads=tuple(
            Download(f"http://ufldl.stanford.edu/housenumbers/{file.name}", str(file.checksum))
            for file in _SVHN
            if file.split != "extra"
        ),
        size=246_345_961,
    ),
    _corrupted(10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    _corrupted(100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),
    Entry(
        name="frost",
        title="six frost overlays, which the corruption 'frost' lays over pictures",
        kind="overlays",
        folders=("frost",),
        files=_FROST,
        licence="Apache-2.0",
        home="https://github.com/bethgelab/imagecorruptions",
        citation="Hendrycks & Dietterich, Benchmarking Neural Network Robustness, ICLR 2019",
        downloads=tuple(
            Download(
                "https://raw.githubusercontent.com/bethgelab/imagecorruptions/master/"
                f"imagecorruptions/frost/{file.name}",
                str(file.checksum),
            )
            for file in _FROST
        ),
        size=2_089_405,
    ),
    Entry(
        name="vqa-v2",
        title="VQA v2: 658,111 questions about COCO pictures, ten answers each",
        kind="vqa",
        folders=("vqa_v2", "vqa-v2", "VQAv2", "datasets"),
        inside=("", "vqa"),
        files=_VQA,
        licence="CC BY 4.0",
        home="https://visualqa.org/download.html",
        citation="Goyal et al., Making the V in VQA Matter, CVPR 2017",
        downloads=tuple(
            Download(f"{_VQA_URL}v2_{part}_mscoco.zip", f"sha256:{sha256}", unpack=True)
            for part, sha256 in _VQA_SUMS
        ),
        by_hand=(
            "region features are not downloaded: put one .npz file per picture into the "
            "sub-folders train2014 and val2014, as the published code of MCAN does"
        ),
        size=69_000_000,
    ),
    Entry(
        name="vqa-rad",
        title="VQA-RAD: 3,515 questions about 315 radiology pictures",
        kind="vqa",
        folders=("vqa_rad", "VQA_RAD", "VQA-RAD", "data_RAD"),
        files=(
            # Either the first two or the last; reading them shows whether they are enough.
            File("trainset.json", split="train", optional=True),
            File("testset.json", split="test", optional=True),
            File("VQA_RAD Dataset Public.json", split="all", optional=True),
        ),
        licence="CC0 1.0",
        home="https://osf.io/89kps/",
        citation="Lau et al., A dataset of clinically generated visual questions, 2018",
        by_hand="download the files from the home page into the folder vqa_rad",
    ),
    Entry(
        name="easy-vqa",
        title="easy-VQA: 48,248 questions about 5,000 drawn shapes",
        kind="vqa",
        folders=("easy_vqa", "easy-VQA/easy_vqa/data", "easy_vqa/data"),
        files=(
            File("train/questions.json", split="train"),
            File("test/questions.json", split="test"),
            File("answers.txt"),
        ),
        licence="MIT",
        home="https://github.com/vzhou842/easy-VQA",
        citation="Zhou, Easy Visual Question Answering, 2019",
        by_hand="pip install easy-vqa",
        package=("easy_vqa", "data"),
    ),
    Entry(
        name="eicu",
        title="eICU Collaborative Research Database 2.0: 200,859 stays in intensive care",
        kind="clinical",
        folders=(
            "eicu",
            "eicu-collaborative-research-database-2.0",
            "eicu-crd/2.0",
            "physionet.org/files/eicu-crd/2.0",
        ),
        files=_EICU,
        licence="PhysioNet Credentialed Health Data License 1.5.0",
        home="https://physionet.org/content/eicu-crd/2.0/",
        citation=_EICU_CITATION,
        by_hand=(
            "access needs training and a signed agreement with PhysioNet; then put the .csv.gz "
            "files of the tables into the folder eicu"
        ),
    ),
    Entry(
        name="eicu-demo",
        title="eICU demo 2.0.1: 2,520 stays in intensive care, 186 hospitals",
        kind="clinical",
        folders=(
            "eicu_demo",
            "eicu-demo",
            "eicu-collaborative-research-database-demo-2.0.1",
            "eicu-crd-demo/2.0.1",
            "physionet.org/files/eicu-crd-demo/2.0.1",
        ),
        files=_EICU,
        licence="ODbL 1.0",
        home="https://physionet.org/content/eicu-crd-demo/2.0.1/",
        citation=_EICU_CITATION,
        downloads=tuple(
            Download(_EICU_DEMO_URL + file.name, f"sums:{_EICU_DEMO_URL}SHA256SUMS.txt")
            for file in _EICU
        ),
        size=2_500_000,
    ),
)
ENTRIES: dict[str, Entry] = {found.name: found for found in _ALL}
