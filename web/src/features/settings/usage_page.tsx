import { Page } from "@/ui/page";

export function OwnUsagePage() {
  return <Page title="Usage">{null}</Page>;
}
