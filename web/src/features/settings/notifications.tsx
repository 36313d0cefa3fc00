import { useState } from "react";
import { keep } from "@/features/settings/appearance";
import { useAppearance } from "@/state/appearance";
import { Notice } from "@/ui/notice";
import { Switch } from "@/ui/switch";
import { Section } from "./settings_form";

/** The settings for notifications about chats that are not in view. */
export function Notifications() {
  const state = useAppearance((all) => all);
  const [permission, setPermission] = useState(() => ("Notification" in window ? Notification.permission : "denied"));

  async function setDesktop(on: boolean) {
    if (on && permission !== "granted") {
      const answer = await Notification.requestPermission();
      setPermission(answer);
      if (answer !== "granted") return;
    }
    keep({ notify_desktop: on });
  }

  return (
    <>
      <Section title="Tell me when">
        <Switch label="An agent is done" checked={state.notify_done} onChange={(on) => keep({ notify_done: on })} />
        <Switch label="An agent failed" checked={state.notify_failed} onChange={(on) => keep({ notify_failed: on })} />
        <Switch
          label="An agent needs me"
          hint="A question, a plan, or results of tools."
          checked={state.notify_needs}
          onChange={(on) => keep({ notify_needs: on })}
        />
      </Section>
      <Section title="How" text="Always shown in the page, except for the chat you are looking at.">
        <Switch
          label="Desktop notifications"
          hint="While the page is in the background."
          checked={state.notify_desktop && permission === "granted"}
          onChange={(on) => void setDesktop(on)}
        />
        {permission === "denied" && (
          <Notice kind="warn">
            Your browser does not allow notifications of this site. You can allow them in the browser's settings.
          </Notice>
        )}
        <Switch label="Sound" checked={state.notify_sound} onChange={(on) => keep({ notify_sound: on })} />
      </Section>
    </>
  );
}
