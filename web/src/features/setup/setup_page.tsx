import { useQuery } from "@tanstack/react-query";
import { Check } from "lucide-react";
import { useEffect, useState } from "react";
import { Navigate, useSearchParams } from "react-router";
import { sentence } from "@/api/errors";
import { Unencrypted } from "@/features/login/unencrypted_warning";
import { AdminStep } from "@/features/setup/admin_step";
import { FirstMessageStep } from "@/features/setup/first_message_step";
import { ModelStep } from "@/features/setup/model_step";
import { WorkspaceStep } from "@/features/setup/workspace_step";
import { meQuery, setupQuery } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { CardPage } from "@/ui/card_page";
import { cx } from "@/ui/cx";
import { Notice } from "@/ui/notice";

const STEPS = ["Account", "Model", "Workspace", "Go"] as const;
const TEXTS = [
  "This server has no accounts yet. Your account will be the administrator.",
  "Which model should answer? You can change this at any time.",
  "Where should agents read, write and run things?",
];
const TITLES = ["Welcome to Rookery", "Choose a model", "Choose a workspace", "Start chatting"];

/** The setup of a new server. The current step follows from the server's state, so a reload continues there. */
export function SetupPage() {
  const setup = useQuery(setupQuery);
  const isDone = setup.data?.needed === false;
  const me = useQuery({ ...meQuery, enabled: isDone });
  const [params, setParams] = useSearchParams();
  const [token] = useState(takeToken);
  useEffect(() => {
    document.title = "Set up - Rookery";
  }, []);

  if (setup.error) {
    return (
      <CardPage title="Rookery does not answer">
        <Notice kind="error">{sentence(setup.error)}</Notice>
        <Button className="mt-4" onClick={() => setup.refetch()}>
          Try again
        </Button>
      </CardPage>
    );
  }
  if (!setup.data || (isDone && me.isPending)) return <CardPage title={TITLES[0] ?? ""}>{null}</CardPage>;
  if (isDone && (me.error || me.data?.role !== "admin")) return <Navigate to="/" replace />;
  // The server is already set up.
  if (isDone && !params.has("step")) return <Navigate to="/" replace />;
  const step = isDone ? Math.min(STEPS.length - 1, Math.max(1, Number(params.get("step")) - 1)) : 0;
  const go = (next: number, workspace?: string | null) =>
    setParams({ step: String(next), ...(workspace ? { workspace } : {}) }, { replace: true });
  return (
    <CardPage title={TITLES[step] ?? ""} text={TEXTS[step]}>
      <Steps current={step} />
      {step === 0 && <Unencrypted />}
      {step === 0 && (
        <AdminStep
          token={token}
          onDone={(user) => {
            sessionStorage.removeItem(TOKEN_KEY);
            go(2);
            queryClient.setQueryData(setupQuery.queryKey, { needed: false });
            void queryClient.invalidateQueries({ queryKey: meQuery.queryKey });
            return user;
          }}
        />
      )}
      {step === 1 && <ModelStep onDone={() => go(3)} />}
      {step === 2 && <WorkspaceStep onDone={(workspace) => go(4, workspace)} />}
      {step === 3 && <FirstMessageStep workspace={params.get("workspace")} />}
      {/* Not back to the account, which exists already. */}
      {step > 1 && (
        <Button kind="ghost" className="mt-3 self-start" onClick={() => go(step)}>
          Back
        </Button>
      )}
    </CardPage>
  );
}

const TOKEN_KEY = "rookery.setup";

/** Take the setup token from the URL fragment. It is sent only with the setup request. */
function takeToken(): string {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    // Kept in the session storage for a reload, until the tab is closed.
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(history.state, "", location.pathname + location.search);
  }
  return given ?? sessionStorage.getItem(TOKEN_KEY) ?? "";
}

function Steps({ current }: { current: number }) {
  return (
    <ol className="mb-6 flex gap-2" aria-label="Steps">
      {STEPS.map((name, index) => (
        <li
          key={name}
          aria-current={index === current ? "step" : undefined}
          className={cx(
            "flex flex-1 items-center gap-1.5 border-t-2 pt-2 text-small font-medium",
            index <= current ? "border-accent text-text" : "border-line text-muted",
          )}
        >
          {index < current ? <Check className="size-3.5 text-accent" aria-label="Done" /> : <span>{index + 1}</span>}
          {name}
        </li>
      ))}
    </ol>
  );
}
