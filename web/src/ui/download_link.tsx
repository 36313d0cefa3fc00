import { type MouseEvent, type ReactNode, useState } from "react";
import { sentence } from "@/api/errors";
import { freshLink, signedLink } from "@/api/signed_links";
import { downloadAddress } from "@/state/file_source";
import { toast } from "@/ui/toast";

interface Props {
  /** The path without a signature. */
  path: string;
  name: string;
  className?: string;
  /** The name for screen readers, if the link has no text. */
  label?: string;
  children: ReactNode;
}

/** A download link. Its URL is signed when it is hovered or focused, so that it can also be opened in another tab. */
export function DownloadLink({ path, name, className, label, children }: Props) {
  const [signed, setSigned] = useState<string | null>(null);
  const prepare = () => {
    // An error is shown when the link is clicked.
    if (freshLink(path) === null) signedLink(path).then(setSigned, () => {});
  };
  const onClick = (event: MouseEvent) => {
    if (signed !== null && freshLink(path) === signed) return;
    event.preventDefault();
    downloadAddress(path, name).catch((error: unknown) => toast(sentence(error), { kind: "error" }));
  };
  return (
    <a
      href={signed ?? path}
      download={name}
      onPointerEnter={prepare}
      onFocus={prepare}
      onClick={onClick}
      className={className}
      {...(label ? { "aria-label": label, "data-hint": label } : {})}
    >
      {children}
    </a>
  );
}
