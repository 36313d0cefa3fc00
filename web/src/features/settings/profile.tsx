import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useLocation } from "react-router";
import { changePassword, listOwnAccesses } from "@/api/account";
import { patchUser } from "@/api/admin";
import { ApiError, hasCode, sentence } from "@/api/errors";
import { del, get } from "@/api/http";
import type { ItemsOfSessionView } from "@/api/types.gen";
import { visitsOf } from "@/chat/admin_accesses";
import { useSelf } from "@/state/login_session";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Ago, Moment } from "@/ui/relative_time";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Form, Section } from "./settings_form";

/** The page for the user's profile, password and sessions. */
export function Profile() {
  const me = useSelf();
  return (
    <>
      <Section title="You">
        <Form
          initial={{ name: me.name, email: me.email ?? "", username: me.username }}
          save={async (changed) => {
            await patchUser(me.id, changed);
            await queryClient.invalidateQueries({ queryKey: keys.me });
          }}
        >
          {({ values, set, error }) => (
            <>
              <TextField
                label="Name"
                value={values.name}
                onChange={(e) => set("name", e.target.value)}
                error={error("name")}
              />
              <TextField
                label="Email"
                type="email"
                value={values.email}
                onChange={(e) => set("email", e.target.value)}
                error={error("email")}
              />
              <TextField
                label="Username"
                value={values.username}
                onChange={(e) => set("username", e.target.value)}
                error={error("username")}
              />
            </>
          )}
        </Form>
      </Section>
      <Password />
      <Sessions />
      <Accesses />
    </>
  );
}

const WRONG_PASSWORD = new ApiError(401, {
  fields: [{ field: "current_password", message: "This is not your current password." }],
});
const EMPTY = { current_password: "", new_password: "", revoke_tokens: true };

function Password() {
  return (
    <Section title="Password" text="Changing it ends all your other sessions.">
      <Form
        initial={EMPTY}
        action="Change password"
        saved="The password was changed."
        clears
        isReady={(values) => values.current_password !== "" && values.new_password !== ""}
        save={async (changed) => {
          await changePassword({ ...EMPTY, ...changed }).catch((error: unknown) => {
            throw hasCode(error, "invalid_credentials") ? WRONG_PASSWORD : error;
          });
          await queryClient.invalidateQueries({ queryKey: ["sessions"] });
          await queryClient.invalidateQueries({ queryKey: ["tokens"] });
        }}
      >
        {({ values, set, error }) => (
          <>
            <TextField
              label="Current password"
              type="password"
              autoComplete="current-password"
              value={values.current_password}
              onChange={(e) => set("current_password", e.target.value)}
              error={error("current_password")}
            />
            <TextField
              label="New password"
              type="password"
              autoComplete="new-password"
              hint="At least 10 characters."
              value={values.new_password}
              onChange={(e) => set("new_password", e.target.value)}
              error={error("new_password")}
            />
            <Switch
              label="End all API tokens as well"
              hint="Programs and terminals that use one have to sign in again."
              checked={values.revoke_tokens}
              onChange={(on) => set("revoke_tokens", on)}
            />
          </>
        )}
      </Form>
    </Section>
  );
}

function Sessions() {
  const { data } = useQuery({ queryKey: ["sessions"], queryFn: () => get<ItemsOfSessionView>("/auth/sessions") });
  const end = useMutation({
    mutationFn: (id: string | null) => del(id ? `/auth/sessions/${id}` : "/auth/sessions"),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: ["sessions"] }),
    onError: (error) => toast(sentence(error), { kind: "error" }),
  });
  const sessions = data?.items ?? [];
  return (
    <Section title="Sessions" text="Browsers that are signed in as you.">
      <Table
        label="Sessions"
        rows={sessions}
        keyOf={(one) => one.id}
        empty="Loading"
        columns={[
          { title: "Browser", cell: (one) => browserName(one.user_agent) },
          { title: "Address", cell: (one) => one.ip ?? "" },
          { title: "Last seen", cell: (one) => <Ago at={one.last_seen_at} /> },
          {
            title: "",
            right: true,
            cell: (one) =>
              one.current ? (
                <span className="text-muted">This one</span>
              ) : (
                <Button size="small" onClick={() => end.mutate(one.id)}>
                  End
                </Button>
              ),
          },
        ]}
      />
      {sessions.length > 1 && (
        <Button className="self-start" onClick={() => end.mutate(null)}>
          End all others
        </Button>
      )}
    </Section>
  );
}

/** The accesses of administrators to the user's chats and account. */
function Accesses() {
  const { data } = useQuery({ queryKey: ["accesses"], queryFn: listOwnAccesses });
  const { hash } = useLocation();
  const isAsked = hash === "#accesses" && data !== undefined;
  useEffect(() => {
    if (isAsked) document.getElementById("accesses")?.scrollIntoView();
  }, [isAsked]);
  return (
    <Section
      id="accesses"
      title="Accesses by administrators"
      text="When an administrator read one of your chats, with the reason that they gave, or reset your password."
    >
      <Table
        label="Accesses by administrators"
        rows={visitsOf(data?.items ?? [])}
        keyOf={(one) => `${one.at} ${one.who} ${one.chat} ${one.reason}`}
        empty={data ? "None so far." : "Loading"}
        columns={[
          { title: "Who", cell: (one) => one.who },
          {
            title: "What",
            cell: (one) =>
              one.chat === null ? (
                one.reason
              ) : (
                <span className="[overflow-wrap:anywhere]">
                  Read{" "}
                  <Link to={`/c/${one.chat}`} className="text-accent underline">
                    a chat
                  </Link>
                  : {one.reason}
                </span>
              ),
          },
          { title: "When", cell: (one) => <Moment at={one.at} /> },
        ]}
      />
    </Section>
  );
}

/** Return a short name of the browser, such as `Firefox on Linux`. */
export function browserName(agent: string | null): string {
  if (!agent) return "Unknown";
  const name = /(Firefox|Edg|Chrome|Safari)\//.exec(agent)?.[1]?.replace("Edg", "Edge") ?? agent.split(" ")[0];
  const system = /(Windows|Android|iPhone|iPad|Mac OS|Linux)/.exec(agent)?.[1];
  return system ? `${name} on ${system}` : (name ?? "Unknown");
}
