"""Takes the pictures of a run's report.html that the README shows: ``python reports/screenshots.py reports/h200/main``.

Needs the test extra (playwright) and Debian's chromium. Writes leaderboard.png, range.png, dark.png and phone.png beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def take(folder: Path) -> None:
    """The four pictures of ``folder``/report.html; the range shown is the leaderboard's first that has a waterfall."""
    page = f"file://{(folder / 'report.html').resolve()}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        picture(browser, page, folder / "leaderboard.png", 1440, 900)
        picture(browser, page, folder / "phone.png", 390, 844)
        picture(browser, page, folder / "range.png", 1440, 1400, detail=True)
        picture(browser, page, folder / "dark.png", 1440, 1400, dark=True, detail=True)
        browser.close()


def picture(
    browser: Browser, url: str, path: Path, width: int, height: int, *, dark: bool = False, detail: bool = False
) -> None:
    """One screenshot of the page, or of a range's details."""
    shown = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    shown.goto(url)
    if detail:
        chosen = shown.locator("details.range:has(.waterfall)").first
        chosen.locator("> summary").click()
        chosen.screenshot(path=path)
    else:
        shown.screenshot(path=path)
    shown.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
