import { useQuery } from "@tanstack/react-query";
import { ChartNoAxesColumn, ChevronsUpDown, Keyboard, LogOut, Settings } from "lucide-react";
import { useNavigate } from "react-router";
import { getSpend } from "@/api/account";
import { sentence } from "@/api/errors";
import { setLayout } from "@/state/diff_layout";
import { signOut, useSelf } from "@/state/login_session";
import { Menu } from "@/ui/menu";
import { dollars } from "@/ui/money";
import { toast } from "@/ui/toast";

/** The menu of the signed-in user: usage, settings, sign out. */
export function UserMenu() {
  const me = useSelf();
  const navigate = useNavigate();
  const { data: spend } = useQuery({ queryKey: ["spend"], queryFn: getSpend, refetchInterval: 30_000 });
  const name = me.name || me.username;
  return (
    <div className="border-t border-line p-2 pb-[max(0.5rem,env(safe-area-inset-bottom))]">
      <Menu
        side="top"
        label="Account"
        trigger={
          <button
            type="button"
            aria-label={`Account of ${name}`}
            className="flex w-full items-center gap-2 rounded-lg px-2 py-1.5 text-left hover:bg-bg3 pointer-coarse:min-h-11"
          >
            <span
              aria-hidden
              className="grid size-7 shrink-0 place-items-center rounded-full bg-accent text-small font-semibold text-on-accent uppercase"
            >
              {name.slice(0, 1)}
            </span>
            <span className="min-w-0 flex-1">
              <span className="block truncate font-medium">{name}</span>
              {spend && (
                <span
                  className="block truncate text-small text-muted"
                  title={`Your spending since ${new Date(spend.period.start).toLocaleDateString(undefined, { dateStyle: "long" })}`}
                >
                  {dollars(spend.spent_micros)}
                  {spend.limit_micros !== null && ` of ${dollars(spend.limit_micros)}`}
                </span>
              )}
            </span>
            <ChevronsUpDown className="size-4 shrink-0 text-muted" aria-hidden />
          </button>
        }
        items={[
          { label: "Settings", icon: <Settings />, onSelect: () => void navigate("/settings/profile") },
          { label: "Your usage", icon: <ChartNoAxesColumn />, onSelect: () => void navigate("/usage") },
          { label: "Keyboard shortcuts", icon: <Keyboard />, keys: "?", onSelect: () => setLayout({ helpOpen: true }) },
          "separator",
          {
            label: "Sign out",
            icon: <LogOut />,
            onSelect: () => void signOut().catch((error) => toast(sentence(error), { kind: "error" })),
          },
        ]}
      />
    </div>
  );
}
