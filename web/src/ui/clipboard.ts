import { toast } from "@/ui/toast";

/** Copy a text to the clipboard. Shows `done` if given, or an error. Return whether it worked. */
export async function copyText(text: string, done?: string): Promise<boolean> {
  const isCopied = await put(text);
  if (!isCopied)
    toast("The browser does not let this page copy. Select the text and copy it yourself.", { kind: "error" });
  else if (done) toast(done, { kind: "ok" });
  return isCopied;
}

async function put(text: string): Promise<boolean> {
  // Browsers provide the clipboard API only over https and on localhost.
  if (!navigator.clipboard) return putBySelection(text);
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}

function putBySelection(text: string): boolean {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "sr-only";
  // Inside an open dialog, because it traps the focus.
  (focused?.closest("[role=dialog], [role=alertdialog]") ?? document.body).append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
