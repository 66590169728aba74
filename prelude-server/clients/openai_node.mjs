// requires: openai@7.57.0
// OpenAI's client for Node: completions, chat, streams, embeddings, decisions, errors.
import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.env.PRELUDE_FULL_URL;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.PRELUDE_KEY, maxRetries: 0 });
const close = (found, expected, tolerance = 1e-6) =>
  assert.ok(Math.abs(found - expected) <= tolerance, `${found} is not ${expected}`);
const state = "Where is my card? I ordered it two weeks ago.";

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ["demo-lm"]);
const model = models[0];

const chat = await client.chat.completions.create({
  model, messages: [{ role: "user", content: "Where is my card?\nWhich topic?" }],
  max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: 2,
  chat_template_kwargs: { enable_thinking: false },
});
assert.equal(chat.choices[0].message.content, "card");
assert.equal(chat.choices[0].logprobs.content[0].top_logprobs.length, 2);
assert.ok(chat.choices[0].logprobs.content[0].logprob < 0);

const asked = {
  model, messages: [{ role: "user", content: state }], max_tokens: 16, temperature: 0,
  chat_template_kwargs: { enable_thinking: false },
};
const whole = await client.chat.completions.create(asked);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(text, "card_arrival");

const runner = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
assert.equal(await runner.finalContent(), text);
assert.equal((await runner.totalUsage()).completion_tokens, whole.usage.completion_tokens);

const floats = await client.embeddings.create({ model, input: [state, "b"], encoding_format: "float" });
const packed = await client.embeddings.create({ model, input: [state, "b"] });
assert.equal(packed.data.length, 2);
packed.data.forEach((item, i) => item.embedding.forEach((x, j) => close(x, floats.data[i].embedding[j])));
close(packed.data[0].embedding.reduce((sum, x) => sum + x * x, 0), 1, 1e-5);

const questions = [
  { type: "predicate", name: "lost", instructions: "Is a card missing?" },
  { type: "choice", name: "topic", instructions: "Which topic?", choices: [{ value: "card" }, { value: "transfer" }] },
];
const decision = await client.decisions.create({ model, input: state, questions });
const [lost, topic] = decision.answers;
assert.equal(lost.name, "lost");
assert.ok(lost.probability > 0 && lost.probability < 1);
close(topic.probabilities.reduce((sum, p) => sum + p.probability, 0), 1);
const best = topic.probabilities.reduce((a, b) => (b.probability > a.probability ? b : a));
assert.equal(topic.choice, best.value);
const alone = await client.decisions.create({ model, input: state, questions: [questions[1]] });
assert.deepEqual(alone.answers[0], topic);

await assert.rejects(
  client.completions.create({ model: "nobody", prompt: "a" }),
  (error) => error instanceof OpenAI.NotFoundError && error.error.reason === "model_not_found",
);
await assert.rejects(
  new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list(),
  (error) => error instanceof OpenAI.AuthenticationError,
);
const aborted = new AbortController();
const stream = await client.completions.create(
  { model, prompt: "a", max_tokens: 2000, ignore_eos: true, stream: true }, { signal: aborted.signal });
for await (const _ of stream) aborted.abort();
