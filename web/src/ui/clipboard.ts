import { toast } from "@/ui/toast";

/** Put a text on the clipboard, and say so in these words, if any. Whether it worked; if it did not, that is said. */
export async function copyText(text: string, done?: string): Promise<boolean> {
  const isCopied = await put(text);
  if (!isCopied)
    toast("The browser does not let this page copy. Select the text and copy it yourself.", { kind: "error" });
  else if (done) toast(done, { kind: "ok" });
  return isCopied;
}

async function put(text: string): Promise<boolean> {
  // Browsers offer the clipboard only over https and on the machine itself.
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
  // Within an open dialog, which does not let the focus out.
  (focused?.closest("[role=dialog], [role=alertdialog]") ?? document.body).append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
