"""A walk through the page in a headless Chromium, with real nodes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Browser, browsing, chromium
from tests.e2e.in_process import Town, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no chromium here (Debian: apt-get install chromium)"),
]
NASTY = "<img src=x onerror=alert(1)>"
NODES = ".wide-table:not(.peers) tbody"  # the other table is that of reachability
TOKEN = "a-token-of-sixteen-and-more"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with browsing(tmp_path / "profile") as made:
        made.resize(1280, 900)
        yield made


def visit(path: Path, walk: Callable[[str], None], **http: str) -> None:
    """Three nodes, one of them with a name that tries to be markup; the walk goes through the first one's page."""

    async def scene(town: Town) -> None:
        page = {"listen": "127.0.0.1:0", "every": 0.5, **http}
        ann = await town.runs("ann", policy={"name": "el"}, http=page)
        for name in ("bob", NASTY):
            await town.runs(name, policy={"name": "el"}, peer_seed=[ann.address])
        await ann.until(lambda: len(ann.node.peers()) == 2 and ann.round >= 2)
        assert ann.node.node_observer.page
        await asyncio.to_thread(walk, ann.node.node_observer.page.url)

    play(path / "town", scene)


def test_every_view_shows_the_swarm_and_nothing_goes_wrong(tmp_path: Path, browser: Browser) -> None:
    def walk(url: str) -> None:
        browser.open(url)
        browser.until(f"document.querySelectorAll('{NODES} tr').length === 3")
        assert browser.run("document.querySelector('#name').textContent") == "ann"
        browser.until("document.querySelector('#live').textContent === 'live'")
        browser.until("document.querySelectorAll('.chart path.line').length >= 2")
        assert browser.run(f"document.querySelectorAll('{NODES} td')[3].innerText").endswith("%")
        names = browser.run(f"[...document.querySelectorAll('{NODES} tr a')].map(a => a.children[1].textContent)")
        assert set(names) == {"ann", "bob", NASTY}, "a name is text, whatever it looks like"
        assert browser.run("document.querySelectorAll('img[src=\"x\"]').length") == 0

        browser.click('.tabs a[href="#/swarm"]')
        browser.until("document.querySelectorAll('.graph .node').length === 3")
        browser.until("document.querySelectorAll('.graph .edges line').length >= 1")
        browser.run("document.querySelector('canvas.heat').focus()")
        browser.press("ArrowRight")
        browser.press("ArrowRight")
        browser.until("document.querySelector('.readout').textContent.includes('learned from')")

        browser.click('.tabs a[href="#/traffic"]')
        browser.until("document.querySelectorAll('.bars li').length >= 2")
        browser.click('.tabs a[href="#/events"]')
        browser.until("document.querySelectorAll('.events li').length >= 3")
        browser.click('.chip[data-key="joined"]')
        browser.until("![...document.querySelectorAll('.events .badge')].some(b => b.textContent === 'joined')")

        browser.click('.tabs a[href="#/"]')
        browser.until(f"document.querySelectorAll('{NODES} tr').length === 3")
        browser.click(f"{NODES} tr:nth-child(2) a")
        browser.until("document.querySelector('.page-title')?.textContent")
        assert browser.run("document.querySelector('.facts').innerText.includes('127.0.0.1:')")
        assert browser.troubles == []
        assert {r.split("/")[2] for r in browser.requests if r.startswith("http")} == {url.split("/")[2]}

    visit(tmp_path, walk)


def test_it_fits_a_phone_and_can_be_light_or_dark(tmp_path: Path, browser: Browser) -> None:
    def background() -> str:
        return str(browser.run("getComputedStyle(document.body).backgroundColor"))

    def walk(url: str) -> None:
        browser.resize(390, 844, phone=True)
        browser.prefer("light")
        browser.open(url)
        browser.until(f"document.querySelectorAll('{NODES} tr').length === 3")
        for view in ("", "swarm", "traffic", "events"):
            browser.run(f"location.hash = '#/{view}'")
            browser.until("document.querySelector('.view').children.length")
            assert browser.run("document.documentElement.scrollWidth") <= 390, view
        light = background()
        browser.prefer("dark")
        dark = background()
        assert light != dark
        browser.click("#theme")
        assert (browser.run("document.documentElement.dataset.theme"), background()) == ("light", light)
        browser.click("#theme")
        assert (browser.run("document.documentElement.dataset.theme"), background()) == ("dark", dark)

    visit(tmp_path, walk)


def test_a_node_that_goes_is_missed_on_the_page(tmp_path: Path, browser: Browser) -> None:
    def walk(url: str) -> None:
        browser.open(url)
        browser.until(f"document.querySelectorAll('{NODES} tr').length === 3")

    visit(tmp_path, walk)
    browser.until("!document.querySelector('#alarm').hidden")
    assert "The node does not answer since" in browser.text()


def test_with_a_token_the_page_asks_for_it(tmp_path: Path, browser: Browser) -> None:
    def walk(url: str) -> None:
        browser.open(url)
        browser.until("!!document.querySelector('#token')")
        browser.run("document.querySelector('#token').value = 'wrong'")
        browser.click("form button")
        browser.until("document.querySelector('.wrong')?.textContent === 'That is not the token.'")
        browser.run(f"document.querySelector('#token').value = '{TOKEN}'")
        browser.click("form button")
        browser.until(f"document.querySelectorAll('{NODES} tr').length === 3")

    visit(tmp_path, walk, token=TOKEN)
