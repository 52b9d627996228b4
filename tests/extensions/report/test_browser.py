"""The report in a real browser: no errors, no requests, WCAG AA, desktop and phone."""

import shutil

import pytest
from support.report import inputs_of

from fairseq_headgates.cli import main as cli

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.release, pytest.mark.skipif(not BROWSER, reason="needs chromium")]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def address(experiment, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert cli.main(["report", "--out", str(out), *map(str, inputs_of(experiment))]) == 0
    return out.as_uri()


@pytest.mark.parametrize("width, colours", [(1280, "light"), (390, "dark")], ids=["desktop", "phone"])
def test_the_page_is_accessible_fits_the_width_and_logs_no_messages(width, colours, browser, address):
    from axe_core_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=colours)
    heard = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: request.url == address or heard.append(request.url))
    page.goto(address)
    for details in page.query_selector_all("summary"):
        details.click()
    found = Axe().run(page)["violations"]
    assert not [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found]
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert heard == []
    assert page.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().width > 100)")
