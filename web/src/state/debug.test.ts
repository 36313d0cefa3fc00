import { expect, test, vi } from "vitest";
import type { StepSummary } from "@/api/debug";
import type { SearchTexts } from "@/chat/debug";
import { DebugFollower, pollAfter, type RunSearch, searchSteps } from "@/state/debug";
import { FakeHost } from "@/testing/fake_host";

vi.stubGlobal("location", { href: "http://localhost/" });
vi.stubGlobal("localStorage", { getItem: () => null });

function follower() {
  const host = new FakeHost();
  const changes: (string | null)[][] = [];
  const one = new DebugFollower("c", (runs) => changes.push([...runs]), host);
  const close = one.open();
  return { host, changes, one, close };
}

test("records are followed on a stream without messages and parts", () => {
  const { host } = follower();
  expect(host.socket.url).toContain("/chats/c/stream?debug=true&parts=false&mark_read=false&tail=0");
});

test("changes are collected for a moment, and each run is named once", () => {
  const { host, changes } = follower();
  host.socket.open();
  host.pass(400);
  expect(changes).toEqual([[null]]);
  const update = (run_id: string) => ({ type: "debug_update", kind: "step", run_id });
  host.socket.say([update("a"), update("b"), { type: "heartbeat", server_time: "" }, update("a")]);
  host.pass(399);
  expect(changes).toHaveLength(1);
  host.pass(1);
  expect(changes[1]).toEqual(["a", "b"]);
});

test("everything is loaded again after a lost connection, and nothing after closing", () => {
  const { host, changes, one, close } = follower();
  host.socket.open();
  expect(one.store.getState().conn.phase).toBe("live");
  host.pass(400);
  host.socket.end(1006);
  expect(one.store.getState().conn.phase).toBe("backoff");
  host.pass(60_000);
  host.socket.open();
  host.pass(400);
  expect(changes).toEqual([[null], [null]]);
  host.socket.say([{ type: "debug_update", kind: "run", run_id: "a" }]);
  close();
  host.pass(60_000);
  expect(changes).toHaveLength(2);
});

test("the panel asks again only without a stream and while a run is open, more slowly after an error", () => {
  expect(pollAfter(true, true, false)).toBe(false);
  expect(pollAfter(false, false, false)).toBe(false);
  expect(pollAfter(false, true, false)).toBe(5_000);
  expect(pollAfter(false, true, true)).toBe(30_000);
});

const steps = Array.from({ length: 7 }, (_, index) => ({ id: `s${index}`, number: index + 1 }) as StepSummary);
const textsOf = (step: StepSummary): SearchTexts => ({
  step: step.id,
  number: step.number,
  texts: [{ where: "Output", text: step.number % 2 ? "a heron" : "nothing" }],
});

test("a search reports the matches so far in the order of the steps", async () => {
  const reports: RunSearch[] = [];
  const load = async (step: StepSummary) => textsOf(step);
  await searchSteps(steps, "heron", load, new AbortController().signal, (found) => reports.push(found));
  expect(reports.map((one) => one.searched)).toEqual([3, 6, 7]);
  expect(reports.at(-1)).toMatchObject({ isBusy: false, error: null });
  expect(reports.at(-1)?.matches.map((one) => one.number)).toEqual([1, 3, 5, 7]);
});

test("a search keeps its matches when a step cannot be loaded, and reports nothing after it was given up", async () => {
  const reports: RunSearch[] = [];
  const failure = new Error("gone");
  const load = async (step: StepSummary) => {
    if (step.number > 3) throw failure;
    return textsOf(step);
  };
  await searchSteps(steps, "heron", load, new AbortController().signal, (found) => reports.push(found));
  expect(reports.at(-1)).toMatchObject({ searched: 3, isBusy: false, error: failure });
  expect(reports.at(-1)?.matches).toHaveLength(2);

  const abort = new AbortController();
  const none: RunSearch[] = [];
  const late = async (step: StepSummary) => {
    abort.abort();
    return textsOf(step);
  };
  await searchSteps(steps, "heron", late, abort.signal, (found) => none.push(found));
  expect(none).toEqual([]);
});
