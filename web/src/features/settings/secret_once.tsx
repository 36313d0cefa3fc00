import { Copy } from "lucide-react";
import { Button } from "@/ui/button";
import { copyText } from "@/ui/clipboard";

/** A secret that is shown once, with a copy button. */
export function Secret({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <p className="mb-1 font-medium">{label}</p>
      <div className="flex items-start gap-2">
        <code className="min-w-0 flex-1 rounded-lg border border-line bg-bg2 px-3 py-1.5 font-mono text-small break-all">
          {value}
        </code>
        <Button onClick={() => void copyText(value, "Copied.")}>
          <Copy className="size-4" aria-hidden /> Copy
        </Button>
      </div>
    </div>
  );
}
