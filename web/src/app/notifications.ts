import { useEffect } from "react";
import { useNavigate } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { markOf } from "@/chat/sidebar_list";
import { appearance } from "@/state/appearance";
import { subscribeWatch } from "@/state/chat_list_stream";
import { inOneTab } from "@/state/one_tab";
import { toast } from "@/ui/toast";

export type News = { event: "done" | "failed" | "needs"; text: string } | null;

/** Return the notification for a change of a chat that is not in view. Of subagents, only questions are reported. */
export function newsOf(old: ChatView | undefined, chat: ChatView): News {
  if (!old || old.snapshot_version >= chat.snapshot_version) return null;
  const [before, after] = [markOf(old), markOf(chat)];
  if (chat.parent_chat_id !== null) {
    if (after !== "needs" || before === "needs") return null;
    return { event: "needs", text: `The agent “${chat.title}” needs you.` };
  }
  if (after === "needs" && before !== "needs") return { event: "needs", text: `“${chat.title}” needs you.` };
  if (chat.status === "error" && old.status !== "error") return { event: "failed", text: `“${chat.title}” failed.` };
  // A turn that a user stopped needs no notification.
  if (old.status === "running" && chat.status === "waiting") return { event: "done", text: `“${chat.title}” is done.` };
  return null;
}

/** Show notifications about chats that are not in view. If several tabs are open, one of them shows it. */
export function useNotifications(): void {
  const navigate = useNavigate();
  useEffect(() => {
    const seen = new Map<string, ChatView>();
    return subscribeWatch({
      onChat: (chat) => {
        const news = newsOf(seen.get(chat.id), chat);
        seen.set(chat.id, chat);
        if (!news || !appearance.getState()[`notify_${news.event}`]) return;
        const shown = [chat.id, chat.root_chat_id].map((id) => `/c/${id}`);
        const isInView = shown.includes(location.pathname) && document.visibilityState === "visible";
        const name = `rookery:${chat.id}:${chat.snapshot_version}`;
        // The tab that shows the chat takes the lock too and shows nothing, so that no other tab does.
        void inOneTab(name, turnOf(isInView), () => {
          if (!isInView) tell(news.text, chat, (path) => void navigate(path));
        });
      },
    });
  }, [navigate]);
}

/** Return the delay before a tab tries to take the lock: shortest for the focused tab, then for visible tabs. */
function turnOf(isInView: boolean): number {
  if (isInView) return 0;
  return document.visibilityState === "visible" ? 100 : 200;
}

function tell(text: string, chat: ChatView, open: (path: string) => void): void {
  const { notify_desktop, notify_sound } = appearance.getState();
  // The questions of a subagent are answered at its root.
  const path = `/c/${chat.root_chat_id}`;
  if (notify_sound) beep();
  if (
    document.visibilityState === "hidden" &&
    notify_desktop &&
    "Notification" in window &&
    Notification.permission === "granted"
  ) {
    const shown = new Notification("Rookery", { body: text, tag: chat.id, icon: "/favicon.svg" });
    shown.onclick = () => {
      window.focus();
      open(path);
    };
    return;
  }
  toast(text, { action: { label: "Open", run: () => open(path) }, ms: 8_000 });
}

/** Play two short generated tones. */
function beep(): void {
  const audio = new AudioContext();
  for (const [index, frequency] of [660, 880].entries()) {
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    tone.frequency.value = frequency;
    volume.gain.value = 0.05;
    tone.connect(volume).connect(audio.destination);
    tone.start(audio.currentTime + index * 0.14);
    tone.stop(audio.currentTime + index * 0.14 + 0.1);
  }
}
