import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { setUp } from "@/api/account";
import { ApiError, sentence } from "@/api/errors";
import type { SetupBody, User } from "@/api/types.gen";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";

/** The form for the first account. The token proves that the user can read the server's output. */
export function AdminStep({ token, onDone }: { token: string; onDone: (user: User) => void }) {
  const [form, setForm] = useState({ name: "", email: "", password: "", token });
  const create = useMutation({
    mutationFn: (body: SetupBody) => setUp(body),
    onSuccess: onDone,
  });
  const refused = create.error instanceof ApiError ? create.error : null;
  const isFieldError = (refused?.fields.length ?? 0) > 0;
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) =>
    setForm((old) => ({ ...old, [name]: event.target.value }));

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    create.mutate({ ...form, name: form.name.trim(), email: form.email.trim(), token: form.token.trim() });
  }

  return (
    <form onSubmit={onSubmit} className="flex flex-col gap-4">
      {create.error && !isFieldError && <Notice kind="error">{sentence(create.error)}</Notice>}
      {!token && (
        <TextField
          label="Setup token"
          required
          autoComplete="off"
          spellCheck={false}
          value={form.token}
          onChange={set("token")}
          error={refused?.field("token")}
          hint="The server printed it when it started. It is also in the file setup-token of its data directory."
        />
      )}
      <TextField
        label="Name"
        name="name"
        autoComplete="name"
        value={form.name}
        onChange={set("name")}
        error={refused?.field("name")}
      />
      <TextField
        label="Email"
        name="email"
        type="email"
        autoComplete="username"
        required
        value={form.email}
        onChange={set("email")}
        error={refused?.field("email")}
      />
      <TextField
        label="Password"
        name="password"
        type="password"
        autoComplete="new-password"
        required
        hint="At least 10 characters; a sentence is best."
        value={form.password}
        onChange={set("password")}
        error={refused?.field("password")}
      />
      <Button type="submit" kind="primary" className="h-9" disabled={create.isPending}>
        {create.isPending ? "Creating" : "Create account"}
      </Button>
    </form>
  );
}
