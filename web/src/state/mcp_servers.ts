/** The MCP servers of the user, and logins at them. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { sentence } from "@/api/errors";
import { connectMcpServer, getMcpServer, listMcpServers, listMcpTools, testMcpServer } from "@/api/mcp_servers";
import type { McpServerView, McpTestView, McpToolsView } from "@/api/types.gen";
import { siteOf } from "@/chat/elicitation";
import { queryClient } from "@/state/queries";

const KEY = ["mcp"];
export const mcpServersKey = [...KEY, "list"];

export const useMcpServers = () => useQuery({ queryKey: mcpServersKey, queryFn: listMcpServers, staleTime: 10_000 });
export const reloadMcpServers = () => queryClient.invalidateQueries({ queryKey: mcpServersKey });

/** The tools of a server when it was asked last, by a chat or by a test on this page. */
export const useMcpTools = (id: string) =>
  useQuery({ queryKey: [...KEY, "tools", id], queryFn: () => listMcpTools(id) });

/** Test a server, and keep the tools that it has now. */
export async function runMcpTest(server: McpServerView): Promise<McpTestView> {
  const result = await testMcpServer(server);
  if (result.ok)
    queryClient.setQueryData<McpToolsView>([...KEY, "tools", server.id], {
      items: result.tools,
      fetched_at: new Date().toISOString(),
    });
  return result;
}

/** The type of the message that the page at the end of a login sends. */
const MESSAGE = "rookery:mcp-login";
const WINDOW = "rookery-mcp-login";
const POLL_MS = 2_000;

export interface McpLogin {
  state: "idle" | "opening" | "waiting";
  /** The address of the login, if the browser did not open a window for it. */
  link: string | null;
  problem: string;
  start: () => void;
  cancel: () => void;
}

/** A login at one server, in a window of its own. It goes on until it succeeds, fails, expires, or is canceled. */
export function useMcpLogin(id: string): McpLogin {
  const [state, setState] = useState<McpLogin["state"]>("idle");
  const [link, setLink] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const attempt = useRef<AbortController | null>(null);
  useEffect(() => () => attempt.current?.abort(), []);

  const run = async (popup: Window | null, signal: AbortSignal) => {
    const [before, begun] = await Promise.all([getMcpServer(id), connectMcpServer(id)]);
    const address = begun.authorization_url;
    if (siteOf(address) === null) throw new Error("The server gave an address that cannot be opened.");
    if (signal.aborted) return;
    if (popup && !popup.closed) popup.location.replace(address);
    else setLink(address);
    setState("waiting");
    await finished(before, Date.parse(begun.expires_at), signal);
  };
  const start = () => {
    attempt.current?.abort();
    const own = new AbortController();
    attempt.current = own;
    // At once, because browsers open windows only while they handle a click.
    const popup = window.open("", WINDOW, "popup,width=600,height=760");
    setState("opening");
    setLink(null);
    setProblem("");
    run(popup, own.signal)
      .catch((error: unknown) => {
        popup?.close();
        if (!own.signal.aborted) setProblem(sentence(error));
      })
      .finally(() => {
        void reloadMcpServers();
        if (own.signal.aborted) return;
        setState("idle");
        setLink(null);
      });
  };
  const cancel = () => {
    attempt.current?.abort();
    setState("idle");
    setLink(null);
  };
  return { state, link, problem, start, cancel };
}

/**
 * Resolve when the user is connected, and reject if the login failed. The window says so, if it still knows this page:
 * other sites can cut that connection, and then the server is asked.
 */
function finished(before: McpServerView, until: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout>;
    const end = (act: () => void) => {
      clearTimeout(timer);
      removeEventListener("message", onMessage);
      act();
    };
    const onMessage = (event: MessageEvent) => {
      const told = resultOf(event, location.origin, before.id);
      if (told?.ok) end(resolve);
      else if (told) end(() => reject(new Error(told.message)));
    };
    const poll = async () => {
      // A lost connection is not the end of the login.
      const now = await getMcpServer(before.id).catch(() => null);
      if (signal.aborted) return;
      if (now && isNewLogin(before, now)) return end(resolve);
      if (Date.now() > until) return end(() => reject(new Error("The login was not finished in time. Try again.")));
      timer = setTimeout(poll, POLL_MS);
    };
    addEventListener("message", onMessage);
    signal.addEventListener("abort", () => end(resolve));
    timer = setTimeout(poll, POLL_MS);
  });
}

/** Return the result of a login, if the message is about this server and comes from a page of our own origin. */
export function resultOf(
  { origin, data }: Pick<MessageEvent, "origin" | "data">,
  own: string,
  id: string,
): { ok: boolean; message: string } | null {
  if (origin !== own || typeof data !== "object" || data === null) return null;
  const { type, server_id, ok, message } = data as Record<string, unknown>;
  if (type !== MESSAGE || server_id !== id) return null;
  return { ok: ok === true, message: typeof message === "string" && message ? message : "The login failed." };
}

function isNewLogin(before: McpServerView, now: McpServerView): boolean {
  if (now.login.state !== "connected") return false;
  return before.login.state !== "connected" || now.login.connected_at !== before.login.connected_at;
}
