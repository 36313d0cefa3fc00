import { ChevronUp, CornerDownRight, ListPlus, OctagonPause } from "lucide-react";
import type { BusyBehavior } from "@/api/types.gen";
import { IconButton } from "@/ui/button";
import { Menu } from "@/ui/menu";
import { modKey } from "@/ui/modifier_key";

interface Props {
  /** What Enter does. */
  busySend: "queue" | "steer";
  enterSends: boolean;
  onSend: (behavior: BusyBehavior) => void;
}

/** The ways to send a message while the agent works. */
export function SendMenu({ busySend, enterSends, onSend }: Props) {
  const keys = enterSends
    ? { own: "Enter", other: `${modKey}-Enter`, stop: `${modKey}-Shift-Enter` }
    : { own: `${modKey}-Enter`, other: `${modKey}-Shift-Enter`, stop: "" };
  const keyOf = (behavior: BusyBehavior) => (behavior === busySend ? keys.own : keys.other);
  return (
    <Menu
      label="Send while the agent works"
      align="end"
      side="top"
      trigger={
        <IconButton label="Ways to send">
          <ChevronUp />
        </IconButton>
      }
      items={[
        {
          label: "Queue",
          icon: <ListPlus />,
          keys: keyOf("queue"),
          onSelect: () => onSend("queue"),
        },
        {
          label: "Steer at the next step",
          icon: <CornerDownRight />,
          keys: keyOf("steer"),
          onSelect: () => onSend("steer"),
        },
        {
          label: "Stop and send",
          icon: <OctagonPause />,
          keys: keys.stop,
          onSelect: () => onSend("interrupt"),
        },
      ]}
    />
  );
}
