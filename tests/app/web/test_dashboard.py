"""The page at `/`, its parts, and the documentation: as files, and in a real browser with hostile names."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiohttp.web import Application, AppRunner, Request, Response, TCPSite
from aiokafka import TopicPartition

from app.pipeline.report import FlowReport
from app.web.dashboard import Dashboard
from app.web.history import History
from app.web.overview import Overview
from tests.app.reports import Pipeline, pipeline_settings
from tests.browser import Browser

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
WORKER_PAGES = {"metrics", "health", "pipelines", "connectors?expand=status"}


@asynccontextmanager
async def served(pipelines: Sequence[Pipeline]) -> AsyncIterator[str]:
    """The address of the page for these pipelines."""
    web = Application()
    dashboard = Dashboard(Overview(pipelines, 1_000, History(pipelines)))

    async def index(_: Request) -> Response:
        return dashboard.index()

    web.router.add_get("/", index)
    dashboard.add_to(web)
    runner = AppRunner(web, access_log=None)
    await runner.setup()
    try:
        await TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_all_parts_are_there_and_are_ours() -> None:
    """Whatever the page names is served here, with a policy that forbids all else, scripts in the markup too."""
    async with served([Pipeline()]) as address, ClientSession() as session, session.get(address) as page:
        text = await page.text()
        assert page.content_type == "text/html"
        named = set(re.findall(r'(?:src|href)="([^"#]+)"', text)) - WORKER_PAGES
        for path in named:
            async with session.get(address + path) as part:
                assert (part.status, part.charset) == (200, "utf-8"), path
                policy = part.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; ")
                assert "unsafe" not in policy
                assert "http" not in policy
                assert part.headers["X-Content-Type-Options"] == "nosniff"
                kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".md": "text/plain"}
                assert part.content_type == kind[Path(path).suffix]
    assert {path.rpartition("/")[0] for path in named} == {"static", "docs"}
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\son\w+=|\sstyle=", text)


@pytest.mark.parametrize(
    "path",
    [
        "static/nothing.js",
        "static/..%2fdashboard.py",
        "static/%2e%2e%2fdashboard.py",
        "docs/..%2fREADME.md",
        "docs/configuration_page.py",
        "docs/%2fetc%2fpasswd",
        "docs/",
        "static/page.js/",
        "docs/%00",
    ],
)
async def test_nothing_else_is_served(path: str) -> None:
    """A name that is not one of the parts, whatever it looks like, is not here: no path is made of it."""
    async with served([Pipeline()]) as address, ClientSession() as session:
        from yarl import URL

        async with session.get(URL(address + path, encoded=True)) as answer:
            assert answer.status == 404


@pytest.mark.parametrize(
    ("number", "status"),
    [("0", 200), ("999999999999999", 200), ("-1", 400), ("x", 400), ("9" * 5_000, 400), ("٣", 400)],
)
@pytest.mark.parametrize("parameter", ["after", "open"])
async def test_number_of_a_request_is_checked(parameter: str, number: str, status: int) -> None:
    """What is no number is refused with one line; a pipeline that is not there is ignored."""
    async with (
        served([Pipeline()]) as address,
        ClientSession() as session,
        session.get(f"{address}overview", params={parameter: number}) as answer,
    ):
        assert answer.status == status
        assert len(await answer.read()) < 4_000


@pytest.mark.browser
async def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Markup in names, topics, reasons and groups is shown as it is written: it makes no element, and nothing runs."""
    settings = dataclasses.replace(
        pipeline_settings("p"),
        name=HOSTILE,
        topics=(HOSTILE,),
        output_topic=HOSTILE,
        dead_letter_topic=HOSTILE,
        group_id=HOSTILE,
        transforms=(HOSTILE,),
        store={"large.message.payload.store.class": HOSTILE},
    )
    flow = FlowReport(positions={TopicPartition(HOSTILE, 0): (0, 0, 5)})
    many = FlowReport(positions={TopicPartition("many", number): (0, 0, number) for number in range(60)})
    pipelines = [
        Pipeline(own_settings=settings, flow_report=flow, degraded=HOSTILE),
        Pipeline("other", status="FAILED", last_error=f"{HOSTILE}\u202e\x00"),
        Pipeline("third", last_error=HOSTILE, last_error_at=1.0, flow_report=many),
    ]
    async with served(pipelines) as address:

        def look() -> None:
            with Browser.started(tmp_path) as browser:
                browser.open(address)
                browser.until("document.querySelectorAll('.open').length === 3")
                browser.run("document.querySelectorAll('.open').forEach((each) => each.click())")
                browser.until("document.querySelectorAll('.card').length === 3")
                page = browser.text()
                for where in (HOSTILE, f"group {HOSTILE}", f"{HOSTILE} 0", f"to {HOSTILE}"):
                    assert where in page
                assert browser.run("return document.title") == "1 failed, 1 degraded – Wideload"
                assert browser.run("return document.querySelectorAll('img, script:not([src])').length") == 0
                assert browser.complaints() == []
                assert browser.hosts() == {address.split("/")[2]}
                # What can be scrolled has the focus of the keyboard, and a name; what is short is no stop.
                stops = "[...document.querySelectorAll('.scroll')].map((e) => [e.tabIndex, e.getAttribute('role')])"
                assert browser.run(f"return {stops}") == [[-1, None], [-1, None], [0, "region"]]
                # So are names in the address of the page.
                assert browser.run("return new URLSearchParams(location.hash.slice(1)).getAll('open')[1]") == HOSTILE
                # The policy is not only sent: it is what the browser enforces.
                refused = "try { document.body.innerHTML = '<b>'; return 'set' } catch (error) { return error.name }"
                assert browser.run(refused) == "TypeError"

        await asyncio.to_thread(look)


NAMES = "[...document.querySelectorAll('.list > tbody:not([hidden]) .open')].map((each) => each.textContent)"
SHIFTS = """
    new PerformanceObserver((list) => {
        window.shifts = [...(window.shifts ?? []), ...list.getEntries().map((each) => each.value)];
    }).observe({ type: "layout-shift", buffered: true });
"""
FRAME = "return new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
ASK = "document.dispatchEvent(new Event('visibilitychange'))"  # as if the tab came to the front


@pytest.mark.browser
async def test_fifty_pipelines_are_an_overview(tmp_path: Path) -> None:
    """A row for each, those in trouble first; a filter; a card where one is opened. Nothing jumps or complains."""
    pipelines = [Pipeline(f"orders-{number}", flow_report=FlowReport()) for number in range(50)]
    pipelines[30].status = pipelines[30].target = "PAUSED"
    pipelines[23].degraded = "the store is down"
    pipelines[7].status, pipelines[7].last_error = "FAILED", "partition 0, offset 17"
    async with served(pipelines) as address:

        def look() -> None:
            with Browser.started(tmp_path) as browser:
                for width, most in ((1280, 2_500), (390, 5_500)):
                    browser.look(width, 900)
                    rows(browser, address, width, most)
                    links(browser, address)
                browser.look(780, 900)  # the narrowest with columns
                browser.until("innerWidth === 780 && document.querySelector('.row th').clientWidth > 150")
                filters(browser)
                large_text(browser)
                browser.look(780, 900)
                row_moves(browser, pipelines[49])
                unseen_pictures(browser)
                assert browser.complaints() == []

        await asyncio.to_thread(look)


CALM = [f"orders-{number}" for number in (*range(7), *range(8, 23), *range(24, 30), *range(31, 50))]


def rows(browser: Browser, address: str, width: int, most: int) -> None:
    """Nothing jumps while the page comes, with a card, and follows; with the card closed, its height is bounded."""
    browser.open(f"{address}#open=orders-7")
    browser.run(SHIFTS)
    browser.until("document.querySelectorAll('.card .chart path').length > 0")
    for _ in range(3):
        asked = browser.run("return performance.getEntriesByType('resource').length")
        browser.run(ASK)
        browser.until(f"performance.getEntriesByType('resource').length > {asked}")
    assert browser.run("return window.shifts ?? []") == []
    browser.run("document.querySelectorAll('.open')[0].click()")
    assert browser.run("return document.querySelectorAll('.card').length + location.hash") == "0"
    assert browser.run("return document.documentElement.scrollHeight") < most
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(f"return {NAMES}") == ["orders-7", "orders-23", "orders-30", *CALM]


def links(browser: Browser, address: str) -> None:
    """What a link opens is in sight, however far down its row is; when the page follows, it does not scroll again."""
    seen = "const { top, bottom } = document.querySelector('.card').getBoundingClientRect(); "
    browser.open(f"{address}#open=orders-45")
    browser.until("document.querySelector('.card .chart path')")
    assert browser.run(f"{seen} return top >= 0 && top < innerHeight && bottom > 0")
    browser.run("window.scrollTo(0, 0)")
    asked = browser.run("return performance.getEntriesByType('resource').length")
    browser.run(ASK)
    browser.until(f"performance.getEntriesByType('resource').length > {asked}")
    browser.run(FRAME)
    assert browser.run("return scrollY") == 0
    browser.run("document.querySelector('.card').closest('tbody').querySelector('.open').click()")


def filters(browser: Browser) -> None:
    """Both filters count, are reported to screen readers, and outlast a reload. A wrong address is ignored."""
    entered = (
        "const [id, text] = arguments; document.getElementById(id).value = text; "
        "document.getElementById(id).dispatchEvent(new Event('input'))"
    )
    browser.run(entered, "state", "trouble")
    assert browser.run(f"return {NAMES}") == ["orders-7", "orders-23"]
    browser.run(entered, "name", " ORDERS-2")
    assert browser.run(f"return {NAMES}") == ["orders-23"]
    assert browser.text("#said") == browser.text("#matching") == "1 of 50 pipelines"
    browser.driver.refresh()
    browser.until("document.querySelectorAll('.row').length === 50")
    assert browser.run(f"return {NAMES}") == ["orders-23"]
    browser.run(entered, "name", "")
    browser.run(entered, "state", "paused")
    assert browser.run(f"return {NAMES}") == ["orders-30"]
    browser.run("location.hash = '#state=odd&open=nothing&%'")
    browser.until("document.querySelector('#matching').textContent === ''")
    assert browser.run("return document.querySelector('#state').selectedOptions[0].text") == "All"


def large_text(browser: Browser) -> None:
    """On a phone with text twice as large nothing in the overview is wider than the page."""
    browser.look(360, 900)
    browser.run("document.documentElement.style.fontSize = '200%'; document.querySelectorAll('.open')[0].click()")
    browser.until("document.querySelector('.card .chart path') && document.querySelector('.list').clientWidth < 360")
    parts = "[...document.querySelectorAll('header *, .filter *, .row, .row *')]"
    wide = f"{parts}.filter((each) => each.getBoundingClientRect().right > 360)"
    assert browser.run(f"return {wide}.map((each) => each.outerHTML.slice(0, 80))") == []
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    browser.run("document.documentElement.style.fontSize = ''; document.querySelectorAll('.open')[0].click()")


def row_moves(browser: Browser, last: Pipeline) -> None:
    """The last pipeline gets into trouble: it goes up, with the focus and the reason, and is reported."""
    browser.run("[...document.querySelectorAll('.open')].at(-1).focus()")
    last.degraded = "broker 1 does not answer"
    browser.run(ASK)
    browser.until(f"({NAMES}).indexOf('orders-49') === 2")
    assert browser.run(f"return {NAMES}") == ["orders-7", "orders-23", "orders-49", "orders-30", *CALM[:-1]]
    assert browser.run("return document.activeElement.textContent") == "orders-49"
    assert browser.text("#said") == "orders-49: degraded. broker 1 does not answer"


def unseen_pictures(browser: Browser) -> None:
    """Pictures without a place, or with a tiny one, are not drawn."""
    browser.run("document.querySelectorAll('.open')[0].click()")
    browser.until("document.querySelector('.chart path')")
    for width, hidden in ((390, True), (30, False)):
        browser.look(width, 900)
        browser.run("document.querySelector('main').hidden = arguments[0]", hidden)
        browser.until("document.querySelector('.chart').clientWidth < 40")
        browser.run(FRAME)
