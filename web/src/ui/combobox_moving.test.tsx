// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, expect, test } from "vitest";
import { mount } from "@/testing/mount";
import { Combobox, type Option } from "@/ui/combobox";

const named = (...names: string[]): Option[] => names.map((name) => ({ id: name, label: name }));

let end = () => {};
afterEach(() => end());

function shown(options: Option[]) {
  const picked: string[] = [];
  const box = (now: Option[]) => (
    <Combobox label="Search" query="x" onQuery={() => {}} options={now} onPick={(one) => picked.push(one.id)} />
  );
  const { element, show, unmount } = mount(box(options));
  end = unmount;
  return {
    picked,
    now: (next: Option[]) => show(box(next)),
    key: (key: string) =>
      act(async () => {
        const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
        element.querySelector("input")?.dispatchEvent(event);
      }),
    active: () => element.querySelector("[aria-selected=true]")?.textContent,
  };
}

test("the chosen option stays active when results arrive above it", async () => {
  const list = shown(named("recent", "older"));
  await list.key("ArrowDown");
  list.now(named("found", "recent", "older", "all"));
  expect(list.active()).toBe("older");
  await list.key("Enter");
  expect(list.picked).toEqual(["older"]);

  list.now(named("found", "all"));
  expect(list.active()).toBe("all");
});

test("who only types gets the best of what arrives", async () => {
  const list = shown(named("recent"));
  list.now(named("found", "recent"));
  await list.key("Enter");
  expect(list.picked).toEqual(["found"]);
});
