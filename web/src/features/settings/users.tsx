import { useInfiniteQuery, useMutation } from "@tanstack/react-query";
import { Ellipsis } from "lucide-react";
import { useState } from "react";
import { createUser, deleteUser, listUsers, patchUser, resetPassword } from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import type { OneTimeLink, User, UserPatchBody, UserRole } from "@/api/types.gen";
import { useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button, IconButton } from "@/ui/button";
import { useDebounced } from "@/ui/debounced";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Menu } from "@/ui/menu";
import { dollars } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Ago } from "@/ui/relative_time";
import { Select } from "@/ui/select";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Secret } from "./secret_once";
import { Section } from "./settings_form";

const KEY = ["users"];
const ROLES: { value: UserRole; label: string }[] = [
  { value: "member", label: "Member" },
  { value: "admin", label: "Administrator" },
  { value: "auditor", label: "Auditor" },
];
const reload = () => queryClient.invalidateQueries({ queryKey: KEY });
const complain = (error: unknown) => toast(sentence(error), { kind: "error" });

/** The accounts of this server. */
export function Users() {
  const me = useSelf();
  const isAdmin = me.role === "admin";
  const [typed, setTyped] = useState("");
  const q = useDebounced(typed.trim(), 200);
  const list = useInfiniteQuery({
    queryKey: [...KEY, q],
    queryFn: ({ pageParam }) => listUsers(q, pageParam || undefined),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
  const [inviting, setInviting] = useState(false);
  const [link, setLink] = useState<OneTimeLink | null>(null);
  const [limiting, setLimiting] = useState<User | null>(null);
  const users = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Section>
      {isAdmin && (
        <Button kind="primary" className="self-start" onClick={() => setInviting(true)}>
          Invite
        </Button>
      )}
      <TextField label="Find" type="search" value={typed} onChange={(event) => setTyped(event.target.value)} />
      {list.error && <Notice kind="error">{sentence(list.error)}</Notice>}
      <Table
        label="Users"
        rows={users}
        keyOf={(one) => one.id}
        empty="No users found."
        columns={[
          {
            title: "Name",
            cell: (one) => (
              <>
                <span className="font-medium">{one.name || one.username}</span>{" "}
                <span className="text-muted">@{one.username}</span>
                {one.status === "disabled" && <span className="ml-2 text-danger">suspended</span>}
              </>
            ),
          },
          { title: "Role", cell: (one) => ROLES.find((role) => role.value === one.role)?.label },
          { title: "Limit", cell: (one) => (one.spend_limit_micros === null ? "" : dollars(one.spend_limit_micros)) },
          { title: "Last seen", cell: (one) => (one.last_seen_at ? <Ago at={one.last_seen_at} /> : "Never") },
          {
            title: "",
            right: true,
            cell: (one) =>
              isAdmin && (
                <UserActions user={one} isMe={one.id === me.id} onLink={setLink} onLimit={() => setLimiting(one)} />
              ),
          },
        ]}
      />
      {list.hasNextPage && <Button onClick={() => list.fetchNextPage()}>More</Button>}
      {inviting && (
        <InviteDialog
          onClose={() => setInviting(false)}
          onLink={(made) => {
            setInviting(false);
            setLink(made);
          }}
        />
      )}
      {limiting && <LimitDialog user={limiting} onClose={() => setLimiting(null)} />}
      {link && (
        <Dialog
          open
          onOpenChange={() => setLink(null)}
          title="One-time link"
          description="Send this link to the user. It lets them choose a password. It works once, within 24 hours."
        >
          <Secret label="Link" value={link.url} />
        </Dialog>
      )}
    </Section>
  );
}

interface ActionProps {
  user: User;
  isMe: boolean;
  onLink: (link: OneTimeLink) => void;
  onLimit: () => void;
}

function UserActions({ user, isMe, onLink, onLimit }: ActionProps) {
  const change = (body: UserPatchBody) => void patchUser(user.id, body).then(reload, complain);
  const isActive = user.status === "active";
  return (
    <Menu
      align="end"
      label={`Actions for ${user.username}`}
      trigger={
        <IconButton label={`Actions for ${user.username}`} size="small">
          <Ellipsis />
        </IconButton>
      }
      items={[
        ...ROLES.map((role) => ({
          label: `Make ${role.label.toLowerCase()}`,
          checked: user.role === role.value,
          disabled: isMe,
          onSelect: () => change({ role: role.value }),
        })),
        "separator",
        { label: "Spend limit", onSelect: onLimit },
        { label: "Reset password", onSelect: () => void resetPassword(user.id).then(onLink, complain) },
        {
          label: isActive ? "Suspend" : "Activate",
          disabled: isMe,
          onSelect: () => change({ status: isActive ? "disabled" : "active" }),
        },
        !isActive && {
          label: "Delete for good",
          danger: true,
          onSelect: () => void deleteUser(user.id).then(reload, complain),
        },
      ]}
    />
  );
}

function InviteDialog({ onClose, onLink }: { onClose: () => void; onLink: (link: OneTimeLink) => void }) {
  const [form, setForm] = useState({ email: "", name: "", role: "member" as UserRole });
  const invite = useMutation({
    mutationFn: () => createUser(form),
    onSuccess: (user) => {
      void reload();
      if (user.link) onLink(user.link);
      else onClose();
    },
  });
  const refused = invite.error instanceof ApiError ? invite.error : null;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Invite"
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!form.email || invite.isPending} onClick={() => invite.mutate()}>
            Make a link
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {invite.error && !refused?.fields.length && <Notice kind="error">{sentence(invite.error)}</Notice>}
        <TextField
          label="Email"
          type="email"
          value={form.email}
          onChange={(e) => setForm({ ...form, email: e.target.value })}
          error={refused?.field("email")}
        />
        <TextField
          label="Name"
          value={form.name}
          onChange={(e) => setForm({ ...form, name: e.target.value })}
          error={refused?.field("name")}
        />
        <Select
          label="Role"
          value={form.role}
          onChange={(role) => setForm({ ...form, role: role as UserRole })}
          options={ROLES}
        />
      </div>
    </Dialog>
  );
}

function LimitDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const [limit, setLimit] = useState(
    user.spend_limit_micros === null ? "" : String(user.spend_limit_micros / 1_000_000),
  );
  const save = useMutation({
    mutationFn: () =>
      patchUser(user.id, { spend_limit_micros: limit.trim() ? Math.round(Number(limit) * 1_000_000) : null }),
    onSuccess: () => {
      void reload();
      onClose();
    },
  });
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={`Spend limit of ${user.name || user.username}`}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={save.isPending} onClick={() => save.mutate()}>
            Save
          </Button>
        </>
      }
    >
      <TextField
        label="Limit in $"
        inputMode="decimal"
        hint="Empty: the server's."
        value={limit}
        onChange={(e) => setLimit(e.target.value)}
        error={save.error ? sentence(save.error) : undefined}
      />
    </Dialog>
  );
}
