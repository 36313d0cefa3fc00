// The API's own documentation: reads the OpenAPI document and lets people try what it says.
// Text is only ever set as text, so nothing in the document or in an answer can become markup.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
const DOCUMENT = "/api/v1/openapi.json";
const MAX_DEPTH = 6;
const MAX_SHOWN = 200000;

let spec = null;

function make(tag, fields, ...children) {
  const { dataset, ...rest } = fields || {};
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset || {});
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function token() {
  return document.getElementById("token").value.trim();
}

// The key of the session that the application has in this browser.
function sessionKey() {
  try {
    return localStorage.getItem("rookery.session_key");
  } catch {
    return null;
  }
}

// A typed token counts alone: a session must not stand in for one that is wrong.
function request(path, options) {
  const headers = { ...(options.headers || {}) };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  else if (sessionKey()) headers["Rookery-Session-Key"] = sessionKey();
  return fetch(path, { ...options, headers, credentials: token() ? "omit" : "same-origin", redirect: "manual" });
}

function resolved(value) {
  if (!value || !value.$ref) return value;
  return value.$ref.slice(2).split("/").reduce((found, step) => found && found[step], spec);
}

function nameOf(schema) {
  return schema && schema.$ref ? schema.$ref.split("/").pop() : null;
}

// What a schema allows, in a line: "string (uuid)", "integer 0..100", "array of Text".
function typeOf(schema) {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const union = schema.anyOf || schema.oneOf;
  if (union) return union.map(typeOf).join(" | ");
  if (schema.type === "array") return `array of ${typeOf(schema.items)}`;
  const low = schema.minimum ?? schema.minLength;
  const high = schema.maximum ?? schema.maxLength;
  const range = low !== undefined || high !== undefined ? ` ${low ?? ""}..${high ?? ""}` : "";
  return `${schema.type || "any"}${schema.format ? ` (${schema.format})` : ""}${range}`;
}

function exampleOf(schema, depth = 0) {
  const found = resolved(schema);
  if (!found || depth > MAX_DEPTH) return null;
  if (found.default !== undefined) return found.default;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  const union = found.anyOf || found.oneOf;
  if (union) return exampleOf(union[0], depth + 1);
  if (found.type === "object" || found.properties) {
    const wanted = found.required && found.required.length ? found.required : Object.keys(found.properties || {}).slice(0, 1);
    return Object.fromEntries(wanted.map((key) => [key, exampleOf((found.properties || {})[key], depth + 1)]));
  }
  if (found.type === "array") return found.minItems ? [exampleOf(found.items, depth + 1)] : [];
  return { string: "", integer: found.minimum ?? 0, number: found.minimum ?? 0, boolean: false }[found.type] ?? null;
}

function schemaView(schema, seen = []) {
  const name = nameOf(schema);
  const found = resolved(schema);
  if (!found) return null;
  const children = [];
  if (found.description && name) children.push(make("p", { className: "quiet", textContent: found.description }));
  if (found.properties) {
    const required = new Set(found.required || []);
    const body = make("tbody");
    for (const [key, member] of Object.entries(found.properties)) {
      body.append(make("tr", {},
        make("td", {}, make("code", { textContent: key + (required.has(key) ? "" : "?") })),
        make("td", {}, make("code", { textContent: typeOf(member) })),
        make("td", { textContent: member.description || "" })));
    }
    children.push(make("table", {}, body));
  } else {
    children.push(make("p", {}, make("code", { textContent: typeOf(found) })));
  }
  const inner = new Set(namesIn(found).filter((each) => !seen.includes(each) && each !== name));
  for (const each of inner) {
    const more = make("details", {}, make("summary", {}, make("code", { textContent: each })));
    more.addEventListener("toggle", () => {
      if (more.open && more.children.length === 1) {
        more.append(schemaView({ $ref: `#/components/schemas/${each}` }, [...seen, each, name]));
      }
    });
    children.push(more);
  }
  return make("div", {}, ...children);
}

function namesIn(value) {
  if (Array.isArray(value)) return value.flatMap(namesIn);
  if (!value || typeof value !== "object") return [];
  if (value.$ref) return value.$ref.startsWith("#/components/schemas/") ? [nameOf(value)] : [];
  return Object.entries(value).flatMap(([key, each]) => (key === "discriminator" ? [] : namesIn(each)));
}

function input(parameter) {
  const schema = resolved(parameter.schema) || {};
  const choices = schema.enum || (resolved((schema.anyOf || [])[0]) || {}).enum;
  if (choices) {
    const options = ["", ...choices].map((each) => make("option", { value: each, textContent: each }));
    return make("select", { name: parameter.name, dataset: { place: parameter.in } }, ...options);
  }
  const shown = schema.default === undefined || schema.default === null ? "" : String(schema.default);
  return make("input", { name: parameter.name, placeholder: shown, dataset: { place: parameter.in } });
}

function parametersView(operation, id) {
  if (!(operation.parameters || []).length) return null;
  const rows = operation.parameters.map((parameter) => {
    const field = input(parameter);
    field.id = `${id}-${parameter.in}-${parameter.name}`;
    field.required = Boolean(parameter.required);
    return make("tr", {},
      make("td", {}, make("label", { htmlFor: field.id }, make("code", { textContent: parameter.name })),
        make("div", { className: "quiet", textContent: `${parameter.in}${parameter.required ? ", required" : ""}` })),
      make("td", {}, make("code", { textContent: typeOf(parameter.schema) }),
        make("div", { className: "quiet", textContent: parameter.description || "" })),
      make("td", {}, field));
  });
  return make("div", {}, make("h3", { textContent: "Parameters" }), make("table", {}, make("tbody", {}, ...rows)));
}

function address(path, fields) {
  let filled = path;
  const query = new URLSearchParams();
  for (const field of fields) {
    const { place } = field.dataset;
    if (place === "path") filled = filled.replace(`{${field.name}}`, encodeURIComponent(field.value));
    else if (place === "query" && field.value !== "") query.append(field.name, field.value);
  }
  return query.size ? `${filled}?${query}` : filled;
}

async function send(method, path, form, answer) {
  const fields = [...form.querySelectorAll("[data-place]")];
  const headers = Object.fromEntries(
    fields.filter((each) => each.dataset.place === "header" && each.value !== "").map((each) => [each.name, each.value]));
  const options = { method: method.toUpperCase(), headers };
  const body = form.querySelector("textarea");
  if (body) {
    headers["Content-Type"] = "application/json";
    options.body = body.value;
  }
  const url = address(path, fields);
  answer.textContent = `${options.method} ${url}\n…`;
  const started = performance.now();
  try {
    const response = await request(url, options);
    const text = await response.text();
    const took = Math.round(performance.now() - started);
    const head = `${options.method} ${url}\n${response.status} ${response.statusText} (${took} ms, request ${response.headers.get("x-request-id")})`;
    answer.textContent = `${head}\n\n${pretty(text).slice(0, MAX_SHOWN)}`;
  } catch (error) {
    answer.textContent = `${options.method} ${url}\nThe request failed: ${error.message}`;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function tryView(method, path, operation) {
  const json = ((operation.requestBody || {}).content || {})["application/json"];
  const streams = Object.values(operation.responses).some((each) => ((resolved(each) || {}).content || {})["text/event-stream"]);
  if (streams || (operation.requestBody && !json)) {
    return make("p", { className: "quiet", textContent: "This one cannot be tried here: it is a stream, or takes a file." });
  }
  const form = make("form", {});
  const answer = make("pre", { hidden: true, tabIndex: 0 });
  const body = json ? make("textarea", { rows: 6, value: JSON.stringify(exampleOf(json.schema), null, 2) }) : null;
  if (body) body.setAttribute("aria-label", "Body");
  form.append(make("div", { className: "wide" }, parametersView(operation, operation.operationId),
    body ? make("h3", { textContent: "Body" }) : null, body, make("button", { type: "submit", textContent: "Send" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer.hidden = false;
    send(method, path, form, answer);
  });
  return make("div", {}, form, answer);
}

function operationView(method, path, operation) {
  const view = make("details", { className: "operation", id: operation.operationId }, make("summary", {},
    make("span", { className: `method ${method}`, textContent: method }), make("code", { textContent: path }),
    make("span", { className: "quiet", textContent: operation.summary || "" })));
  view.dataset.words = `${method} ${path} ${operation.operationId} ${operation.description || ""}`.toLowerCase();
  view.addEventListener("toggle", () => {
    if (!view.open || view.children.length > 1) return;
    const json = ((operation.requestBody || {}).content || {})["application/json"];
    const parts = [make("p", { textContent: operation.description || "" }),
      make("p", { className: "quiet" }, "Name: ", make("code", { textContent: operation.operationId })), tryView(method, path, operation)];
    if (json) parts.push(make("h3", { textContent: "Body" }), schemaView(json.schema));
    parts.push(make("h3", { textContent: "Answers" }));
    for (const [status, given] of Object.entries(operation.responses)) {
      const response = resolved(given) || {};
      const [kind, content] = Object.entries(response.content || {})[0] || [];
      const line = `${status} ${response.description || ""}${kind ? ` (${Object.keys(response.content).join(", ")})` : ""}`;
      parts.push(make("details", {}, make("summary", { textContent: line }), content ? schemaView(content.schema) : null));
    }
    view.append(make("div", {}, ...parts));
  });
  return view;
}

function show() {
  const chapters = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((each) => methods[each])) {
      const [tag] = methods[method].tags || ["other"];
      if (!chapters.has(tag)) chapters.set(tag, []);
      chapters.get(tag).push(operationView(method, path, methods[method]));
    }
  }
  const sections = [...chapters].map(([tag, views]) => make("section", {}, make("h2", { textContent: tag }), ...views));
  document.getElementById("operations").replaceChildren(...sections);
  document.getElementById("version").textContent = spec.info.version;
  const named = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named) {
    named.open = true;
    named.scrollIntoView();
  }
}

function filter() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const view of document.querySelectorAll("details.operation")) {
    view.hidden = !words.every((word) => view.dataset.words.includes(word));
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector("details.operation:not([hidden])");
  }
}

async function start() {
  document.getElementById("filter").addEventListener("input", filter);
  document.getElementById("bar").addEventListener("submit", (event) => event.preventDefault());
  try {
    const response = await request(DOCUMENT, {});
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    spec = await response.json();
    show();
  } catch (error) {
    document.getElementById("operations").textContent = `The document could not be loaded: ${error.message}`;
  }
}

start();
