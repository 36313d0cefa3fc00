import { type MouseEvent, type ReactNode, useState } from "react";
import { sentence } from "@/api/errors";
import { freshLink, signedLink } from "@/api/links";
import { downloadAddress } from "@/state/file_source";
import { toast } from "@/ui/toast";

interface Props {
  /** The address without its signature. */
  path: string;
  name: string;
  className?: string;
  /** What it is called, where it shows no words. */
  label?: string;
  children: ReactNode;
}

/** A link that saves a file. It is signed when somebody comes near it, so that it can be opened elsewhere as well. */
export function DownloadLink({ path, name, className, label, children }: Props) {
  const [signed, setSigned] = useState<string | null>(null);
  const prepare = () => {
    // What goes wrong here is told by the click.
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
