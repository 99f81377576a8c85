"""report.html in Debian's Chromium: what a person can do with it, with and without JavaScript, keyboard and colours."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from perfgate.history import history, regressions
from perfgate.render import FORMATS
from perfgate.render.html.history import render as past_page
from tests.unit.render import histories, samples

pytestmark = pytest.mark.browser
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAGES = {"mixed": samples.mixed, "hostile": samples.hostile, "cpu": samples.on_cpu, "large": samples.large}


@pytest.fixture(scope="module")
def browser():
    if not Path(CHROMIUM).exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium")
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (made / f"{name}.html").write_text(FORMATS["html"](make()), encoding="utf-8")
    runs = [histories.run(n, 1_000_000 if n < 7 else 1_060_000) for n in range(12)]
    (made / "history.html").write_text(past_page(history(runs), regressions(runs[0], runs[-1])), encoding="utf-8")
    return made


@pytest.fixture
def visit(browser, folder):
    """Opens a page; whatever it asks the network for, logs or throws is kept in ``page.noticed``."""
    contexts = []

    def opened(name="mixed", hash_="", **options):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
        contexts.append(context)
        page = context.new_page()
        page.noticed = []
        page.on("request", lambda request: page.noticed.append(request.url) if not request.url.startswith("file:") else None)
        page.on("console", lambda message: page.noticed.append(message.text))
        page.on("pageerror", lambda error: page.noticed.append(str(error)))
        page.on("dialog", lambda dialog: page.noticed.append(dialog.message))
        page.goto(f"file://{folder}/{name}.html{hash_}")
        return page

    yield opened
    for context in contexts:
        context.close()


def ranges(page):
    """The ranges that the leaderboard shows, in its order."""
    return page.eval_on_selector_all("#board tbody:not([hidden]) a", "links => links.map(link => link.textContent)")


@pytest.mark.parametrize("name", [*sorted(PAGES), "history"])
def test_nothing_is_requested_and_nothing_goes_wrong(visit, name):
    page = visit(name)
    page.wait_for_timeout(200)

    assert page.noticed == []
    assert page.title().endswith("· perfgate")


def test_a_click_on_a_header_sorts_and_says_so(visit):
    page = visit()
    page.click("th[data-key=overhead] button")
    down = ranges(page)
    page.click("th[data-key=overhead] button")
    up = ranges(page)

    assert down[:2] == ["moe/permute:typical:fwd", "attention/dsa:typical:bwd"]
    assert down[-2:] == up[-2:] == ["embedding/backward:typical:fwd", "attention/fa4:typical:fwd"]
    assert up[4] == "moe/permute:typical:fwd"
    assert page.get_attribute("th[data-key=overhead]", "aria-sort") == "ascending"
    assert page.inner_text("#status") == "7 of 7 ranges, sorted by overhead, ascending"


def test_a_large_leaderboard_ends_up_wholly_sorted(visit):
    page = visit("large")
    for descending in (True, False, True):
        page.click("th[data-key=overhead] button")
        page.wait_for_function(
            """descending => {
              const found = [...document.querySelectorAll("#board tbody")].map(body => Number(body.dataset.overhead));
              return found.every((one, i) => !i || (descending ? found[i - 1] >= one : found[i - 1] <= one));
            }""",
            arg=descending,
            timeout=10_000,
        )

    assert 200 == len(ranges(page))


def test_the_filter_finds_ranges_implementations_and_reasons(visit):
    page = visit()
    found = {}
    for text in ("moe", "triton.segment", "bits_differ", "no such thing"):
        page.fill("#filter", text)
        found[text] = ranges(page)

    assert found == {
        "moe": ["moe/permute:typical:fwd", "moe/combine:typical:fwd"],
        "triton.segment": ["moe/combine:typical:fwd"],
        "bits_differ": ["loss/ce:typical:fwd"],
        "no such thing": [],
    }
    assert page.inner_text("#status").startswith("0 of 7 ranges")


def test_a_count_shows_only_its_ranges_until_it_is_pressed_again(visit):
    page = visit()
    tile = page.get_by_role("button", name="2 fail")
    tile.click()
    pressed, shown = tile.get_attribute("aria-pressed"), ranges(page)
    tile.click()

    assert (pressed, shown) == ("true", ["loss/ce:typical:fwd", "moe/permute:typical:fwd"])
    assert len(ranges(page)) == 7


def test_the_state_is_in_the_hash_and_comes_back_from_it(visit, folder):
    page = visit()
    page.click("th[data-key=delta] button")
    page.fill("#filter", "fwd")
    page.get_by_role("button", name="2 fail").click()
    page.uncheck("#all")
    page.click("#theme")
    hash_, shown = page.evaluate("location.hash"), ranges(page)
    again = visit("mixed", hash_)

    assert re.fullmatch(r"#sort=delta&dir=desc&q=fwd&show=fail&all=0&theme=dark", hash_)
    assert shown == ranges(again) == ["moe/permute:typical:fwd", "loss/ce:typical:fwd"]
    assert again.input_value("#filter") == "fwd"
    assert not again.is_checked("#all")
    assert again.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


@pytest.mark.parametrize("hash_", ["#r-moe-combine-typical-fwd", "#sort=name&dir=asc&r=r-moe-combine-typical-fwd"])
def test_a_deep_link_opens_its_range(visit, hash_):
    page = visit("mixed", hash_)
    page.wait_for_timeout(200)

    assert page.eval_on_selector_all("details.range[open]", "all => all.map(one => one.id)") == ["r-moe-combine-typical-fwd"]
    assert 0 <= page.locator("#r-moe-combine-typical-fwd > summary").bounding_box()["y"] < 1000
    assert page.locator("#r-moe-combine-typical-fwd .waterfall").first.is_visible()


@pytest.mark.parametrize(
    "hash_", ["#sort=__proto__&dir=x", "#r=nothing", "#r=%22%3E%3Cscript%3E", "#%E0%A4%A", "#q=%3Cimg src=x>", "#show=x"]
)
def test_a_broken_hash_breaks_nothing(visit, hash_):
    page = visit("mixed", hash_)

    assert page.noticed == []
    assert page.is_visible("#board")


def test_rivals_follow_their_range_on_demand(visit):
    page = visit("large")
    hidden = page.locator("#board tr.rival").count()
    page.check("#all")
    shown = page.locator("#board tr.rival").count()
    page.click("th[data-key=overhead] button")
    apart = page.evaluate("[...document.querySelectorAll('#board tbody')].filter(body => body.rows.length !== 12).length")

    assert (hidden, shown, apart) == (0, 2200, 0)


def test_without_javascript_everything_is_there(visit):
    page = visit("mixed", java_script_enabled=False)
    page.click("#r-moe-combine-typical-fwd > summary")
    page.wait_for_timeout(100)

    assert page.locator("#board tbody a").count() == 7
    assert page.locator("#r-moe-combine-typical-fwd .ranking tbody tr").count() == 4
    assert page.locator("#r-moe-combine-typical-fwd .waterfall").first.is_visible()
    assert not page.is_visible("#filter")
    assert page.locator("button:visible").count() == 0


def test_the_keyboard_is_enough(visit):
    page = visit()
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("/")
    page.keyboard.type("combine")
    page.keyboard.press("Escape")
    everything = len(ranges(page))
    page.keyboard.type("permute")
    page.keyboard.press("Tab")
    for _ in range(40):
        if page.evaluate("document.activeElement.textContent") == "overhead\u00a0%":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for _ in range(40):
        if page.evaluate("document.activeElement.textContent") == "moe/permute:typical:fwd":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)

    assert first == "Skip to the leaderboard"
    assert everything == 7
    assert page.get_attribute("th[data-key=overhead]", "aria-sort") == "descending"
    assert page.evaluate("document.activeElement.parentElement.id") == "r-moe-permute-typical-fwd"
    assert page.locator("#r-moe-permute-typical-fwd[open]").count() == 1


def test_what_has_the_focus_is_outlined(visit):
    page = visit()
    page.keyboard.press("/")
    page.keyboard.press("Tab")

    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["mixed", "hostile", "cpu", "history"])
def test_axe_finds_no_violation(visit, name, scheme):
    page = visit(name, color_scheme=scheme)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]

    assert [(one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"]) for one in found] == []


def test_dark_mode_follows_the_system_and_the_button(visit):
    page = visit("mixed", color_scheme="dark")
    colours = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    page.click("#theme")
    page.click("#theme")
    colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert page.inner_text("#theme") == "Theme: light"
    assert colours == ["rgb(20, 23, 28)", "rgb(255, 255, 255)"]


def test_it_prints_with_its_details_and_closes_them_again(visit):
    page = visit()
    printed = page.pdf(format="A4")
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed))

    assert printed.startswith(b"%PDF")
    assert sheets >= 6
    assert page.locator("details.range[open]").count() == 0


@pytest.mark.parametrize("width", [360, 768, 1280, 3840])
@pytest.mark.parametrize("name", ["mixed", "hostile", "history"])
def test_the_page_never_scrolls_sideways(visit, name, width):
    page = visit(name, viewport={"width": width, "height": 900})
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")

    assert sizes[0] <= sizes[1]


def test_the_verdict_range_and_overhead_are_seen_on_a_telephone(visit):
    page = visit("mixed", viewport={"width": 360, "height": 900})
    row = page.locator("#board tbody tr").nth(3)

    assert row.locator("td").first.is_visible()
    assert row.locator("th a").is_visible()
    assert row.get_by_text("+35.0").is_visible()
    assert page.evaluate(
        "document.querySelector('#board').scrollWidth <= document.querySelector('#board').parentElement.clientWidth + 1"
    )


def test_the_screen_reader_meets_a_table_with_named_columns_and_rows(visit):
    page = visit()

    assert page.get_by_role("columnheader", name="overhead %").count() >= 1
    assert page.get_by_role("rowheader", name="moe/permute:typical:fwd").count() >= 1
    assert page.get_by_role("table", name=re.compile("Busy time in us")).count() == 1
    assert page.get_by_role("img", name=re.compile("ranges; highest overhead")).count() == 1


def test_the_command_is_copied(visit, browser):
    page = visit("mixed", permissions=["clipboard-read", "clipboard-write"])
    page.click("#r-moe-permute-typical-fwd > summary")
    page.locator("#r-moe-permute-typical-fwd .repro .copier").first.click()
    page.wait_for_timeout(100)

    assert page.evaluate("navigator.clipboard.readText()") == (
        "perfgate run --mode both --op moe/permute --case typical --implementation triton.gather"
    )


def test_the_linked_trace_is_what_perfetto_reads(visit):
    page = visit()
    page.click("#r-moe-permute-typical-fwd > summary")
    with page.expect_download() as waited:
        page.locator("#r-moe-permute-typical-fwd a[download]").first.click()
    events = json.loads(Path(waited.value.path()).read_text())["traceEvents"]

    assert {event["name"] for event in events if event["ph"] == "X"} == {
        "_scatter_gather_elementwise_kernel<128, 8>",
        "fill",
        "sort_rows",
    }


def test_a_kernels_whole_name_unfolds(visit):
    page = visit()
    page.click("#r-moe-permute-typical-fwd > summary")
    name = page.locator("#r-moe-permute-typical-fwd details.name").first
    name.locator("summary").click()

    assert name.locator("code").inner_text() == "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)"
    assert shutil.which("chromium") is not None
