/** A chat page for tests without a browser. The page is real; the server is a function of the test. */
import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { MemoryRouter } from "react-router";
import { vi } from "vitest";
import { ConversationPage } from "@/features/conversation/conversation_page";
import { forgetSession } from "@/state/chat_sessions";
import { keys, queryClient } from "@/state/queries";
import { FakeSocket } from "@/testing/fake_host";
import { mount } from "@/testing/mount";
import { Toasts } from "@/ui/toast";

export interface Asked {
  method: string;
  path: string;
  body: Record<string, unknown>;
}

type Answer = (asked: Asked) => Response | Promise<Response> | undefined;

const USER = { id: "u", username: "ann", name: "Ann", role: "member" };
const CHAT = {
  id: "c",
  title: "One",
  my_role: "owner",
  owner: USER,
  archived: false,
  plan_mode: false,
  permission_mode: "auto",
  workspace_id: null,
  mcp_server_ids: [],
  last_model_config_id: "m",
  last_reasoning_effort: null,
  snapshot_version: 1,
  status: "waiting",
  usage: { context_tokens: null, context_limit: null },
};
const MODEL = { id: "m", display_name: "Model", is_usable: true, compression_threshold: 70 };

export class ChatPage {
  readonly asked: Asked[] = [];
  readonly element: HTMLElement;
  private readonly sockets: FakeSocket[] = [];
  private readonly unmount: () => void;

  /** `answer` returns the responses that the test needs; all other responses are empty. */
  constructor(answer: Answer, { isPhone = false, isReload = false, hasSettings = true } = {}) {
    const { sockets, asked } = this;
    // No real timers or sockets.
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval"] });
    vi.stubGlobal(
      "WebSocket",
      class extends FakeSocket {
        constructor(url: string) {
          super(url);
          sockets.push(this);
        }
      },
    );
    vi.stubGlobal("fetch", async (url: string, init: RequestInit = {}) => {
      const path = new URL(url, "http://localhost").pathname.replace("/api/v1", "");
      const body = (init.body ? JSON.parse(String(init.body)) : {}) as Record<string, unknown>;
      const one = { method: init.method ?? "GET", path, body };
      if (one.method !== "GET") asked.push(one);
      return (await answer(one)) ?? Response.json({ items: [], chat: { snapshot_version: 9 }, queued: true });
    });
    vi.stubGlobal("matchMedia", (query: string) => ({
      matches: query.includes("pointer") && query.includes(isPhone ? "coarse" : "fine"),
      addEventListener: () => {},
      removeEventListener: () => {},
    }));
    if (!isReload) localStorage.clear();
    queryClient.clear();
    queryClient.setQueryData(keys.version, { version: "1", features: [] });
    queryClient.setQueryData(keys.me, USER);
    if (hasSettings) queryClient.setQueryData(keys.preferences, { display: {}, compaction_thresholds: {} });
    queryClient.setQueryData(keys.models, { providers: [{ id: "p", type: "anthropic", models: [MODEL] }] });
    queryClient.setQueryData(keys.chat("c"), CHAT);
    const page = mount(
      <QueryClientProvider client={queryClient}>
        <MemoryRouter>
          <ConversationPage chatId="c" />
          <Toasts />
        </MemoryRouter>
      </QueryClientProvider>,
    );
    this.element = page.element;
    this.unmount = page.unmount;
  }

  /** Send events on the stream. */
  async say(...events: unknown[]): Promise<void> {
    const socket = this.sockets.at(-1);
    await act(async () => {
      if (socket?.readyState === 0) socket.open();
      socket?.say(events);
    });
  }

  get box(): HTMLTextAreaElement {
    return this.find("textarea[data-composer]") as HTMLTextAreaElement;
  }

  find(selector: string): HTMLElement {
    const found = this.element.querySelector<HTMLElement>(selector);
    if (!found) throw new Error(`nothing is ${selector}`);
    return found;
  }

  text(selector: string): string[] {
    return [...this.element.querySelectorAll(selector)].map((one) => one.textContent ?? "");
  }

  async type(text: string): Promise<void> {
    await act(async () => {
      Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value")?.set?.call(this.box, text);
      this.box.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  /** Press a key in the message box. Return false if the page handled it. */
  async key(key: string, more: KeyboardEventInit = {}): Promise<boolean> {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
    await act(async () => void this.box.dispatchEvent(event));
    return !event.defaultPrevented;
  }

  /** Press the button with this name; `place` is its index among buttons of the same name. */
  async press(name: string, place = 0): Promise<void> {
    const button = [...this.element.querySelectorAll("button")].filter(
      (one) => (one.getAttribute("aria-label") ?? one.textContent) === name,
    )[place];
    if (!button) throw new Error(`no button is called ${name}`);
    await act(async () => button.click());
  }

  async paste(text: string): Promise<void> {
    const event = new Event("paste", { bubbles: true, cancelable: true });
    Object.assign(event, { clipboardData: { files: [], getData: () => text } });
    await act(async () => void this.box.dispatchEvent(event));
  }

  async choose(...files: File[]): Promise<void> {
    const picker = this.find("input[type=file]");
    Object.defineProperty(picker, "files", { value: files, configurable: true });
    await act(async () => void picker.dispatchEvent(new Event("change", { bubbles: true })));
    // The code that makes large pictures smaller is loaded when the first file is chosen.
    await act(async () => void (await vi.dynamicImportSettled()));
  }

  close(): void {
    this.unmount();
    forgetSession();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  }
}

/** Return a response that the test provides later. */
export function later(): { answer: Promise<Response>; give: (response: Response) => Promise<void> } {
  let resolve: (response: Response) => void = () => {};
  const answer = new Promise<Response>((done) => {
    resolve = done;
  });
  return { answer, give: (response) => act(async () => resolve(response)) };
}
