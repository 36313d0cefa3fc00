// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ChatPage, later } from "@/testing/chat_page";
import { hello, message, messages, say, status, synced } from "@/testing/stream";

const MIB = 1024 * 1024;

/** A fake upload, which the test answers. */
class FakeUpload {
  static all: FakeUpload[] = [];
  upload: { onprogress: unknown } = { onprogress: null };
  onload: (() => void) | null = null;
  status = 0;
  responseText = "";
  headers: Record<string, string> = {};
  body: Blob | null = null;
  open = () => {};
  abort = () => {};
  setRequestHeader = (name: string, value: string) => {
    this.headers[name] = value;
  };
  send = (body: Blob) => {
    this.body = body;
    FakeUpload.all.push(this);
  };
  get name(): string {
    return decodeURIComponent((this.headers["Content-Disposition"] ?? "").split("''")[1] ?? "");
  }
  answer(status: number, body: unknown): Promise<void> {
    return act(async () => {
      this.status = status;
      this.responseText = JSON.stringify(body);
      this.onload?.();
    });
  }
}

let page: ChatPage;
beforeEach(() => {
  FakeUpload.all = [];
  vi.stubGlobal("XMLHttpRequest", FakeUpload);
});
afterEach(() => page.close());

const queue = (count: number) => ({
  type: "queue_update",
  queued_messages: Array.from({ length: count }, (_, at) => ({
    id: at + 1,
    content: [say(`waiting ${at + 1}`)],
    model_config_id: null,
    reasoning_effort: null,
    client_id: null,
    created_at: "2026-01-01T10:00:00Z",
    created_by: "u",
    steer: false,
  })),
});
const rowsOfQueue = () => page.text("[aria-label='Queued messages'] li");
const sends = () => page.asked.filter((one) => one.method === "POST" && one.path === "/chats/c/messages");
const busy = (queued: number) =>
  page.say(hello(), status("running"), ...messages(message(1, "user", [say("go")])), queue(queued), synced(1, 1));

const attached = () => page.text("[aria-label=Attachments] li");
const uploaded = (at: number) => {
  const one = FakeUpload.all[at];
  if (!one) throw new Error("nothing is being uploaded");
  return one;
};

const failure = { type: "error", error: { kind: "rate_limit", message: "Too many requests." } };
async function idle(): Promise<void> {
  page = new ChatPage(() => undefined);
  await page.say(hello(), status("waiting"), synced(1, 0));
}

test("the 21st queued message is refused, and its words stay in the box", async () => {
  const refusal = later();
  page = new ChatPage(({ path, method }) =>
    method === "POST" && path.endsWith("/messages") ? refusal.answer : undefined,
  );
  await busy(20);
  // The list is loaded with the first turn.
  const isListed = async () => {
    await act(async () => undefined);
    expect(rowsOfQueue()).toHaveLength(20);
  };
  await vi.waitFor(isListed, { timeout: 10_000 });
  await page.type("the twenty-first");
  await page.key("Enter");
  expect([page.box.value, rowsOfQueue().length]).toEqual(["", 21]);
  // The user continues to type while the request is pending.
  await page.type("and more");
  await refusal.give(Response.json({ code: "queue_full", message: "Full." }, { status: 429 }));
  expect(page.box.value).toBe("the twenty-first\n\nand more");
  expect(rowsOfQueue()).toHaveLength(20);
  expect(page.text("[aria-label=Notices]").join()).toContain("20 messages are waiting");
});

test("on a phone Enter is a newline, and the button queues while the agent works", async () => {
  page = new ChatPage(() => undefined, { isPhone: true });
  await busy(0);
  await page.type("one line");
  expect(await page.key("Enter")).toBe(true);
  expect([sends(), page.box.value]).toEqual([[], "one line"]);

  await page.type("one line\nand another");
  await page.press("Queue message");
  expect(sends().map((one) => one.body.content)).toEqual([[say("one line\nand another")]]);
  expect(sends()[0]?.body).not.toHaveProperty("busy_behavior");
  expect(page.box.value).toBe("");
});

test("with a keyboard Enter sends, but not the one that ends a composition", async () => {
  page = new ChatPage(() => undefined);
  await busy(0);
  await page.type("one line");
  // For input methods, browsers set `isComposing` or use the key code 229.
  expect(await page.key("Enter", { isComposing: true })).toBe(true);
  expect(await page.key("Enter", { keyCode: 229 } as KeyboardEventInit)).toBe(true);
  expect([sends(), page.box.value]).toEqual([[], "one line"]);
  expect(await page.key("Enter")).toBe(false);
  expect(sends()).toHaveLength(1);
});

/** Type a line and press Enter before the settings are loaded. `after` is the text that results. */
async function enterBeforeSettings(after: string) {
  const settings = later();
  page = new ChatPage(({ path }) => (path === "/me/settings" ? settings.answer : undefined), { hasSettings: false });
  await busy(0);
  await page.type("one line");
  page.box.setSelectionRange(8, 8);
  expect(await page.key("Enter")).toBe(true);
  await page.type(after);
  return settings;
}

test.each([
  { enterSends: true, after: "one line\n", sent: 1, left: "" },
  { enterSends: true, after: "one line\ntwo", sent: 0, left: "one line\ntwo" },
  { enterSends: false, after: "one line\n", sent: 0, left: "one line\n" },
])("Enter that comes before the settings is made up for: %o", async ({ enterSends, after, sent, left }) => {
  const settings = await enterBeforeSettings(after);
  expect(sends()).toEqual([]);
  await settings.give(Response.json({ display: { enter_sends: enterSends }, compaction_thresholds: {} }));
  await act(async () => void (await vi.advanceTimersByTimeAsync(50)));
  expect(sends().map((one) => one.body.content)).toEqual(sent ? [[say("one line")]] : []);
  expect(page.box.value).toBe(left);
});

test("Enter that came before the settings sends nothing when they cannot be had", async () => {
  const settings = await enterBeforeSettings("one line\n");
  await settings.give(Response.json({ code: "not_found", message: "No." }, { status: 404 }));
  await act(async () => void (await vi.advanceTimersByTimeAsync(50)));
  expect([sends(), page.box.value]).toEqual([[], "one line\n"]);
  // Loading has failed, so the default applies.
  expect(await page.key("Enter")).toBe(false);
  expect(sends()).toHaveLength(1);
});

test("the Enter right after a composition sends", async () => {
  page = new ChatPage(() => undefined);
  await busy(0);
  page.box.dispatchEvent(new CompositionEvent("compositionstart", { bubbles: true }));
  await page.type("one line");
  page.box.dispatchEvent(new CompositionEvent("compositionend", { bubbles: true }));
  expect(await page.key("Enter")).toBe(false);
  expect(sends()).toHaveLength(1);
});

test("an edit names what it removes, and a failure brings all of it back", async () => {
  const failure = later();
  page = new ChatPage(({ method, path }) =>
    method !== "GET" && path.startsWith("/chats/c/messages/1") ? failure.answer : undefined,
  );
  const [ask, answer] = [message(1, "user", [say("first prompt")]), message(2, "assistant", [say("first answer")])];
  const [again, reply] = [message(3, "user", [say("second prompt")]), message(4, "assistant", [say("second answer")])];
  await page.say(hello(), status("running"), ...messages(ask, answer, again, reply), queue(2), synced(1, 4));
  await page.type("my draft");
  await page.press("Edit and resend");
  expect(page.box.value).toBe("first prompt");
  const banner = "Sending this edit removes 3 later messages and 2 queued ones, and stops the running turn.";
  expect(page.element.textContent).toContain(banner);

  await page.type("first prompt, better");
  await page.key("Enter");
  expect(page.element.textContent).not.toContain("second answer");
  expect(rowsOfQueue()).toHaveLength(0);

  await failure.give(Response.json({ code: "internal", message: "It did not work." }, { status: 500 }));
  for (const words of ["first prompt", "first answer", "second prompt", "second answer", banner]) {
    expect(page.element.textContent).toContain(words);
  }
  expect(rowsOfQueue()).toHaveLength(2);
  expect(page.box.value).toBe("first prompt, better");
  await page.press("Cancel");
  expect(page.box.value).toBe("my draft");
});

test("a queued message that went out while it was edited comes back before the draft, and is kept", async () => {
  const gone = Response.json({ code: "queued_message_not_found", message: "Gone." }, { status: 404 });
  page = new ChatPage(({ method, path }) => (method === "PATCH" && path.includes("/queue") ? gone : undefined));
  await busy(1);
  await page.type("my draft");
  await page.press("Edit");
  expect(page.box.value).toBe("waiting 1");
  await page.type("waiting, better");
  await page.key("Enter");
  expect(page.box.value).toBe("waiting, better\n\nmy draft");
  // Also after a reload.
  window.dispatchEvent(new Event("pagehide"));
  expect(Object.values(localStorage).join()).toContain("waiting, better");
});

test("the news of a first move does not undo a second that is under way", async () => {
  const first = later();
  const second = later();
  const answers = [first.answer, second.answer];
  page = new ChatPage(({ method, path }) =>
    method === "POST" && path.endsWith("/move") ? answers.shift() : undefined,
  );
  const ordered = (...ids: number[]) => {
    const all = queue(3).queued_messages;
    return { type: "queue_update", queued_messages: ids.map((id) => all[id - 1]) };
  };
  const places = () => rowsOfQueue().map((row) => row.match(/waiting \d/)?.[0].at(-1));
  await busy(3);
  await page.press("Move up", 2);
  expect(places()).toEqual(["1", "3", "2"]);
  await page.press("Move up", 1);
  expect(places()).toEqual(["3", "1", "2"]);
  await first.give(Response.json({ items: [], queue_version: 2 }));
  await second.give(Response.json({ items: [], queue_version: 3 }));
  await page.say(ordered(1, 3, 2), synced(2, 1));
  expect(places()).toEqual(["3", "1", "2"]);
  await page.say(ordered(3, 1, 2), synced(3, 1));
  expect(places()).toEqual(["3", "1", "2"]);
  // Another client sends the next message.
  await page.say(ordered(2, 3, 1), synced(4, 1));
  expect(places()).toEqual(["2", "3", "1"]);
});

test("sixty pasted lines become a file, and go back into the text when asked", async () => {
  await idle();
  const lines = Array.from({ length: 60 }, (_, at) => `line ${at + 1}`).join("\n");
  await page.type("Look: ");
  await page.paste(lines);
  expect(page.box.value).toBe("Look: ");
  expect(attached()).toHaveLength(1);
  expect(uploaded(0).name).toBe("pasted-60-lines.txt");
  expect(await uploaded(0).body?.text()).toBe(lines);
  await uploaded(0).answer(201, { id: "f1", name: "pasted-60-lines.txt", mime_type: "text/plain", size: 1 });

  await page.press("Insert as text");
  expect(page.box.value).toBe(`Look: ${lines}`);
  expect(attached()).toEqual([]);
  await page.key("Enter");
  expect(sends().map((one) => one.body.content)).toEqual([[{ type: "text", text: `Look: ${lines}` }]]);
});

test("what was typed and uploaded is there after a reload, and after an edit that was given up", async () => {
  await idle();
  await page.say(...messages(message(1, "user", [say("first prompt")])), synced(2, 1));
  await page.type("See this");
  await page.choose(new File(["a,b"], "table.csv", { type: "text/csv" }));
  await uploaded(0).answer(201, { id: "f1", name: "table.csv", mime_type: "text/csv", size: 3 });
  await page.press("Edit and resend");
  expect([page.box.value, attached()]).toEqual(["first prompt", []]);
  await page.press("Cancel");
  expect(page.box.value).toBe("See this");
  expect(attached()[0]).toContain("table.csv");

  window.dispatchEvent(new Event("pagehide"));
  page.close();
  page = new ChatPage(() => undefined, { isReload: true });
  await page.say(hello(), status("waiting"), synced(2, 1));
  expect(page.box.value).toBe("See this");
  expect(attached()[0]).toContain("table.csv");
  await page.key("Enter");
  expect(sends()[0]?.body.content).toEqual([
    { type: "text", text: "See this" },
    { type: "file", file_id: "f1" },
  ]);
});

test("a failed turn is tried again without another message", async () => {
  await idle();
  await page.say(...messages(message(1, "user", [say("go")])), status("error"), failure, synced(2, 1));
  await act(async () => void (await vi.dynamicImportSettled()));
  expect(page.text("[data-testid=chat-error] button")).toEqual(["Try again", "Switch model"]);
  await page.press("Try again");
  expect(page.asked.map((one) => `${one.method} ${one.path}`)).toEqual(["POST /chats/c/retry"]);
});

test("a short paste is the browser's business", async () => {
  await idle();
  await page.paste("two\nlines");
  expect([attached(), FakeUpload.all]).toEqual([[], []]);
});

test("a file of a kind that is not taken is refused by its name, and nothing is sent meanwhile", async () => {
  await idle();
  await page.type("See this");
  await page.choose(new File(["MZ"], "setup.exe", { type: "application/x-msdownload" }));
  const why = "Files of this type are not accepted. Accepted types: image/png, text/plain.";
  await uploaded(0).answer(400, {
    code: "invalid",
    message: `file: ${why}`,
    fields: [{ field: "file", message: why }],
  });
  expect(attached()).toHaveLength(1);
  expect(attached()[0]).toBe(`setup.exe${why}`);
  await page.key("Enter");
  expect(sends()).toEqual([]);
  expect(page.text("[aria-label=Notices]").join()).toContain(`setup.exe cannot be sent. ${why}`);
  expect(page.box.value).toBe("See this");

  await page.press("Remove setup.exe");
  await page.key("Enter");
  expect(sends()).toHaveLength(1);
});

test("files that are too large or too many are refused by name, and not uploaded", async () => {
  await idle();
  await page.choose(new File([new Uint8Array(11 * MIB)], "dump.sql", { type: "text/plain" }));
  expect(attached()[0]).toContain("dump.sql is larger than 10 MB.");
  await page.press("Remove dump.sql");
  await page.choose(
    ...Array.from({ length: 51 }, (_, at) => new File(["x"], `n${at + 1}.txt`, { type: "text/plain" })),
  );
  expect(FakeUpload.all).toHaveLength(50);
  expect(attached()[50]).toContain("n51.txt is one too many");
});

test("a photo of 12 MB arrives under 5 MiB with an Anthropic model", async () => {
  await idle();
  const tried: string[] = [];
  vi.stubGlobal("createImageBitmap", async () => ({ width: 4032, height: 3024, close: () => {} }));
  vi.stubGlobal(
    "OffscreenCanvas",
    class {
      readonly width: number;
      readonly height: number;
      constructor(width: number, height: number) {
        [this.width, this.height] = [width, height];
      }
      getContext = () => ({ drawImage: () => {} });
      // A noisy image, about as large as a photo.
      convertToBlob = async ({ type, quality }: { type: string; quality: number }) => {
        tried.push(`${this.width}x${this.height} ${quality}`);
        return new Blob([new Uint8Array(Math.round(this.width * this.height * quality * 0.8))], { type });
      };
    },
  );
  await page.choose(new File([new Uint8Array(12_000_000)], "holiday.jpg", { type: "image/jpeg" }));
  await vi.waitFor(() => expect(FakeUpload.all).toHaveLength(1), { timeout: 30_000 });
  const { body, name } = uploaded(0);
  expect(name).toBe("holiday.webp");
  expect(body?.type).toBe("image/webp");
  expect(body?.size).toBeLessThanOrEqual(5 * MIB - 16 * 1024);
  // Not smaller than necessary.
  expect(tried).toEqual(["4032x3024 0.85", "4032x3024 0.7", "3226x2419 0.85", "3226x2419 0.7"]);
});
