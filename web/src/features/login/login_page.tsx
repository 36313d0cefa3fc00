import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Navigate, useLocation, useNavigate } from "react-router";
import { LoginForm } from "@/features/login/login_form";
import { meQuery, setupQuery } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { CardPage } from "@/ui/card_page";
import { nextPath } from "./next_path";
import { Unencrypted } from "./unencrypted_warning";

/** The login page. After the login it redirects to the requested page. */
export function LoginPage() {
  const { search } = useLocation();
  const navigate = useNavigate();
  const { data: setup } = useQuery(setupQuery);
  useEffect(() => {
    document.title = "Sign in - Rookery";
  }, []);
  if (setup?.needed) return <Navigate to="/setup" replace />;
  return (
    <CardPage title="Sign in">
      <Unencrypted />
      <LoginForm
        onDone={async () => {
          queryClient.clear();
          await queryClient.prefetchQuery(meQuery);
          await navigate(nextPath(search), { replace: true });
        }}
      />
    </CardPage>
  );
}
