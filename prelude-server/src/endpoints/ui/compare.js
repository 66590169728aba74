// Compare: rank documents, see similarities, classify.

const UNABLE = {
  rank: "No served model ranks documents: that takes a reranker, as in `prelude serve rank=Qwen/Qwen3-Reranker-0.6B`, or a language model with `--rerank-template`.",
  embed: "No served model embeds texts: that takes an embedding model, as in `prelude serve embed=BAAI/bge-small-en-v1.5`.",
  classify: "No served model classifies: that takes a classifier or a language model.",
};

/// Runs `work` as a form is submitted, and shows what it returns.
function onSubmit(form, work) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button[type=submit]");
    const problem = form.querySelector(".problem");
    show(problem, "");
    button.disabled = true;
    try {
      form.querySelector(".result").replaceChildren(...await work());
    } catch (error) {
      form.querySelector(".result").replaceChildren();
      show(problem, error.message);
    } finally {
      button.disabled = false;
      if (document.activeElement === document.body) button.focus();
    }
  });
}

async function rank() {
  const documents = lines(byId("rank-texts").value);
  const { json } = await ask("rerank", {
    model: byId("rank-model").value, query: byId("rank-query").value, documents, cache_salt: SALT,
  });
  const shares = json.results.map(({ index, relevance_score: score }) => [documents[index], score]);
  return [bars("Documents by relevance", shares), cost(json.model)];
}

const cost = (model) => make("p", { class: "hint" }, `Answered by ${model}.`);

const EMBEDDED_MAX = 12;

async function embed() {
  const input = lines(byId("embed-texts").value);
  if (input.length < 2 || input.length > EMBEDDED_MAX) {
    throw new Error(`Write 2 to ${EMBEDDED_MAX} texts, one in each line; there are ${input.length}.`);
  }
  const { json } = await ask("v1/embeddings", { model: byId("embed-model").value, input, cache_salt: SALT });
  const vectors = json.data.toSorted((a, b) => a.index - b.index).map(({ embedding }) => embedding);
  const product = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
  const cosine = (a, b) => product(a, b) / Math.sqrt(product(a, a) * product(b, b));
  const cell = (value) => make("td", { class: `h${Math.min(4, Math.max(0, Math.floor(value * 5)))}` }, value.toFixed(2));
  const rows = vectors.map((vector, at) => make("tr", {},
    make("th", { scope: "row" }, `${at + 1}. ${input[at]}`), ...vectors.map((other) => cell(cosine(vector, other)))));
  return [
    make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Similarities" },
      make("table", { class: "heat" },
        make("caption", {}, `Cosine of the texts' vectors of ${vectors[0].length} numbers`),
        make("thead", {}, make("tr", {}, make("td"), ...input.map((_, at) => make("th", { scope: "col" }, `${at + 1}.`)))),
        make("tbody", {}, ...rows))),
    cost(json.model),
  ];
}

/// Classes beyond these are too unlikely to be shown.
const CLASSES_SHOWN = 8;

async function classify() {
  const model = byId("classify-model").value;
  const text = byId("classify-text").value;
  if (hasClasses(model)) {
    const { json } = await ask("predict", { model, inputs: text });
    const shares = json.map(({ label, score }) => [label, score]).sort((a, b) => b[1] - a[1]);
    const rest = shares.length - CLASSES_SHOWN;
    const more = rest > 0 ? [make("p", { class: "hint" }, `and ${count(rest, "class", "classes")} below`)] : [];
    return [bars("Classes", shares.slice(0, CLASSES_SHOWN)), ...more, cost(model)];
  }
  const labels = lines(byId("classify-labels").value);
  const { json } = await ask("classify", { model, input: text, labels, cache_salt: SALT });
  const shares = labels.map((label, at) => [label, json.data[0].probs[at]]);
  return [bars("Labels", shares.sort((a, b) => b[1] - a[1])), cost(json.model)];
}

/// A model with a classification head has classes; a language model takes labels.
const hasClasses = (id) => models.find((model) => model.id === id)?.kind !== "lm";

function startCompare() {
  onSubmit(byId("rank-form"), rank);
  onSubmit(byId("embed-form"), embed);
  onSubmit(byId("classify-form"), classify);
  byId("classify-model").addEventListener("change", fitLabels);
}

function fitLabels() {
  byId("classify-labels-field").hidden = hasClasses(byId("classify-model").value);
}

/// Offers the models for each form, the forms that have one before the others, and returns whether
/// there is any.
function offerCompare() {
  const unable = [];
  for (const [name, task] of [["rank", "rerank"], ["embed", "embeddings"], ["classify", "classify"]]) {
    const form = byId(`${name}-form`);
    const isAble = offer(byId(`${name}-model`), task);
    form.querySelector(".fields").hidden = !isAble;
    if (!isAble) unable.push(form);
    show(form.querySelector(".unable"), isAble ? "" : UNABLE[name]);
  }
  const cards = byId("rank-form").parentElement;
  cards.append(...unable);
  fitLabels();
  return unable.length < cards.children.length;
}
