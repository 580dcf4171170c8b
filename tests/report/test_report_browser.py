"""The report's page in a real browser, without a network."""

import json
import os
import re
import shutil

import pytest
import report_files

from gflowout.report import build, html

api = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLOTS = 8
METHODS = 9
"""Methods with a colour of their own; the others are variants."""


@pytest.fixture(scope="module")
def browser():
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip(f"needs an installed Chromium: none of {', '.join(NAMES)} is on the path")
    rights = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=binary, args=rights)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.page(report_files.report()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(browser, address):
    """Open the page; whatever it says on the console or asks from a network is an error."""
    contexts, faults = [], []

    def go(where=address, width=1200, height=900, unfold=True, **options):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            offline=True,
            reduced_motion="reduce",  # no waiting for smooth scrolling
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append("a dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                request.url.startswith((where.split("#")[0], "data:")) or faults.append(request.url)
            ),
        )
        page.goto(where)
        page.wait_for_selector("html[data-ready]", state="attached")
        if unfold and page.locator("#unfold").count():
            page.locator("#unfold").click()
        return page

    yield go
    for context in contexts:
        context.close()
    assert faults == []


def boxes(page, selector):
    return page.eval_on_selector_all(
        selector, "all => all.map(e => { const b = e.getBBox(); return [b.width, b.height]; })"
    )


def shown(page, name):
    """How many drawn series have a name."""
    return page.locator(f".series[data-name={json.dumps(name)}]").count()


def test_studies_are_opened_by_a_click_a_link_or_all_at_once(visit, address):
    page = visit(unfold=False)
    studies = page.locator("details.study")
    assert studies.evaluate_all("all => all.map(e => e.open)") == [False] * 3
    assert page.locator("[data-plot] svg").count() == 0  # drawn when they are opened
    page.locator("#masks summary h2").click()
    page.wait_for_selector("#masks [data-plot] svg")
    page.locator('nav a[href="#robustness"]').click()
    assert studies.evaluate_all("all => all.map(e => e.open)") == [True, True, False]
    assert page.locator("[data-plot] svg").count() == PLOTS
    linked = visit(f"{address}#masks", unfold=False)
    assert linked.locator("details.study[open]").count() == 1
    page.locator("#unfold").click()
    assert page.locator("details.study[open]").count() == 3


def test_plots_in_folded_studies_survive_the_switches(visit):
    page = visit(unfold=False)
    page.locator("#masks summary h2").click()
    page.locator('#masks .chip[data-name="Deep ensemble"]').click()
    page.locator("#robustness summary h2").click()
    page.wait_for_selector("#robustness [data-plot] svg")
    assert shown(page, "Deep ensemble") == 0


def test_every_plot_is_drawn(visit):
    page = visit()
    areas = page.locator("[data-plot]")
    assert areas.count() == PLOTS
    for index in range(PLOTS):
        area = areas.nth(index)
        assert area.locator("svg").count() == 1
        drawn = area.locator(".line, .bar, .dot, image.cells").count()
        assert drawn > 0
        assert area.locator("text").count() > 4
    for kind in (".line", ".bar", ".dot", ".mark", ".band", "image.cells"):
        sizes = boxes(page, f"[data-plot] {kind}")
        assert sizes, kind
        assert all(width > 0 and height >= 0 for width, height in sizes), kind
        assert any(height > 0 for _, height in sizes), kind


def test_marks_are_where_the_figures_are(visit):
    page = visit()
    (series,) = (
        each for each in report_files.robustness().blocks[-1].series if each.source == "paper"
    )
    area = page.locator("[data-plot]").nth(3)
    places = area.locator(".paper .mark").evaluate_all(
        "all => all.map(e => e.getAttribute('transform').match(/[\\d.]+/g).map(Number))"
    )
    assert len(places) == 4
    (x0, y0), *_, (x1, y1) = places
    for (x, y), place, value in zip(places, range(4), series.y, strict=True):
        assert x == pytest.approx(x0 + (x1 - x0) * place / 3, abs=0.1)  # doubling sizes
        wanted = y0 + (y1 - y0) * (value - series.y[0]) / (series.y[-1] - series.y[0])
        assert y == pytest.approx(wanted, abs=0.1)


def test_a_click_hides_a_method_everywhere_and_another_brings_it_back(visit):
    page = visit()
    name = "MC dropout"
    chips = page.locator(f'.chip[data-name="{name}"]')
    before = shown(page, name)
    assert before == 5  # three curves, fine-tuning, bars
    lines = page.locator(".line").count()
    chips.first.click()
    assert shown(page, name) == 0
    assert page.locator(".line").count() < lines
    assert shown(page, "GFlowOut") > 0
    assert [chips.nth(i).get_attribute("aria-pressed") for i in range(chips.count())] == [
        "false"
    ] * 2
    chips.last.click()
    assert shown(page, name) == before


def test_axes_fit_what_is_shown(visit):
    page = visit()
    first = page.locator("[data-plot]").nth(1)
    before = first.locator("text").all_text_contents()
    lowest = min(report_files.robustness().blocks[2].series, key=lambda each: each.y[-1]).title
    page.locator("#robustness").get_by_role("button", name="none").click()
    page.locator(f'#robustness .chip[data-name="{lowest}"]').click()
    assert first.locator("text").all_text_contents() != before


def test_the_papers_curves_have_a_switch_of_their_own(visit):
    page = visit()
    assert page.locator(".series.paper").count() == 1
    page.locator(".chip[data-paper]").click()
    assert page.locator(".series.paper").count() == 0
    assert shown(page, "GFlowOut") == 5


def test_all_and_none(visit):
    page = visit()
    section = page.locator("#robustness")
    section.get_by_role("button", name="none").click()
    assert section.locator(".series").count() == 0
    assert section.locator(".empty").count() == 4
    assert page.locator("#masks .dot").count() == 300  # groups of the other section stay
    section.get_by_role("button", name="all").click()
    assert section.locator(".series").count() == 3 * len(report_files.TITLES) + 3
    assert section.locator(".empty").count() == 0


def test_the_pointer_reads_values(visit):
    page = visit()
    area = page.locator("[data-plot]").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    text = page.locator("#tip").inner_text()
    assert text.startswith("severity 5")
    curve = report_files.robustness().blocks[1]
    for series in curve.series:
        assert series.title in text
        assert f"{100 * series.y[-1]:.1f} %" in text
    values = [float(value) for value in re.findall(r"([\d.]+) % ±", text)]
    assert len(values) == sum(bool(series.error) for series in curve.series)
    assert values == sorted(values, reverse=True)
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_heat_maps_bars_and_points_are_read_too(visit):
    page = visit()
    for index, words in ((4, "log R"), (5, "MC dropout"), (6, "value"), (7, "conv")):
        area = page.locator("[data-plot]").nth(index)
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        found = ""
        for share in (0.5, 0.55, 0.45, 0.6):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.3 * box["height"])
            found += page.locator("#tip").inner_text()
        assert words in found, index


def test_keys_read_values_aloud(visit):
    page = visit()
    page.locator("[data-plot] svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#said").inner_text().startswith("severity 0:")
    page.keyboard.press("ArrowRight")
    assert page.locator("#said").inner_text().startswith("severity 1:")
    page.keyboard.press("End")
    assert page.locator("#said").inner_text().startswith("severity 5:")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_switches_work_with_keys(visit):
    page = visit()
    chip = page.locator('#masks .chip[data-name="Deep ensemble"]')
    chip.focus()
    page.keyboard.press("Space")
    assert chip.get_attribute("aria-pressed") == "false"
    assert shown(page, "Deep ensemble") == 0


def test_figures_of_a_plot_as_a_table(visit):
    page = visit()
    details = page.locator("details[data-figures]")
    assert details.count() == PLOTS
    for index in range(PLOTS):
        details.nth(index).locator("summary").click()
    first = details.first.locator("tr")
    assert first.count() == 1 + len(report_files.SEVERITIES)
    assert first.first.locator("th").all_inner_texts() == ["severity", *report_files.TITLES]
    assert details.nth(6).locator("tr").count() == 11


def test_tables_are_sorted_and_the_paper_stays_below(visit):
    page = visit()
    table = page.locator("#robustness table").first
    table.locator("th button").nth(3).click()
    values = [
        float(each.split()[0])
        for each in table.locator("tbody.ours tr[data-index] td:nth-child(4)").all_inner_texts()
    ]
    assert values == sorted(values)
    assert len(values) == len(report_files.TITLES)
    table.locator("th button").nth(1).click()
    values = [
        float(each.split()[0])
        for each in table.locator("tbody.ours tr[data-index] td:nth-child(2)").all_inner_texts()
    ]
    assert values == sorted(values, reverse=True)
    assert table.locator("tbody").last.get_attribute("class") == "paper"
    table.locator("th button").first.click()
    assert table.locator("tbody.ours tr[data-index] th").all_inner_texts() == report_files.TITLES


BACKGROUND = "getComputedStyle(document.body).backgroundColor"
STROKE = "getComputedStyle(document.querySelector('.s5 .line, .s5.series .line')).stroke"


def test_light_and_dark_follow_the_system_and_the_switch(visit):
    page = visit(color_scheme="dark")
    dark, stroke = page.evaluate(BACKGROUND), page.evaluate(STROKE)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(BACKGROUND)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(18, 21, 25)")
    assert page.evaluate(STROKE) != stroke  # plots follow
    button = page.locator("#theme")
    seen = []
    for _ in range(3):
        button.click()
        seen.append((button.inner_text(), page.evaluate(BACKGROUND)))
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: system", light)]
    page.emulate_media(media="print")
    button_hidden = page.locator("#theme").is_hidden()
    assert button_hidden
    assert page.evaluate(BACKGROUND) == light


def test_print_is_light_even_if_the_page_is_dark(visit):
    page = visit(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000


def test_print_unfolds_details(visit, tmp_path):
    section = report_files.Section(blocks=[report_files.Text(["deep inside"], "Details")])
    path = tmp_path / "folded.html"
    path.write_text(html.page(build.Report([build.Part("x", None, section)])), encoding="utf-8")
    page = visit(path.as_uri(), unfold=False)
    assert page.get_by_text("deep inside").is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("deep inside").is_visible()


@pytest.mark.parametrize("width", [320, 390])
def test_narrow_pages_do_not_scroll_sideways(visit, width):
    page = visit(width=width, height=844, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.eval_on_selector_all(
        ".scroll", "all => all.some(e => e.scrollWidth > e.clientWidth + 1)"
    )
    assert wide  # tables scroll in boxes of their own
    for selector in ("figure", "section"):
        right = page.eval_on_selector_all(
            selector, "all => Math.max(...all.map(e => e.getBoundingClientRect().right))"
        )
        assert right <= width, selector


def test_plots_are_drawn_anew_for_another_width(visit):
    page = visit(width=1200)
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function(
        "() => document.querySelector('[data-plot] svg').viewBox.baseVal.width < 480"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_names_are_text_whatever_they_say(visit, tmp_path):
    path = tmp_path / "evil.html"
    names = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", 'a"]b\\c')
    report_files.write_records(tmp_path / "r", "<b>x</b>", names, ("<i>d</i>",))
    path.write_text(html.page(build.build(tmp_path / "r")), encoding="utf-8")
    page = visit(path.as_uri())
    for index in range(page.locator("[data-plot]").count()):
        area = page.locator("[data-plot]").nth(index)
        area.scroll_into_view_if_needed()
        area.hover()
    page.locator("details[data-figures] summary").first.click()
    assert page.locator("main img, main script, main i").count() == 0
    assert names[1] in page.locator("main").inner_text()


def test_plots_without_figures_say_so(visit, tmp_path):
    content = report_files
    blocks = [
        content.Curves("nothing", "x", "y", []),
        content.Curves("not a number", "x", "y", [content.Series("a", [1.0], [float("nan")])]),
        content.Curves("one point", "x", "y", [content.Series("a", [1.0], [2.0], [0.5])]),
        content.Curves("flat", "x", "y", [content.Series("a", [1.0, 2.0], [0.0, 0.0])]),
        content.Points("one", "x", "y", [content.Series("a", [1.0], [2.0])]),
        content.Bars("none", "y", ["a"], [("m", [content.Cell()])]),
        content.Bars("below zero", "y", ["a"], [("m", [content.Cell(-2.0, 0.1)])]),
        content.Bars("ends", "y", ["a"], [("m", [content.Cell(0.9, interval=(0.4, 0.97))])]),
        content.Heat("empty", "x", "y", []),
        content.Heat("flat", "x", "y", [[1.0, 1.0]]),
        content.Heat("not a number", "x", "y", [[float("nan"), 1.0]]),
    ]
    made = build.Report([build.Part("odd", None, content.Section(blocks=blocks))])
    path = tmp_path / "odd.html"
    path.write_text(html.page(made), encoding="utf-8")
    page = visit(path.as_uri())
    assert page.locator("[data-plot] svg").count() == len(blocks)
    assert page.locator(".empty").count() == 4
    assert page.locator("[data-plot]").nth(7).locator("path.whisker").count() == 1
    assert "NaN" not in "".join(
        page.locator("[data-plot] svg").evaluate_all("all => all.map(e => e.outerHTML)")
    )
    for index in range(len(blocks)):
        page.locator("[data-plot]").nth(index).hover()
        page.locator("details[data-figures] summary").nth(index).click()


def test_plots_of_points_have_switches_and_colours_of_their_own(visit, tmp_path):
    content = report_files
    clouds = [
        content.Points(data, "x", "y", [
            content.Series(f"{kind} (point {i})", [0.0, 1.0], [0.0, i]) for i in range(6)
        ])
        for data, kind in (("MNIST", "6"), ("CIFAR", "bird"))
    ]  # fmt: skip
    bars = content.Bars("b", "y", ["a"], [(n, [content.Cell(1.0)]) for n in report_files.TITLES])
    made = build.Report([build.Part("m", None, content.Section(blocks=[bars, *clouds]))])
    path = tmp_path / "clouds.html"
    path.write_text(html.page(made), encoding="utf-8")
    page = visit(path.as_uri())
    names = "all => all.map(e => e.dataset.name)"
    shared = page.locator(".study > .switches .chip[data-name]").evaluate_all(names)
    assert sorted(shared) == sorted(report_files.TITLES)
    for index, cloud in enumerate(clouds, 1):
        figure = page.locator("figure").nth(index)
        chips = figure.locator(".chip")
        assert chips.evaluate_all(names) == [series.title for series in cloud.series]
        slots = chips.evaluate_all("all => all.map(e => e.dataset.slot)")
        assert len(set(slots)) == 6
        assert min(map(int, slots)) >= METHODS  # a method's colour is no point's
        drawn = figure.locator(".series").evaluate_all("all => all.map(e => e.classList[1])")
        assert drawn == [f"s{slot}" for slot in slots]
        chips.first.click()
        assert figure.locator(".series").count() == 5
    assert page.locator("figure").first.locator(".series").count() == len(report_files.TITLES)


OUTSIDE = """all => all.flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()])
        .filter(([, box]) => box.left < frame.left - 0.5 || box.right > frame.right + 0.5)
        .map(([text]) => `${svg.ariaLabel.split(".")[0]}: ${text.textContent}`);
})"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Plots whose texts need all the room: ticks of every length, long names, large numbers."""
    content = report_files

    def bars(names, count):
        series = [(f"m{i}", [content.Cell(0.5, 0.1, 3)] * len(names)) for i in range(count)]
        return content.Bars(" ".join(names[:2]), "probability", names, series)

    drugs = ["norepinephrine", "acetaminophen-hydrocodone", "noise 1", "worst concave points"]
    ranges = [(low / 200, low / 200 + size) for low in range(0, 190, 7) for size in (0.04, 0.09)]
    blocks = [
        *(
            content.Curves(f"{low}", "x", "accuracy", [content.Series("a", [0, 5], [low, high])],
                           percent=percent)
            for low, high in ranges for percent in (True, False)
        ),
        bars(drugs, 4),
        bars(drugs * 3, 1),
        bars(["training step, MLP", "training step, ResNet-18", "prediction, MLP"] * 2, 9),
        bars(["one point twice", "points of one class", "a point and itself rotated"], 5),
        content.Points("large", "x " * 80, "y " * 80, [
            content.Series("a", [-1e6, 1e6], [-1e6, 1e6])
        ]),
        content.Curves("large", "x", "y", [content.Series("a", [1e5, 2e5, 4e5], [0, 1e-7, 2e-7])]),
        content.Heat("names", "x", "y", [[0.5] * 12] * 4, [f"{i} {'unit' * 5}" for i in range(12)],
                     drugs),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("page") / "crowded.html"
    made = build.Report([build.Part("crowded", None, content.Section(blocks=blocks))])
    path.write_text(html.page(made), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1440, 1200, 390])
def test_no_text_of_a_plot_is_cut_at_its_sides(visit, address, crowded, width):
    for where in (address, crowded):
        page = visit(where, width=width)
        assert page.eval_on_selector_all("[data-plot] svg", OUTSIDE) == []
