"""The cost of the page in a browser: sizes, times to the first key, frames while text streams, long chats, memory.

Everything runs in Chromium against a real server; a provider in a process of its own speaks markdown at 200 tokens a
second. "throttled" is a quarter of the CPU. Times are absolute, as people feel them: on a busy machine compare with
the frames of an empty page, which are printed first.

    python benchmarks/web/run.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.web.page_probe import (
    call,
    calls_per_second,
    heap_mb,
    idle_percent,
    main_thread,
    percentile,
    slow_down,
    typing,
)
from benchmarks.web.page_rig import PageRig, open_rig

from rookery.api.web_app import WebApp, packaged
from tests.browser.stored_chats import END

KIB = 1024
LONG, QUICK_LONG = 5_000, 1_000
SHORT = 40
DIFF_FILES, DIFF_LINES = 10, 2_000
EDITS = 'section[aria-label="Edits of this chat"]'
CHATS = 12  # more than a page keeps in memory
KEPT = 8
# Between one token and the end of recording, so that the answer never ends first.
SPARE_SECONDS = 20

Claims = dict[str, dict[str, object]]


def claim(claims: Claims, name: str, value: float, budget: float) -> None:
    claims[name] = {"value": round(value, 2), "budget": budget, "ok": value <= budget}
    print(f"{name:78} {value:9.2f} {budget:8g}  {'ok' if value <= budget else 'MISSED'}", flush=True)


def sizes(web: WebApp) -> dict[str, float]:
    """KiB of every file as a browser gets it, with gzip."""
    return {name: each.encoded.get("gzip", each.path).stat().st_size / KIB for name, each in web.files.items()}


def measure_sizes(claims: Claims, loaded: list[str]) -> None:
    """`loaded`: the files that the browser asked for until somebody could write."""
    files = sizes(packaged())
    scripts = {name: size for name, size in files.items() if name.endswith(".js")}
    first = {name: size for name, size in scripts.items() if name in loaded}
    lazy = {name: size for name, size in scripts.items() if name not in loaded and "mermaid" not in name}
    styles = sum(size for name, size in files.items() if name in loaded and name.endswith(".css"))
    claim(claims, "scripts until a chat is usable, KiB gzip", sum(first.values()), 260)
    claim(claims, "styles until a chat is usable, KiB gzip", styles, 25)
    claim(claims, "largest script at the start, KiB gzip", max(first.values()), 90)
    claim(claims, "largest script that is loaded later, KiB gzip", max(lazy.values()), 100)


async def measure_start(rig: PageRig, claims: Claims, *, rounds: int) -> None:
    loaded: list[str] = []
    for name, budget, is_slow in (("plain", 600, False), ("throttled, 10 Mbit/s and 40 ms", 2_000, True)):
        times = []
        for _ in range(rounds):
            async with rig.tab() as page:
                if is_slow:
                    await slow_down(page, network=True)
                await page.goto(rig.url)
                found = await call(page, "usable")
                times.append(found["at"])
                loaded = found["loaded"]
        claim(claims, f"composer usable, cold, {name}, ms", statistics.median(times), budget)
    measure_sizes(claims, loaded)


async def measure_switches(rig: PageRig, claims: Claims, *, switches: int, idle_seconds: float) -> None:
    """Chats are opened by a click in the list, as people do."""
    chats = [(title, await rig.rested(title, SHORT)) for title in (f"Chat {n:02}" for n in range(CHATS))]
    async with rig.tab() as page:
        await page.goto(rig.url)
        await page.locator(f'a[href^="/c/{chats[-1][1]}"]').wait_for()
        fresh = [await open_chat(page, each) for each in chats]
        claim(claims, "opening a chat that is not held, after the first byte, p50 ms", middle(fresh, "afterFirst"), 250)
        print(f"{'  from the click on':78} {middle(fresh, 'whole'):9.2f}")
        async with main_thread(page) as spent:
            held = [await open_chat(page, each) for _ in range(3) for each in chats[2 - KEPT :]]
        claim(claims, "opening a chat that is held, p50 ms", middle(held[KEPT - 2 :], "whole"), 100)
        print(f"{'  CPU of the main thread for each':78} {spent['TaskDuration'] / len(held) * 1000:9.2f}")
        before = await heap_mb(page)
        for number in range(switches):
            await open_chat(page, chats[number % len(chats)])
        growth = await heap_mb(page) - before
        claim(claims, f"heap growth of {switches} chat switches, MB", growth, 10)
        await page.wait_for_timeout(2_000)
        claim(claims, "idle tab, % of a CPU", await idle_percent(page, idle_seconds), 0.5)


async def open_chat(page: Page, chat: tuple[str, str]) -> dict[str, float]:
    title, chat_id = chat
    found: dict[str, float] = await call(page, "open", chat_id, f"{END} {title}")
    return found


def spread(keys: list[float]) -> str:
    return f"{len(keys)} keys, to paint p50 {percentile(keys, 50):.1f} ms, worst {max(keys):.1f} ms"


def middle(times: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in times)


async def print_floor(rig: PageRig, *, seconds: float) -> None:
    """What the machine and the browser allow: keys in a page with nothing but a text field, and in a chat at rest."""
    chat = await rig.rested("At rest", SHORT)
    for where in ("a bare text field", "a chat at rest"):
        async with rig.tab() as page:
            if where == "a chat at rest":
                await page.goto(f"{rig.url}/c/{chat}")
                await call(page, "waitFor", f"{END} At rest")
            else:
                await page.goto("about:blank")
                await page.set_content("<textarea data-composer></textarea>")
            for name in ("plain", "throttled"):
                if name == "throttled":
                    await slow_down(page)
                async with typing(page, every_ms=80):
                    keys = (await call(page, "record", seconds * 1000))["keys"]
                what = f"  floor: keys in {where}, {name}, to paint p95 ms"
                print(f"{what:78} {percentile(keys, 95):9.2f}", flush=True)


async def measure_streaming(rig: PageRig, claims: Claims, *, seconds: int) -> None:
    """With the end in view, where every word is shown at once: text below the view is rendered less often."""
    for name, frame_budget, key_budget, is_slow in (("plain", 17, 20, False), ("throttled", 34, 50, True)):
        async with rig.tab() as page:
            chat = await rig.speaking(seconds + SPARE_SECONDS)
            await page.goto(f"{rig.url}/c/{chat}")
            await page.get_by_test_id("live").get_by_role("heading", name="Part 1").wait_for()
            await call(page, "follow")
            if is_slow:
                await slow_down(page)
            async with main_thread(page) as spent, typing(page, every_ms=80):
                found: dict[str, Any] = await call(page, "record", seconds * 1000)
            published = 0.0 if is_slow else await calls_per_second(page, "publish", min(seconds / 4, 5))
        await rig.ask("POST", f"/chats/{chat}/interrupt")
        what = f"200 tokens/s for {seconds} s, {name}"
        claim(claims, f"{what}: frame p95 ms", percentile(found["frames"], 95), frame_budget)
        claim(claims, f"{what}: key to paint p95 ms", percentile(found["keys"], 95), key_budget)
        tasks = len(found["tasks"]) / seconds * 10
        if is_slow:
            claim(claims, f"{what}: long tasks per 10 s", tasks, 1)
        claim(claims, f"{what}: changes of rows that are not live", found["changed"], 0)
        if not is_slow:
            assert published > 0, "The method that publishes has another name."
            claim(claims, f"{what}: store publications per s", published, 30)
        print(f"  {len(found['frames'])} frames, {tasks:.1f} long tasks per 10 s, {spread(found['keys'])}")
        cpu = ", ".join(f"{part} {each / seconds * 1000:.0f}" for part, each in spent.items())
        print(f"  CPU of the main thread, ms per s: {cpu}")


async def measure_long(rig: PageRig, claims: Claims, *, messages: int, rounds: int, seconds: float) -> None:
    chat = await rig.rested("Long", messages)
    times = []
    for _ in range(rounds):
        async with rig.tab() as page:
            await page.goto(f"{rig.url}/c/{chat}", wait_until="commit")
            times.append(await call(page, "waitFor", f"{END} Long"))
    claim(claims, f"first window of {messages} messages, cold, ms", statistics.median(times), 700)
    async with rig.tab() as page:
        await page.goto(f"{rig.url}/c/{chat}")
        await call(page, "waitFor", f"{END} Long")
        await page.wait_for_timeout(2_000)  # a chat settles at its end before it scrolls
        await call(page, "loadAll")
        found = await call(page, "scroll", seconds * 1000, 250)
        claim(claims, f"{messages} messages, all loaded: scroll p95 ms", percentile(found["frames"], 95), 25)
        nodes = await page.evaluate("document.querySelectorAll('*').length")
        claim(claims, f"{messages} messages, all loaded: elements", nodes, 3_000)
        claim(claims, f"{messages} messages, all loaded: heap, MB", await heap_mb(page), 120)


async def measure_diff(rig: PageRig, claims: Claims, *, rounds: int, seconds: float) -> None:
    chat = await rig.edited("Edits", files=DIFF_FILES, lines=DIFF_LINES)
    line = f"{EDITS} [data-index='5']"
    async with rig.tab() as page:
        await page.goto(f"{rig.url}/c/{chat}?panel=info")
        await page.get_by_role("tab", name="Changes").click()
        await page.get_by_label("What is compared").select_option("This chat")
        await page.locator(line).wait_for()
        times = []
        for _ in range(rounds):
            await page.get_by_role("button", name="Hide the panel").click()
            await page.locator(EDITS).wait_for(state="detached")
            times.append(await call(page, "reveal", "Show the panel", line))
        what = f"diff of {DIFF_FILES * DIFF_LINES} lines"
        claim(claims, f"{what}: open, ms", statistics.median(times), 500)
        found = await call(page, "scroll", seconds * 1000, 250, EDITS)
        claim(claims, f"{what}: scroll p95 ms", percentile(found["frames"], 95), 25)


async def empty_page(rig: PageRig) -> None:
    async with rig.tab() as page:
        await page.goto("about:blank")
        found = await call(page, "record", 1_000)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"load {load} on {os.cpu_count()} CPUs; frame p95 of an empty page {percentile(found['frames'], 95):.1f} ms")


async def run(*, quick: bool) -> int:
    claims: Claims = {}
    if not packaged().is_built:
        print("The web application is not built: make web.", file=sys.stderr)
        return 1
    async with open_rig() as rig:
        await empty_page(rig)
        await measure_start(rig, claims, rounds=3 if quick else 7)
        await measure_switches(rig, claims, switches=20 if quick else 100, idle_seconds=2 if quick else 20)
        await print_floor(rig, seconds=1 if quick else 10)
        await measure_streaming(rig, claims, seconds=4 if quick else 60)
        await measure_diff(rig, claims, rounds=2 if quick else 5, seconds=1 if quick else 10)
        await measure_long(
            rig, claims, messages=QUICK_LONG if quick else LONG, rounds=3 if quick else 5, seconds=2 if quick else 10
        )
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What the web application costs a browser.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and seconds, under 40 seconds")
    return asyncio.run(run(quick=parser.parse_args().quick))


if __name__ == "__main__":
    sys.exit(main())
