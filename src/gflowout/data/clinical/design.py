"""From stays and drugs to tensors: vocabulary, covariates, class balance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflowout.core import checks, random
from gflowout.core.optional import require
from gflowout.data.clinical.drugs import HOME
from gflowout.data.errors import check_texts

if TYPE_CHECKING:
    import pandas as pd

DRUG_KEYS = ("name", "hicl")
COVARIATES = ("age", "gender")
BALANCES = ("none", "weights", "oversample")


@dataclass(frozen=True)
class Vocabulary:
    """The drugs that are features of a model, learned from training stays.

    Attributes:
        keys: One per column of the matrix, in alphabetical order.
        drug_key: ``"name"`` or ``"hicl"``.
        names: Code to name, for orders that carry a code only.
        codes: Name to code, for entries that carry a name only, as all infusions do.

    Examples:
        >>> import pandas
        >>> drugs = pandas.DataFrame({
        ...     "stay": [1, 2, 2], "home": False, "code": -1,
        ...     "name": ["aspirin", "aspirin", "heparin"],
        ... })
        >>> vocabulary = Vocabulary.fit(drugs, [1, 2], min_count=1)
        >>> vocabulary.features
        ('aspirin', 'heparin')
        >>> vocabulary.encode(drugs, [1, 2])[0]
        tensor([[1., 0.],
                [1., 1.]])
    """

    keys: tuple[str, ...]
    drug_key: str
    names: Mapping[int, str] = field(repr=False)
    codes: Mapping[str, int] = field(repr=False)

    @classmethod
    def fit(
        cls,
        drugs: pd.DataFrame,
        stays: Iterable[int],
        *,
        drug_key: str = "name",
        min_count: int = 5,
    ) -> Vocabulary:
        """Learn the drugs of training stays.

        Args:
            drugs: Result of :func:`exposures`.
            stays: The training stays; no other row of ``drugs`` is used.
            drug_key: What identifies a drug. ``"name"``: the normalised name, or, for an order
                with a code only, the name that most training rows with that code have.
                ``"hicl"``: the code, or, for an entry with a name only, the code that most
                training rows with that name have. Where there is no such majority, the other one.
            min_count: Number of training stays that a drug must occur in.
        """
        checks.choice("drug_key", drug_key, DRUG_KEYS)
        min_count = checks.integer("min_count", min_count, low=1)
        rows = drugs[drugs.stay.isin(list(stays))]
        both = rows[(rows["name"] != "") & (rows["code"] >= 0)]
        names = {int(code): str(name) for code, name in _majority(both, "code", "name").items()}
        codes = {str(name): int(code) for name, code in _majority(both, "name", "code").items()}
        learned = cls((), drug_key, names, codes)
        pairs = rows.assign(key=learned.key_of(rows))[["stay", "key"]].drop_duplicates()
        counts = pairs.key.value_counts()
        keys = tuple(sorted(str(key) for key in counts.index[counts >= min_count]))
        if not keys:
            most = f"the most frequent one occurs in {counts.max() if len(counts) else 0} stays"
            raise ValueError(f"min_count must leave at least one drug, got {min_count}: {most}")
        return cls(keys, drug_key, names, codes)

    @property
    def features(self) -> tuple[str, ...]:
        """Readable names of the columns."""
        return tuple(self._readable(key) for key in self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def key_of(self, drugs: pd.DataFrame) -> pd.Series[str]:
        """The key of each row of a table of drugs, in the vocabulary or not."""
        pairs = drugs[["home", "name", "code"]].drop_duplicates()
        keys = [
            (HOME if home else "") + self._key(str(name), int(code))
            for home, name, code in pairs.itertuples(index=False)
        ]
        merged = drugs[["home", "name", "code"]].merge(pairs.assign(key=keys), how="left")
        return merged.key.set_axis(drugs.index)

    def encode(self, drugs: pd.DataFrame, stays: Iterable[int]) -> tuple[Tensor, int]:
        """Multi-hot matrix, float32 [stays, drugs], and the number of pairs with an unknown drug.

        Args:
            drugs: Result of :func:`exposures`.
            stays: The stays, one per row of the matrix, in this order.
        """
        row_of = {int(stay): row for row, stay in enumerate(stays)}
        column_of = {key: column for column, key in enumerate(self.keys)}
        rows = drugs[drugs.stay.isin(list(row_of))]
        pairs = rows.assign(key=self.key_of(rows))[["stay", "key"]].drop_duplicates()
        included = pairs[pairs.key.isin(list(column_of))]
        matrix = torch.zeros(len(row_of), len(self.keys))
        row = _tensor(included.stay.map(row_of), "int64")
        column = _tensor(included.key.map(column_of), "int64")
        matrix[row, column] = 1
        return matrix, len(pairs) - len(included)

    def _key(self, name: str, code: int) -> str:
        if self.drug_key == "name":
            return name or self.names.get(code) or f"hicl {code}"
        code = code if code >= 0 else self.codes.get(name, -1)
        return f"hicl {code}" if code >= 0 else name

    def _readable(self, key: str) -> str:
        bare = key.removeprefix(HOME)
        if not bare.startswith("hicl "):
            return key
        name = self.names.get(int(bare.removeprefix("hicl ")))
        return f"{key} ({name})" if name else key


@dataclass(frozen=True)
class Covariates:
    """Age and gender as columns, standardised by training stays.

    Attributes:
        names: Which, out of ``"age"`` and ``"gender"``.
        mean: Mean age in training.
        spread: Standard deviation of the age in training.

    Examples:
        >>> import pandas
        >>> Covariates.fit(pandas.DataFrame({"age": [60.0, 70, 80]}), ["age"]).mean
        70.0
    """

    names: tuple[str, ...] = ()
    mean: float = 0.0
    spread: float = 1.0

    @classmethod
    def fit(cls, stays: pd.DataFrame, names: Iterable[str] = COVARIATES) -> Covariates:
        """Learn mean and spread of the age from training stays."""
        check_texts("covariates", names)
        chosen = tuple(checks.choice("covariates", name, COVARIATES) for name in names)
        age = stays.age.dropna()
        spread = float(age.std(ddof=0)) if len(age) else 1.0
        return cls(chosen, float(age.mean()) if len(age) else 0.0, spread or 1.0)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns."""
        columns = {"age": ("age", "age missing"), "gender": ("female", "gender missing")}
        return tuple(column for name in self.names for column in columns[name])

    def encode(self, stays: pd.DataFrame) -> Tensor:
        """Columns [stays, 2 per covariate]; a missing age is 0 (the mean) and marked."""
        columns: list[Any] = []
        for name in self.names:
            if name == "age":
                columns.append(((stays.age - self.mean) / self.spread).fillna(0))
                columns.append(stays.age.isna())
            else:
                gender = stays.gender.str.lower()
                columns.append(gender == "female")
                columns.append(~gender.isin(["female", "male"]))
        if not columns:
            return torch.zeros(len(stays), 0)
        return torch.stack([_tensor(column, "float32") for column in columns], 1)


@dataclass(frozen=True)
class ClinicalSet:
    """Stays ready for a model.

    Attributes:
        x: float32 [N, V], one column per drug (1: given in the window), then covariates.
        y: float32 [N], 1 for death, as :class:`gflowout.Binary` takes it.
        features: Names of the columns of ``x``.
        stays: int64 [N], ``patientunitstayid``.
        patients: ``uniquepid`` per row, the group that splits must keep together.
        hospitals: int64 [N], ``hospitalid``, the domain.
        weights: float32 [N], sampling weight of each row, or ``None`` for equal weights.
        unknown: Number of pairs of a stay and a drug outside the vocabulary; they are not in x.

    Examples:
        >>> import pandas
        >>> stays = pandas.DataFrame({
        ...     "patient": list("abcdef"), "hospital": [7, 7, 7, 8, 8, 9],
        ...     "died": [True, False, False, True, False, False],
        ... })
        >>> drugs = pandas.DataFrame({"stay": [0, 3], "home": False, "name": "aspirin", "code": -1})
        >>> vocabulary = Vocabulary.fit(drugs, stays.index, min_count=1)
        >>> print(ClinicalSet.build(stays, drugs, vocabulary))
        6 stays of 6 patients in 3 hospitals, 2 deaths, 1 features
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    features: tuple[str, ...] = field(repr=False)
    stays: Tensor = field(repr=False)
    patients: tuple[str, ...] = field(repr=False)
    hospitals: Tensor = field(repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    unknown: int = 0

    @classmethod
    def build(
        cls,
        stays: pd.DataFrame,
        drugs: pd.DataFrame,
        vocabulary: Vocabulary,
        covariates: Covariates | None = None,
    ) -> ClinicalSet:
        """Encode stays with what was learned from training stays."""
        covariates = covariates or Covariates()
        x, unknown = vocabulary.encode(drugs, stays.index)
        return cls(
            x=torch.cat([x, covariates.encode(stays)], 1),
            y=_tensor(stays.died, "float32"),
            features=vocabulary.features + covariates.features,
            stays=_tensor(stays.index, "int64"),
            patients=tuple(stays.patient),
            hospitals=_tensor(stays.hospital, "int64"),
            unknown=unknown,
        )

    def __len__(self) -> int:
        return len(self.y)

    def __str__(self) -> str:
        return (
            f"{len(self)} stays of {len(set(self.patients))} patients in "
            f"{len(set(self.hospitals.tolist()))} hospitals, {int(self.y.sum())} deaths, "
            f"{len(self.features)} features"
        )

    def take(self, rows: Tensor) -> ClinicalSet:
        """The rows of an index tensor, in its order and with repetitions."""
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            stays=self.stays[rows],
            patients=tuple(self.patients[row] for row in rows.tolist()),
            hospitals=self.hospitals[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def frame(self) -> pd.DataFrame:
        """As a frame: features, then ``died``, ``patient`` and ``hospital``, indexed by stay."""
        frames = require("pandas", extra="data", purpose="ClinicalSet.frame")
        index = frames.Index(self.stays.tolist(), name="stay")
        features = frames.DataFrame(self.x.numpy(), columns=list(self.features), index=index)
        died = self.y.numpy().astype("int64")
        about = {"died": died, "patient": self.patients, "hospital": self.hospitals.numpy()}
        rest = frames.DataFrame(about, index=index)
        return frames.concat([features, rest], axis=1)  # type: ignore[no-any-return]


def balanced(data: ClinicalSet, balance: str = "none", *, seed: int = 0) -> ClinicalSet:
    """Balance the classes of a training set, in which deaths are rare.

    Args:
        data: The training set.
        balance: ``"none"``: unchanged. ``"weights"``: each row gets the weight N / (2 n) of its
            class of n rows, so that sampling by weight draws both classes equally often; the
            weights have mean one, so they can also weight a loss. ``"oversample"``: rows of the
            rarer class are repeated, equally often up to one, until both classes have equal size.
        seed: Seed of the choice of the rows that are repeated once more.

    Raises:
        ValueError: If one of the classes has no row.

    Examples:
        >>> data = ClinicalSet(
        ...     x=torch.zeros(4, 1), y=torch.tensor([1.0, 0, 0, 0]), features=("aspirin",),
        ...     stays=torch.arange(4), patients=tuple("abcd"), hospitals=torch.zeros(4),
        ... )
        >>> balanced(data, "weights").weights
        tensor([2.0000, 0.6667, 0.6667, 0.6667])
        >>> len(balanced(data, "oversample"))
        6
    """
    if checks.choice("balance", balance, BALANCES) == "none":
        return data
    deaths, survivals = (data.y == 1).nonzero()[:, 0], (data.y == 0).nonzero()[:, 0]
    if not len(deaths) or not len(survivals):
        got = f"{len(deaths)} and {len(survivals)}"
        raise ValueError(f"balance={balance!r} needs deaths and survivals in training, got {got}")
    if balance == "weights":
        weights = torch.empty(len(data))
        for rows in (deaths, survivals):
            weights[rows] = len(data) / (2 * len(rows))
        return replace(data, weights=weights)
    few, many = sorted((deaths, survivals), key=len)
    times, rest = divmod(len(many), len(few))
    extra = torch.randperm(len(few), generator=random.generator(seed, "oversample"))[:rest]
    return data.take(torch.cat([many, few.repeat(times), few[extra]]).sort().values)


def _tensor(values: Any, dtype: str) -> Tensor:
    """Copy a column of a frame, which may be read-only, to a tensor."""
    return torch.tensor(values.to_numpy(dtype=dtype, copy=True))


def _majority(rows: Any, by: str, value: str) -> Any:
    """For each ``by`` the ``value`` that more than half of its rows have."""
    counts = rows.groupby([by, value], observed=True).size().rename("n").reset_index()
    total = counts.groupby(by, observed=True).n.transform("sum")
    return counts[counts.n * 2 > total].set_index(by)[value]
