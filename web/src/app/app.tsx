import { QueryClientProvider } from "@tanstack/react-query";
import { useEffect } from "react";
import { RouterProvider } from "react-router";
import { router } from "@/app/router";
import { followAppearance } from "@/state/appearance";
import { followPage, openAhead } from "@/state/chat_sessions";
import { queryClient } from "@/state/queries";
import { followAnswers, followSessionKey } from "@/state/session";
import { Announcer } from "@/ui/announcer";
import { Toasts } from "@/ui/toast";
import { Hints } from "@/ui/tooltip";

followAppearance();
followAnswers();
followSessionKey();
followPage();
openAhead();

/** The whole application: what every page shares, and the pages. */
export function App() {
  useEffect(() => {
    // Nothing of it is needed before somebody presses a key in a page that is there.
    let end = () => {};
    import("@/ui/focus_keeper").then(
      (module) => {
        end = module.keepFocus();
      },
      () => {},
    );
    // The one failed load of a part of the page that was healed by a reload is history now.
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
