# requires: llama-index-llms-openai-like==0.8.1 llama-index-embeddings-openai-like==0.4.0 llama-index-postprocessor-cohere-rerank==0.10.0
"""LlamaIndex: chat, completion, streams, embeddings, and Cohere's reranker as a postprocessor."""

from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.cohere_rerank import CohereRerank
from support import *

common = dict(model="demo-lm", api_base=FULL_URL + "/v1", api_key=KEY, context_window=4096,
              max_retries=0)
chat = OpenAILike(is_chat_model=True, temperature=0, max_tokens=16,
                  additional_kwargs={"extra_body": NO_THINKING}, **common)
message = [ChatMessage(role="user", content=CARD)]
equal(chat.chat(message).message.content, "card_arrival")
equal("".join(c.delta or "" for c in chat.stream_chat(message)), "card_arrival")

plain = post("/v1/completions", {"prompt": "Where is my", "max_tokens": 4, "temperature": 0})
text = OpenAILike(is_chat_model=False, temperature=0, max_tokens=4, **common)
equal(text.complete("Where is my").text, plain["choices"][0]["text"])

embed = OpenAILikeEmbedding(model_name="demo-lm", api_base=FULL_URL + "/v1", api_key=KEY)
plain = post("/v1/embeddings", {"input": [CARD, "b"]})["data"]
for found, expected in zip(embed.get_text_embedding_batch([CARD, "b"]), plain):
    close(found, expected["embedding"])

nodes = [NodeWithScore(node=TextNode(text=d), score=0.0) for d in DOCUMENTS]
rerank = CohereRerank(model="demo-lm", api_key=KEY, base_url=FULL_URL, top_n=2)
found = rerank.postprocess_nodes(nodes, query_str=QUERY)
# It shows a document together with its metadata, of which these have none.
expected = ranking()[:2]
equal([n.node.text for n in found], [DOCUMENTS[i] for i, _ in expected])
close([n.score for n in found], [s for _, s in expected])
