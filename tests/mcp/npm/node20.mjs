// Lets Node 20 load the conformance kit, which imports `globSync` of Node 22 and does not use it for clients.
import { register } from "node:module";

const fs = 'export * from "node:fs"; export const globSync = () => [];';
const hooks = `
const FS = "data:text/javascript," + encodeURIComponent(${JSON.stringify(fs)});
export const resolve = (name, context, next) =>
  name === "fs" && context.parentURL?.includes("/conformance/")
    ? { url: FS, shortCircuit: true }
    : next(name, context);
`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
