import { Notice } from "@/ui/notice";

/** Before somebody types a password: the browser says whether others can read what it sends. */
export function Unencrypted() {
  if (window.isSecureContext) return null;
  return (
    <Notice kind="warn" className="mb-4">
      This page is not encrypted: its address has no https. Others on the network can read the password that you type
      here.
    </Notice>
  );
}
