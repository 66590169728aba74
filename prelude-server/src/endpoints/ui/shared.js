// What all tabs share: elements, numbers as text, requests, the served models. The server joins the
// files of this folder into one script, this one first.

const byId = (id) => document.getElementById(id);

/// Makes an element of `namespace`. Children are elements or texts; an attribute that is null is left out.
function element(namespace, tag, attributes, children) {
  const made = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const make = (tag, attributes = {}, ...children) =>
  element("http://www.w3.org/1999/xhtml", tag, attributes, children);

const draw = (tag, attributes = {}, ...children) =>
  element("http://www.w3.org/2000/svg", tag, attributes, children);

const whole = (n) => Math.round(n).toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const count = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;

function milliseconds(ms) {
  const digits = ms < 10 ? 2 : ms < 100 ? 1 : 0;
  return `${ms.toFixed(digits)} ms`;
}

/// Returns a list of name, value and note as the entries of a <dl>.
function figures(list) {
  return list.map(([name, value, note = ""]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note && ` ${note}`))));
}

/// Returns the rows of a table of shares between 0 and 1, each with a bar.
function bars(caption, shares) {
  const best = Math.max(...shares.map(([, share]) => share));
  const rows = shares.map(([name, share]) =>
    make("tr", { class: share === best ? "best" : null },
      make("th", { scope: "row" }, name),
      make("td", {},
        draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
          draw("rect", { class: "track", width: 100, height: 10 }),
          draw("rect", { class: "fill", width: 100 * Math.min(1, Math.max(0, share)), height: 10 }))),
      make("td", { class: "number" }, percent(share))));
  return make("table", { class: "bars" },
    make("caption", { class: "visually-hidden" }, caption), make("tbody", {}, ...rows));
}

/// Shows a text, in which backticks are around code; hides the place if the text is empty.
function show(place, text) {
  place.replaceChildren(...text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part)));
  place.hidden = !text;
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function random() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/// Requests of this page share cached prefixes with each other, and with nobody else's.
const SALT = `ui-${random()}`;

/// The API key, in memory alone.
let key = "";

const address = (path) => new URL(path, document.baseURI).href;

/// The headers of a request.
function headersOf(hasBody) {
  const headers = {};
  if (hasBody) headers["content-type"] = "application/json";
  if (key) headers.authorization = `Bearer ${key}`;
  return headers;
}

/// Sends a request and returns the response, which is a success.
async function send(path, body, signal) {
  const hasBody = body !== undefined;
  let response;
  try {
    response = await fetch(address(path), {
      method: hasBody ? "POST" : "GET",
      headers: headersOf(hasBody),
      body,
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401) askForKey(key ? "The server does not accept this key." : "");
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : error.message;
  } catch {
    // It is no JSON: the status has to do.
  }
  throw new Error(message);
}

/// Sends a request and returns its JSON with the response's headers and the time until it was here.
async function ask(path, body) {
  const began = performance.now();
  const response = await send(path, typeof body === "object" ? JSON.stringify(body) : body);
  const json = await response.json();
  return { json, headers: response.headers, ms: performance.now() - began };
}

function askForKey(why) {
  byId("key-form").hidden = false;
  byId("served").textContent = why || "A key is needed.";
  byId("key").focus();
}

/// The served models, each once.
let models = [];

/// The kind of model that is made for a task which others may serve too.
const MADE_FOR = { systemone: "lm", embeddings: "embedding", classify: "classifier", rerank: "reranker" };

/// Returns the models that serve a task, those that are made for it first.
function serving(task) {
  const isMade = (model) => model.kind === MADE_FOR[task];
  const able = models.filter((model) => model.tasks.includes(task));
  return [...able.filter(isMade), ...able.filter((model) => !isMade(model))];
}

/// Fills a list with the models that serve a task, and returns whether there are any.
function offer(select, task) {
  const options = serving(task).map((model) => make("option", { value: model.id }, `${model.id} (${model.kind})`));
  select.replaceChildren(...options);
  return options.length > 0;
}
