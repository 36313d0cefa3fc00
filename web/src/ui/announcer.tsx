import { useEffect, useState } from "react";

let say: (text: string, assertive: boolean) => void = () => {};

/** Tell screen readers something that happened; `assertive` for errors. */
export function announce(text: string, assertive = false): void {
  say(text, assertive);
}

/** The two live regions of the page. Texts stay a while, so that equal ones after each other are heard twice. */
export function Announcer() {
  const [polite, setPolite] = useState("");
  const [alarm, setAlarm] = useState("");
  useEffect(() => {
    say = (text, assertive) => {
      const set = assertive ? setAlarm : setPolite;
      set("");
      requestAnimationFrame(() => set(text));
    };
    return () => {
      say = () => {};
    };
  }, []);
  return (
    <>
      <div role="status" aria-live="polite" className="sr-only">
        {polite}
      </div>
      <div role="alert" className="sr-only">
        {alarm}
      </div>
    </>
  );
}
