// Decide: a state, typed questions, and the answers.

const TYPES = { choice: "a choice", noul: "yes or no", score: "a score" };
const CRITERIA = {
  choice: "Options, one in each line; “name: meaning” describes one",
  score: "Levels from low to high, one in each line",
};
const EXAMPLE = {
  state: "I ordered a new card two weeks ago and it still has not arrived. I asked about my card twice already, " +
    "and you told me both times that the card was sent. When will my new card arrive?",
  questions: [
    ["topic", "choice", "Which topic?", "card\ntransfer\nexchange"],
    ["missing", "noul", "Is a card missing?", ""],
    ["anger", "score", "How angry is the customer?", "Calm\nCross\nFurious"],
  ],
};

/// The latest decision: what was asked, the response and its headers.
let latest = null;

/// An object whose members keep their order, whatever they are called.
class Ordered {
  constructor(entries) {
    this.entries = entries;
  }
}

/// Writes a value as JSON or, with other words for null and the truth values, as Python; on one line
/// without an indent.
function write(value, indent = "", words = { null: "null", true: "true", false: "false" }, depth = "") {
  if (value === null || typeof value === "boolean") return words[value];
  const inner = depth + indent;
  const join = (open, parts, close) => {
    if (!parts.length) return open + close;
    return indent
      ? `${open}\n${inner}${parts.join(`,\n${inner}`)}\n${depth}${close}`
      : open + parts.join(",") + close;
  };
  if (Array.isArray(value)) return join("[", value.map((v) => write(v, indent, words, inner)), "]");
  if (value instanceof Ordered) {
    const member = ([name, v]) => `${JSON.stringify(name)}:${indent && " "}${write(v, indent, words, inner)}`;
    return join("{", value.entries.map(member), "}");
  }
  return JSON.stringify(value);
}

let questionCount = 0;

/// Adds a question to the form and returns its list item.
function addQuestion(name, type, instructions, criteria) {
  const id = `q${questionCount++}`;
  const field = (label, input) =>
    make("div", { class: "field" }, make("label", { for: input.id }, label), input);
  const select = make("select", { id: `${id}-type`, "data-part": "type" },
    ...Object.entries(TYPES).map(([value, text]) => make("option", { value }, text)));
  const nameInput = make("input", { id: `${id}-name`, "data-part": "name", required: "" });
  const asked = make("input", { id: `${id}-asked`, "data-part": "instructions" });
  const list = make("textarea", { id: `${id}-criteria`, "data-part": "criteria", rows: 2 });
  const listField = field("", list);
  const remove = make("button", { type: "button", class: "quiet" }, "Remove");
  const item = make("li", {},
    make("div", { class: "question-head" },
      field("Name", nameInput), field("Question", asked), field("Answered by", select), remove),
    listField);
  [nameInput.value, select.value, asked.value, list.value] = [name, type, instructions, criteria];
  const fit = () => {
    listField.hidden = select.value === "noul";
    list.rows = Math.min(8, Math.max(2, lines(list.value).length));
    listField.querySelector("label").textContent = CRITERIA[select.value] ?? "";
    remove.setAttribute("aria-label", `Remove question ${nameInput.value}`);
  };
  fit();
  select.addEventListener("change", fit);
  nameInput.addEventListener("change", fit);
  list.addEventListener("change", fit);
  remove.addEventListener("click", () => {
    const near = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    (near?.querySelector("input") ?? byId("add-question")).focus();
  });
  byId("questions").append(item);
  return item;
}

/// Reads the questions of the form.
function readQuestions() {
  const questions = Array.from(byId("questions").children, (item) => {
    const part = (name) => item.querySelector(`[data-part=${name}]`).value;
    const question = { name: part("name").trim(), type: part("type"), instructions: part("instructions").trim() };
    const listed = lines(part("criteria"));
    if (question.type === "score") question.levels = listed;
    if (question.type === "choice") {
      question.options = listed.map((line) => {
        const at = line.indexOf(": ");
        return at < 1 ? [line, null] : [line.slice(0, at), line.slice(at + 2)];
      });
    }
    return question;
  });
  const names = questions.map((question) => question.name);
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  if (!questions.length) throw new Error("Add a question first.");
  if (twice !== undefined) throw new Error(`Two questions are named “${twice}”: give each a name of its own.`);
  for (const { name, options } of questions) {
    const seen = (options ?? []).map(([option]) => option);
    const again = seen.find((option, at) => seen.indexOf(option) !== at);
    if (again !== undefined) throw new Error(`“${name}” has the option “${again}” twice.`);
  }
  return questions;
}

function criteriaOf({ type, options, levels }) {
  if (type === "choice") return new Ordered(options);
  return type === "score" ? levels : null;
}

/// Returns the body of a request with these questions; `options` are further members of `x_prelude`,
/// and `more` of the body.
function decisionBody(asked, questions, options = [], more = []) {
  const question = (q) => {
    const members = [["type", q.type]];
    if (q.instructions) members.push(["instructions", q.instructions]);
    const criteria = criteriaOf(q);
    if (criteria) members.push(["criteria", criteria]);
    return [q.name, new Ordered(members)];
  };
  return new Ordered([
    ["model", asked.model],
    ["state", asked.state],
    ["questions", new Ordered(questions.map(question))],
    ["x_prelude", new Ordered([["labels", asked.labels], ...options])],
    ...more,
  ]);
}

async function decide() {
  const button = byId("ask");
  show(byId("decide-problem"), "");
  try {
    const asked = {
      model: byId("decide-model").value,
      labels: byId("decide-labels").value,
      state: byId("state").value,
      questions: readQuestions(),
    };
    button.disabled = true;
    const body = decisionBody(asked, asked.questions, [["forest", true]], [["cache_salt", SALT]]);
    const answered = await ask("v1/systemone", write(body));
    latest = { asked, ...answered };
    showAnswers();
    forgetCost();
  } catch (error) {
    show(byId("decide-problem"), error.message);
  } finally {
    button.disabled = false;
    // A button that was disabled has lost the focus.
    if (document.activeElement === document.body) button.focus();
  }
}

/// Returns what an answer says in short, a note beside it, and the share of each possible answer.
function read(question, answer) {
  if (answer.type === "noul") {
    const shares = [["yes", answer.noul], ["no", 1 - answer.noul]];
    return { said: answer.noul >= 0.5 ? "yes" : "no", note: percent(Math.max(answer.noul, 1 - answer.noul)), shares };
  }
  if (answer.type === "choice") {
    const shares = question.options.map(([name]) => [name, answer.probabilities[name]]);
    return { said: answer.choice, note: `confidence ${answer.confidence.toFixed(2)}`, shares };
  }
  const shares = question.levels.map((level, at) => [level, answer.probabilities[at]]);
  const top = question.levels.length - 1;
  return { said: answer.score.toFixed(2), note: `from 0 to ${top}, confidence ${answer.confidence.toFixed(2)}`, shares };
}

/// The probability of all labels together below which the answer is a guess.
const SMALL_MASS = 0.1;

function showAnswers() {
  const { asked, json } = latest;
  const said = [];
  const cards = asked.questions.map((question) => {
    const answer = read(question, json.answers[question.name]);
    const mass = json.x_prelude.diagnostics[question.name].label_mass;
    said.push(`${question.name}: ${answer.said}`);
    const massText = mass === null ? "" :
      `Label mass ${mass > 0 && mass < 0.001 ? mass.toExponential(1) : percent(mass)}` +
      (mass < SMALL_MASS ? ": the model would say something else, so this is a guess." : ".");
    return make("article", { class: "answer" },
      make("h3", {}, question.instructions ? `${question.name} — ${question.instructions}` : question.name),
      make("p", { class: "said" }, answer.said, " ", make("small", {}, answer.note)),
      bars(`Probabilities of ${question.name}`, answer.shares),
      make("p", { class: "hint" }, massText));
  });
  byId("answers").replaceChildren(...cards);
  byId("decide-said").textContent = `Answered by ${json.model}. ${said.join(". ")}.`;
  byId("decide-empty").hidden = true;
  byId("copy-row").hidden = false;
  byId("code").hidden = true;
  byId("copied").textContent = "";
}

/// The same request as a command or a program. A key is left to the environment.
const PROGRAMS = {
  curl: (url, body) => {
    const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
    const bearer = key ? ' -H "Authorization: Bearer $PRELUDE_API_KEY"' : "";
    return `curl -s ${quoted(url)} -H 'Content-Type: application/json'${bearer} -d ${quoted(write(body, "  "))}\n`;
  },
  python: (url, body) => {
    const words = { null: "None", true: "True", false: "False" };
    const bearer = key ? ', "Authorization": "Bearer " + os.environ["PRELUDE_API_KEY"]' : "";
    return `import json${key ? ", os" : ""}, urllib.request

body = ${write(body, "    ", words)}
request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode(),
                                 {"Content-Type": "application/json"${bearer}})
with urllib.request.urlopen(request) as response:
    print(json.dumps(json.load(response)["answers"], indent=2))
`;
  },
  node: (url, body) => {
    const bearer = key ? ", authorization: `Bearer ${process.env.PRELUDE_API_KEY}`" : "";
    const text = write(body, "  ").replace(/[\\`]|\$\{/g, "\\$&");
    return `const response = await fetch(${JSON.stringify(url)}, {
  method: "POST",
  headers: { "content-type": "application/json"${bearer} },
  body: \`${text}\`,
});
const { answers } = await response.json();
console.log(JSON.stringify(answers, null, 2));
`;
  },
};

async function copy(language) {
  const { asked } = latest;
  const text = PROGRAMS[language](address("v1/systemone"), decisionBody(asked, asked.questions));
  byId("code").textContent = text;
  byId("code").hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = "Copied.";
  } catch {
    // Browsers copy on https and on this machine alone.
    byId("copied").textContent = "Select and copy it below.";
  }
}

function startDecide() {
  byId("state").value = EXAMPLE.state;
  EXAMPLE.questions.forEach((question) => addQuestion(...question));
  byId("add-question").addEventListener("click", () => {
    const names = Array.from(document.querySelectorAll("[data-part=name]"), (input) => input.value);
    let at = names.length + 1;
    while (names.includes(`question${at}`)) at += 1;
    const item = addQuestion(`question${at}`, "noul", "", "");
    item.querySelector("input").select();
  });
  const form = byId("decide-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    decide();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(button.dataset.copy));
  }
}

/// Offers the models that answer typed questions, and returns whether there are any.
function offerDecide() {
  const isAble = offer(byId("decide-model"), "systemone");
  for (const part of byId("decide-form").children) {
    if (!part.matches("h2, .notice")) part.hidden = !isAble;
  }
  if (!isAble) byId("decide-empty").hidden = true;
  show(byId("decide-unable"), isAble ? "" :
    "No served model answers typed questions: that takes a language model, as in `prelude serve Qwen/Qwen3-0.6B`. What the others can do is under Compare.");
  return isAble;
}
