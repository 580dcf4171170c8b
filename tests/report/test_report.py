import base64
import csv
import hashlib
import io
import itertools
import json
import re
import shutil
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import report_files
from command_line import gflowout
from markdown_it import MarkdownIt

from gflowout.report import build, html, latex, markdown, summary
from gflowout.runs import Run, records
from gflowout.runs.work import Task
from gflowout.studies.framework import plan
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import (
    Cell,
    Column,
    Curves,
    Heat,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.study import PRESETS, STUDIES, get

NASTY = "a & b | _c_ *d* $e$ 5 % #1 ~ ^ \\x{y}"


@pytest.fixture(scope="module")
def page():
    return html.page(report_files.report())


class Reader(HTMLParser):
    """Texts, attributes and tags of a page, and whether all that opens is closed."""

    VOID = {"meta", "br", "img", "link"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)


# Tables


def cells(*values):
    return [Cell(value) for value in values]


def test_best_is_marked_for_each_column_and_source():
    table = Table(
        "",
        "",
        [Column("accuracy", "high"), Column("nll", "low"), Column("time")],
        [
            Row("a", cells(0.5, 2.0, 1.0)),
            Row("b", [Cell(0.9), Cell(float("nan")), Cell(2.0)]),
            Row("c", [Cell(text="9.9"), Cell(1.0), Cell(3.0)]),
            Row("a", cells(0.95, 0.5, 1.0), "paper"),
            Row("b", cells(0.99, 0.7, 1.0), "paper"),
        ],
    )
    assert table.best == {(1, 0), (2, 1), (4, 0), (3, 1)}


def test_figures_that_look_the_same_share_the_mark_and_one_alone_has_none():
    column = Column("nll", "low", digits=1)
    table = Table(
        "", "", [column], [Row(n, cells(v)) for n, v in (("a", 0.51), ("b", 0.49), ("c", 2))]
    )
    assert table.best == {(0, 0), (1, 0)}
    assert Table("", "", [column], table.rows[:1]).best == set()
    assert Table("", "", [column], table.rows[:2]).best == set()


def test_negative_zero_is_zero():
    assert Column("x", digits=2).shown(Cell(-0.0001)) == ("0.00", "")
    assert Column("x", digits=2).shown(Cell(-0.01)) == ("-0.01", "")


def test_the_paper_is_last():
    rows = [Row("a", [], "paper"), Row("b", []), Row("c", [], "other")]
    groups = [
        (group.source, [line.position for line in group.lines])
        for group in Table("", "", [], rows).groups
    ]
    assert groups == [("ours", [1]), ("other", [2]), ("paper", [0])]


def test_notes_tell_how_many_runs():
    def noted(*runs, error=0.1):
        return Table("", "", [Column("x")], [Row("a", [Cell(1, error, n)]) for n in runs]).note

    assert noted(3, 3) == "Mean ± standard error over 3 runs."
    assert noted(3, 5) == "Mean ± standard error over 3 to 5 runs."
    assert noted(1, error=None) == "One run each."
    assert noted(0) == ""


def test_rows_must_fit():
    with pytest.raises(ValueError, match="table 't': row 'r' has 0 cells for 1 columns"):
        Table("t", "", [Column("x")], [Row("r", [])])


# Colours


def simulated(colour, matrix):
    """A colour as someone sees it who lacks a kind of cone (Machado and others, 2009)."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    ]
    return [min(1, max(0, sum(m * v for m, v in zip(row, linear, strict=True)))) for row in matrix]


def oklab(rgb):
    r, g, b = rgb
    lms = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    x, y, z = (max(0, each) ** (1 / 3) for each in lms)
    return (
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    )


EYES = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


@pytest.mark.parametrize("palette", [html.LIGHT, html.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_methods_are_told_apart_by_everyone(palette, eyes):
    seen = [oklab(simulated(colour, EYES[eyes])) for colour in palette[:9]]
    for (i, a), (j, b) in itertools.combinations(enumerate(seen), 2):
        distance = sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5
        assert distance > 0.08, (i, j, distance)  # 0.02 is about the least that is seen


def test_a_method_has_one_colour_by_label_and_title():
    found = html.slots_of(["gflowout", "GFlowOut", "mine", "mc", "yours", "MC dropout"])
    assert found["gflowout"] == found["GFlowOut"]
    assert found["mc"] == found["MC dropout"]
    assert len({found[name] for name in ("gflowout", "mc", "mine", "yours")}) == 4
    many = html.slots_of([f"name {i}" for i in range(40)])
    assert set(many.values()) == set(range(len(html.LIGHT)))


# From records


def test_a_study_that_is_not_the_papers_is_reported_as_it_is(tmp_path):
    report_files.write_records(tmp_path, data=("one", "two"))
    made = build.build(tmp_path)
    (part,) = made.parts
    assert (part.name, part.study, part.runs, list(part.seeds)) == ("mine", None, 8, [0, 1])
    first = part.section.blocks[0]
    assert first.title == "one"
    assert [column.title for column in first.columns] == ["test/nll", "test/accuracy", "seconds"]
    assert [column.better for column in first.columns] == ["low", "high", None]
    by_name = {row.title: row.cells for row in first.rows}
    assert by_name["gflowout"][0] == Cell(1.25, 0.25, 2)  # 1 and 1.5
    assert by_name["mc"][0] == Cell(0.25, 0.25, 2)
    curve = next(block for block in part.section.blocks if isinstance(block, Curves))
    series = {each.title: each for each in curve.series}
    assert list(series["gflowout"].x) == [1, 2, 3]
    assert series["gflowout"].y == pytest.approx([1 / 2, 1 / 3, 1 / 4])


def test_facts_say_what_figures_come_from(tmp_path):
    report_files.write_records(tmp_path)
    facts = build.build(tmp_path).facts
    assert (facts.runs, facts.trials, facts.failed, facts.seconds) == (4, 0, 0, 10.0)
    assert facts.data == {"one": "sha256:12"}
    assert facts.seeds == [0, 1]
    assert facts.versions["torch"] == ["2.13.0"]
    assert facts.commits == ["a" * 12]
    assert facts.machines == ["2 cores of A, 8.0 GiB of memory, no GPU, L"]
    assert facts.started == "2026-11-16"
    assert str(tmp_path) not in "".join(facts.commands)


def fake_studies(monkeypatch, *names, data=None):
    """Stand-ins for studies of the paper, whose sections tell which records they got.

    With names of data by preset they plan the runs that ``report_files.write_records`` writes.
    """

    def get(name):
        study = report_files.study(name, f"Title of {name}")
        say = lambda found: Section(findings=[f"{len(found)} runs"])  # noqa: E731

        def runs(preset, chosen):
            return [
                Run(name, method, each, seed, {"seed": seed})
                for each in (data or {}).get(preset, ())
                for method in ("mc", "gflowout")
                for seed in range(2)
            ]

        needs = lambda run: [run.data] if run.data == "mnist" else []  # noqa: E731
        return type(study)(**{**vars(study), "section": say, "runs": runs, "needs": needs})

    monkeypatch.setattr(build, "get", get)
    spec = build.importlib.util.find_spec
    known = {f"gflowout.studies.{name.replace('-', '_')}" for name in names}
    monkeypatch.setattr(
        build.importlib.util, "find_spec", lambda name: name if name in known else spec(name)
    )
    return lambda name: get(name).work


def test_studies_of_the_paper_come_first_and_in_order(tmp_path, monkeypatch):
    work = fake_studies(monkeypatch, *STUDIES)
    for name in ("ood", "robustness"):
        report_files.write_records(tmp_path, name, work=work(name))
    report_files.write_records(tmp_path, "block-order", work="mystudy:work")  # a user's own
    report_files.write_records(tmp_path, "tuning", work=work("ood"))
    made = build.build(tmp_path)
    assert [(part.name, part.study is None) for part in made.parts] == [
        ("robustness", False),
        ("ood", False),
        ("block-order", True),
    ]
    assert [part.section.findings for part in made.parts[:2]] == [["4 runs"]] * 2
    assert (made.facts.runs, made.facts.trials) == (16, 4)
    assert {group.study for group in made.groups} == {"block-order"}
    (only,) = build.build(tmp_path, ["ood"]).parts
    assert only.name == "ood"
    text = markdown.document(made)
    assert "## Title of ood" in text
    assert "- 4 runs" in text


def test_trials_alone_are_reported(tmp_path):
    report_files.write_records(tmp_path, "tuning")
    (part,) = build.build(tmp_path).parts
    assert part.name == "tuning"


def test_runs_that_failed_are_counted(tmp_path):
    report_files.write_records(tmp_path)
    done = records.read(tmp_path)[0]
    environment = {key: done[key] for key in ("versions", "commit", "machine", "threads")}
    for run in (Run("mine", "mc", "one", 9), Run("mine", "mc", "one", 0, {"seed": 0})):
        failed = Task("x:y", run, tmp_path).record(
            records.now(), 1, environment=environment, error={"kind": "died"}
        )
        records.write(tmp_path, failed)
    assert build.build(tmp_path).facts.failed == 1  # the other one was done later


def test_presets_are_told_in_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = fake_studies(monkeypatch, "ood", data={"smoke": ["one"]})
    report_files.write_records(Path("results/smoke"), "ood", work=work("ood"))
    commands = build.build(Path("results/smoke")).facts.commands
    assert commands == [
        "gflowout study run ood --preset smoke --out results/smoke",
        "gflowout report results/smoke -o report.html",
    ]


def test_presets_are_those_of_the_runs_not_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"smoke": ["mnist"], "cpu": ["one", "two"], "paper": ["one"]}
    work = fake_studies(monkeypatch, "ood", data=data)
    run = "gflowout study run ood --preset"
    for names, wanted in [
        (["mnist"], [f"{run} smoke --out paper --data-dir data"]),
        (["one"], [f"{run} cpu --out paper"]),  # or paper: nothing tells
        (["one", "two"], [f"{run} cpu --out paper"]),
        (["two", "mnist"], [f"{run} {each} --out paper --data-dir data" for each in data][:2]),
        (["other"], [f"{run} PRESET --out paper  # PRESET: smoke, cpu or paper"]),
    ]:
        report_files.write_records(Path("paper"), "ood", data=names, work=work("ood"))
        commands = build.build("paper").facts.commands
        assert commands == [*wanted, "gflowout report paper -o report.html"]
        shutil.rmtree("paper")


def test_every_study_tells_its_presets_by_its_runs():
    for name in STUDIES:
        study = get(name)
        for preset in PRESETS:
            planned = plan.plan(study, preset, Path("nowhere")).runs
            assert plan.presets_of(study, [run.to_dict() for run in planned]) == [preset]
            first = planned[0].to_dict()
            first["options"]["tuned"] = {"fit.lr": 0.123}  # whatever trials choose
            assert preset == "paper" or plan.presets_of(study, [first]) == [preset]


def test_commands_work_where_they_were_asked_for(tmp_path, monkeypatch):
    report_files.write_records(tmp_path / "a" / "mine")
    monkeypatch.chdir(tmp_path)
    assert "--out a/mine" in build.build(tmp_path / "a" / "mine").facts.commands[0]
    (tmp_path / "b").mkdir()
    monkeypatch.chdir("b")
    assert "--out ../a/mine" in build.build("../a/mine").facts.commands[0]
    elsewhere = build.build(tmp_path / "a" / "mine").facts.commands
    assert elsewhere == [  # pages are shared, and tell no path of a machine
        "# in the folder that has mine:",
        "gflowout study run mine.yaml --out mine",
        "gflowout report mine -o report.html",
    ]


def test_figures_of_the_smoke_preset_are_said_to_mean_nothing(tmp_path, monkeypatch):
    work = fake_studies(monkeypatch, "ood", "masks", data={"smoke": ["one"], "cpu": ["two"]})
    report_files.write_records(tmp_path, "ood", data=("one",), work=work("ood"))
    said = (
        "The numbers mean nothing: they come from preset smoke, a few steps on tiny data to see "
        "that everything works."
    )
    made = build.build(tmp_path)
    assert made.warning == said
    assert markdown.document(made).startswith(f"# Results\n\n**{said}**\n")
    assert f'</h1>\n<p class="warning">{said}</p>' in html.page(made)
    assert f"\n% {said}\n" in latex.document(made)
    report_files.write_records(tmp_path, "masks", data=("two",), work=work("masks"))
    assert build.build(tmp_path).warning.startswith("The numbers of ood mean nothing: ")
    other = build.build(tmp_path, ["masks"])
    assert other.warning == ""
    assert "mean nothing" not in markdown.document(other) + latex.document(other)
    assert '<p class="warning">' not in html.page(other)


def test_names_with_spaces_are_quoted_in_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report_files.write_records(Path("my results"), "my study")
    assert build.build("my results").facts.commands == [
        "gflowout study run 'my study.yaml' --out 'my results'",
        "gflowout report 'my results' -o report.html",
    ]


@pytest.mark.parametrize(
    ("metric", "good"),
    [("test/accuracy", "high"), ("ood.svhn/auroc", "high"), ("fpr95", "low"), ("macro_f1", "high"),
     ("valid/nll", "low"), ("seconds", None), ("glossy", None)],
)  # fmt: skip
def test_what_is_good_as_far_as_names_tell(metric, good):
    assert summary.better(metric) == good


# Data of plots


def test_numbers_that_json_lacks_become_null():
    series = Series("a", [0, 1], [float("nan"), 1 / 3], [float("inf"), 0.1])
    found = html.plot_data(Curves("t", "x", "y", [series]), {"a": 5})
    assert found["series"][0]["y"] == [None, 0.333333]
    assert found["series"][0]["error"] == [None, 0.1]
    heat = html.plot_data(Heat("t", "x", "y", [[float("nan"), 1.0]]), {})
    assert heat["values"] == [[None, 1.0]]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_plots_that_follow_each_other_stand_together():
    curve, text = Curves("", "", "", []), Text([])
    assert html.side_by_side([curve, curve, text, text, curve]) == [
        [curve, curve],
        [text, text],
        [curve],
    ]


# The page


def test_the_page_is_well_formed_and_stands_alone(page):
    found = Reader(page)
    assert found.open == []
    assert found.attributes.count(("link", "href", "data:,")) == found.tags.count("link") == 1
    assert not {"iframe", "object", "embed"} & set(found.tags)
    for tag, name, value in found.attributes:
        if name in ("src", "href", "action", "srcset", "poster") and tag != "link":
            assert value.startswith("#") or (
                tag == "img" and value.startswith("data:image/png;")
            ), value
        assert not name.startswith("on")
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    script = page[page.index("<script>") : page.rindex("</script>")]
    assert not re.search(r"fetch|XMLHttp|WebSocket|innerHTML|eval|import\(", script)
    assert [url for url in re.findall(r"https?://[\w./]+", page) if "w3.org" not in url] == []
    ids = [value for _, name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {value[1:] for tag, name, value in found.attributes if (tag, name) == ("a", "href")}
    assert links <= {*ids, "top"}


def test_only_the_pages_own_script_may_run(page):
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_texts_are_escaped(page):
    found = Reader(page)
    assert found.tags.count("script") == 2
    text = "".join(found.texts)
    assert "<script>alert(1)</script>" in text
    assert "my <b>study</b>" in text
    assert NASTY in text


def test_no_text_can_break_out():
    evil = "</script></style><img src=x onerror=alert(1)>\"'"
    curve = Curves(evil, evil, evil, [Series(evil, [1], [1.0])], evil)
    table = Table(evil, evil, [Column(evil)], [Row(evil, [Cell(text=evil)], evil)], evil)
    heat = Heat(evil, evil, evil, [[1.0]], [evil], [evil], caption=evil)
    section = Section([evil], [curve, table, heat, Text([evil])], (), [evil])
    made = html.page(build.Report([build.Part(evil, None, section, 1, [0])]), evil)
    found = Reader(made)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    assert not any(name.startswith("on") for _, name, _ in found.attributes)


def test_the_page_says_what_the_report_says(page):
    text = " ".join("".join(Reader(page).texts).split())
    for told in (
        "On rotated digits GFlowOut is better than MC dropout",
        "Of 3 claims of the paper: 1 reproduced 1 not reproduced 1 not testable here",
        "Numbers of the paper",
        "Mean ± standard error over 9 runs. Bold: best of our rows, and best of the paper's.",
        "torch 2.13.0 and 2.13.1",
        "gflowout study run robustness --preset cpu --out results/cpu",
        "176 done, 54 of them to tune; 1 failed and are left out; 3:25:46 of computing",
        "2 cores of A Processor",
        "0123456789ab, with changes",
    ):
        assert told in text, told
    assert page.count('class="best"') == 4 + 2 + 1
    assert len(page.encode()) < 400_000


def test_pictures_go_from_certain_to_uncertain(page):
    found = [float(each) for each in re.findall(r"uncertainty ([\d.]+)<", page)]
    assert found == sorted(found)
    assert len(found) == 12
    picture = report_files.Picture("not base64 <", "3", [1.0])
    block = report_files.Pictures("", ["0"], [picture])
    with pytest.raises(ValueError, match="picture '3': png must be base64 of a PNG"):
        html.page(build.Report([build.Part("x", None, Section(blocks=[block]))]))


def test_the_true_class_has_a_bar_even_if_it_is_improbable():
    shares = [0.3, 0.2, 0.2, 0.1, 0.1, 0.06, 0.04]
    picture = report_files.Picture("aaaa", "6", shares)
    block = report_files.Pictures("", [str(each) for each in range(7)], [picture])
    made = html.page(build.Report([build.Part("x", None, Section(blocks=[block]))]))
    assert re.findall(r'class="who( true)?" title="(\d)"', made) == [
        ("", "0"), ("", "1"), ("", "2"), ("", "3"), (" true", "6"),
    ]  # fmt: skip
    assert ">others<" in made
    assert "16 %" in made


def test_long_lists_of_details_are_folded():
    def made(*texts):
        section = Section(blocks=[Text(["one", "two"]), *texts])
        return html.page(build.Report([build.Part("x", None, section)]))

    assert '<details class="more"' not in made()
    folded = made(Text(["<three>"], title="Pair & pair"))
    assert "<summary>Pair &amp; pair</summary><ul><li>&lt;three&gt;</li></ul>" in folded
    assert "<summary>9 sentences: word word" in made(Text(["word " * 99] * 9))
    section = Section(blocks=[Text(["three"], title="Pairs")])
    part = build.Part("ood", report_files.study("ood"), section)
    text = markdown.document(build.Report([part]))
    assert "three" not in text  # the page has it


def test_claims_are_told_by_verdict_and_many_untestable_ones_are_folded():
    claim = report_files.Claim
    many = [claim(f"c{i}", "not testable here", "no data") for i in range(9)]
    section = Section(
        claims=[*many, claim("bad", "not reproduced", ""), claim("good", "reproduced", "")]
    )
    made = html.page(build.Report([build.Part("x", None, section)]))
    summary = made[made.index('id="summary"') : made.index("</section>")]
    assert summary.index("good") < summary.index("bad") < summary.index("c0")
    assert "1 reproduced" in summary
    assert "<details" in summary[summary.index("bad") : summary.index("c0")]


def test_studies_fold_away_but_for_those_to_open():
    def folded(**options):
        parts = [build.Part(name, None, Section(["first", "second"])) for name in "abc"]
        page = html.page(build.Report(parts, **options))
        return re.findall(r'<details class="study"( open)?>', page), "Open all studies" in page

    assert folded() == (["", "", ""], True)
    assert folded(opened=2) == ([" open", " open", ""], True)
    assert folded(opened=3) == ([" open"] * 3, False)


def test_a_single_study_is_open(tmp_path):
    report_files.write_records(tmp_path)
    assert build.build(tmp_path).opened == 1
    report_files.write_records(tmp_path, "another")
    assert build.build(tmp_path).opened == 0


def test_cards_say_what_is_true_and_what_was_predicted():
    shares = [0.1, 0.6, 0.3]
    cards = [report_files.Picture("aaaa", title, shares) for title in ("1", "true: 2", "a strip")]
    block = report_files.Pictures("", ["0", "1", "2"], cards)
    made = html.page(build.Report([build.Part("x", None, Section(blocks=[block]))]))
    assert re.findall(r"<b>([^<]+)</b><b class=.(\w+).>([^<]+)</b>", made) == [
        ("true: 1", "right", "predicted: 1 ✓"), ("true: 2", "wrong", "predicted: 1 ✗"),
    ]  # fmt: skip
    assert "<b>a strip</b>" in made


def test_sections_without_records_make_a_page_with_an_intro():
    sections = {"One <1>": Section(["a finding"]), "Two": Section(blocks=[Text(["text"])])}
    made = build.of_sections(sections, ["What this is."], range(2), ["gflowout demo"])
    assert made.facts.versions["torch"]
    page = html.page(made, "Title")
    summary = page[page.index("<h1>Title</h1>") : page.index("</section>")]
    assert '<p class="lead">What this is.</p>' in summary
    assert "studies" not in summary
    assert "<h2>One &lt;1&gt;</h2>" in page
    assert '<span class="first">a finding</span>' in page
    assert "<dt>Seeds</dt><dd>0, 1</dd>" in page
    assert "<pre>gflowout demo</pre>" in page


def test_checksums_are_named_by_data_and_short():
    def record(data, **sums):
        return {"data": data, "checksums": sums}

    long = "sha256:" + "0123456789abcdef" * 4
    runs = [record("mnist", train=long), record("mnist", train="sha256:ff"), record("a", a="x")]
    assert build._data([*runs, record("b")]) == {
        "a": "x",
        "b": "",
        "mnist": "",
        "mnist, train": "sha256:0123456789abcdef and 1 more",
    }


def test_the_pages_files_are_part_of_the_package():
    folder = files("gflowout.report") / "templates"
    names = {each.name for each in folder.iterdir()}
    templates = {"page.html.jinja", "blocks.html.jinja", "style.css.jinja", "report.md.jinja"}
    assert templates | {"axes.js", "plots.js", "page.js", "glossary.toml"} <= names


def test_words_are_explained_if_they_are_used(page):
    assert set(html.GLOSSARY["methods"]) == {*ARMS, "variational", "masksembles"}
    told = page[page.index("words") : page.index('class="numbers"')]
    for name in (*report_files.TITLES, "accuracy", "NLL", "ECE"):
        assert f"<dt>{escape(name)}</dt>" in told, name
    assert "AUROC" not in told
    assert [*html.methods(["mc", "GFlowOut", "mine"])] == ["MC dropout (mc)", "GFlowOut"]
    assert [*html.measures(["Accuracy, rotated", "snow: NLL", "test/ece"])] == [
        "accuracy", "NLL", "ECE"
    ]  # fmt: skip
    assert html.measures(["AUPRC", "precision"]).keys() == {"AUPR"}
    assert html.measures(["Dempster–Shafer AUROC"]).keys() == {"AUROC", "Dempster-Shafer"}  # noqa: RUF001


# Markdown and LaTeX


def parsed(text):
    """Cells of all tables of a Markdown text, as a parser of its own reads them."""
    found, inside = [], False
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "tr_open":
            found.append([])
        inside = token.type in ("td_open", "th_open") or (inside and token.type != "inline")
        if token.type == "inline" and found and token.map and token.level >= 4:
            found[-1].append(
                ("".join(part.content for part in token.children),
                 any(part.type == "strong_open" for part in token.children))
            )  # fmt: skip
    return found


def test_markdown_is_read_as_it_is_meant():
    text = markdown.document(report_files.report())
    rows = parsed(text)
    nasty = next(row for row in rows if row[0][0] == NASTY)
    assert nasty[1] == ("NaN", False)
    assert [("<script>alert(1)</script>", False), ("0.5000 ± 0.1000", True)] in rows
    assert [cell[0] for cell in rows[0]] == ["claim", "study", "here", "why"]
    paper = [row for row in rows if row[0][0].endswith(", paper")]
    assert [row[0][0] for row in paper] == ["MC dropout, paper", "GFlowOut, paper"]
    assert paper[1][1] == ("98.5", True)
    assert "html_block" not in {token.type for token in MarkdownIt().parse(text)}


def test_the_paper_alone_is_labelled_as_well():
    rows = [Row("a", cells(1.0), "paper"), Row("b", cells(2.0), "paper")]
    table = Table("t", "method", [Column("x", "high")], rows)
    section = Section(blocks=[table])
    made = html.page(build.Report([build.Part("x", None, section)]))
    assert "Numbers of the paper" in made
    assert "Numbers of the paper" in latex.table(table)
    assert markdown.table(table).count("*paper*") == 2
    assert table.note == "Bold: best."


@pytest.mark.parametrize("columns", [2, 9])
def test_latex_tables_fit_and_errors_are_smaller_than_figures(columns):
    row = Row("a", [Cell(0.5, 0.1, 3)] * columns)
    text = latex.table(Table("t", "method", [Column("x")] * columns, [row]))
    assert text.count(r"{\scriptsize$\pm$ 0.100}") == columns  # also smaller than \footnotesize
    assert r"\small" not in text
    assert "\\begin{adjustbox}{max width=\\textwidth}\n\\begin{tabular}" in text
    assert "\\end{tabular}\n\\end{adjustbox}\n\\end{table}" in text
    first = latex.document(report_files.report()).splitlines()[0]
    assert r"\usepackage{booktabs,adjustbox}" in first


def test_latex_tables_have_their_cells():
    text = latex.document(report_files.report())
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert r"\begin{tabular}{lrrrr}" in text
    assert r"GFlowOut & \textbf{98.5} & \textbf{47.0} {\scriptsize$\pm$ 1.0} & n/a & - \\" in text
    assert r"\midrule" + "\n" + r"\multicolumn{5}{l}{\emph{Numbers of the paper}} \\" in text
    for line in text.splitlines():
        bare = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert bare.count("&") in (1, 4)
        assert line.isascii()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (NASTY, r"a \& b \textbar{} \_c\_ *d* \$e\$ 5 \% \#1 \textasciitilde{} "
                r"\textasciicircum{} \textbackslash{}x\{y\}"),
        ("β λ Γ \u0391 é 中", r"$\beta$ $\lambda$ $\Gamma$ A é ?"),
        ("[a] ±1 °", r"{[}a] $\pm$1 $^\circ$"),
        ("two\n lines", "two lines"),
    ],
)  # fmt: skip
def test_latex_escapes(text, wanted):
    assert latex.escape(text) == wanted


def hostile_records():
    return [
        {
            "study": "=mine", "data": name, "method": name, "seed": 0,
            "options": {"=a|b": name}, "metrics": {"=x|*y*/nll": 1.0}, "epochs": [],
        }
        for name in ("=1+1|<b>", "a`` ` ```\n\n<script>alert(1)</script>\n```", "\\input{x} \1&lt;")
    ]  # fmt: skip


def test_names_of_records_are_escaped_in_plain_tables():
    groups = summary.groups(hostile_records())
    rows = parsed(summary.markdown(groups))
    one_line = [" ".join(group.method.split()) for group in groups]
    assert [row[1][0] for row in rows[1:]] == one_line
    assert {len(row) for row in rows} == {4}
    assert rows[0][-1] == ("=x|*y*/nll", False)
    report = build.Report([], groups=groups)
    tokens = MarkdownIt().enable("table").parse(markdown.document(report))
    assert not any(
        "html" in part.type for token in tokens for part in (token, *(token.children or ()))
    )


def test_names_of_records_are_no_formulas_in_csv():
    groups = summary.groups(hostile_records())
    lines = list(csv.reader(io.StringIO(summary.table(groups))))
    assert lines[0][-1] == "'=x|*y*/nll runs"
    assert [line[0] for line in lines[1:]] == ["'=mine"] * 3
    assert not any(cell[:1] in set("=+-@\t\r") for line in lines for cell in line)


def test_names_of_records_cannot_leave_a_report():
    groups = summary.groups(hostile_records())
    section = summary.section(hostile_records(), groups)
    part = build.Part("x\n```\n<script>alert(1)</script>", None, section, 1, [0])
    facts = build.Facts(commands=[f"gflowout study run '{part.name}.yaml'", "gflowout report x"])
    report = build.Report([part, build.Part("ood", get("ood"), Section())], facts)
    tokens = MarkdownIt().enable("table").parse(markdown.document(report))
    assert not any(
        "html" in part.type for token in tokens for part in (token, *(token.children or ()))
    )
    assert [token.content for token in tokens if token.type == "fence"] == [
        "\n".join(facts.commands) + "\n"
    ]
    text = latex.document(report)
    assert r"\input" not in text
    assert r"\textbackslash{}input\{x\} ?\&lt;" in text
    assert all(line.startswith("%") for line in text.splitlines() if "<script>" in line)


# The command


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    report_files.write_records(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "start"),
    [("r.html", "<!doctype html>"), ("r.md", "| data"), ("r.tex", "% Tables"), ("r.csv", "study,")],
)
def test_the_format_follows_the_name(name, start, results, tmp_path):
    told = gflowout("report", results, "-o", tmp_path / name)
    assert "4 runs" in told
    assert (tmp_path / name).read_text().startswith(start)
    assert {path.name for path in tmp_path.iterdir()} == {"results", name}


def test_format_goes_before_the_name_and_the_terminal_gets_markdown(results, tmp_path):
    gflowout("report", results, "--format", "latex", "-o", tmp_path / "table.txt")
    assert r"\begin{table}" in (tmp_path / "table.txt").read_text()
    assert gflowout("report", results).startswith("| data | method   | seeds |")
    assert gflowout("report", results, "--format", "html").startswith("<!doctype html>")


def test_the_title_is_the_users(results, tmp_path):
    gflowout("report", results, "--title", "Mine & yours", "-o", tmp_path / "r.html")
    assert "<h1>Mine &amp; yours</h1>" in (tmp_path / "r.html").read_text()


def test_wrong_usage_of_the_command(results, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        ((tmp_path / "no", "-o", tmp_path / "r.html"), 2, "no: no such folder"),
        ((tmp_path / "empty", "-o", tmp_path / "r.html"), 1, "empty: no run is done here"),
        ((results, "--study", "min"), 2, "mine, got 'min'; did you mean 'mine'?"),
        ((results, "--metric", "test/nl"), 2, "got 'test/nl'; did you mean 'test/nll'?"),
        ((results, "-o", tmp_path / "r.pdf"), 2, "r.pdf: no format has this ending; use one of "),
        ((results, "-o", tmp_path / "no" / "r.html"), 2, "no: no such folder"),
        ((results, "--format", "md", "-o", tmp_path / "empty"), 2, "cannot be written (is a"),
        ((results, "-o", tmp_path / "empty"), 2, "empty: a folder; name a file in it, such as "),
        ((Path(__file__), "-o", tmp_path / "r.html"), 2, "test_report.py: not a folder, but a"),
        ((results, "-o", "/proc/r.html"), 2, "/proc/r.html: cannot be written"),
    ):  # fmt: skip
        assert message in gflowout("report", *arguments, code=code)
    assert {path.name for path in tmp_path.iterdir()} == {"results", "empty"}


def test_of_many_metrics_a_message_names_the_nearest():
    record = {
        "study": "s", "data": "d", "method": "m", "seed": 0, "options": {},
        "metrics": {f"layer/{i}/rate": 0.5 for i in range(300)} | {"test/nll": 1.0},
    }  # fmt: skip
    with pytest.raises(ValueError, match="metric must be one of 301, such as ") as caught:
        summary.groups([record], ["test/*x"])
    assert len(str(caught.value)) < 300
    assert "such as test/nll, " in str(caught.value)


def test_a_page_that_is_there_stays_if_the_new_one_fails(results, tmp_path, monkeypatch):
    target = tmp_path / "r.html"
    target.write_text("old")

    def broken(*arguments):
        raise ValueError("broken")

    monkeypatch.setattr(html, "page", broken)
    gflowout("report", results, "-o", target, code=2)
    assert target.read_text() == "old"
