// Live: the latest steps of every model, queues, times and caches.

const STEPS_KEPT = 200;
const STEPS_LISTED = 8;
const KINDS = { oneshot: "one-shot", decode: "decode", mixed: "mixed", slice: "slice of a long prompt" };
const STATUS_EVERY_MS = 3000;
const AGAIN_AFTER_MS = 1000;

/// Ends the stream that is followed; null if there is none.
let following = null;
let isPaused = false;

/// What is shown of each model, by its name.
const cards = new Map();

/// Makes the card of a model, whose parts are filled as events come.
function liveCard(id) {
  const part = (tag, attributes = {}) => make(tag, attributes);
  const card = {
    steps: [],
    missed: 0,
    title: part("h3"),
    now: part("dl", { class: "figures" }),
    strip: draw("svg", { class: "strip", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img" }),
    scale: part("p", { class: "hint" }),
    pool: part("div"),
    times: part("div"),
    list: part("tbody"),
  };
  const swatches = Object.entries({ ...KINDS, failed: "failed" }).map(([kind, name]) =>
    make("li", {}, make("span", { class: `swatch ${kind}` }), name));
  const head = ["Step", "Kind", "Rows", "Tokens", "Time"].map((text) => make("th", { scope: "col" }, text));
  card.root = make("article", { class: "model", "data-model": id }, card.title, card.now, card.strip, card.scale,
    make("ul", { class: "key" }, ...swatches),
    make("div", { class: "two" },
      make("table", { class: "plain" }, make("caption", {}, "Latest steps"),
        make("thead", {}, make("tr", {}, ...head)), card.list),
      card.times, card.pool));
  byId("live-models").append(card.root);
  cards.set(id, card);
  return card;
}

const rowsOf = (step) => step.oneshot_rows + step.decode_rows;
const tokensOf = (step) => step.oneshot_tokens + step.prefill_tokens + step.decode_rows;

function showSteps(card) {
  const { steps } = card;
  const most = Math.max(...steps.map((step) => step.ms), 0.001);
  const column = 1000 / STEPS_KEPT;
  const left = 1000 - steps.length * column;
  const rects = steps.map((step, at) => {
    const height = Math.max(1.5, 92 * (step.ms / most));
    const text = `step ${step.step}, ${KINDS[step.kind]}: ${rowsOf(step)} rows, ${tokensOf(step)} tokens, ${milliseconds(step.ms)}`;
    return draw("rect", {
      class: step.succeeded ? step.kind : "failed",
      x: left + at * column + 0.5, y: 98 - height, width: column - 1, height,
    }, draw("title", {}, text));
  });
  card.strip.replaceChildren(draw("path", { class: "base", d: "M0 98.5H1000", "vector-effect": "non-scaling-stroke" }), ...rects);
  card.strip.setAttribute("aria-label", `Time of the latest ${steps.length} steps, the newest on the right.`);
  const missed = card.missed ? ` ${count(card.missed, "step")} passed faster than this page reads.` : "";
  card.scale.textContent = steps.length
    ? `The latest ${count(steps.length, "step")}, the newest on the right; the tallest took ${milliseconds(most)}.${missed}`
    : "No step has run yet: ask something under Decide.";
  card.root.dataset.step = steps.at(-1)?.step ?? "";
  const listed = steps.slice(-STEPS_LISTED).reverse().map((step) => make("tr", {},
    make("th", { scope: "row" }, whole(step.step)), make("td", {}, step.succeeded ? step.kind : "failed"),
    make("td", {}, whole(rowsOf(step))), make("td", {}, whole(tokensOf(step))), make("td", {}, milliseconds(step.ms))));
  card.list.replaceChildren(...listed);
}

function showNow(card, now) {
  const share = now.prefix_query_tokens ? now.prefix_hit_tokens / now.prefix_query_tokens : 0;
  card.now.replaceChildren(...figures([
    ["Waiting", whole(now.waiting_rows), "rows"],
    ["Running", whole(now.running_oneshot_rows + now.running_decode_seqs), "rows"],
    ["Computed", whole(now.computed_tokens), "tokens"],
    ["Shared", whole(now.shared_tokens), "tokens"],
    ["Cache hits", percent(share), "of prompt tokens"],
    ...(now.failed_steps ? [["Failed steps", whole(now.failed_steps)]] : []),
  ]));
  const pool = [["used", now.used_blocks], ["cached", now.cached_blocks], ["free", now.free_blocks]];
  const all = pool.reduce((sum, [, blocks]) => sum + blocks, 0);
  if (!all) {
    card.pool.replaceChildren();
    return;
  }
  let from = 0;
  const rects = pool.map(([kind, blocks]) => {
    const width = (1000 * blocks) / all;
    from += width;
    return draw("rect", { class: kind, x: from - width, width, height: 10 });
  });
  const host = now.host_blocks ? [make("li", {}, `${whole(now.host_blocks)} copies in host memory`)] : [];
  card.pool.replaceChildren(
    make("h4", {}, "KV blocks"),
    draw("svg", { class: "pool", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" }, ...rects),
    make("ul", { class: "key" }, ...pool.map(([kind, blocks]) =>
      make("li", {}, make("span", { class: `swatch ${kind}` }), `${whole(blocks)} ${kind}`)), ...host));
}

function showQueues(queues, phase) {
  const names = { arriving: "Arriving", oneshot: "One-shot queue", decode: "Chat queue" };
  byId("live-queues").replaceChildren(...figures([
    ["Server", phase],
    ...queues.map((queue) => [names[queue.class] ?? queue.class, whole(queue.rows), `rows, ${count(queue.tokens, "token")}`]),
  ]));
}

/// Shows an event: what has changed, and new steps.
function applyChanges({ phase, queues, models: changed }) {
  showQueues(queues, phase);
  for (const model of changed) {
    const card = cards.get(model.id) ?? liveCard(model.id);
    const kind = models.find(({ id }) => id === model.id)?.kind;
    if (!card.title.textContent) card.title.append(model.id, make("small", {}, kind ? ` ${kind}` : ""));
    // After another start of the server, steps are numbered anew.
    if (model.steps.length && model.steps[0].step <= (card.steps.at(-1)?.step ?? -1)) [card.steps, card.missed] = [[], 0];
    card.steps = [...card.steps, ...model.steps].slice(-STEPS_KEPT);
    card.missed += model.missed_steps;
    showSteps(card);
    showNow(card, model.now);
  }
}

/// The upper bound of the bucket in which a share of the observations is reached.
function within({ le, counts, count: all }, share) {
  let seen = 0;
  const at = counts.findIndex((n) => (seen += n) >= share * all);
  return at < le.length ? `within ${milliseconds(1000 * le[at])}` : `over ${milliseconds(1000 * le.at(-1))}`;
}

function histogram(name, of) {
  const first = of.counts.findIndex((n) => n > 0);
  const last = of.counts.findLastIndex((n) => n > 0);
  const shown = of.counts.slice(Math.max(0, first - 1), last + 2);
  const most = Math.max(...shown);
  const width = 1000 / shown.length;
  const rects = shown.map((n, at) =>
    draw("rect", { x: at * width + 4, y: 100 - 96 * (n / most), width: width - 8, height: 96 * (n / most) }));
  return [
    make("h4", {}, name),
    draw("svg", { class: "histogram", viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" }, ...rects),
    make("p", { class: "hint" }, `${whole(of.count)} times, half ${within(of, 0.5)}, 99 % ${within(of, 0.99)}`),
  ];
}

function showTimes({ models: all }) {
  for (const model of all) {
    const card = cards.get(model.id);
    if (!card) continue;
    const [oneshot, decode] = model.latency;
    const list = [
      ["One-shot requests: waiting", oneshot.queue_seconds],
      ["One-shot requests: computing", oneshot.exec_seconds],
      ["Chat: waiting", decode.queue_seconds],
      ["Chat: to the first token", model.time_to_first_token_seconds],
      ["Chat: between tokens", model.inter_token_seconds],
    ];
    const known = list.filter(([, of]) => of.count > 0);
    card.times.replaceChildren(...known.flatMap(([name, of]) => histogram(name, of)));
  }
}

/// Reads events until the stream ends.
async function readEvents(signal) {
  const response = await send("v1/status/events", undefined, signal);
  byId("live-state").textContent = "Live";
  show(byId("live-problem"), "");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: {")) continue;
      const changes = JSON.parse(event.slice("data: ".length));
      if (changes.models) applyChanges(changes);
    }
  }
}

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    resolve();
  });
});

/// Follows the server's events, and asks for its histograms now and then, until it is stopped.
async function follow() {
  if (following || isPaused) return;
  const { signal } = (following = new AbortController());
  const times = async () => {
    while (!signal.aborted) {
      await pause(cards.size ? STATUS_EVERY_MS : AGAIN_AFTER_MS / 4, signal);
      // The stream says what is wrong if this fails.
      if (!signal.aborted) await ask("v1/status").then(({ json }) => showTimes(json), () => {});
    }
  };
  times();
  while (!signal.aborted) {
    byId("live-state").textContent = "Connecting …";
    try {
      await readEvents(signal);
    } catch (error) {
      if (!signal.aborted) show(byId("live-problem"), error.message);
    }
    await pause(AGAIN_AFTER_MS, signal);
  }
}

function stopFollowing() {
  following?.abort();
  following = null;
}

function startLive() {
  const button = byId("live-pause");
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", isPaused);
    stopFollowing();
    byId("live-state").textContent = isPaused ? "Paused" : "";
    follow();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || byId("view-live").hidden) stopFollowing();
    else follow();
  });
}
