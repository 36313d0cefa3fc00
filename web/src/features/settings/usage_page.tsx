import { useQuery } from "@tanstack/react-query";
import { getSpend } from "@/api/account";
import { UsageReport } from "@/features/settings/usage_report";
import { useSelf } from "@/state/login_session";
import { keys } from "@/state/queries";
import { dollars } from "@/ui/money";
import { Page } from "@/ui/page";
import { Moment } from "@/ui/relative_time";

const GROUPS = [
  { value: "day", label: "Day" },
  { value: "chat", label: "Chat" },
  { value: "model", label: "Model" },
  { value: "purpose", label: "Purpose" },
];

/** The user's own usage. */
export function OwnUsagePage() {
  const me = useSelf();
  const { data: spend } = useQuery({ queryKey: keys.spend, queryFn: getSpend, refetchInterval: 15_000 });
  return (
    <Page title="Your usage">
      {spend && (
        <section aria-label="This period" className="rounded-xl border border-line bg-bg2 p-4">
          <p className="text-[22px] font-semibold tabular-nums">
            {dollars(spend.spent_micros)}
            {spend.limit_micros !== null && (
              <span className="text-[15px] font-normal text-muted"> of {dollars(spend.limit_micros)}</span>
            )}
          </p>
          <p className="text-muted">
            spent since <Moment at={spend.period.start} />; resets <Moment at={spend.period.end} />
          </p>
          {spend.limit_micros !== null && (
            <meter
              className="mt-2 h-2 w-full"
              aria-label="Spent of the limit"
              min={0}
              max={spend.limit_micros}
              value={Math.min(spend.spent_micros, spend.limit_micros)}
            />
          )}
        </section>
      )}
      <UsageReport groups={GROUPS} user={me.id} />
    </Page>
  );
}
