import { Eye, Hand, Zap } from "lucide-react";
import { useEffect, useRef } from "react";
import type { PermissionMode } from "@/chat/types";
import { useAppearance } from "@/state/appearance";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Menu } from "@/ui/menu";

const MODES = [
  {
    mode: "ask",
    name: "Ask",
    help: "The agent asks you before it changes files or runs commands",
    icon: <Hand aria-hidden />,
  },
  { mode: "auto", name: "Auto", help: "The approval rules decide", icon: <Zap aria-hidden /> },
  { mode: "read_only", name: "Read only", help: "The agent can only read", icon: <Eye aria-hidden /> },
] as const;

export function nextMode(mode: PermissionMode): PermissionMode {
  return MODES[(MODES.findIndex((one) => one.mode === mode) + 1) % MODES.length]?.mode ?? "auto";
}

interface Props {
  mode: PermissionMode;
  /** null in a subagent's chat: the mode of the main chat applies. */
  onMode: ((mode: PermissionMode) => void) | null;
}

/** The permission mode of the chat: always shown, changed by a menu or by Alt-M. */
export function ModeSwitch({ mode, onMode }: Props) {
  const hasShortcuts = useAppearance((state) => state.shortcuts);
  const latest = useRef(() => {});
  latest.current = () => onMode?.(nextMode(mode));
  useEffect(() => {
    if (!hasShortcuts) return;
    function onKeyDown(event: KeyboardEvent) {
      // By place of the key, because Option and M write another character on a Mac.
      if (!event.altKey || event.code !== "KeyM" || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      latest.current();
    }
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [hasShortcuts]);
  const shown = MODES.find((one) => one.mode === mode) ?? MODES[1];
  const button = (
    <Button
      size="small"
      kind="ghost"
      disabled={onMode === null}
      aria-label={`Mode: ${shown.name}`}
      aria-keyshortcuts="Alt+M"
      title={onMode ? `${shown.help} (Alt-M)` : "The main chat has the mode of this chat"}
      className={cx(mode === "auto" ? "text-muted!" : "bg-bg3 text-accent!", "shrink-0 [&_svg]:size-3.5")}
    >
      {shown.icon}
      {/* In a narrow message box there is no room for the word; the icon and its color say it. */}
      <span className="@max-[36rem]:sr-only">{shown.name}</span>
    </Button>
  );
  if (!onMode) return button;
  return (
    <Menu
      label="Mode"
      trigger={button}
      items={MODES.map((one) => ({
        label: `${one.name}: ${one.help}`,
        icon: one.icon,
        checked: one.mode === mode,
        onSelect: () => onMode(one.mode),
      }))}
    />
  );
}
