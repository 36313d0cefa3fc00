import { Notice } from "@/ui/notice";

/** A warning next to password fields if the connection is not encrypted. */
export function Unencrypted() {
  if (window.isSecureContext) return null;
  return (
    <Notice kind="warn" className="mb-4">
      This page is not encrypted: its address has no https. Others on the network can read the password that you type
      here.
    </Notice>
  );
}
