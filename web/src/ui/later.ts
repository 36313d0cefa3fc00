import { useEffect, useState } from "react";

/** A value once it has stayed the same for a while: what is typed is not asked for at every letter. */
export function useLater<T>(value: T, ms: number): T {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return late;
}
