# requires: cohere==7.3.1
"""Cohere's client: rerank in both versions of its API, embed in the second."""

import cohere
from cohere.core.api_error import ApiError
from support import *

expected = ranking()

v2 = cohere.ClientV2(api_key=KEY, base_url=FULL_URL)
found = v2.rerank(model="demo-lm", query=QUERY, documents=DOCUMENTS)
equal([r.index for r in found.results], [i for i, _ in expected])
close([r.relevance_score for r in found.results], [s for _, s in expected])
equal(found.meta.api_version.version, "2")
equal(found.meta.billed_units.search_units, 1)
top = v2.rerank(model="demo-lm", query=QUERY, documents=DOCUMENTS, top_n=1,
                max_tokens_per_doc=512)
equal([r.index for r in top.results], [expected[0][0]])

vectors = [item["embedding"] for item in post("/v1/embeddings", {"input": DOCUMENTS})["data"]]
embedded = v2.embed(model="demo-lm", texts=DOCUMENTS, input_type="search_document",
                    embedding_types=["float", "ubinary", "base64"])
close(embedded.embeddings.float_, vectors)
equal([bits[0] >= 128 for bits in embedded.embeddings.ubinary], [v[0] > 0 for v in vectors])
equal(len(embedded.embeddings.base64), len(DOCUMENTS))
equal(embedded.texts, DOCUMENTS)
plain = v2.embed(model="demo-lm", texts=DOCUMENTS[:1], input_type="search_query",
                 output_dimension=8, truncate="START")
equal(len(plain.embeddings.float_[0]), 8)

v1 = cohere.Client(api_key=KEY, base_url=FULL_URL)
found = v1.rerank(model="demo-lm", query=QUERY, documents=DOCUMENTS, return_documents=True)
equal([r.index for r in found.results], [i for i, _ in expected])
close([r.relevance_score for r in found.results], [s for _, s in expected])
equal(found.results[0].document.text, DOCUMENTS[expected[0][0]])
bare = v1.rerank(query=QUERY, documents=[{"text": d} for d in DOCUMENTS], top_n=2,
                 return_documents=False)
equal([r.index for r in bare.results], [i for i, _ in expected[:2]])

error = raises(ApiError, lambda: v2.rerank(model="nobody", query="q", documents=["d"]))
equal(error.status_code, 404)
error = raises(ApiError, lambda: v2.rerank(model="demo-lm", query="q", documents=[]))
equal(error.status_code, 400)
error = raises(ApiError, lambda: cohere.ClientV2(api_key="wrong", base_url=FULL_URL).rerank(
    model="demo-lm", query="q", documents=["d"]))
equal(error.status_code, 401)
