import { UsageReport } from "@/features/settings/usage_report";
import { Section } from "./settings_form";

const GROUPS = [
  { value: "user", label: "User" },
  { value: "chat", label: "Chat" },
  { value: "model", label: "Model" },
  { value: "provider", label: "Provider" },
  { value: "day", label: "Day" },
  { value: "purpose", label: "Purpose" },
];

/** The usage of all users. */
export function AllUsage() {
  return (
    <Section>
      <UsageReport groups={GROUPS} />
    </Section>
  );
}
