import {
  type ClipboardEvent,
  type ReactNode,
  type Ref,
  useEffect,
  useId,
  useImperativeHandle,
  useRef,
  useState,
} from "react";
import { useStore } from "zustand";
import { useShallow } from "zustand/react/shallow";
import { sentence } from "@/api/errors";
import { getSavedPrompt, type PromptScope } from "@/api/saved_prompts";
import type { BusyBehavior } from "@/api/types.gen";
import { mention, mentionAt, usedReferences, withMention, withoutReference, withRemark } from "@/chat/file_references";
import type { ReferencePart } from "@/chat/types";
import { AttachmentList } from "@/features/composer/attachment_list";
import { toDraft, useAttachments } from "@/features/composer/attachments";
import { asCommand, hiddenCharacters, isLongPaste, skillText, withoutHidden } from "@/features/composer/commands";
import { selectVariable, useComposerKeys } from "@/features/composer/composer_keys";
import { useDraftAutosave } from "@/features/composer/draft_autosave";
import { drafts } from "@/features/composer/draft_store";
import { useEarlyEnter } from "@/features/composer/early_enter";
import { nextMode } from "@/features/composer/mode_switch";
import { ReferenceList } from "@/features/composer/reference_list";
import { type BoxContent, type Submission, submissionOf } from "@/features/composer/submission";
import { askedAt, pickedPrompt, pickedSkill, useSuggestions } from "@/features/composer/suggestions";
import { Toolbar, type ToolbarControls } from "@/features/composer/toolbar";
import { TypedText } from "@/features/composer/typed_text";
import { sizeOf } from "@/features/timeline/message_files";
import { offerComposer } from "@/state/composer_port";
import type { DraftFile } from "@/state/drafts";
import { useDisplay, useKnownModels } from "@/state/queries";
import { announce } from "@/ui/announcer";
import { Button } from "@/ui/button";
import { OptionList } from "@/ui/combobox";
import { cx } from "@/ui/cx";
import { toast } from "@/ui/toast";
import { useHistory } from "./message_history";

/** Methods of the composer for other components. */
export interface ComposerHandle {
  insert: (text: string) => void;
  focus: () => void;
  openModels: () => void;
  /** Edit a sent message. The draft is kept aside until the edit ends. */
  beginEdit: (text: string, files: DraftFile[], references: ReferencePart[]) => void;
  endEdit: () => void;
  /** Add queued messages to what is in the box. */
  takeBack: (messages: readonly (readonly [text: string, files: DraftFile[], references: ReferencePart[]])[]) => void;
  addFiles: (files: File[]) => void;
}

/** Keep the menu, which opens upwards, below the header of the page. */
function fitAbove(menu: HTMLElement | null) {
  if (menu) menu.style.maxHeight = `${menu.getBoundingClientRect().bottom - 56}px`;
}

interface Props extends ToolbarControls {
  ref?: Ref<ComposerHandle>;
  userId: string;
  chatId: string | null;
  placeholder: string;
  /** Resolves to false if the message was refused; its text then returns to the box. */
  onSubmit: (submission: Submission) => Promise<boolean>;
  onPromoteFirst: () => void;
  onCommand: (name: string) => void;
  /** The banner above the box while a sent or queued message is edited, and the action of its Cancel button. */
  editing: { banner: ReactNode; onCancel: () => void } | null;
  autoFocus?: boolean;
}

/** The message box. A keystroke renders nothing unless it changes something around the box. */
export function Composer(props: Props) {
  const { userId, chatId, busy, choice, planMode, editing } = props;
  const draftKey = chatId ?? "new";
  const [initial] = useState(() => drafts.load(userId, draftKey));
  const box = useRef<HTMLTextAreaElement>(null);
  const [typed] = useState(() => new TypedText(box, initial.text, initial.references));
  const [modelsOpen, setModelsOpen] = useState(false);
  const [dragging, setDragging] = useState(false);
  const [active, setActive] = useState(0);
  const [menuClosed, setMenuClosed] = useState(false);
  const [sending, setSending] = useState(false);
  const attachments = useAttachments(initial.files);
  const history = useHistory(chatId);
  const aside = useRef<BoxContent | null>(null);
  const display = useDisplay();
  const models = useKnownModels();
  const listId = useId();

  const files = useRef(attachments.items);
  files.current = attachments.items;
  const typedNow = (): BoxContent => ({
    text: typed.text,
    files: toDraft(files.current),
    references: usedReferences(typed.text, typed.references),
  });

  useDraftAutosave({
    userId,
    draftKey,
    typed,
    files: attachments.items,
    current: typedNow,
    isPaused: () => aside.current !== null,
  });

  useEffect(() => {
    if (props.autoFocus && matchMedia("(pointer: fine)").matches) box.current?.focus();
  }, [props.autoFocus]);

  useEffect(() => typed.fit(), [typed]);

  const providerType = models.find((one) => one.id === choice.modelConfigId)?.provider.type ?? null;
  const addFiles = (chosen: File[]) => {
    void (async () => {
      for (const file of chosen) {
        const { limitFor, shrink } = await import("./image_scaling");
        const limit = limitFor(providerType);
        const small = await shrink(file, limit);
        if (small) attachments.add(small, small === file ? file.name : file.name.replace(/\.\w+$/, ".webp"));
        else
          toast(`${file.name} has ${sizeOf(file.size)}; it could not be made smaller than ${sizeOf(limit)}.`, {
            kind: "error",
          });
      }
    })();
  };

  const insert = (more: string) => {
    typed.write((before) => (before ? `${before.replace(/\s*$/, "")}\n\n${more}` : more));
    requestAnimationFrame(() => box.current?.focus());
  };
  const insertLatest = useRef(insert);
  insertLatest.current = insert;
  useEffect(() => {
    if (chatId === null) return;
    return offerComposer(chatId, {
      insert: (more) => insertLatest.current(more),
      refer: (reference, remark) => {
        typed.refer((known) => [...known, reference]);
        typed.write((before) => withRemark(before, reference, remark));
      },
      mention: (path) => {
        const reference = mention(path);
        typed.refer((known) => [...known, reference]);
        typed.write((before) => withMention(before, reference));
        requestAnimationFrame(() => box.current?.focus());
      },
    });
  }, [typed, chatId]);

  useImperativeHandle(props.ref, () => ({
    insert,
    focus: () => box.current?.focus(),
    openModels: () => setModelsOpen(true),
    beginEdit: (words, attached, quoted) => {
      aside.current ??= typedNow();
      typed.write(words);
      typed.refer(() => quoted);
      attachments.set(attached);
      requestAnimationFrame(() => box.current?.focus());
    },
    endEdit: () => {
      if (!aside.current) return;
      const { text, references, files: attached } = aside.current;
      typed.write(text);
      typed.refer(() => references);
      attachments.set(attached);
      aside.current = null;
    },
    takeBack: (taken) => {
      typed.refer((before) => [...before, ...taken.flatMap(([, , quoted]) => quoted)]);
      attachments.set([...toDraft(files.current), ...taken.flatMap(([, attached]) => attached)]);
      insert(taken.flatMap(([words]) => words || []).join("\n\n"));
      announce(
        taken.length === 1 ? "1 message is in the message box" : `${taken.length} messages are in the message box`,
      );
    },
    addFiles,
  }));

  const hasText = useStore(typed.store, (state) => /\S/.test(state.text));
  const hasContent = hasText || attachments.items.some((one) => !one.error);
  const { workspaceId } = props;
  const asked = useStore(typed.store, askedAt);
  const { label: menuLabel, options } = useSuggestions({ asked: menuClosed ? null : asked, chatId, workspaceId });
  const quotes = useStore(
    typed.store,
    useShallow((state) => usedReferences(state.text, state.references)),
  );
  const hidden = useStore(typed.store, (state) => hiddenCharacters(state.text));

  const runCommand = (name: string) => {
    typed.write("");
    if (name === "model" || name === "effort") setModelsOpen(true);
    else if (name === "plan") props.onPlanMode(!planMode);
    else if (name === "mode") props.onPermissionMode?.(nextMode(props.permissionMode));
    else props.onCommand(name);
  };

  const pick = (id: string) => {
    const skill = pickedSkill(id);
    if (skill !== null) return typed.write(skillText(skill));
    const prompt = pickedPrompt(id);
    if (prompt !== null) return void insertPrompt(...prompt);
    const { text, caret } = typed;
    const name = mentionAt(text, caret);
    if (!name) return runCommand(id);
    // A folder keeps the menu open with its content.
    const isFile = !id.endsWith("/");
    const until = name.at + id.length + (isFile ? 2 : 1);
    if (isFile) typed.refer((known) => [...known, mention(id)]);
    typed.write(`${text.slice(0, name.at)}@${id}${isFile ? " " : ""}${text.slice(caret)}`, until);
    setActive(0);
  };

  async function insertPrompt(scope: PromptScope, name: string): Promise<void> {
    try {
      const { text } = await getSavedPrompt(name, scope);
      typed.write(text, text.length);
      if (box.current) selectVariable(box.current, 0);
    } catch (error) {
      toast(sentence(error), { kind: "error" });
    }
  }

  async function submit(behavior: BusyBehavior): Promise<void> {
    const words = typed.text;
    const command = asCommand(words);
    if (command && (chatId !== null || !command.needsChat)) {
      runCommand(command.name);
      return;
    }
    if (!hasContent || sending) return;
    setSending(true);
    await attachments.settled();
    // `files` has the state after the uploads; `attachments` has that of the click.
    const broken = files.current.find((one) => one.error);
    if (broken) {
      toast(`${broken.name} cannot be sent. ${broken.error}`, { kind: "error" });
      setSending(false);
      return;
    }
    const stored = toDraft(files.current);
    const { references } = typed;
    const { content, parts } = submissionOf(words, references, stored);
    // Text that was typed during the uploads stays in the box.
    typed.write((now) => (now.startsWith(words) ? now.slice(words.length).trimStart() : now));
    typed.refer(() => []);
    attachments.set([]);
    setSending(false);
    history.leave(true);
    const accepted = await props.onSubmit({ content, parts, choice, planMode, busy: behavior });
    if (accepted) {
      if (typed.text === "" && !aside.current) drafts.remove(userId, draftKey);
    } else {
      // The refused text returns to the box, before text that was typed meanwhile.
      typed.write((meanwhile) => (meanwhile ? `${words}\n\n${meanwhile}` : words));
      typed.refer((known) => [...references, ...known]);
      attachments.bringBack(stored);
    }
  }

  const noteEarly = useEarlyEnter(box, typed, display, () => void submit(display.busySend));
  const onKeyDown = useComposerKeys({
    typed,
    history,
    options,
    active,
    busy,
    canStop: busy && !props.stopping,
    hasQueue: props.hasQueue ?? false,
    isEditing: editing !== null,
    hasContent,
    enterSends: display.enterSends,
    isEnterKnown: display.loaded,
    setActive,
    onPick: pick,
    onCloseMenu: () => setMenuClosed(true),
    onCancelEdit: () => editing?.onCancel(),
    onStop: props.onStop,
    busySend: display.busySend,
    onSubmit: (behavior) => void submit(behavior),
    onPromoteFirst: props.onPromoteFirst,
    onEarlyEnter: noteEarly,
  });

  function onPaste(event: ClipboardEvent<HTMLTextAreaElement>): void {
    const dropped = [...event.clipboardData.files];
    if (dropped.length > 0) {
      event.preventDefault();
      addFiles(dropped);
      return;
    }
    const pasted = event.clipboardData.getData("text/plain");
    if (!isLongPaste(pasted)) return;
    event.preventDefault();
    attachments.add(
      new Blob([pasted], { type: "text/plain" }),
      `pasted-${pasted.split("\n").length}-lines.txt`,
      pasted,
    );
  }

  const uploading = attachments.items.some((one) => !one.id && !one.error);
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: files can be dropped here; keyboard users have the file picker
    <div
      className={cx(
        "shows-focus relative rounded-2xl border bg-bg1 shadow-sm transition-colors focus-within:border-control",
        dragging ? "border-accent" : editing ? "border-accent" : "border-line",
      )}
      onDragOver={(event) => {
        if (!event.dataTransfer.types.includes("Files")) return;
        event.preventDefault();
        setDragging(true);
      }}
      onDragLeave={() => setDragging(false)}
      onDrop={(event) => {
        event.preventDefault();
        setDragging(false);
        addFiles([...event.dataTransfer.files]);
      }}
    >
      {editing && (
        <div className="flex items-start gap-3 rounded-t-2xl border-b border-line bg-bg2 px-4 py-2 text-small">
          <div className="min-w-0 flex-1">{editing.banner}</div>
          <Button size="small" onClick={editing.onCancel}>
            Cancel
          </Button>
        </div>
      )}
      {options.length > 0 && (
        <div
          ref={fitAbove}
          className="absolute bottom-full left-0 z-20 mb-2 flex w-full max-w-md flex-col rounded-xl border border-line bg-bg1 shadow-pop"
        >
          <OptionList
            id={listId}
            label={menuLabel}
            options={options}
            active={Math.min(active, options.length - 1)}
            onActive={setActive}
            onPick={(one) => pick(one.id)}
            empty=""
            className="max-h-72"
          />
        </div>
      )}
      <ReferenceList
        references={quotes}
        onRemove={(one) => {
          typed.write((text) => withoutReference(text, one));
          typed.refer((known) => known.filter((other) => other !== one));
        }}
      />
      <AttachmentList
        items={attachments.items}
        onRemove={attachments.remove}
        onInsert={(item) => {
          attachments.remove(item.key);
          typed.write((before) => before + (item.pasted ?? ""));
          box.current?.focus();
        }}
      />
      <textarea
        ref={box}
        data-composer
        aria-label="Message"
        aria-autocomplete="list"
        aria-controls={options.length > 0 ? listId : undefined}
        aria-activedescendant={options.length > 0 ? `${listId}-${Math.min(active, options.length - 1)}` : undefined}
        rows={1}
        defaultValue={initial.text}
        placeholder={props.placeholder}
        onChange={() => {
          typed.read();
          if (menuClosed) setMenuClosed(false);
          if (active !== 0) setActive(0);
          history.leave();
        }}
        onSelect={() => typed.moved()}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
        className="block max-h-[40vh] min-h-12 w-full resize-none overflow-y-auto bg-transparent px-4 pt-3 pb-1 text-prose outline-none [field-sizing:content] placeholder:text-muted pointer-coarse:text-[16px]"
      />
      {hidden > 0 && (
        <p role="alert" className="flex items-center gap-2 px-4 text-small text-warn">
          {hidden} invisible {hidden === 1 ? "character" : "characters"} in the text.
          <Button size="small" onClick={() => typed.write(withoutHidden)}>
            Remove
          </Button>
        </p>
      )}
      <Toolbar
        {...props}
        modelsOpen={modelsOpen}
        onModelsOpen={setModelsOpen}
        canSend={hasContent && !sending}
        isSending={sending || uploading}
        onFiles={addFiles}
        onSend={(behavior) => void submit(behavior)}
        busySend={display.busySend}
        enterSends={display.enterSends}
      />
    </div>
  );
}
