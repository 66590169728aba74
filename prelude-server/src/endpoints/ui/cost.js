// What it cost: the prompts of the latest decision as a tree, drawn to scale, beside separate requests.

/// The latest decision's costs have to be drawn.
let isCostOld = false;

function forgetCost() {
  isCostOld = true;
  byId("beside").replaceChildren();
  show(byId("cost-problem"), "");
  drawCost();
}

/// Reads the figures of a response from its headers.
function costOf({ headers, ms }) {
  const read = (name) => Number(headers.get(`x-prelude-${name}`));
  return {
    prompt: read("prompt-tokens"),
    computed: read("computed-tokens"),
    cached: read("cached-tokens"),
    engineMs: read("queue-ms") + read("exec-ms"),
    ms,
  };
}

/// Reads the tree: its nodes from the top down, each with its start, its questions and its children.
function readForest({ nodes, questions }) {
  const read = nodes.map(({ parent, tokens }) => ({ parent, tokens, start: 0, names: [], below: new Set(), children: [] }));
  read.forEach((node, at) => {
    const parent = read[node.parent];
    if (!parent) return;
    node.start = parent.start + parent.tokens;
    parent.children.push(at);
  });
  const separate = Object.entries(questions).map(([name, ends]) => {
    const way = new Set();
    for (const end of ends) {
      read[end].names.push(name);
      for (let at = end; at !== null; at = read[at].parent) way.add(at);
    }
    way.forEach((at) => read[at].below.add(name));
    return { name, way };
  });
  const tokens = (way) => [...way].reduce((sum, at) => sum + read[at].tokens, 0);
  const apart = separate.map(({ name, way }) => ({
    name,
    tokens: tokens(way),
    shared: tokens([...way].filter((at) => read[at].below.size > 1)),
  }));
  mergeRuns(read);
  const order = [];
  const walk = read.map((_, at) => at).filter((at) => read[at].parent === null).reverse();
  while (walk.length) {
    const at = walk.pop();
    order.push(at);
    walk.push(...read[at].children.toReversed());
  }
  return { nodes: read, order, roots: order.filter((at) => read[at].parent === null), separate: apart };
}

/// Joins each node that only one other follows with that one: the server cuts runs of tokens at block
/// edges, which nobody has to see.
function mergeRuns(nodes) {
  for (const [at, node] of [...nodes.entries()].reverse()) {
    if (node.children.length !== 1 || node.names.length) continue;
    const child = nodes[node.children[0]];
    node.tokens += child.tokens;
    node.names = child.names;
    node.children = child.children;
    for (const below of child.children) nodes[below].parent = at;
  }
}

function drawCost() {
  // Sizes are known only while the tab is shown.
  if (!latest || !isCostOld || byId("view-cost").hidden) return;
  isCostOld = false;
  byId("cost-empty").hidden = true;
  byId("cost").hidden = false;
  const cost = costOf(latest);
  const forest = readForest(latest.json.x_prelude.forest);
  const apart = forest.separate.reduce((sum, { tokens }) => sum + tokens, 0);
  const shared = apart - cost.prompt;
  // Prompts that part inside a KV block compute what they share of it each.
  const twice = cost.computed + cost.cached - cost.prompt;
  byId("cost-figures").replaceChildren(...figures([
    ["Prompts, each token once", whole(cost.prompt), "tokens"],
    ["Computed", whole(cost.computed), twice > 0 ? `tokens, ${whole(twice)} of them twice` : "tokens"],
    ["From the cache", whole(cost.cached), "tokens"],
    ["Spared by sharing", whole(shared), "tokens"],
    ["Time in the engine", milliseconds(cost.engineMs)],
    ["Round trip from here", milliseconds(cost.ms)],
  ]));
  for (const name of ["prompt", "computed", "cached"]) byId("cost").dataset[name] = cost[name];
  byId("forest-caption").textContent =
    `One request: ${count(cost.prompt, "token")} for ${count(forest.separate.length, "question")}. ` +
    `As separate requests: ${count(apart, "token")}. Widths are to scale.`;
  byId("forest-box").replaceChildren(drawForest(forest, cost.cached));
}

const ROW = 22;
const BAR = 14;
const NAMES = 190;

function drawForest(forest, cached) {
  const width = Math.max(560, byId("forest-box").clientWidth - 4);
  const longest = Math.max(...forest.separate.map(({ tokens }) => tokens), 1);
  const scale = (width - NAMES - 60) / longest;
  const x = (tokens) => NAMES + tokens * scale;
  const parts = [];
  let y = 0;
  const title = (text) => {
    parts.push(draw("text", { class: "soft", x: 0, y: y + BAR }, text));
    y += ROW;
  };
  const bar = (kind, from, tokens, more = {}) => {
    const size = { x: x(from), y: y + 2, width: Math.max(1, tokens * scale), height: BAR };
    parts.push(draw("rect", { class: kind, ...size, ...more }));
  };
  const label = (name, at, tokens) => {
    const short = name.length > 26 ? `${name.slice(0, 25)}…` : name;
    parts.push(draw("text", { x: 0, y: y + BAR }, short, draw("title", {}, name)));
    parts.push(draw("text", { class: "soft", x: x(at) + 5, y: y + BAR - 1 }, whole(tokens)));
    y += ROW;
  };
  title("One request");
  const places = new Map();
  for (const at of forest.order) {
    const node = forest.nodes[at];
    const parent = places.get(node.parent);
    if (parent !== undefined) {
      parts.push(draw("path", { class: "link", d: `M${x(node.start)} ${parent + BAR + 2}V${y + 2}` }));
    }
    places.set(at, y);
    const isShared = node.below.size > 1;
    bar(isShared ? "shared" : "own", node.start, node.tokens, { "data-tokens": node.tokens });
    // What is cached is the beginning of the prompts: with one root, where it ends is known.
    const fromCache = forest.roots.length === 1 && at === forest.roots[0] ? Math.min(cached, node.tokens) : 0;
    if (fromCache) bar("cached", 0, fromCache);
    const name = node.names.length === 1 || !isShared ? [...node.below].join(", ") : `all of ${node.below.size}`;
    label(isShared ? `shared by ${node.below.size}` : name, node.start + node.tokens, node.tokens);
  }
  const root = forest.nodes[forest.roots[0]];
  const elsewhere = forest.roots.length === 1 ? cached - Math.min(cached, root.tokens) : cached;
  if (elsewhere > 0) title(`${count(elsewhere, "more token")} of these came from the cache.`);
  y += 10;
  title("As separate requests");
  for (const { name, tokens, shared } of forest.separate) {
    bar("again", 0, shared);
    bar("own", shared, tokens - shared);
    label(name, tokens, tokens);
  }
  const described = forest.order.slice(0, 12).map((at) => {
    const node = forest.nodes[at];
    const whose = node.below.size > 1 ? `shared by ${node.below.size} questions` : `of ${[...node.below].join(", ")}`;
    return `${node.tokens} tokens ${whose}`;
  });
  return draw("svg", { width, height: y, role: "img", "aria-label": `Tree of prompts: ${described.join("; ")}.` }, ...parts);
}

/// Rounds of the comparison; one if there are more questions than `MANY`.
const ROUNDS = 5;
const MANY = 20;

/// Returns the one in the middle by the time in the engine.
const middle = (costs) => costs.toSorted((a, b) => a.engineMs - b.engineMs)[Math.floor(costs.length / 2)];

/// Asks the questions together and apart, with nothing cached, and shows the round in the middle.
async function separately() {
  const { asked } = latest;
  const button = byId("separately");
  button.disabled = true;
  show(byId("cost-problem"), "");
  const uncached = async (questions) => {
    const body = decisionBody(asked, questions, [], [["cache_salt", `ui-${random()}`]]);
    return costOf(await ask("v1/systemone", write(body)));
  };
  try {
    const rounds = asked.questions.length > MANY ? 1 : ROUNDS;
    const all = { together: [], apart: [] };
    for (let round = 1; round <= rounds; round += 1) {
      byId("beside").textContent = `Round ${round} of ${rounds} …`;
      all.together.push(await uncached(asked.questions));
      const sum = { computed: 0, engineMs: 0, ms: 0 };
      for (const question of asked.questions) {
        const one = await uncached([question]);
        for (const name of Object.keys(sum)) sum[name] += one[name];
      }
      all.apart.push(sum);
    }
    const [together, apart] = [middle(all.together), middle(all.apart)];
    const row = (name, requests, cost) => make("tr", {}, make("th", { scope: "row" }, name),
      ...[whole(requests), whole(cost.computed), milliseconds(cost.engineMs), milliseconds(cost.ms)]
        .map((text) => make("td", {}, text)));
    const head = ["", "Requests", "Tokens computed", "Engine", "Round trips"];
    const times = (name) => `${(apart[name] / Math.max(together[name], 1e-9)).toFixed(1)} times`;
    byId("beside").replaceChildren(
      make("p", { class: "saved" },
        `Separate requests compute ${times("computed")} the tokens and take ${times("engineMs")} the engine's time.`),
      make("table", { class: "plain" },
        make("caption", {}, `With nothing cached, one request after the other; the middle of ${count(rounds, "round")}`),
        make("thead", {}, make("tr", {}, ...head.map((text) => make(text ? "th" : "td", text ? { scope: "col" } : {}, text)))),
        make("tbody", {}, row("Together", 1, together), row("Separately", asked.questions.length, apart))));
  } catch (error) {
    byId("beside").replaceChildren();
    show(byId("cost-problem"), error.message);
  } finally {
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();
  }
}

function startCost() {
  byId("separately").addEventListener("click", separately);
}
