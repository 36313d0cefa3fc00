import { useStore } from "zustand";
import { LoginForm } from "@/features/login/login_form";
import { leave, resume, session, useSelf } from "@/state/login_session";
import { Dialog } from "@/ui/dialog";

/** The dialog to sign in again after the session has ended. The page stays, so that typed text is not lost. */
export function SignInDialog() {
  const me = useSelf();
  const isOpen = useStore(session, (state) => state.signedOut);
  return (
    <Dialog
      open={isOpen}
      onOpenChange={() => {}}
      modal
      title="Sign in again"
      description="Your session has ended. Your text is still here."
    >
      <LoginForm username={me.username} onDone={resume} />
      <p className="mt-4 text-small text-muted">
        Not {me.name || me.username}?{" "}
        <button type="button" className="text-accent underline" onClick={leave}>
          Use another account
        </button>
      </p>
    </Dialog>
  );
}
