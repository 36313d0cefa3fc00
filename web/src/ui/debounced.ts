import { useEffect, useState } from "react";

/** Return a value after it has not changed for `ms`, so that not every key press sends a request. */
export function useDebounced<T>(value: T, ms: number): T {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return late;
}
