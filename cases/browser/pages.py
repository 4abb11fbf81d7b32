"""The pages in a real browser: `make test-browser`. Each is opened from a file, with no network to be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases.browser import runs
from cases.browser.driver import Browser
from harness.bench.history.history import History
from harness.bench.stats.compare import compare
from harness.bench.stats.design import Design
from harness.bench.stats.gate import GateReport
from harness.bench.stats.of_result import GATED
from harness.cli import main
from harness.report.bench.verdicts import comparison
from harness.report.index import file_outcome

SHOTS = Path(os.environ.get("SHOTS") or Path(__file__).resolve().parents[2] / "reports" / "browser")
"""Where photographs of the pages are left, for people to look at."""
MOST_BYTES = 2_000_000
PHONE, DESK = 390, 1280
DRAWN = """[...document.querySelectorAll('.picture')].filter(one => one.checkVisibility()).map(one => {
  const marks = [...one.querySelectorAll('svg path, svg rect, svg line')].map(mark => mark.getBoundingClientRect());
  const box = one.getBoundingClientRect();
  return {
    name: one.closest('figure').querySelector('h3').textContent,
    kind: one.classList.contains('desk') ? 'desk' : 'phone',
    marks: marks.filter(mark => mark.width > 1 || mark.height > 1).length,
    width: box.width, height: box.height,
    letters: Math.min(...[...one.querySelectorAll('text')].map(text => text.getBoundingClientRect().height)),
    told: one.getAttribute('aria-label').length,
  };
})"""
CONTRAST = """(() => {
  const light = colour => {
    const parts = colour.match(/[0-9.]+/g).map(Number).slice(0, 3)
      .map(one => one / 255).map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = one => {
    for (; one; one = one.parentElement) {
      const found = getComputedStyle(one).backgroundColor;
      if (!found.endsWith(', 0)')) return light(found);
    }
    return 1;
  };
  return [...document.querySelectorAll('h1, h2, h3, p, td, th, dt, dd, li, a, summary, .verdict, svg text')]
    .filter(one => one.checkVisibility() && one.textContent.trim()).map(one => {
      const style = getComputedStyle(one);
      const pair = [light(one.matches('svg text') ? style.fill : style.color), behind(one)].sort((a, b) => b - a);
      return [(pair[0] + 0.05) / (pair[1] + 0.05), one.textContent.trim().slice(0, 60)];
    }).sort((a, b) => a[0] - b[0])[0];
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def right(reports: Path) -> Path:
    return runs.two_by_two(reports)


@pytest.fixture(scope="module")
def hostile(reports: Path) -> Path:
    return runs.hostile(reports)


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No page ever says anything to the console, and none asks for anything but itself."""
    yield
    assert browser.seen.said == []
    assert [address for address in browser.seen.asked if not address.startswith("file:")] == []


def drawn(browser: Browser) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in browser.run(DRAWN)}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE], ids=["desk", "phone"])
def test_every_chart_is_drawn_and_can_be_read(browser: Browser, right: Path, width: int, dark: bool) -> None:
    page = right / "index.html"
    assert page.stat().st_size < MOST_BYTES
    seen = browser.open(page, width=width, dark=dark)
    browser.photograph(
        SHOTS / f"bench-{'phone' if width == PHONE else 'desk'}-{'dark' if dark else 'light'}.png"
    )
    found = drawn(browser)
    for name in ("TTFT", "TPOT", "ITL", "ITL, amortised", "E2EL"):
        assert any(title.startswith(f"{name}: ") for title in found), name
    assert {"Throughput against concurrency", "Acceptance by position", "Acceptance by schema"} <= set(found)
    assert "guided, speculation mtp" in found  # a timeline
    assert f"{runs.NAME}: tpot.mean_ms" in found  # its nights
    for name, one in found.items():
        assert one["kind"] == ("phone" if width == PHONE else "desk"), name
        assert one["marks"] >= 3, name
        assert one["height"] > 50, name
        assert one["letters"] >= 10, f"letters of {name} have {one['letters']} pixels"
        assert one["told"] > 20, f"{name} has no words for those who do not see it"
    assert browser.run("document.documentElement.scrollWidth") <= width
    contrast, where = browser.run(CONTRAST)
    assert contrast >= 4.4, where
    assert seen.asked == [page.resolve().as_uri()]


def test_what_anybody_says_is_text(browser: Browser, hostile: Path) -> None:
    browser.open(hostile / "index.html")
    browser.photograph(SHOTS / "hostile.png")
    assert browser.run("document.title").startswith("bench: <script>")
    assert (
        browser.run(
            "document.querySelectorAll('script, img, iframe, object, embed, link[rel=stylesheet]').length"
        )
        == 0
    )
    assert browser.run("document.querySelectorAll('[onerror], [onload], [onclick]').length") == 0
    text = browser.run("document.documentElement.textContent")
    assert text.count(runs.SCRIPT) > 20
    assert not set(text) & set("\u2028\u202e\x1b\x00")
    assert r"\u001b[31mred" in text
    assert r"\u2028" in text
    assert "{{ 7 * 7 }}" in text
    labels = browser.run("[...document.querySelectorAll('svg text')].map(one => one.textContent).join(' ')")
    assert "<script>" in labels  # Vega's escaping, not ours
    assert browser.run("document.documentElement.scrollWidth") <= DESK
    browser.open(hostile / "index.html", width=PHONE)
    assert browser.run("document.documentElement.scrollWidth") <= PHONE


def test_a_megabyte_is_cut_and_the_whole_is_a_link_away(browser: Browser, hostile: Path) -> None:
    page = hostile / "index.html"
    assert page.stat().st_size < MOST_BYTES
    browser.open(page)
    longest = browser.run(
        "Math.max(...[...document.querySelectorAll('pre.passage')].map(one => one.textContent.length))"
    )
    assert longest < 7 * 4096  # invisible characters take six
    links = browser.run(
        "[...document.querySelectorAll('a[href^=\"texts/\"]')].map(one => [one.href, one.parentElement.textContent])"
    )
    whole = [address for address, words in links if "4,096 of 1,048,584 characters" in words]
    assert whole
    browser.run(f"location.assign({whole[0]!r})")
    browser.until(
        lambda: bool(browser.run("location.href.endsWith('.txt') && document.readyState == 'complete'"))
    )
    assert browser.run("document.contentType") == "text/plain"
    assert browser.run("document.body.textContent") == runs.LONG
    broken = [address for address, words in links if "of 60,5" in words]
    browser.run(f"location.assign({broken[0]!r})")
    browser.until(
        lambda: bool(browser.run(f"location.href == {broken[0]!r} && document.readyState == 'complete'"))
    )
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    assert browser.run("document.title") != "owned"


def test_a_keyboard_reaches_everything(browser: Browser, right: Path) -> None:
    browser.open(right / "index.html")
    reached = browser.run(
        "[...document.querySelectorAll('a[href], summary, .wrap, pre')].filter(one => one.checkVisibility()).length"
    )
    stops = []
    for _ in range(reached + 5):
        browser.press("Tab", 9)
        stop = browser.run(
            "(() => { const one = document.activeElement, style = getComputedStyle(one);"
            " return [one.tagName, style.outlineStyle, parseFloat(style.outlineWidth)] })()"
        )
        if stop[0] == "BODY":
            break
        stops.append(stop)
    assert len(stops) == reached
    assert all(outline != "none" and width >= 2 for _, outline, width in stops)
    browser.run("document.querySelector('figure summary').focus()")
    assert not browser.run("document.querySelector('figure details').open")
    browser.press("Enter", 13)
    assert browser.run("document.querySelector('figure details').open")
    assert "P99" in browser.run("document.querySelector('figure details table').textContent")
    assert browser.run("document.querySelectorAll('h1').length") == 1


def test_a_night_of_ten_thousand_requests_is_a_small_page(browser: Browser, reports: Path) -> None:
    page = runs.many(reports) / "index.html"
    assert page.stat().st_size < MOST_BYTES
    browser.open(page)
    browser.photograph(SHOTS / "many.png")
    found = drawn(browser)
    assert found[runs.NAME]["marks"] >= 3  # a curve of how many were under way
    assert "10,000 requests" in browser.run("document.body.textContent")


def test_the_page_of_all_runs_leads_to_each(
    browser: Browser, reports: Path, right: Path, hostile: Path
) -> None:
    damaged, killed = reports / f"repro-{runs.SCRIPT.replace('/', '')}", reports / "live-20260101-000000-1"
    for folder in (damaged, killed):
        folder.mkdir()
        (folder / "run.json").write_text("{")
    (damaged / "outcome.json").write_text('{"exit": ')
    file_outcome(
        hostile, {"verb": "bench", "exit": 1, "verdict": f"wrong | {runs.HOSTILE}", "speedup_free": 1.5}
    )
    browser.open(reports / "index.html")
    browser.photograph(SHOTS / "index.png")
    rows = browser.run(
        "[...document.querySelectorAll('tbody tr')].map(one => one.textContent.replace(/\\s+/g, ' '))"
    )
    assert any(
        "damaged" in row and "<script>" in row and "outcome.json cannot be read" in row for row in rows
    )
    assert any("unfinished" in row and "live" in row for row in rows)
    assert any("fail" in row and "speed-up free 1.50 ×" in row and "wrong |" in row for row in rows)
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    link = f'a[href="{right.name}/index.html"]'
    assert browser.run(f"document.querySelectorAll({link!r}).length") == 2
    browser.run(f"document.querySelector({link!r}).click()")
    browser.until(lambda: browser.run("document.title").startswith("bench: Right answers"))
    browser.open(reports / "index.html", width=PHONE)
    browser.photograph(SHOTS / "index-phone.png")
    assert browser.run("document.documentElement.scrollWidth") <= PHONE


def test_trends_and_intervals_are_drawn(browser: Browser, tmp_path: Path) -> None:
    url, page = runs.nights(tmp_path), tmp_path / "history.html"
    assert main(["history", "page", str(url), "--out", str(page)]) == 0
    for width, name in ((DESK, "history"), (PHONE, "history-phone")):
        browser.open(page, width=width)
        browser.photograph(SHOTS / f"{name}.png")
        found = drawn(browser)
        assert set(found) == {"tpot.mean_ms", "throughput.output"}
        assert all(one["marks"] > 60 for one in found.values())  # a point for each night
        said = browser.run("[...document.querySelectorAll('svg text')].map(one => one.textContent).join(' ')")
        assert "fixed" in said
        assert "better" in said
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert "No new change for the worse" in browser.run("document.body.textContent")
    with History(str(url)) as history:
        found_runs = history.runs()
    report = GateReport.of(compare(found_runs[10:20], found_runs[20:30], Design(effects=GATED)))
    page.write_text(comparison("b against a", {"free-mtp": report}), encoding="utf-8")
    for width, name in ((DESK, "compare"), (PHONE, "compare-phone")):
        browser.open(page, width=width, dark=True)
        browser.photograph(SHOTS / f"{name}.png")
        assert drawn(browser)["free-mtp: how much worse"]["marks"] >= 8
        assert "regression" in browser.run("document.querySelector('svg').textContent")
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('.banner.fail').textContent") == "Regression"
