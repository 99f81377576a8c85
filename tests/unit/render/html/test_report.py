"""report.html as a file: what is in it, what is not, and that it is the same each time. How it behaves: test_browser.py."""

import base64
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from perfgate.render import FORMATS
from tests.unit.render import samples

render = FORMATS["html"]


class Page(HTMLParser):
    """Collects elements; the text of each table cell by table class."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.scripts = []
        self._script = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._script = [] if tag == "script" else None

    def handle_data(self, data):
        if self._script is not None:
            self._script.append(data)

    def handle_endtag(self, tag):
        if tag == "script":
            self.scripts.append("".join(self._script))
            self._script = None


@pytest.fixture(scope="module", params=[samples.mixed, samples.hostile, samples.on_cpu], ids=lambda make: make.__name__)
def text(request):
    return render(request.param())


def test_nothing_is_fetched_from_anywhere(text):
    page = Page(text)
    links = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in ("href", "src", "srcset")
    ]

    assert all(link.startswith(("#", "data:application/json;base64,", "captures/")) for link in links)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert not [attributes for _, attributes in page.elements if any(name.startswith("on") for name in attributes)]


def test_only_our_own_script_may_run(text):
    page = Page(text)
    policy = next(
        a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()

    assert len(page.scripts) == 1
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_ids_are_unique_and_every_link_inside_the_page_leads_somewhere(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    targets = {attributes["href"][1:] for tag, attributes in page.elements if tag == "a" and attributes["href"].startswith("#")}

    assert len(ids) == len(set(ids))
    assert targets <= set(ids)


def test_tables_have_captions_and_headers_have_scopes(text):
    page = Page(text)

    assert len([tag for tag, _ in page.elements if tag == "table"]) == len(
        [tag for tag, _ in page.elements if tag == "caption"]
    )
    assert not [attributes for tag, attributes in page.elements if tag == "th" and "scope" not in attributes]


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\x00", "\u200b", "\x07"])
def test_names_cannot_steer_the_text(character):

    assert character not in render(samples.hostile())


def test_names_stay_names():
    text = render(samples.hostile())

    assert "<script>alert(1)" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7*7 }}" in text


def test_100_kb_of_templates_do_not_make_the_page_large():

    assert len(samples.HUGE) > 100_000
    assert len(render(samples.hostile())) < 500_000


def test_the_verdict_and_the_four_counts_come_first():
    text = render(samples.mixed())
    body = re.sub(r"<[^>]+>", " ", text[text.index("<h1>") : text.index('<dl class="facts">')])

    assert body.split()[1:4] == ["ERROR", "(exit", "6):"]
    assert [word for word in body.split() if word in ("pass", "fail", "inconclusive", "invalid")][-4:] == [
        "pass",
        "fail",
        "inconclusive",
        "invalid",
    ]


def test_the_shown_steps_of_each_waterfall_sum_to_what_its_caption_says():
    text = render(samples.mixed())
    falls = re.findall(r'<table class="waterfall">.*?</table>', text, re.DOTALL)

    assert len(falls) == 8
    for fall in falls:
        said = number(re.search(r"sum to (\S+) ns exactly", fall)[1])
        shown = [
            (kind, number(ns)) for kind, ns in re.findall(r'<tr class="k-(\w+)">.*?<td class="n">([^<]+)</td>', fall, re.DOTALL)
        ]
        steps = [ns for kind, ns in shown if kind != "total"]

        assert sum(steps) == said
        assert shown[0][1] + sum(steps) == shown[-1][1]


def number(text):
    return int(text.replace(",", "").replace("−", "-").replace("+", ""))


def test_ranges_of_one_slug_get_anchors_of_their_own():
    text = render(samples.result([samples.comparison("a/b-c"), samples.comparison("a/b_c"), samples.comparison("a/b.c")]))

    assert {'id="r-a-b-c-typical-fwd"', 'id="r-a-b-c-typical-fwd--2"', 'id="r-a-b.c-typical-fwd"'} <= set(
        re.findall(r'id="r-[^"]*"', text)
    )


def test_a_large_run_stays_under_five_megabytes_and_says_what_it_left_out():
    text = render(samples.large())

    assert len(text.encode()) < 5_000_000
    assert text.count("the details of 11 more implementations are not in this page") == 200
    assert text.count("<tr class=rival>") == 2200


def test_the_same_result_gives_the_same_bytes_in_another_process():
    script = "import hashlib\nfrom perfgate.render import FORMATS\nfrom tests.unit.render import samples\n"
    script += "print(hashlib.sha256(FORMATS['html'](samples.mixed()).encode()).hexdigest())"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.strip() == hashlib.sha256(render(samples.mixed()).encode()).hexdigest()


def test_a_run_that_measured_nothing_says_so():

    assert "Nothing was measured." in render(samples.result([]))
