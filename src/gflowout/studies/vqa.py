"""Questions about pictures with MCAN, on clean and on noisy visual features: Table 2.

``paper`` is VQA v2 with the published MCAN-small on its region features. ``cpu`` and ``smoke`` are
VQA-RAD and easy-VQA with an MCAN of one layer each way, on fixed features of a grid of cells.
Training is :func:`gflowout.training.fit`; a trained model is kept beside the runs and found again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflowout.backbones import MCAN
from gflowout.core.ensemble import Ensemble
from gflowout.core.likelihoods import Categorical, MultiLabel
from gflowout.core.model import MaskedModel
from gflowout.core.text import counted
from gflowout.core.wrap import wrap
from gflowout.data import vqa
from gflowout.data.vqa import VQABatches
from gflowout.methods import METHODS
from gflowout.runs import Context, Result, Run, locks
from gflowout.runs.environment import cores
from gflowout.runs.spec import canonical
from gflowout.studies import elbo, images, vqa_data
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import content, keep_rates, sections
from gflowout.studies.framework.arms import ARMS, Arm, Options, choices, of_preset, trials
from gflowout.studies.framework.content import Block, Cell, Claim, Column, Section, Table, Text
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_seed, pair, prefixed
from gflowout.studies.framework.study import TUNING, Chosen, Study
from gflowout.studies.vqa_data import Prepared, checksum
from gflowout.training import FitOptions, FitResult, fit

PRESETS = images.PRESETS["vqa"]
_NOISE_SEED = 0
"""The same noise for every arm and seed."""
_TEST_BATCH = 200
_OF_DATA = (
    "batch", "grid", "size", "length", "train", "valid", "features", "held_out", "min_count",
    "vectors",
)  # fmt: skip
"""Options without a dot that decide what a model learns."""

TITLES = {"vqa-v2": "VQA v2", "vqa-rad": "VQA-RAD", "easy-vqa": "easy-VQA"}
KINDS = ("all", "yes/no", "number", "other")
PUBLISHED = judged.paper("vqa")
"""Table 2 of the paper, on VQA v2: all, yes/no, number, other in %."""
FEW = 30
"""Questions of a kind below which its column says little."""
_TEXTS = judged.entry("vqa.texts")


def sizes(preset: str, data: str) -> Options:
    """Options of a data set; of a part without a number all questions are taken."""
    own, whole = PRESETS[preset], dict.fromkeys(("train", "valid", "test"))
    return {**whole, **own["options"], **own["data"][data]}


def tuning(preset: str) -> list[Run]:
    """As many trials for each arm, on validation questions."""
    own = PRESETS[preset]
    return [
        Run(TUNING, arm.label, data, own["trial_seed"], {**options, "tuned": tuned})
        for data in own["data"]
        for options in [{**sizes(preset, data), **own["trial"].get(data, {})}]
        for arm in of_preset(preset)
        for tuned in trials(arm, own["rates"], own["own"])
    ]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set, seed by seed."""
    own = PRESETS[preset]
    noise = {key: own[key] for key in ("noises", "noisy")}

    def choice(data: str, label: str) -> Options:
        return chosen.get((data, label), trials(ARMS[label], own["rates"], own["own"])[0])

    return [
        Run("vqa", arm.label, data, seed, {**sizes(preset, data), **noise, **tuned})
        for seed in range(own["seeds"])
        for data in own["data"]
        for arm in of_preset(preset)
        for tuned in [choices(arm, functools.partial(choice, data))]
    ]


def work(run: Run, context: Context) -> Result:
    """A trial: train and score on validation questions. A run: then answer the test questions."""
    trial = run.study == TUNING
    arm = ARMS[run.method]
    data = vqa_data.load(run.data, run.seed, run.options, context.folder.parent)
    # Of an ensemble one member is tuned: what is good for it is good for all.
    members = 1 if trial else arm.members
    tuned = run.options["tuned"]
    if arm.rate_of:
        partner = configuration(ARMS[arm.rate_of], run, run.options["partner"])
        learned, _ = _trained(ARMS[arm.rate_of], partner, run, data, 0, context)
        tuned = {**tuned, **keep_rates.drop_rate(keep_rate(learned, data))}
    config = configuration(arm, run, tuned)
    trained = [_trained(arm, config, run, data, place, context) for place in range(members)]
    networks, first = [model for model, _ in trained], trained[0][1]
    metrics: dict[str, Any] = {
        "epochs_trained": sum(len(result.history) for _, result in trained),
        "best_epoch": first.best_epoch,
        "parameters": sum(p.numel() for network in networks for p in network.parameters()),
        "valid/nll": first.best_score,
    }
    if "vectors" in run.options:
        metrics["vectors/known"] = data.known
    used = {"train": checksum(data.train), "valid": checksum(data.valid)}
    if data.vectors is not None:
        digest = hashlib.sha256(data.vectors.numpy().tobytes()).hexdigest()
        used["vectors"] = f"sha256:{digest}"
    if trial:
        return {"metrics": metrics, "epochs": [*first.history], "data": used}
    model = networks[0] if members == 1 else Ensemble(networks)
    metrics |= keep_rates.as_metric(keep_rate(model, data))
    alone = data.test.accuracy(vqa_data.question_only(data))
    metrics |= prefixed("question", vqa.by_type(alone, data.test.types))
    if (bound := elbo.elbo(model, _known_answers(data), run.seed)) is not None:
        metrics["clean/elbo"] = bound
    levels = [0.0, *run.options["noises"]]
    for place, noise in enumerate(levels):
        context.progress(place, len(levels), f"noise {noise:g}")
        numbers = scored(model, data, noise, run.options["samples"], run.seed)
        metrics |= prefixed(f"noise-{noise:g}" if noise else "clean", numbers)
        if noise == run.options["noisy"]:
            metrics |= prefixed("noisy", numbers)
    metrics["questions"] = {
        kind: int((data.test.types == position).sum()) for position, kind in enumerate(vqa.TYPES)
    }
    used["test"] = checksum(data.test)
    return {"metrics": metrics, "epochs": [*first.history], "data": used}


def scored(
    model: MaskedModel | Ensemble, data: Prepared, noise: float, samples: int, seed: int
) -> dict[str, float]:
    """Official accuracy of the test questions with noise on real regions, and the NLL.

    Accuracy of ``all``, ``yes/no``, ``number``, ``other`` where there are such questions; ``nll``
    over questions with an answer that the model knows.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    classes, log_probs = [], []
    for visual, tokens, scores in VQABatches(
        data.test, batch_size=_TEST_BATCH, seed=_NOISE_SEED, noise=noise
    ):
        inputs = (visual.to(device), tokens.to(device))
        pred = model.predict(*inputs, samples=samples, generator=generator)
        classes.append(pred.mean.argmax(-1).cpu())
        label = scores.argmax(-1) if data.single else scores
        log_probs.append(pred.log_prob(label.to(device)).cpu()[scores.sum(-1) > 0])
    accuracy = vqa.by_type(data.test.accuracy(torch.cat(classes)), data.test.types)
    return {**accuracy, "nll": -float(torch.cat(log_probs).double().mean())}


def _known_answers(data: Prepared) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Test questions with an answer that the model knows, and labels."""
    for visual, tokens, scores in VQABatches(data.test, batch_size=_TEST_BATCH):
        answerable = scores.sum(-1) > 0
        label = scores.argmax(-1) if data.single else scores
        if answerable.any():
            yield (visual[answerable], tokens[answerable]), label[answerable]


def single_answer(batch: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any], Tensor]:
    """A batch with classes instead of scores, for :func:`gflowout.training.fit`."""
    return tuple(batch[:-1]), {}, batch[-1].argmax(-1)


def build(arm: Arm, config: Mapping[str, Any], data: Prepared, seed: int) -> MaskedModel:
    """The wrapped MCAN of a configuration by dotted key; the global random state is left alone."""
    options = _under("method.options.", config)
    kind = METHODS[arm.method].Options
    if any(field.name == "train_size" for field in dataclasses.fields(kind)):
        options.setdefault("train_size", len(data.train))
    visual, tokens, _ = data.train.batch([0, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = _under("net.", config)
        if data.vectors is not None:
            sizes["embeddings"] = data.vectors
        net = MCAN(data.words, data.answers, visual.shape[-1], **sizes)
        likelihood = Categorical(data.answers) if data.single else MultiLabel(data.answers)
        example = (visual, tokens)
        return wrap(net, arm.method, net.sites, likelihood=likelihood, example=example, **options)


def keep_rate(model: MaskedModel | Ensemble, data: Prepared) -> float | None:
    """Share of units that a model keeps on validation questions; ``None`` without masks."""
    rows = range(min(keep_rates.EXAMPLES, len(data.valid)))
    device = next(model.parameters()).device
    visual, tokens, _ = data.valid.batch([*rows])
    return keep_rates.kept(model, visual.to(device), tokens.to(device))


def configuration(arm: Arm, run: Run, tuned: Mapping[str, Any]) -> Options:
    """What decides the model of a run, by dotted key or name of the data's option."""
    options = {key: value for key, value in run.options.items() if "." in key or key in _OF_DATA}
    return {**options, **arm.options, **tuned, "data": run.data}


def _trained(
    arm: Arm, config: Options, run: Run, data: Prepared, place: int, context: Context
) -> tuple[MaskedModel, FitResult]:
    """One member: trained now, or found in the store."""
    seed = run.seed + images.APART * place
    values = {**config, "method": arm.method, "split": run.seed, "seed": seed}
    if data.vectors_of:
        values["vectors"] = data.vectors_of
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    folder = context.folder.parent / images.STORE / f"vqa-{arm.method}-s{seed}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    model = build(arm, config, data, seed)
    workers = min(run.options.get("workers", 0), cores())
    train = VQABatches(
        data.train, batch_size=config["batch"], shuffle=True, seed=seed, workers=workers
    )
    valid = VQABatches(data.valid, batch_size=_TEST_BATCH, workers=workers)
    options = FitOptions(**_under("fit.", config), seed=seed)
    unpack = single_answer if data.single else None
    # Another run may be training the same model: then it is done when the lock is free.
    with locks.hold(folder / ".wanted.lock", wait=True):
        result = fit(model, train, valid, options, folder=folder, progress=False, unpack=unpack)
    if torch.cuda.is_available():
        model.to("cuda")
    return model, result


def _under(prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): tuple(value) if isinstance(value, list) else value
        for key, value in config.items()
        if key.startswith(prefix)
    }


# What the report says


def section(records: Sequence[Record]) -> Section:
    """Tables, curves against noise, findings and claims from the records that there are."""
    names = sections.present(records, TITLES)
    if not names:
        return Section(findings=("No run of this study is done yet.",))
    blocks: list[Block] = []
    claims: list[Claim] = []
    compared = []
    for name in names:
        own, title = [record for record in records if record["data"] == name], TITLES[name]
        tables = (_table(own, name, test) for test in ("clean", "noisy"))
        chosen = f"{title}: chosen on validation data"
        blocks += [Text(_about(own, name)), *tables, _curves(own, name)]
        blocks.append(sections.choices(own, {name: "Options"}, chosen))
        compared += [
            Compared(name, f"{test}/all", f"accuracy on {test} features ({title})", percent=True)
            for test in ("noisy", "clean")
        ]
        claims += [_claim(own, name, arm) for arm in ("contextual-paper", "concrete")]
    findings, details = sections.against_others(records, compared)
    blocks += [Text([judged.entry("vqa.noisy")["rule"]]), *sections.pair_by_pair(details)]
    blocks += sections.at_equal_rates(records, compared)
    return Section(findings, blocks, claims, names)


def _about(own: Sequence[Record], name: str) -> list[str]:
    counts = _counts(own)
    about = _TEXTS["about"].format(
        data=TITLES[name],
        total=sum(counts.values()),
        kinds=", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        seeds=counted(len({record["seed"] for record in own}), "seed"),
    )
    if name == "vqa-v2":
        share = sections.cell(_known(own)).mean
        words = _TEXTS["random"] if not share else _TEXTS["glove"].format(share=share)
        return [about, words]
    network = "a small MCAN"
    options = next((record["options"] for record in own if "net.width" in record["options"]), None)
    if options:
        steps = round(options["fit.epochs"] * options["train"] / options["batch"])
        layers = counted(options["net.layers"], "layer")
        width = options["net.width"]
        network = _TEXTS["network"].format(width=width, layers=layers, steps=steps)
    return [about, _TEXTS["other"].format(network=network), _TEXTS[name]]


def _known(own: Sequence[Record]) -> list[float]:
    """Shares of words that started from GloVe vectors; records from before have none."""
    return [record["metrics"].get("vectors/known", 0.0) for record in own]


def _table(own: Sequence[Record], name: str, test: str) -> Table:
    counts = _counts(own)
    kinds = [kind for kind in KINDS if kind == "all" or counts.get(kind)]
    columns = [*(sections.share(kind.capitalize(), digits=1) for kind in kinds)]
    rows = sections.arm_rows(own, name, [f"{test}/{kind}" for kind in (*kinds, "nll")])
    # The answer from the question alone does not depend on the arm: any record of a seed has it.
    asked = [record for record in own if "question/all" in record["metrics"]]
    seeds = {record["seed"]: record["metrics"] for record in asked}.values()
    alone = [[metrics[f"question/{kind}"] for metrics in seeds] for kind in kinds]
    if any(alone):
        cells = [*map(sections.cell, alone), Cell(text=sections.NONE)]
        rows.append(content.Row("Question alone", cells))
    published = {
        arm: [*(values[KINDS.index(kind)] / 100 for kind in kinds), None]
        for arm, values in PUBLISHED[test].items()
    }
    rows += sections.paper_rows(
        published, {arm: f"{name}, VQA v2" for arm, name in sections.NAMES.items()}
    )
    levels = {float(record["options"]["noisy"]) for record in own if "options" in record}
    at = f" of standard deviation {min(levels):g}" if len(levels) == 1 else ""
    features = "clean visual features" if test == "clean" else f"Gaussian noise{at} on features"
    few = [f"{counts[kind]} for {kind}" for kind in kinds if 0 < counts.get(kind, FEW) < FEW]
    caption = _TEXTS["table"] + (f" Few questions: {', '.join(few)}." if few else "")
    title = f"{TITLES[name]}: {features}"
    return Table(title, "Method", [*columns, Column("NLL", "low")], rows, caption)


def _curves(own: Sequence[Record], name: str) -> content.Curves:
    recorded = {metric for record in own for metric in record["metrics"]}
    noisy = [
        metric for metric in recorded if metric.startswith("noise-") and metric.endswith("/all")
    ]
    levels = {float(metric.removeprefix("noise-").removesuffix("/all")): metric for metric in noisy}
    metrics = {0.0: "clean/all", **dict(sorted(levels.items()))}
    title = f"{TITLES[name]}: accuracy against noise on visual features"
    axes = ("standard deviation of the noise", "accuracy")
    caption = "All questions. Padded regions stay padding."
    return content.Curves(title, *axes, sections.lines(own, name, metrics), caption, percent=True)


def _claim(own: Sequence[Record], name: str, arm: str) -> Claim:
    """GFlowOut against one of the paper's baselines with noisy features."""
    paper = PUBLISHED["noisy"]
    ours, other = (by_seed(own, name, label, "noisy/all") for label in ("gflowout", arm))
    outcome, margins = judged.by_margins(
        {"accuracy": pair(ours, other, "high")},
        {"accuracy": (paper["gflowout"][0] - paper[arm][0]) / 100},
        judged.matches,
        scale=100,
    )
    clean = sections.cell(by_seed(own, name, "gflowout", "clean/all").values()).mean
    replaced, published = judged.stand_in(name), PUBLISHED["clean"]["gflowout"][0] / 100
    weak = "" if replaced else judged.out_of_reach(clean, published, TITLES[name])
    values = {"other": sections.NAMES[arm].lower(), "data": TITLES[name], "margins": margins}
    if weak:
        outcome, values["margins"] = None, f"{weak} {margins}"
    return judged.template("vqa.noisy", outcome, replaced=replaced, **values)


def _counts(own: Sequence[Record]) -> dict[str, int]:
    """Test questions by kind."""
    for record in own:
        if "questions" in record["metrics"]:
            return {kind: int(n) for kind, n in record["metrics"]["questions"].items() if n}
    return {}


STUDY = Study(
    name="vqa",
    **judged.entry("vqa.study"),
    work="gflowout.studies.vqa:work",
    tuning=tuning,
    runs=runs,
    needs=lambda run: [run.data],
    section=section,
)
