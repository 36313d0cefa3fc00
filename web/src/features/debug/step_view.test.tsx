// @vitest-environment happy-dom
import { QueryClientProvider } from "@tanstack/react-query";
import { act, type ReactNode } from "react";
import { afterEach, expect, test, vi } from "vitest";
import { Attempts } from "@/features/debug/attempts";
import { BodyView } from "@/features/debug/body_view";
import { replayBody } from "@/features/debug/replay_dialog";
import { StepView } from "@/features/debug/step_view";
import { ATTEMPTS, STEPS, wholeStep } from "@/features/gallery/debug_samples";
import { queryClient } from "@/state/queries";
import { type Mounted, mount } from "@/testing/mount";
import { Prompt } from "./recorded_prompt";

const pages: Mounted[] = [];
function show(node: ReactNode): HTMLElement {
  const page = mount(<QueryClientProvider client={queryClient}>{node}</QueryClientProvider>);
  pages.push(page);
  return page.element;
}
afterEach(() => {
  for (const page of pages.splice(0)) page.unmount();
  queryClient.clear();
  vi.unstubAllGlobals();
});

const at = (index: number) => {
  const step = STEPS[index];
  if (!step) throw new Error("there is no such sample");
  return step;
};
const names = (element: HTMLElement) =>
  [...element.querySelectorAll("section[aria-label^=Message]")].map((one) => one.getAttribute("aria-label"));
async function press(element: HTMLElement, name: RegExp): Promise<void> {
  const button = [...element.querySelectorAll("button")].find((one) =>
    name.test(one.getAttribute("aria-label") ?? one.textContent ?? ""),
  );
  if (!button) throw new Error(`no button is called ${name}`);
  await act(async () => button.click());
}

test("messages that the previous step did not have are marked, and earlier ones are shown on request", async () => {
  const element = show(<Prompt step={wholeStep(at(1))} wanted="" />);
  expect(names(element)).toEqual([
    "Message 3, assistant, new",
    "Message 4, tool, new",
    "Message 5, assistant, new",
    "Message 6, user, new",
  ]);
  expect(element.textContent).toContain("New since step 1: 4 messages");
  await press(element, /Show 2 earlier messages/);
  expect(names(element).slice(0, 3)).toEqual(["Message 1, system", "Message 2, user", "Message 3, assistant, new"]);
});

test("a changed prompt says where it changed", () => {
  expect(show(<Prompt step={wholeStep(at(2))} wanted="" />).textContent).toContain("Changed since step 2");
});

test("a long message is folded, says what the record lacks, and opens for a searched word", () => {
  const step = wholeStep(at(0));
  const closed = show(<Prompt step={step} wanted="" />);
  expect(closed.textContent).toContain("Show all");
  const open = show(<Prompt step={step} wanted="after each" />);
  expect(open.querySelectorAll("mark").length).toBe(40);
});

test("a failed step shows its error and those of earlier tries", () => {
  const step = at(7);
  const actions = { onPrevious: null, onNext: null, onBack: null, onShowMessage: null, onReplay: null };
  const element = show(
    <StepView
      chat="c"
      run="r"
      summary={step}
      count={10}
      step={undefined}
      error={null}
      onRetry={() => {}}
      wanted=""
      actions={actions}
    />,
  );
  const errors = element.querySelector("section[aria-label=Errors]")?.textContent ?? "";
  expect(errors).toContain("HTTP 529, overloaded");
  expect(errors).toContain("2 earlier tries failed");
  expect(errors).toContain("Try 2, timeout: No answer within 60 seconds.");
});

test("the bodies of an attempt are loaded when it is opened", async () => {
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => {
    asked.push(url);
    return Response.json(ATTEMPTS[1]);
  });
  const place = { chat: "c", run: "r", step: "s" };
  const element = show(<Attempts place={place} attempts={at(1).attempts} transport={undefined} />);
  expect(asked).toEqual([]);
  await press(element, /Attempt 1/);
  await vi.waitFor(async () => {
    await act(async () => {});
    expect(element.textContent).toContain("rate_limit_error");
  });
  expect(asked).toEqual(["/api/v1/chats/c/debug/runs/r/steps/s/attempts/1"]);
});

test("an event stream is a table of its events, also if its last event was cut", async () => {
  const body = {
    text: 'event: start\ndata: {"a":1}\n\ndata: {"type":"delta","te',
    encoding: "utf-8",
    size: 9,
    truncated: true,
  };
  const element = show(<BodyView body={body} headers={{ "Content-Type": "text/event-stream" }} label="response 1" />);
  const rows = [...element.querySelectorAll("tbody tr")].map((row) => row.textContent);
  expect(rows).toEqual(['1start{"a":1}', '2{"type":"delta","te']);
  expect(element.textContent).toContain("Only a part is recorded");
  await press(element, /As text/);
  expect(element.querySelector("pre")?.textContent).toBe(body.text);
});

test("a replay sends only what differs from the record", () => {
  expect(replayBody("", "", new Map())).toEqual({});
  expect(replayBody("", "default", new Map())).toEqual({ effort: null });
  expect(replayBody("m", "low", new Map([[0, "Be brief."]]))).toEqual({
    model_config_id: "m",
    effort: "low",
    edits: [{ message: 0, text: "Be brief." }],
  });
});
