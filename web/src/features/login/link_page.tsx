import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { Link, useNavigate } from "react-router";
import { chooseLinkPassword } from "@/api/account";
import { ApiError, sentence } from "@/api/errors";
import { request } from "@/api/http";
import type { LinkView } from "@/api/types.gen";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { CardPage } from "@/ui/card_page";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Unencrypted } from "./unencrypted_warning";

/** The page of an invitation or password reset link. The token is in the URL fragment, and is removed from the URL. */
export function LinkPage() {
  const [token] = useState(() => location.hash.slice(1));
  const [password, setPassword] = useState("");
  const navigate = useNavigate();
  useEffect(() => {
    document.title = "Choose a password - Rookery";
    history.replaceState(history.state, "", location.pathname);
  }, []);
  const link = useQuery({
    queryKey: ["link"],
    queryFn: () => request<LinkView>("GET", "/auth/link", { headers: { Authorization: `Bearer ${token}` } }),
    retry: false,
    enabled: token !== "",
  });
  const use = useMutation({
    mutationFn: () => chooseLinkPassword({ token, password }),
    onSuccess: async () => {
      queryClient.clear();
      await navigate("/", { replace: true });
    },
  });

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    use.mutate();
  }

  if (token === "" || link.error) {
    return (
      <CardPage title="This link does not work">
        <p className="text-muted">It may be incomplete, too old, or used already. Ask an administrator for another.</p>
        <Link to="/login" className="mt-4 inline-block text-accent underline">
          Sign in
        </Link>
      </CardPage>
    );
  }
  const error = use.error;
  const field = error instanceof ApiError ? error.field("password") : undefined;
  return (
    <CardPage
      title={link.data?.kind === "reset" ? "Choose a new password" : "Welcome"}
      text={
        link.data &&
        `Choose a ${link.data.kind === "reset" ? "new " : ""}password for your account (${link.data.email ?? link.data.username}).`
      }
    >
      <Unencrypted />
      <form onSubmit={onSubmit} className="flex flex-col gap-4">
        {error && !field && <Notice kind="error">{sentence(error)}</Notice>}
        <input type="hidden" name="username" autoComplete="username" value={link.data?.username ?? ""} />
        <TextField
          label="Password"
          type="password"
          autoComplete="new-password"
          required
          hint="At least 10 characters."
          value={password}
          onChange={(event) => setPassword(event.target.value)}
          error={field}
        />
        <Button type="submit" kind="primary" className="h-9" disabled={use.isPending || !link.data}>
          Save and sign in
        </Button>
      </form>
    </CardPage>
  );
}
