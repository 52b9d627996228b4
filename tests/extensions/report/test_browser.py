"""The report in a real browser: no errors, no requests, sliders and keyboard work, WCAG AA, desktop and phone."""

import shutil

import pytest
from support.report import inputs_of

from fairseq_headgates.cli import main as cli

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.rehearsal, pytest.mark.skipif(not BROWSER, reason="needs chromium")]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def address(experiment, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert cli.main(["report", str(out), *map(str, inputs_of(experiment))]) == 0
    return out.as_uri()


@pytest.fixture
def opened(browser, address):
    """opened(viewport, colours): the page, whose `heard` are its messages and requests."""

    def opened(viewport=DESKTOP, colours="light"):
        page = browser.new_page(viewport=viewport, color_scheme=colours)
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("request", lambda request: request.url == address or page.heard.append(request.url))
        page.goto(address)
        return page

    return opened


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_is_accessible_fits_the_width_and_logs_no_messages(viewport, colours, opened):
    from axe_core_python.sync_playwright import Axe

    page = opened(viewport, colours)
    for details in page.query_selector_all("summary"):
        details.click()
    found = Axe().run(page)["violations"]
    assert not [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found]
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"] + 1
    assert page.heard == []
    assert page.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().width > 100)")


def test_the_distribution_follows_its_sliders(opened):
    """Against P(gate = 0) and P(gate = 1) by hand, at log alpha 0: symmetric; then at the highest."""
    page = opened()
    values = lambda: [float(page.locator(f"#{name}").inner_text()) for name in ("p0", "p", "p1", "evaluation")]  # noqa: E731
    low, between, high, gate = values()
    assert low == pytest.approx(high, abs=0.001) and low == pytest.approx(0.312, abs=0.001) and gate == 0.5
    assert low + between + high == pytest.approx(1, abs=0.002)
    path = page.locator("#density-line").get_attribute("d")
    page.locator("#log-alpha").focus()
    page.keyboard.press("End")
    low, between, high, gate = values()
    assert high > 0.99 and gate == 1 and page.locator("#log-alpha-value").inner_text() == "6"
    assert page.locator("#density-line").get_attribute("d") != path
    for name in ("temperature", "low", "high"):
        before = values()
        page.locator(f"#{name}").focus()
        page.keyboard.press("End")
        assert values() != before, name


def test_the_keyboard_reaches_every_head(opened):
    """One stop for each grid; arrows move within it, and the line below says which head has the focus."""
    page = opened()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('td')"):
            break
    said = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        said.append(page.evaluate("document.activeElement.closest('figure').querySelector('output').textContent"))
    places = ["layer 0 head 1", "layer 1 head 1", "layer 1 head 0", "layer 0 head 0", "layer 0 head 0"]
    assert [place in text for place, text in zip(places, said, strict=True)] == [True] * 5
    stops = page.evaluate("document.querySelectorAll('td[tabindex=\"0\"]').length")
    assert stops == page.evaluate("document.querySelectorAll('.grid table').length")
    removed = page.locator("figure.panel:has(td.removed)").first
    removed.locator("td.removed").first.hover()
    assert removed.locator("output").inner_text().endswith(": removed")
