import { QueryClientProvider } from "@tanstack/react-query";
import { useEffect } from "react";
import { RouterProvider } from "react-router";
import { router } from "@/app/router";
import { followAppearance } from "@/state/appearance";
import { followPage, openAhead } from "@/state/chat_sessions";
import { followAnswers, followSessionKey } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Announcer } from "@/ui/announcer";
import { Toasts } from "@/ui/toast";
import { Hints } from "@/ui/tooltip";

followAppearance();
followAnswers();
followSessionKey();
followPage();
openAhead();

/** The application: the shared components and the router. */
export function App() {
  useEffect(() => {
    // Loaded after the page, because it is not needed before the first key press.
    let end = () => {};
    import("@/ui/focus_restore").then(
      (module) => {
        end = module.restoreFocus();
      },
      () => {},
    );
    // The application has loaded, so the mark of an automatic reload is removed.
    const timer = setTimeout(() => sessionStorage.removeItem("rookery.reloaded"), 10_000);
    return () => {
      clearTimeout(timer);
      end();
    };
  }, []);
  return (
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
      <Toasts />
      <Announcer />
      <Hints />
    </QueryClientProvider>
  );
}
