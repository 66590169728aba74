# requires: langchain-openai==1.7.3
"""LangChain's OpenAI integration: chat, streams, batches, completions, embeddings."""

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from support import *

common = dict(base_url=FULL_URL + "/v1", api_key=KEY, model="demo-lm", max_retries=0)
chat = ChatOpenAI(temperature=0, max_tokens=16, extra_body=NO_THINKING, **common)

found = chat.invoke([("human", CARD)])
equal(found.content, "card_arrival")
plain = post("/v1/chat/completions", {"messages": [{"role": "user", "content": CARD}],
                                      "max_tokens": 16, "temperature": 0, **NO_THINKING})
equal(found.usage_metadata["output_tokens"], plain["usage"]["completion_tokens"])
equal(found.response_metadata["finish_reason"], "stop")
equal("".join(c.content for c in chat.stream([("human", CARD)])), "card_arrival")
batch = chat.batch([[("human", CARD)], [("human", "The rate is wrong")]])
equal(batch[0].content, "card_arrival")

scored = chat.bind(logprobs=True, top_logprobs=2, max_tokens=1).invoke(TOPIC)
equal(scored.content, "card")
assert scored.response_metadata["logprobs"]["content"][0]["logprob"] < 0

done = OpenAI(temperature=0, max_tokens=4, **common).invoke("Where is my")
equal(done, post("/v1/completions", {"prompt": "Where is my", "max_tokens": 4, "temperature": 0})
      ["choices"][0]["text"])

# The integration would send ids of a tokenizer that is not the model's.
embed = OpenAIEmbeddings(check_embedding_ctx_length=False, **common)
plain = post("/v1/embeddings", {"input": [CARD, "b"]})["data"]
for found, expected in zip(embed.embed_documents([CARD, "b"]), plain):
    close(found, expected["embedding"])
close(embed.embed_query(CARD), plain[0]["embedding"])
