"""A report made by hand, with every kind of block, and records made by hand."""

import base64
import math
import random
import struct
import zlib
from datetime import UTC, datetime

from gflowout.report.build import Facts, Part, Report
from gflowout.runs import Run, records
from gflowout.runs.work import Task
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import (
    Bars,
    Cell,
    Claim,
    Column,
    Curves,
    Heat,
    Picture,
    Pictures,
    Points,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.study import Study

TITLES = [arm.title for arm in ARMS.values()]
SEVERITIES = [0, 1, 2, 3, 4, 5]


def png(side, shade):
    """A grey picture, without an imaging library: shade(row, column) in 0..255."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + bytes(shade(r, c) for c in range(side)) for r in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def picture(index, classes):
    doubt = index / 11
    share = [math.exp(-((c - index % classes) ** 2) / (0.2 + 8 * doubt)) for c in range(classes)]
    total = sum(share)
    return Picture(
        png(
            28,
            lambda r, c: int(255 * math.exp(-((math.hypot(r - 14, c - 14) - 3 - index) ** 2) / 9)),
        ),
        str(index % classes),
        [each / total for each in share],
        [0.3 * doubt * each / total for each in share],
        doubt,
    )


def curves(title, y, start, slope, percent, seed):
    draw = random.Random(seed)
    series = []
    for place, name in enumerate(TITLES):
        own = draw.uniform(-0.3, 0.3)
        values = [
            start + slope * (s / 5) ** 1.3 * (1 + own) + 0.01 * draw.random() for s in SEVERITIES
        ]
        errors = [abs(slope) * 0.03 * (1 + s / 3) for s in SEVERITIES]
        series.append(Series(name, SEVERITIES, values, errors if place != 3 else None))
    return Curves(title, "severity", y, series, percent=percent, caption="Clean data at 0.")


def table():
    draw = random.Random(3)
    columns = [
        Column("clean accuracy", "high", 1, percent=True),
        Column("rotated accuracy", "high", 1, percent=True),
        Column("NLL", "low", 3),
        Column("ECE", "low", 3),
    ]
    rows = [
        Row(
            name,
            [
                Cell(draw.uniform(0.95, 0.99), 0.002, 9),
                Cell(draw.uniform(0.35, 0.48), 0.004, 9),
                Cell(draw.uniform(0.1, 0.3), 0.01, 9),
                Cell(draw.uniform(0.01, 0.05), 0.003, 9),
            ],
        )
        for name in TITLES
    ]
    rows += [
        Row("MC dropout", [Cell(0.981, 0.001), Cell(0.43, 0.01), Cell(), Cell()], "paper"),
        Row("GFlowOut", [Cell(0.985), Cell(0.47, 0.01), Cell(text="n/a"), Cell()], "paper"),
    ]
    return Table("MNIST, 784-300-100-10", "method", columns, rows, "Rotated by 0 to 360 degrees.")


def study(name="robustness", title="Accuracy and calibration under shift"):
    return Study(
        name=name,
        title=title,
        question="Do learned masks keep a network accurate and honest when its inputs change?",
        paper="Table 1, Figure 2",
        work=f"gflowout.studies.{name}:work",
        runs=lambda preset, chosen: [],
        section=lambda found: Section(),
    )


def robustness():
    return Section(
        findings=[
            "On rotated digits GFlowOut is better than MC dropout: 44.1 against 41.0 %, 95 % "
            "interval of the difference 1.2 to 5.0 points.",
            "No difference seen between GFlowOut and its control without the likelihood.",
        ],
        claims=[
            Claim("GFlowOut is more accurate on rotated MNIST than MC dropout.", "reproduced",
                  "3.1 points better over 9 seeds, interval 1.2 to 5.0."),
            Claim("Its NLL grows least with the severity of noise.", "not reproduced",
                  "Deep ensembles are better at every severity."),
            Claim("The same holds for ResNet-18 at full width.", "not testable here",
                  "Too large for two cores; the preset paper does it."),
        ],
        blocks=[
            table(),
            curves("Accuracy under snow", "accuracy", 0.95, -0.5, True, 1),
            curves("NLL under snow", "NLL", 0.2, 2.5, False, 2),
            curves("ECE under snow", "ECE", 0.02, 0.3, False, 4),
            Text(["Each corruption is applied to the whole test set.", "Severity 0 is clean."]),
            Curves("Accuracy after fine-tuning", "clean points", "accuracy", [
                Series("MC dropout", [1000, 2000, 4000, 8000], [0.5, 0.55, 0.6, 0.64],
                       [0.01, 0.01, 0.02, 0.005]),
                Series("GFlowOut", [1000, 2000, 4000, 8000], [0.52, 0.58, 0.63, 0.66]),
                Series("GFlowOut", [1000, 2000, 4000, 8000], [0.6, 0.65, 0.69, 0.72], None,
                       "paper"),
            ], percent=True),
        ],
        data=["mnist", "cifar10"],
    )  # fmt: skip


def masks():
    draw = random.Random(0)
    cloud = [(draw.gauss(-40, 5), draw.gauss(0, 3)) for _ in range(150)]
    return Section(
        findings=["Masks with a high reward are drawn more often: correlation 0.71, p < 0.001."],
        blocks=[
            Points("log q against log R", "log R", "log q", [
                Series("in the training data", [x for x, _ in cloud], [x + e for x, e in cloud]),
                Series("rotated", [x - 8 for x, _ in cloud], [0.5 * x - 20 + e for x, e in cloud]),
            ], "One point for each mask."),
            Bars("Distance between masks", "distance", ["within a class", "between", "shifted"], [
                (name, [Cell(draw.uniform(10, 40), draw.uniform(1, 3), 3) for _ in range(3)])
                for name in TITLES
            ]),
            Heat("Keep rates by class", "unit", "class",
                 [[(math.sin(r * c / 9) + 1) / 2 for c in range(60)] for r in range(10)],
                 rows=[str(each) for each in range(10)], low=0.0, high=1.0,
                 caption="Second layer."),
            Heat("Correlation of sites", "site", "site",
                 [[1.0, -0.4, 0.2], [-0.4, 1.0, 0.05], [0.2, 0.05, 1.0]],
                 columns=["conv1", "conv2", "fc"], rows=["conv1", "conv2", "fc"]),
            Pictures("What GFlowOut is sure of, and what not", [str(each) for each in range(10)],
                     [picture(index, 10) for index in reversed(range(12))],
                     "Bars: mean over 20 draws. Lines: standard deviation."),
        ],
        data=["mnist"],
    )  # fmt: skip


def report():
    """Every kind of block, in two of the paper's studies and one of the user's own."""
    own = Section(blocks=[Table("numbers", "method", [Column("test/nll", "low", 4)], [
        Row("<script>alert(1)</script>", [Cell(0.5, 0.1, 2)]),
        Row("a & b | _c_ *d* $e$ 5 % #1 ~ ^ \\x{y}", [Cell(float("nan"), None, 2)]),
        Row("mc", [Cell(0.7, None, 1)]),
    ])], data=["numbers"])  # fmt: skip
    return Report(
        parts=[
            Part("robustness", study(), robustness(), 162, range(9)),
            Part("masks", study("masks", "What the masks have learned"), masks(), 9, range(3)),
            Part("my <b>study</b>", None, own, 5, [0, 1]),
        ],
        facts=Facts(
            runs=176,
            trials=54,
            failed=1,
            seconds=12345.6,
            data={"mnist": "sha256:" + 64 * "0", "cifar10": "", "numbers": ""},
            seeds=range(9),
            versions={"python": ["3.11.7"], "gflowout": ["0.1.0"], "torch": ["2.13.0", "2.13.1"]},
            commits=["0123456789ab", "0123456789ab, with changes"],
            machines=["2 cores of A Processor, 23.5 GiB of memory, no GPU, Linux x86_64"],
            threads=[1],
            started="2026-11-15",
            ended="2026-11-16",
            commands=["gflowout study run robustness --preset cpu --out results/cpu"],
        ),
    )


def write_records(
    folder, study="mine", methods=("mc", "gflowout"), data=("one",), seeds=(0, 1), **more
):
    """Records of a study that the report does not know; figures follow from the names' places."""
    for place, method in enumerate(methods):
        for row, name in enumerate(data):
            for seed in seeds:
                metrics = {"test/nll": place + row + 0.5 * seed, "test/accuracy": 0.9 - 0.1 * place}
                result = {
                    "metrics": {**metrics, "seconds": 3.0, "picture": {"png": "x"}},
                    "epochs": [{"epoch": e, "valid/nll": 1 / (e + place)} for e in (1, 2, 3)],
                    "data": {name: "sha256:12"},
                }
                run = Run(study, method, name, seed, {"seed": seed})
                record = Task(more.get("work", "mystudy:work"), run, folder).record(
                    datetime(2026, 11, 16, 3, seed, tzinfo=UTC),
                    2.5,
                    environment={
                        "versions": {"python": "3.11.7", "torch": "2.13.0"},
                        "commit": {"id": 40 * "a", "dirty": False},
                        "machine": {
                            "cpu": "A",
                            "cores": 2,
                            "memory_gb": 8.0,
                            "gpus": [],
                            "system": "L",
                        },
                        "threads": 1,
                    },
                    result=result,
                )
                records.write(folder, record)
