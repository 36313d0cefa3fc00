import { Drafts } from "@/state/drafts";
import { toast } from "@/ui/toast";

function storage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/** The drafts of all users of this browser. */
export const drafts = new Drafts(
  storage(),
  () => Date.now(),
  () => toast("The browser's storage is full. Your text is kept until this page is closed."),
);
