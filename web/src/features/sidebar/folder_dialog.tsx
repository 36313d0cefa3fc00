import { useMutation } from "@tanstack/react-query";
import { Folder } from "lucide-react";
import { RadioGroup } from "radix-ui";
import { type FormEvent, useState } from "react";
import { sentence } from "@/api/errors";
import type { ChatFolder, FolderColor } from "@/api/types.gen";
import { FOLDER_COLORS, saveFolder } from "@/state/folders";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";

interface Props {
  /** The folder to change; null to create one. */
  folder: ChatFolder | null;
  onClose: () => void;
  onSaved?: (folder: ChatFolder) => void;
}

/** The dialog to create a folder, or to change its name and color. */
export function FolderDialog({ folder, onClose, onSaved }: Props) {
  const [name, setName] = useState(folder?.name ?? "");
  const [color, setColor] = useState<FolderColor>(folder?.color ?? "gray");
  const save = useMutation({
    mutationFn: () => saveFolder(folder?.id ?? null, name, color),
    onSuccess: (saved) => {
      onClose();
      onSaved?.(saved);
    },
  });

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    save.mutate();
  }

  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={folder ? "Edit folder" : "New folder"}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" form="folder" kind="primary" disabled={!name.trim() || save.isPending}>
            {folder ? "Save" : "Create"}
          </Button>
        </>
      }
    >
      <form id="folder" onSubmit={onSubmit} className="flex flex-col gap-4">
        <TextField
          label="Name"
          value={name}
          maxLength={60}
          onChange={(event) => setName(event.target.value)}
          onFocus={(event) => event.target.select()}
          error={save.error ? sentence(save.error).replace(/^name: /, "") : undefined}
        />
        <div>
          <span id="folder-color" className="mb-1 block font-medium">
            Color
          </span>
          <RadioGroup.Root
            aria-labelledby="folder-color"
            value={color}
            onValueChange={(next) => setColor(next as FolderColor)}
            className="flex flex-wrap gap-1.5"
          >
            {Object.entries(FOLDER_COLORS).map(([value, [label, className]]) => (
              <RadioGroup.Item
                key={value}
                value={value}
                aria-label={label}
                title={label}
                className="grid size-9 place-items-center rounded-lg border border-line data-[state=checked]:border-accent data-[state=checked]:bg-bg3 pointer-coarse:size-11"
              >
                <Folder aria-hidden className={cx("size-4", className)} />
              </RadioGroup.Item>
            ))}
          </RadioGroup.Root>
        </div>
      </form>
    </Dialog>
  );
}
