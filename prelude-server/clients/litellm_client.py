# requires: litellm==1.106.2
"""LiteLLM: chat, text completion, embeddings, rerank of four providers, decisions."""

import os

# It would fetch a price list from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from support import *

litellm.num_retries = 0
v1 = FULL_URL + "/v1"

for provider in ["openai", "hosted_vllm"]:
    found = litellm.completion(model=f"{provider}/demo-lm", messages=TOPIC, api_base=v1, api_key=KEY,
                               max_tokens=1, temperature=0, logprobs=True, top_logprobs=2,
                               extra_body=NO_THINKING)
    equal(found.choices[0].message.content, "card")
    assert found.choices[0].logprobs.content[0].logprob < 0
    chunks = litellm.completion(model=f"{provider}/demo-lm", api_base=v1, api_key=KEY, max_tokens=16,
                                messages=[{"role": "user", "content": CARD}], temperature=0,
                                stream=True, extra_body=NO_THINKING)
    equal("".join(c.choices[0].delta.content or "" for c in chunks), "card_arrival")

found = litellm.text_completion(model="text-completion-openai/demo-lm", prompt="Where is my",
                                api_base=v1, api_key=KEY, max_tokens=4, temperature=0)
plain = post("/v1/completions", {"prompt": "Where is my", "max_tokens": 4, "temperature": 0})
equal(found.choices[0].text, plain["choices"][0]["text"])

found = litellm.embedding(model="openai/demo-lm", input=[CARD, "b"], api_base=v1, api_key=KEY,
                          encoding_format="float")
plain = post("/v1/embeddings", {"input": [CARD, "b"]})
for a, b in zip(found.data, plain["data"]):
    close(a["embedding"], b["embedding"])

expected = ranking()
for provider in ["cohere", "hosted_vllm", "jina_ai", "infinity"]:
    # Infinity's documents come back as strings, which its clients insist on.
    more = {"return_documents": False} if provider == "infinity" else {}
    found = litellm.rerank(model=f"{provider}/demo-lm", query=QUERY, documents=DOCUMENTS, top_n=3,
                           api_base=FULL_URL, api_key=KEY, **more)
    equal([r["index"] for r in found.results], [i for i, _ in expected])
    close([r["relevance_score"] for r in found.results], [s for _, s in expected])

questions = [{"type": "predicate", "name": "lost", "instructions": "Is a card missing?"},
             {"type": "choice", "name": "topic", "instructions": "Which topic?",
              "choices": [{"value": "card"}, {"value": "transfer"}]}]
plain = post("/v1/decisions", {"input": CARD, "questions": questions})["answers"]
for provider, base in [("openai", v1), ("hosted_vllm", FULL_URL), ("typesafe", FULL_URL)]:
    found = litellm.decisions(model=f"{provider}/demo-lm", input=CARD, questions=questions,
                              api_base=base, api_key=KEY)
    predicate, choice = found.answers
    # Either dialect gives the same numbers.
    close(predicate.probability, plain[0]["probability"])
    equal(choice.choice, plain[1]["choice"])
    close(choice.confidence, plain[1]["confidence"])

error = raises(litellm.NotFoundError, lambda: litellm.completion(
    model="openai/nobody", messages=TOPIC, api_base=v1, api_key=KEY))
raises(litellm.AuthenticationError, lambda: litellm.completion(
    model="openai/demo-lm", messages=TOPIC, api_base=v1, api_key="wrong"))
raises(litellm.ContextWindowExceededError, lambda: litellm.completion(
    model="openai/demo-lm", messages=TOPIC, api_base=v1, api_key=KEY, max_tokens=20000))
