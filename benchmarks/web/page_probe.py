"""The measuring script that runs inside the page, and the functions that read its results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import CDPSession, Page

SLOWDOWN = 4
MEGABIT = 1_000_000 / 8

# Before any script of the page. Times are of the page's own clock, which begins with its navigation.
PROBE = """
(() => {
  const bench = { streams: {}, frames: [], tasks: [], keys: [], changed: 0 };
  window.__bench = bench;

  const composer = () => document.querySelector("textarea[data-composer]");
  const usable = new Promise((resolve) => {
    const look = () => {
      const box = composer();
      if (box === null || box.disabled) return requestAnimationFrame(look);
      const loaded = performance.getEntriesByType("resource").map((each) => new URL(each.name).pathname);
      resolve({ at: performance.now(), loaded });
    };
    requestAnimationFrame(look);
  });
  bench.usable = () => usable;

  // When the first byte of a stream came.
  window.WebSocket = class extends WebSocket {
    constructor(url, ...rest) {
      super(url, ...rest);
      const once = () => { bench.streams[String(url).split("?")[0]] = performance.now(); };
      this.addEventListener("message", once, { once: true });
    }
  };

  // In a callback of a frame: when that frame is painted. By the most urgent kind of task, which waits for no other.
  const frameOver = () => scheduler.postTask(() => {}, { priority: "user-blocking" });

  bench.waitFor = (text) => new Promise((resolve) => {
    // A frame that begins with the text there has painted it when it is over.
    const step = () => {
      const feed = document.querySelector("[role=feed]");
      if (feed === null || !feed.textContent.includes(text)) return requestAnimationFrame(step);
      frameOver().then(() => resolve(performance.now()));
    };
    requestAnimationFrame(step);
  });

  bench.open = async (chat, text) => {
    const started = performance.now();
    document.querySelector(`a[href^="/c/${chat}"]`).click();
    const shown = await bench.waitFor(text);
    const first = Object.entries(bench.streams).find(([url]) => url.includes(chat));
    return { whole: shown - started, afterFirst: first ? shown - Math.max(started, first[1]) : shown - started };
  };

  // Frames by the time that they are for, not by when the callback had its turn.
  bench.record = (ms, each) => new Promise((resolve) => {
    bench.frames = []; bench.tasks = []; bench.keys = []; bench.changed = 0;
    const tasks = new PerformanceObserver((list) => bench.tasks.push(...list.getEntries().map((one) => one.duration)));
    tasks.observe({ type: "longtask" });
    const key = (event) => requestAnimationFrame(async () => {
      await frameOver();
      bench.keys.push(performance.now() - event.timeStamp);
    });
    addEventListener("keydown", key, true);
    // Text that arrives may change the live row and nothing else of the conversation.
    const changes = new MutationObserver((list) => { bench.changed += list.length; });
    const rows = document.querySelector("[data-rows]");
    if (rows) changes.observe(rows, { subtree: true, childList: true, attributes: true, characterData: true });
    let first = null, last = null;
    const step = (now) => {
      if (last !== null) bench.frames.push(now - last);
      first ??= now;
      last = now;
      if (each) each(now);
      if (now - first < ms) return requestAnimationFrame(step);
      tasks.disconnect(); changes.disconnect(); removeEventListener("keydown", key, true);
      resolve({ frames: bench.frames, tasks: bench.tasks, keys: bench.keys, changed: bench.changed });
    };
    requestAnimationFrame(step);
  });

  const box = () => document.querySelector("[role=feed]").closest(".overflow-y-auto");

  // As the End key does: from then on the end of the conversation stays in view.
  bench.follow = () => box().dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));

  // From a click to the frame with what it shows.
  bench.reveal = async (label, shown) => {
    const started = performance.now();
    document.querySelector(`button[aria-label="${label}"]`).click();
    while (document.querySelector(shown) === null) await new Promise(requestAnimationFrame);
    await frameOver();
    return performance.now() - started;
  };
  const wheel = () => box().dispatchEvent(new WheelEvent("wheel", { deltaY: -1, bubbles: true }));

  // Pages of older messages come while the top is in view.
  bench.loadAll = async () => {
    wheel();
    const more = () => [...box().querySelectorAll("span")].some((one) => one.textContent === "Older messages");
    for (let still = 0; still < 120;) {
      box().scrollTop = 0;
      await new Promise(requestAnimationFrame);
      still = more() ? 0 : still + 1;
    }
    if (!box().textContent.includes("hello")) throw new Error("The first message is not there.");
  };

  bench.scroll = (ms, pixels, selector) => {
    wheel();
    const element = selector ? document.querySelector(selector) : box();
    let step = pixels;
    return bench.record(ms, () => {
      if (element.scrollTop <= 0) step = pixels;
      if (element.scrollTop + element.clientHeight >= element.scrollHeight - 1) step = -pixels;
      element.scrollTop += step;
    });
  };
})();
"""


async def session(page: Page) -> CDPSession:
    return await page.context.new_cdp_session(page)


async def slow_down(page: Page, *, network: bool = False) -> None:
    """Throttle to a quarter of the CPU; with `network` also 10 Mbit/s and 40 ms."""
    cdp = await session(page)
    await cdp.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
    if network:
        speed = 10 * MEGABIT
        conditions = {"offline": False, "latency": 40, "downloadThroughput": speed, "uploadThroughput": speed}
        await cdp.send("Network.enable")
        await cdp.send("Network.emulateNetworkConditions", conditions)


async def figures(cdp: CDPSession) -> dict[str, float]:
    """Return the browser's metrics of this page."""
    found = await cdp.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def calls_per_second(page: Page, name: str, seconds: float) -> float:
    """How often a method of the application is called. Counting slows scripts down: measure nothing else meanwhile."""
    cdp = await session(page)
    await cdp.send("Profiler.enable")
    await cdp.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    await page.wait_for_timeout(seconds * 1000)
    found = await cdp.send("Profiler.takePreciseCoverage")
    await cdp.detach()
    functions = [each for script in found["result"] for each in script["functions"] if each["functionName"] == name]
    return float(sum(each["ranges"][0]["count"] for each in functions)) / seconds


async def heap_mb(page: Page) -> float:
    """What is still reachable of the page's JavaScript objects."""
    cdp = await session(page)
    await cdp.send("Performance.enable")
    await cdp.send("HeapProfiler.enable")
    for _ in range(2):
        await cdp.send("HeapProfiler.collectGarbage")
    return (await figures(cdp))["JSHeapUsedSize"] / 1e6


@asynccontextmanager
async def main_thread(page: Page) -> AsyncIterator[dict[str, float]]:
    """CPU seconds of the page's main thread meanwhile, by what for: a busy machine makes them take longer, not more."""
    cdp = await session(page)
    await cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, spent = await figures(cdp), dict[str, float]()
    yield spent
    after = await figures(cdp)
    for name in ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration"):
        spent[name] = after[name] - before[name]
    await cdp.detach()


async def idle_percent(page: Page, seconds: float) -> float:
    """How much of a CPU the page takes while nobody does anything."""
    async with main_thread(page) as spent:
        await page.wait_for_timeout(seconds * 1000)
    return 100 * spent["TaskDuration"] / seconds


@asynccontextmanager
async def typing(page: Page, every_ms: float) -> AsyncIterator[None]:
    """Somebody writes into the composer meanwhile, key by key."""

    async def write() -> None:
        while True:
            # Held as long as people do. Behind a key that goes up, too, the browser puts all tasks off until the next
            # frame: right behind a key that went down, the one that says that it is painted would wait for that frame.
            await page.keyboard.press("x", delay=every_ms / 2)
            await asyncio.sleep(every_ms / 2000)

    await page.locator("textarea[data-composer]").focus()
    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def call(page: Page, expression: str, *arguments: Any) -> Any:
    """Something of the probe, `name(arg)` being written `name`."""
    return await page.evaluate(f"(given) => window.__bench.{expression}(...given)", list(arguments))
