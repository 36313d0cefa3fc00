import { useEffect, useState } from "react";

let say: (text: string, assertive: boolean) => void = () => {};

/** Announce a text to screen readers; `assertive` for errors. */
export function announce(text: string, assertive = false): void {
  say(text, assertive);
}

/** The two live regions of the page. Texts are removed after a while, so that a repeated text is announced again. */
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
