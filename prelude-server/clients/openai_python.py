# requires: openai==3.54.0
"""OpenAI's Python client: completions, chat, streams, embeddings, decisions, models, errors."""

import asyncio

import openai
from support import *

client = openai.OpenAI(base_url=FULL_URL + "/v1", api_key=KEY, max_retries=0)
model = client.models.list().data[0].id
equal(model, "demo-lm")
equal(client.models.retrieve(model).max_model_len, 16384)

# One token of chat, with its log-probability and the likeliest alternatives.
asked = dict(model=model, messages=TOPIC, max_tokens=1, temperature=0, logprobs=True,
             top_logprobs=3, extra_body=NO_THINKING)
chat = client.chat.completions.create(**asked)
equal(chat.choices[0].message.content, "card")
equal(chat.choices[0].finish_reason, "length")
token = chat.choices[0].logprobs.content[0]
equal((token.token, len(token.top_logprobs)), ("card", 3))
equal(token.top_logprobs[0].logprob, token.logprob)
equal(chat.usage.total_tokens, chat.usage.prompt_tokens + 1)

# The same number by way of completions on the rendered prompt.
rendered = post("/tokenize", {"messages": TOPIC, "chat_template_kwargs": {"enable_thinking": False},
                              "add_generation_prompt": True})["tokens"]
done = client.completions.create(model=model, prompt=rendered, max_tokens=1, temperature=0,
                                 logprobs=1)
close(done.choices[0].logprobs.token_logprobs[0], token.logprob)

# Echo and log-probabilities of a prompt, as evaluation harnesses ask.
echo = client.completions.create(model=model, prompt=["Where is my card", "Where is my cash"],
                                 max_tokens=0, echo=True, logprobs=1)
equal([c.text for c in echo.choices], ["Where is my card", "Where is my cash"])
for choice in echo.choices:
    equal(choice.logprobs.token_logprobs[0], None)
    assert all(p < 0 for p in choice.logprobs.token_logprobs[1:])
    equal("".join(choice.logprobs.tokens), choice.text)

# A stream says the same as the whole answer.
asked = dict(model=model, messages=[{"role": "user", "content": CARD}], temperature=0,
             max_tokens=16, extra_body=NO_THINKING)
whole = client.chat.completions.create(**asked)
text, usage = "", None
with client.chat.completions.create(stream=True, stream_options={"include_usage": True},
                                    **asked) as stream:
    for chunk in stream:
        text += "".join(c.delta.content or "" for c in chunk.choices)
        usage = chunk.usage or usage
equal(text, whole.choices[0].message.content)
equal(text, "card_arrival")
# What came from the prefix cache may differ between the two.
equal((usage.prompt_tokens, usage.completion_tokens),
      (whole.usage.prompt_tokens, whole.usage.completion_tokens))
pieces = client.completions.create(model=model, prompt="Where is", max_tokens=8, temperature=0,
                                   stream=True)
equal("".join(p.choices[0].text for p in pieces),
      client.completions.create(model=model, prompt="Where is", max_tokens=8, temperature=0)
      .choices[0].text)

# Seeds repeat draws; `n` draws differ from each other somewhere.
draw = dict(model=model, prompt="I", max_tokens=12, temperature=1.5, seed=7, n=4)
first, again = client.completions.create(**draw), client.completions.create(**draw)
equal([c.text for c in first.choices], [c.text for c in again.choices])
assert len({c.text for c in first.choices}) > 1

# Embeddings: the client asks for base64 by itself; floats must be the same numbers.
texts = [CARD, "The exchange rate is wrong."]
packed = client.embeddings.create(model=model, input=texts)
plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
for a, b in zip(packed.data, plain.data):
    close(list(a.embedding), list(b.embedding))
    close(sum(x * x for x in a.embedding), 1.0, 1e-5)
short = client.embeddings.create(model=model, input=texts[0], dimensions=8)
equal(len(short.data[0].embedding), 8)

# Typed decisions.
questions = [
    {"type": "predicate", "name": "lost", "instructions": "Is a card missing?"},
    {"type": "choice", "name": "topic", "instructions": "Which topic?",
     "choices": [{"value": "card"}, {"value": "transfer"}, {"value": True}]},
    {"type": "score", "instructions": "How angry?",
     "levels": [{"label": "calm"}, {"label": "cross"}, {"label": "furious"}]},
]
decision = client.decisions.create(model=model, input=CARD, questions=questions)
predicate, choice, score = decision.answers
equal((predicate.type, choice.type, score.type), ("predicate", "choice", "score"))
equal((predicate.name, choice.name, score.name), ("lost", "topic", None))
close(sum(p.probability for p in choice.probabilities), 1.0)
equal([p.value for p in choice.probabilities], ["card", "transfer", True])
best = max(choice.probabilities, key=lambda p: p.probability)
equal(choice.choice, best.value)
close(score.score, sum(p.value * p.probability for p in score.probabilities))
plain = post("/v1/decisions", {"input": CARD, "questions": questions})
close(predicate.probability, plain["answers"][0]["probability"])
close(choice.confidence, plain["answers"][1]["confidence"])
messages = [{"role": "user", "content": [{"type": "input_text", "text": CARD}]}]
parts = client.decisions.create(model=model, input=messages, questions=questions)
close(parts.answers[0].probability, predicate.probability)

# Moderations: categories of a model's own classes, or of labels.
labels = ["safe", "card_arrival", "exchange_rate"]
found = client.moderations.create(model=model, input=[CARD, "The exchange rate is wrong."],
                                  extra_body={"labels": labels})
assert found.id.startswith("modr-"), found
equal([r.flagged for r in found.results], [True, True])
equal([r.categories.to_dict() for r in found.results],
      [{"card_arrival": True, "exchange_rate": False},
       {"card_arrival": False, "exchange_rate": True}])
plain = post("/classify", {"model": model, "input": CARD, "labels": labels})["data"][0]["probs"]
close(list(found.results[0].category_scores.to_dict().values()), plain[1:])
one = client.moderations.create(model=model, input=[{"type": "text", "text": CARD}],
                                extra_body={"labels": labels})
equal(one.results[0], found.results[0])

# The answer with its headers.
raw = client.decisions.with_raw_response.create(
    model=model, input=CARD, questions=questions, extra_headers={"X-Request-Id": "from-openai"})
equal(raw.headers["x-request-id"], "from-openai")
equal(raw.headers["x-prelude-class"], "oneshot")
equal(raw.parse().usage.output_tokens, 0)

# Errors arrive as the client's own types.
error = raises(openai.NotFoundError,
               lambda: client.completions.create(model="nobody", prompt="a"))
equal(error.body["reason"], "model_not_found")
error = raises(openai.BadRequestError,
               lambda: client.completions.create(model=model, prompt="a", max_tokens=20000))
assert error.message and "maximum context length is 16384 tokens" in error.message, error
raises(openai.AuthenticationError,
       lambda: openai.OpenAI(base_url=FULL_URL + "/v1", api_key="wrong",
                             max_retries=0).models.list())


async def many():
    """Sixteen at once, each as if alone."""
    async with openai.AsyncOpenAI(base_url=FULL_URL + "/v1", api_key=KEY) as client:
        ask = [client.completions.create(model=model, prompt=f"I have {i} cards and", max_tokens=4,
                                         temperature=0, logprobs=1) for i in range(16)]
        return await asyncio.gather(*ask)


for i, found in enumerate(asyncio.run(many())):
    alone = client.completions.create(model=model, prompt=f"I have {i} cards and", max_tokens=4,
                                      temperature=0, logprobs=1)
    equal(found.choices[0].text, alone.choices[0].text)
    equal(found.choices[0].logprobs.token_logprobs, alone.choices[0].logprobs.token_logprobs)
