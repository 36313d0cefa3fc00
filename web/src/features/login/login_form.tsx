import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { login } from "@/api/account";
import { ApiError, sentence } from "@/api/errors";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Switch } from "@/ui/switch";

interface Props {
  /** The username, if it is known. */
  username?: string;
  onDone: () => void;
}

/** The form for username and password. */
export function LoginForm({ username, onDone }: Props) {
  const [name, setName] = useState(username ?? "");
  const [password, setPassword] = useState("");
  const [stays, setStays] = useState(true);
  const signIn = useMutation({ mutationFn: login, onSuccess: onDone });
  const error = signIn.error;
  const fields = error instanceof ApiError ? error : null;

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    signIn.mutate({ login: name.trim(), password, stay_signed_in: stays });
  }

  return (
    <form onSubmit={onSubmit} className="flex flex-col gap-4">
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      <TextField
        label="Email or username"
        name="username"
        autoComplete="username"
        autoCapitalize="none"
        spellCheck={false}
        required
        readOnly={username !== undefined}
        value={name}
        onChange={(event) => setName(event.target.value)}
        error={fields?.field("login")}
      />
      <TextField
        label="Password"
        name="password"
        type="password"
        autoComplete="current-password"
        required
        value={password}
        onChange={(event) => setPassword(event.target.value)}
        error={fields?.field("password")}
      />
      <Switch label="Stay signed in" checked={stays} onChange={setStays} />
      <Button type="submit" kind="primary" className="h-9" disabled={signIn.isPending}>
        {signIn.isPending ? "Signing in" : "Sign in"}
      </Button>
    </form>
  );
}
